import { expect, test } from 'vitest';

import type { RegistrationEvent } from './registration.ts';
import { startRouter } from './router-server.ts';
import { routerOptions, until } from './router.fixture.ts';
import { StandInReplica } from './stand-in-replica.fixture.ts';

async function replicasOf(controlUrl: string): Promise<{ id: string; state: string; version: number }[]> {
  const answer = await fetch(`${controlUrl}/replicas`);
  // The route's own form.
  return ((await answer.json()) as { replicas: { id: string; state: string; version: number }[] }).replicas;
}

test('every router gets the description of now, by itself and when asked; one that is away stops nobody and is found again', async () => {
  await using first = await startRouter(routerOptions({ leaseMs: 90 }));
  const gone = await startRouter(routerOptions());
  const { controlUrl } = gone;
  await gone.close();
  await using replica = await StandInReplica.start({ id: 'a' });
  const events: RegistrationEvent[] = [];
  const registration = replica.register([first.controlUrl, controlUrl], {
    retryMs: { first: 5, most: 20 },
    onEvent: (event) => events.push(event),
  });
  await registration.renew();
  expect(registration.registered).toEqual([first.controlUrl]);
  // No call of ours: a third of the lease brings the new version.
  replica.version = 3;
  await until(async () => (await replicasOf(first.controlUrl))[0]?.version === 3);
  replica.version = 4;
  await registration.renew();
  expect((await replicasOf(first.controlUrl))[0]?.version).toBe(4);

  await using second = await startRouter(routerOptions({ controlPort: Number(new URL(controlUrl).port) }));
  await until(() => registration.registered.length === 2);
  expect(await replicasOf(second.controlUrl)).toMatchObject([{ id: 'a', state: 'HEALTHY', version: 4 }]);
  expect(events.filter(({ type }) => type === 'router-lost')).toHaveLength(1);

  await registration.close();
  expect(await replicasOf(second.controlUrl)).toMatchObject([{ id: 'a', state: 'DEAD' }]);
});

import { expect, test } from 'vitest';

import { HoneError } from '../../domain/errors.ts';
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

test('each failed try says why, and what would help: another token, a data port, nobody there', async () => {
  const told: string[] = [];
  await using router = await startRouter(
    routerOptions({ token: 'the token of the fleet', say: (sentence) => told.push(sentence) }),
  );
  await using open = await startRouter(routerOptions());
  const gone = await startRouter(routerOptions());
  await gone.close();
  await using replica = await StandInReplica.start({ id: 'a' });
  const sentences = new Map<string, Set<string>>();
  const begin = (routers: string[], token: { token?: string } = {}): AsyncDisposable =>
    replica.register(routers, {
      ...token,
      retryMs: { first: 5, most: 20 },
      onEvent: (event) => {
        if (event.type !== 'router-unheard' || !(event.error instanceof HoneError)) return;
        const said = `${event.error.message} ${event.error.cure}`;
        sentences.set(event.router, (sentences.get(event.router) ?? new Set()).add(said));
      },
    });
  {
    await using _ = begin([router.controlUrl, open.url, gone.controlUrl]);
    await until(() => sentences.size === 3);
  }
  const said = (url: string): string[] => [...(sentences.get(url) ?? [])];
  expect(said(router.controlUrl)).toEqual([
    `The router ${router.controlUrl} lets in only who has its token, and none is given here. Set HONE_TOKEN to the same secret for routers and replicas.`,
  ]);
  expect(said(open.url)).toEqual([
    expect.stringMatching(/is no router's control port.*not the data port, with --router\./),
  ]);
  expect(said(gone.controlUrl)).toEqual([expect.stringMatching(/cannot be reached: .*ECONNREFUSED.*Start it/)]);
  sentences.clear();
  await using _ = begin([router.controlUrl], { token: 'the token of another one' });
  await until(() => sentences.size === 1);
  expect(said(router.controlUrl)[0]).toContain('the one given here is another');
  // The router tells its own side once, whoever knocks and however often.
  expect(told).toEqual([expect.stringMatching(/^A replica from 127\.0\.0\.1 was refused.*HONE_TOKEN/)]);
});

import { expect, test } from 'vitest';

import { decodedOf, requestOf, startFleet } from './router.fixture.ts';

test('a reply through the router is the one that the replica gives', async () => {
  await using fleet = await startFleet({ replicas: [{ id: 'a' }] });
  const [a] = fleet.replicas;
  const request = requestOf(1);
  const told: number[] = [];
  const reply = await fleet.policy().generate({ ...request, onToken: (id) => told.push(id) });
  expect(reply).toEqual(a?.expected(decodedOf(request)));
  expect(told).toEqual([...reply.tokens]);
});

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import { readReplicaLeases, removeReplicaLease, writeReplicaLease } from './replica-leases.ts';
import { FileStore } from './store/file-store.ts';
import { watchStore } from './store/watched-store.fixture.ts';
import type { WeightStore } from './store/weight-store.ts';

let root: string;
let store: FileStore;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-leases-'));
  store = await FileStore.open(root);
});
afterEach(() => rm(root, { recursive: true, force: true }));

const write = (
  nowMs: number,
  {
    cluster = 'eu',
    version = 7,
    on = store,
    runId = 'run',
  }: { cluster?: string; version?: number; on?: WeightStore; runId?: string } = {},
): ReturnType<typeof writeReplicaLease> =>
  writeReplicaLease(on, { cluster, runId, oldestVersion: policyVersion(version), nowMs, ttlMs: 10_000 });

it('is taken, renewed when half of it is over, moved on with the version, and given up', async () => {
  expect(await write(1000)).toBe('written');
  expect(await write(4000)).toBe('unchanged');
  expect(await write(6500)).toBe('written');
  expect(await write(6600, { version: 8 })).toBe('written');
  expect(await write(6600, { version: 8, runId: 'other' })).toBe('written');
  // A clock that was set back must not leave a lease that lasts for years.
  expect(await write(-5e9, { version: 8, runId: 'other' })).toBe('written');
  expect(await write(6600, { cluster: 'us' })).toBe('written');
  expect(await readReplicaLeases(store, { nowMs: 7000 })).toMatchObject([
    {
      cluster: 'eu',
      runId: 'other',
      oldestVersion: 8,
      expiresAtMs: -5e9 + 10_000,
      honouredUntilMs: -5e9 + 610_000,
      isLive: false,
    },
    { cluster: 'us', runId: 'run', oldestVersion: 7, expiresAtMs: 16_600, honouredUntilMs: 616_600, isLive: true },
  ]);
  await removeReplicaLease(store, 'eu');
  expect((await readReplicaLeases(store, { nowMs: 7000 })).map(({ cluster }) => cluster)).toEqual(['us']);
  expect(await write(7000)).toBe('written');
});

it('counts as live for ten minutes longer than it says, and however far ahead it was written', async () => {
  await write(0);
  for (const [nowMs, isLive] of [
    [9999, true],
    [609_999, true],
    [610_000, false],
    [-1e15, true],
  ] as const)
    expect((await readReplicaLeases(store, { nowMs }))[0]?.isLive).toBe(isLive);
});

it('is replaced by its own controller when it cannot be read, and an error for all others', async () => {
  await store.compareAndSwapPointer('leases/eu', undefined, '{"run_id":"run","oldest_version":-1,"expires_at_ms":1}');
  await expect(readReplicaLeases(store, { nowMs: 0 })).rejects.toMatchObject({
    code: 'store-failed',
    message: expect.stringMatching(/leases\/eu cannot be read .*oldest_version/u),
  });
  expect(await write(0)).toBe('written');
  expect(await readReplicaLeases(store, { nowMs: 0 })).toHaveLength(1);
  for (const cluster of ['a/b', '', '../a'])
    await expect(write(0, { cluster })).rejects.toMatchObject({ code: 'store-failed' });
});

it('gives up when somebody else writes it every time', async () => {
  let others = 0;
  const contested = watchStore(store, async ({ operation, when }) => {
    if (operation !== 'compareAndSwapPointer' || when === 'after') return;
    const pointer = await store.readPointer('leases/eu');
    await store.compareAndSwapPointer('leases/eu', pointer?.tag, `{"other":${others++}}`);
  });
  await expect(write(0, { on: contested })).rejects.toMatchObject({
    code: 'pointer-conflict',
    message: expect.stringContaining('cluster eu'),
  });
  expect(others).toBe(8);
});

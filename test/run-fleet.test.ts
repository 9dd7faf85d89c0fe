/**
 * `hone train` whose weights go to a store elsewhere and whose rollouts come from replicas behind a router: the same bits as a run with
 * the replica in its own process, also when a replica is killed on the way.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { serve, serveReplica } from './fleet-process.fixture.ts';
import { newestCheckpointHash, readSteps, runHone, startHone, writeConfig } from './hone-process.fixture.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';
import { policyVersion } from '../src/domain/ids.ts';
import { readIndex } from '../src/sync/version-chain.ts';
import { FileStore } from '../src/sync/store/file-store.ts';

let directory = '';
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'hone-run-fleet-'));
  await writeTinyModel(join(directory, 'model'));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

async function imageChecksums(store: string, runId: string, versions: number): Promise<unknown[]> {
  const source = await FileStore.open(join(directory, store));
  return Promise.all(
    Array.from({ length: versions }, async (_, index) => {
      const identity = { runId, version: policyVersion(index + 1), attempt: 0 };
      return (await readIndex(source, identity, {})).imageChecksum;
    }),
  );
}

test.each(['inline', 'store'] as const)(
  'a synchronous run through a router has the bits of one in a single process, and a killed replica changes none (kept sets %s)',
  async (keptSets) => {
    await using router = await serve(['router'], { cwd: directory });
    await using first = await serveReplica({ id: 'first', router, run: 'fleet' }, { cwd: directory });
    await using second = await serveReplica({ id: 'second', router, run: 'fleet' }, { cwd: directory });
    expect(second.url).not.toBe(first.url);
    const steps = { algorithm: { steps: 4, groupSize: 4, groupsPerStep: 4, learningRate: 1e-3, warmupSteps: 1 } };
    const alone = writeConfig(directory, 'model', {
      name: 'alone',
      ...steps,
      schedule: { mode: 'sync', concurrency: 16 },
    });
    const fleet = writeConfig(directory, 'model', {
      name: 'fleet',
      ...steps,
      engine: { build: 'plain', threads: 2 },
      schedule: { mode: 'sync', concurrency: 16 },
      weights: { store: 'store' },
      serve: { routers: [router.url], keptSets },
    });
    await using run = startHone(['train', fleet], { cwd: directory });
    await run.reached('  1/4');
    first.process.child.kill('SIGKILL');
    const trained = await run.result;
    expect(trained.code, trained.stderr).toBe(0);
    expect(trained.stdout).toContain('Every version is in store.');
    expect((await runHone(['train', alone], { cwd: directory })).code).toBe(0);
    const checksums = await imageChecksums('store', 'fleet', 4);
    expect(new Set(checksums).size).toBe(4);
    expect(checksums).toEqual(await imageChecksums('runs/alone/weights', 'alone', 4));
    expect(await newestCheckpointHash(join(directory, 'runs/fleet'))).toBe(
      await newestCheckpointHash(join(directory, 'runs/alone')),
    );
    for (const { metrics } of readSteps(join(directory, 'runs/fleet')))
      for (const { staleness, max_abs_delta: difference } of metrics['train/mismatch_by_staleness'])
        expect([staleness, difference]).toEqual([0, 0]);
  },
);

test('replicas that cannot put kept sets into the store end the run with their sentence', async () => {
  await using router = await serve(['router'], { cwd: directory });
  await using only = await serveReplica({ id: 'only', router }, { cwd: directory });
  expect(only.url).toContain('http://');
  const config = writeConfig(directory, 'model', {
    name: 'fleet',
    engine: { build: 'plain', threads: 2 },
    weights: { store: 'store' },
    serve: { routers: [router.url], keptSets: 'store' },
  });
  const ended = await runHone(['train', config], { cwd: directory });
  expect(ended.code).toBe(1);
  expect(ended.stderr.trim().split('\n').at(-1)).toMatch(/keptSets is "store".*--store and --run/u);
});

test('what a fleet cannot be trained with is refused in a sentence', async () => {
  const routers = ['http://127.0.0.1:9'];
  const noStore = writeConfig(directory, 'model', { name: 'no-store', serve: { routers } });
  const refused = await runHone(['train', noStore], { cwd: directory });
  expect(refused.code).toBe(1);
  expect(refused.stderr).toContain('weights.store is left out while serve.routers is set');

  const first = writeConfig(directory, 'model', { name: 'first', weights: { store: 'shared' } });
  expect((await runHone(['train', first], { cwd: directory })).code).toBe(0);
  const second = writeConfig(directory, 'model', { name: 'second', weights: { store: 'shared' } });
  const foreign = await runHone(['train', second], { cwd: directory });
  expect(foreign.code).toBe(1);
  expect(foreign.stderr.trim().split('\n').at(-1)).toMatch(/^hone: .*belongs to run first/u);
  rmSync(join(directory, 'runs/second'), { recursive: true });
  const fork = writeConfig(directory, 'model', { name: 'second', weights: { store: 'shared', fork: true } });
  const forked = await runHone(['train', fork], { cwd: directory });
  expect(forked.code, forked.stderr).toBe(0);

  const noKey = writeConfig(directory, 'model', { name: 'no-key', weights: { store: 's3://bucket/run' } });
  const denied = await runHone(['train', noKey], { cwd: directory });
  expect(denied.code).toBe(1);
  expect(denied.stderr).toMatch(/hone: .*region/u);
});

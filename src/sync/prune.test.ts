import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { policyVersion } from '../domain/ids.ts';
import { applyVersion } from './apply-version.ts';
import { CodecPool } from './delta/codec-pool.ts';
import { fetchVersion } from './fetch-version.ts';
import { MemoryWeights } from './memory-weights.ts';
import { prune, type PruneOptions } from './prune.ts';
import { Publisher, type PublisherOptions } from './publisher.ts';
import { bytesOf, publisherOptions, weightsOf } from './publishing-process.fixture.ts';
import { writeReplicaLease } from './replica-leases.ts';
import { restoreVersion } from './restore-version.ts';
import { SideDataStore } from './side-data.ts';
import { FileStore } from './store/file-store.ts';
import { watchStore } from './store/watched-store.fixture.ts';
import { bodyOf, type WeightStore } from './store/weight-store.ts';
import { planChain } from './version-chain.ts';
import { formatIdentity, LATEST_POINTER, parseIdentity } from './version-directory.ts';
import { listVersions } from './version-listing.ts';

const NOW_MS = 1_800_000_000_000;

let codec: CodecPool;
beforeAll(async () => {
  codec = await CodecPool.start({ threads: 2 });
});
afterAll(() => codec.close());

let root: string;
let store: FileStore;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-prune-'));
  store = await FileStore.open(root);
});
afterEach(() => rm(root, { recursive: true, force: true }));

async function publish(count: number, options: Partial<PublisherOptions> = {}): Promise<void> {
  const publisher = await Publisher.open(store, { ...publisherOptions(codec), ...options });
  for (let made = 0; made < count; made++) await publisher.publish(weightsOf(1, publisher.version + 1));
}
const pruned = (options: Partial<PruneOptions> = {}, on: WeightStore = store): ReturnType<typeof prune> =>
  prune(on, { keep: 1, nowMs: NOW_MS, ...options });
const lease = (cluster: string, version: number, { runId = 'run', nowMs = NOW_MS } = {}): Promise<unknown> =>
  writeReplicaLease(store, { cluster, runId, oldestVersion: policyVersion(version), nowMs, ttlMs: 60_000 });
/** Numbers of the versions of a run that are there with an index. */
async function present(runId = 'run'): Promise<number[]> {
  const { versions } = await listVersions(store);
  return versions
    .filter(({ identity, index }) => identity.runId === runId && index !== undefined)
    .map(({ identity }) => identity.version);
}
async function expectRebuilt(directory: string): Promise<void> {
  const identity = parseIdentity(directory, '');
  const weights = await restoreVersion(store, identity, { codec, cacheDirectory: join(root, '.cache') });
  expect(bytesOf(weights.tensors), directory).toEqual(bytesOf(weightsOf(1, identity.version)));
}
/** A replica at a version goes on to the newest one with what the store still has. */
async function expectFollows(from: number): Promise<void> {
  const pointer = await store.readPointer(LATEST_POINTER);
  const target = parseIdentity(pointer?.value ?? '', 'latest');
  const places = weightsOf(1, from);
  const checksums = new Map<string, string>();
  for (const [name, { place }] of places) checksums.set(name, await codec.checksum(place));
  const held = { runId: 'run', version: policyVersion(from), checksums };
  const weights = await MemoryWeights.copyOf(places, held);
  for (const index of await planChain(store, target, held)) {
    const { paths } = await fetchVersion(store, index, { codec, cacheDirectory: join(root, '.cache') });
    await applyVersion(codec, { index, paths, weights });
  }
  expect(bytesOf(weights.tensors)).toEqual(bytesOf(weightsOf(1, target.version)));
}

describe('pruning', () => {
  it('keeps the newest versions and the chain that each needs', async () => {
    await publish(10); // Anchors: 1, 4, 8.
    const report = await pruned({ keep: 4 });
    expect(await present()).toEqual([4, 5, 6, 7, 8, 9, 10]);
    expect(report.removed.map(({ directory }) => directory)).toEqual([
      'run/weight_v000003',
      'run/weight_v000002',
      'run/weight_v000001',
    ]);
    expect(report.kept).toContainEqual({ directory: 'run/weight_v000005', reason: 'chain of weight_v000007' });
    expect(report.kept).toContainEqual({ directory: 'run/weight_v000010', reason: 'latest' });
    await pruned({ keep: 1 });
    expect(await present()).toEqual([8, 9, 10]);
    await expectRebuilt('run/weight_v000010');
    await publish(3);
    await expectRebuilt('run/weight_v000013');
  });

  it('says what would go and removes nothing with dryRun; a second time there is nothing left to do', async () => {
    await publish(9);
    const before = await store.list('');
    const report = await pruned({ dryRun: true });
    expect(report.removed).toHaveLength(7);
    expect(await store.list('')).toEqual(before);
    expect((await pruned()).removedObjects).toBe(report.removedObjects);
    expect(report.removedBytes).toBe(
      before.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0) -
        (await store.list('')).reduce((sum, { sizeBytes }) => sum + sizeBytes, 0),
    );
    expect(await pruned()).toMatchObject({ removedObjects: 0, removedBytes: 0 });
  });

  it('asks for no trial writes where nothing goes, as a run does after every step', async () => {
    await publish(3);
    let probes = 0;
    const watched = watchStore(store, ({ operation, when }) => {
      if (operation === 'probeConditionalWrites' && when === 'before') probes += 1;
    });
    expect((await pruned({ keep: 3 }, watched)).removed).toEqual([]);
    expect(probes).toBe(0);
    await publish(3);
    expect((await pruned({ keep: 1 }, watched)).removed.length).toBeGreaterThan(0);
    expect(probes).toBe(1);
  });

  it('keeps what live clusters hold, those with a clock far ahead too, and not what ended ones held', async () => {
    await publish(10);
    await lease('eu', 7);
    await lease('ahead', 6, { nowMs: NOW_MS + 1e9 });
    await lease('gone', 1, { nowMs: NOW_MS - 7_200_000 });
    await lease('foreign', 1, { runId: 'other' });
    // One that ended a moment ago may belong to a clock that is behind.
    await lease('behind', 6, { nowMs: NOW_MS - 120_000 });
    const report = await pruned();
    expect(await present()).toEqual([4, 5, 6, 7, 8, 9, 10]);
    expect(report.leases.map(({ cluster, isLive }) => [cluster, isLive])).toEqual([
      ['ahead', true],
      ['behind', true],
      ['eu', true],
      ['foreign', true],
      ['gone', false],
    ]);
    await expectFollows(6);
  });

  it('removes nothing beside a lease, a pointer or a newest version that it cannot read', async () => {
    await publish(9);
    const before = await store.list('');
    await store.compareAndSwapPointer('leases/odd', undefined, 'from the future');
    await expect(pruned()).rejects.toMatchObject({
      code: 'store-failed',
      message: expect.stringContaining('leases/odd'),
    });
    await store.removePointer('leases/odd');
    await store.remove('run/weight_v000008/model.safetensors.index.json');
    await expect(pruned()).rejects.toMatchObject({
      code: 'store-failed',
      message:
        'Nothing was pruned: the newest version, run/weight_v000009, needs run/weight_v000008, which the store lacks.',
    });
    await expect(pruned({ keep: 0 })).rejects.toMatchObject({ code: 'invalid-config' });
    expect(await store.list('')).toHaveLength(before.length - 1);
  });

  it('removes nothing when the pointer went back meanwhile', async () => {
    await publish(9);
    const before = await store.list('');
    let reads = 0;
    const restored: WeightStore = {
      ...watchStore(store, () => undefined),
      readPointer: async (name, options) => {
        const pointer = await store.readPointer(name, options);
        if (name !== LATEST_POINTER || pointer === undefined || ++reads === 1) return pointer;
        return { ...pointer, value: 'run/weight_v000003' };
      },
    };
    await expect(pruned({}, restored)).rejects.toMatchObject({ code: 'pointer-rewind' });
    expect(await store.list('')).toEqual(before);
  });

  it('leaves an upload of the next version alone, and takes what killed and losing publishers left behind the pointer', async () => {
    await publish(5);
    const file = 'model-00001-of-00001.safetensors';
    const index = 'model.safetensors.index.json';
    for (const key of [`run/weight_v000006/${file}`, `run/weight_v000005-r1/${file}`, `run/weight_v000003-r2/${file}`])
      await store.putObject(key, bodyOf(new Uint8Array(100)));
    // A whole directory of a race that was lost; its winner is what the next version builds on.
    const stored = await store.readObject(`run/weight_v000004/${index}`);
    await store.putObject(`run/weight_v000004-r1/${index}`, {
      sizeBytes: (await store.statObject(`run/weight_v000004/${index}`))?.sizeBytes ?? 0,
      chunks: () => stored ?? [],
    });
    await store.putObject('notes/readme.txt', bodyOf(Buffer.from('not a version')));
    const report = await pruned({ keep: 5 });
    expect(report.removed.map(({ directory, reason }) => [directory, reason])).toEqual([
      ['run/weight_v000005-r1', 'unfinished'],
      ['run/weight_v000004-r1', 'never visible'],
      ['run/weight_v000003-r2', 'unfinished'],
    ]);
    expect(await present()).toEqual([1, 2, 3, 4, 5]);
    expect(await store.list('notes/')).toHaveLength(1);
    expect(report.kept).toContainEqual({ directory: 'run/weight_v000006', reason: 'newer than latest' });
  });

  it('after a fork, keeps the newest of the old run too, and an upload of a run that may be about to fork', async () => {
    await publish(9);
    await publish(2, { runId: 'other', bootVersion: policyVersion(9), bootWeights: weightsOf(1, 9), fork: {} });
    await store.putObject('third/weight_v000010/model-00001-of-00001.safetensors', bodyOf(new Uint8Array(9)));
    await pruned({ keep: 1, nowMs: Date.now() });
    expect(await present('run')).toEqual([8, 9]);
    expect(await present('other')).toEqual([10, 11]);
    expect(await store.list('third/')).toHaveLength(1);
    const report = await pruned({ keep: 1, nowMs: Date.now() + 90_000_000 });
    expect(report.removed).toMatchObject([{ directory: 'third/weight_v000010', reason: 'unfinished' }]);
  });

  it('removes side data of versions that are not among the newest, nor held by a live cluster', async () => {
    await publish(6);
    const side = new SideDataStore(store, { runId: 'run' });
    const keys: string[] = [];
    for (let version = 1; version <= 7; version++)
      keys.push(
        await side.put(policyVersion(version), new Map([['a', { values: Int32Array.of(version), shape: [1] }]])),
      );
    await lease('eu', 3);
    expect((await pruned({ keep: 2 })).removedSideData.map(({ key }) => key)).toEqual(keys.slice(0, 2));
    await store.removePointer('leases/eu');
    await pruned({ keep: 2 });
    expect((await store.list('run/side/')).map(({ key }) => key)).toEqual(keys.slice(4));
    // Data of a version stays although the version's own chain reaches further back.
    expect(await present()).toEqual([4, 5, 6]);
  });

  it('does nothing where nothing was published', async () => {
    expect(await pruned()).toMatchObject({ latest: undefined, removedObjects: 0 });
  });
});

it('leaves every kept version and every live replica whole, whatever it is pruned to and wherever it breaks off', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.record({
        versions: fc.integer({ min: 1, max: 9 }),
        anchorEvery: fc.integer({ min: 1, max: 6 }),
        keeps: fc.array(fc.integer({ min: 1, max: 6 }), { minLength: 1, maxLength: 3 }),
        held: fc.array(fc.integer({ min: 1, max: 9 }), { maxLength: 2 }),
        breaksAfter: fc.integer({ min: 0, max: 30 }),
      }),
      async ({ versions, anchorEvery, keeps, held, breaksAfter }) => {
        const folder = await mkdtemp(join(tmpdir(), 'hone-prune-property-'));
        const outer = [root, store] as const;
        try {
          root = folder;
          store = await FileStore.open(folder);
          await publish(versions, { anchorEvery });
          const live = held.filter((version) => version <= versions);
          for (const [number, version] of live.entries()) await lease(`cluster-${number}`, version);
          let left = breaksAfter;
          const breaking = watchStore(store, ({ operation, when }) => {
            if (operation === 'remove' && when === 'before' && left-- === 0)
              throw new HoneError('store-unavailable', 'The store went away.');
          });
          for (const [round, keep] of keeps.entries()) {
            await pruned({ keep }, breaking).catch((error: unknown) =>
              expect(error).toMatchObject({ code: 'store-unavailable' }),
            );
            // Whatever is listed is whole: a removal that broke off left no version without its base.
            for (const { directory, index } of (await listVersions(store)).versions)
              if (index !== undefined) await expectRebuilt(directory);
            for (const version of live) await expectFollows(version);
            expect((await present()).length).toBeGreaterThanOrEqual(Math.min(versions, ...keeps.slice(0, round + 1)));
          }
          const smallest = Math.min(...keeps);
          const report = await pruned({ keep: smallest });
          for (const { directory } of report.kept) await expectRebuilt(directory);
          expect(report.kept.map(({ directory }) => directory)).toContain(
            formatIdentity({ runId: 'run', version: policyVersion(versions), attempt: 0 }),
          );
        } finally {
          [root, store] = outer;
          await rm(folder, { recursive: true, force: true });
        }
      },
    ),
    { numRuns: 10 },
  );
});

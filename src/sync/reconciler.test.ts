import fc from 'fast-check';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { policyVersion, type PolicyVersion } from '../domain/ids.ts';
import { FileStore } from './store/file-store.ts';
import { LATEST_POINTER, Publisher } from './publisher.ts';
import { PUBLISHER_OPTIONS, SHAPES, weightsOf } from './publishing-process.fixture.ts';
import { ReplicaReconciler, type ReconcilerEvent, type SyncedReplica } from './reconciler.ts';
import { watchStore } from './store/watched-store.fixture.ts';
import type { WeightStore } from './store/weight-store.ts';

let root: string;
let store: FileStore;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-reconciler-'));
  store = await FileStore.open(root);
});
afterEach(() => rm(root, { recursive: true, force: true }));

/** Holds served and staged bytes apart, as an engine does, and can be told to fail. */
class RecordingReplica implements SyncedReplica {
  version: PolicyVersion;
  readonly served: Map<string, Uint8Array>;
  readonly staged = new Map<string, Uint8Array>();
  readonly stageCalls: string[] = [];
  readonly commits: number[] = [];
  failStage: string | undefined;
  failCommit = false;

  constructor(version = 0, weights = weightsOf(0, 0)) {
    this.version = policyVersion(version);
    this.served = weights;
  }

  stage(name: string, bytes: Uint8Array): Promise<void> {
    this.stageCalls.push(name);
    this.staged.set(name, new Uint8Array(bytes));
    return name === this.failStage ? Promise.reject(new Error(`no memory for ${name}`)) : Promise.resolve();
  }

  commit(version: PolicyVersion): Promise<{ pauseMs: number }> {
    this.commits.push(version);
    if (this.failCommit) return Promise.reject(new Error('device lost'));
    for (const [name, bytes] of this.staged) this.served.set(name, bytes);
    this.staged.clear();
    this.version = version;
    return Promise.resolve({ pauseMs: 3 });
  }
}

const openPublisher = (): Promise<Publisher> => Publisher.open(store, PUBLISHER_OPTIONS);
const publish = (publisher: Publisher, salt = 1): ReturnType<Publisher['publish']> =>
  publisher.publish(weightsOf(salt, publisher.version + 1), SHAPES);

function follow(
  replica: RecordingReplica,
  on: WeightStore = store,
): { reconciler: ReplicaReconciler; events: ReconcilerEvent[] } {
  const events: ReconcilerEvent[] = [];
  return {
    reconciler: new ReplicaReconciler(on, replica, {
      baseWeights: replica.served,
      onEvent: (event) => events.push(event),
    }),
    events,
  };
}

it('brings a replica from any version to any later one, by deltas or through an anchor', async () => {
  const publisher = await openPublisher();
  const versions = 11;
  for (let count = 0; count < versions; count++) await publish(publisher);
  const target = publisher.tensors;
  await fc.assert(
    fc.asyncProperty(fc.nat(versions), async (from) => {
      const replica = new RecordingReplica(from, weightsOf(from === 0 ? 0 : 1, from));
      const { reconciler, events } = follow(replica);
      const result = await reconciler.poll();
      if (from === versions) {
        expect(result).toEqual({ kind: 'current', version: versions });
        expect(events).toEqual([]);
      } else {
        expect(result).toMatchObject({
          kind: 'committed',
          from,
          version: versions,
          stagedTensors: 4,
          stagedBytes: 12_206,
          pauseMs: 3,
        });
        expect(events).toMatchObject([{ type: 'weights-committed', from, version: versions }]);
      }
      expect(replica.served).toEqual(target);
      expect(reconciler.state).toBe('idle');
    }),
    { numRuns: 14, examples: [[0], [7], [8], [10], [11]] },
  );
});

it('stages only tensors that differ from what is served, and nothing when only the number changed', async () => {
  const publisher = await openPublisher();
  const replica = new RecordingReplica();
  const { reconciler } = follow(replica);
  expect(await reconciler.poll()).toEqual({ kind: 'current', version: 0 });
  const weights = weightsOf(0, 0);
  weights.get('model.norm.weight')?.fill(9);
  await publisher.publish(weights, SHAPES);
  await reconciler.poll();
  expect(replica.stageCalls).toEqual(['model.norm.weight']);
  await publisher.publish(weights, SHAPES);
  await publisher.publish(weightsOf(0, 0), SHAPES);
  await publisher.publish(weights, SHAPES); // Version 4 is an anchor: whole on disk, yet nothing to stage.
  expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 1, version: 4, stagedTensors: 0 });
  expect(replica.version).toBe(4);
  expect(replica.stageCalls).toHaveLength(1);
  expect(replica.served).toEqual(weights);
});

it('looks at the pointer once more before it commits, and stages what came meanwhile', async () => {
  const publisher = await openPublisher();
  await publish(publisher);
  const replica = new RecordingReplica();
  const stage = replica.stage.bind(replica);
  let published = 0;
  replica.stage = async (name, bytes): Promise<void> => {
    // Once in the first round and once in the second: the second newcomer has to wait for the next poll.
    if (name === 'model.norm.weight' && published++ < 2) await publish(publisher);
    await stage(name, bytes);
  };
  const { reconciler } = follow(replica);
  expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 0, version: 2, stagedTensors: 8 });
  expect(replica.served).toEqual(weightsOf(1, 2));
  expect(replica.commits).toEqual([2]);
  expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 2, version: 3 });
  expect(replica.served).toEqual(weightsOf(1, 3));
});

describe('a failure', () => {
  it('to stage changes nothing that is served; the next poll stages again whatever may be stale', async () => {
    const publisher = await openPublisher();
    const replica = new RecordingReplica();
    const { reconciler, events } = follow(replica);
    await publish(publisher);
    replica.failStage = 'model.layers.1.weight';
    expect(await reconciler.poll()).toMatchObject({
      kind: 'retry',
      error: { message: 'no memory for model.layers.1.weight' },
    });
    expect(events).toMatchObject([{ type: 'sync-retry', version: 0 }]);
    expect([replica.version, replica.served, replica.commits]).toEqual([0, weightsOf(0, 0), []]);
    expect(reconciler.state).toBe('idle');
    // The next version takes everything back to the boot weights: what the broken stage left must not be committed.
    await publisher.publish(weightsOf(0, 0), SHAPES);
    replica.failStage = undefined;
    expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 0, version: 2 });
    expect(replica.served).toEqual(weightsOf(0, 0));
  });

  it('to fetch, or bytes that are damaged, are retried; a repaired store heals the replica', async () => {
    const publisher = await openPublisher();
    const replica = new RecordingReplica();
    let isDown = true;
    const { reconciler } = follow(
      replica,
      watchStore(store, ({ operation }) => {
        if (isDown && operation === 'readPointer') throw new HoneError('store-failed', 'The store went away.');
      }),
    );
    await publish(publisher);
    expect(await reconciler.poll()).toMatchObject({ kind: 'retry', error: { code: 'store-failed' } });
    isDown = false;
    const path = join(root, 'run/weight_v000001/model-00001-of-00001.safetensors');
    const whole = await readFile(path);
    await writeFile(path, whole.subarray(0, 1000));
    expect(await reconciler.poll()).toMatchObject({ kind: 'retry', error: { code: 'invalid-safetensors' } });
    const flipped = Buffer.from(whole);
    flipped[whole.byteLength - 100] = (flipped[whole.byteLength - 100] ?? 0) ^ 4;
    await writeFile(path, flipped);
    expect(await reconciler.poll()).toMatchObject({ kind: 'retry', error: { code: 'checksum-mismatch' } });
    await rm(path);
    expect(await reconciler.poll()).toMatchObject({
      kind: 'retry',
      error: { code: 'store-failed', message: expect.stringContaining('weight_v000001/model-00001') },
    });
    expect([replica.version, replica.stageCalls]).toEqual([0, []]);
    await writeFile(path, whole);
    expect(await reconciler.poll()).toMatchObject({ kind: 'committed', version: 1 });
    expect(replica.served).toEqual(weightsOf(1, 1));
  });

  it('to commit is final: what is served is unknown', async () => {
    const publisher = await openPublisher();
    const replica = new RecordingReplica();
    const { reconciler, events } = follow(replica);
    await publish(publisher);
    replica.failCommit = true;
    await expect(reconciler.poll()).rejects.toMatchObject({
      code: 'engine-failed',
      cure: expect.stringContaining('Replace the replica'),
      cause: { message: 'device lost' },
    });
    expect(reconciler.state).toBe('failed');
    expect(events).toMatchObject([{ type: 'sync-failed', version: 1 }]);
    replica.failCommit = false;
    await expect(reconciler.poll()).rejects.toMatchObject({ code: 'engine-failed' });
    await expect(reconciler.run({ pollEveryMs: 1, signal: AbortSignal.timeout(5000) })).rejects.toMatchObject({
      code: 'engine-failed',
    });
    expect(replica.commits).toEqual([1]);
    expect(reconciler.state).toBe('failed');
  });

  it('of the engine to take the version over counts as a failed commit', async () => {
    const publisher = await openPublisher();
    const replica = new RecordingReplica();
    replica.commit = (): Promise<{ pauseMs: number }> => Promise.resolve({ pauseMs: 0 });
    await publish(publisher);
    await expect(follow(replica).reconciler.poll()).rejects.toMatchObject({ code: 'engine-failed' });
  });
});

describe('a pointer', () => {
  const point = async (value: string): Promise<unknown> =>
    store.compareAndSwapPointer(LATEST_POINTER, (await store.readPointer(LATEST_POINTER))?.tag, value);

  it('whose text names no version raises, and never falls back to other weights', async () => {
    await publish(await openPublisher());
    const replica = new RecordingReplica();
    const { reconciler } = follow(replica);
    await point('run/weight_v1');
    await expect(reconciler.poll()).rejects.toMatchObject({
      code: 'store-failed',
      message: expect.stringContaining('"run/weight_v1", which names no weight version'),
    });
    expect([replica.version, replica.stageCalls]).toEqual([0, []]);
  });

  it('of another run is refused', async () => {
    await publish(await openPublisher());
    const replica = new RecordingReplica();
    const { reconciler } = follow(replica);
    await reconciler.poll();
    await point('other/weight_v000002');
    await expect(reconciler.poll()).rejects.toMatchObject({
      code: 'pointer-conflict',
      message: expect.stringContaining('belongs to run other'),
    });
    const fresh = new ReplicaReconciler(store, new RecordingReplica(), { baseWeights: weightsOf(0, 0), runId: 'run' });
    await expect(fresh.poll()).rejects.toMatchObject({ code: 'pointer-conflict' });
    expect(replica.version).toBe(1);
  });

  it('that goes back leaves the replica where it is', async () => {
    const publisher = await openPublisher();
    for (let count = 0; count < 3; count++) await publish(publisher);
    const replica = new RecordingReplica();
    const { reconciler } = follow(replica);
    await reconciler.poll();
    await point('run/weight_v000002');
    expect(await reconciler.poll()).toMatchObject({ kind: 'retry', error: { code: 'pointer-rewind' } });
    expect([replica.version, replica.commits]).toEqual([3, [3]]);
    await point('run/weight_v000003');
    expect(await reconciler.poll()).toEqual({ kind: 'current', version: 3 });
  });
});

it('shares one reconciliation among polls that come together', async () => {
  await publish(await openPublisher());
  const replica = new RecordingReplica();
  const { reconciler } = follow(replica);
  const results = await Promise.all([reconciler.poll(), reconciler.poll(), reconciler.poll()]);
  expect(new Set(results).size).toBe(1);
  expect(replica.commits).toEqual([1]);
});

/** Runs the reconciler's loop while `work` does its part; `next` resolves at the following event. */
async function whileRunning(
  replica: RecordingReplica,
  pollEveryMs: number,
  work: (loop: { reconciler: ReplicaReconciler; next: () => Promise<void> }) => Promise<void>,
): Promise<void> {
  let happened = (): void => undefined;
  const reconciler = new ReplicaReconciler(store, replica, { baseWeights: replica.served, onEvent: () => happened() });
  const abort = new AbortController();
  const running = reconciler.run({ pollEveryMs, signal: abort.signal });
  try {
    await work({ reconciler, next: () => new Promise((resolve) => (happened = resolve)) });
  } finally {
    abort.abort();
    await running;
  }
}

it('runs until aborted; a wake brings the next version at once, and wakes that come together count as one', async () => {
  const publisher = await openPublisher();
  const replica = new RecordingReplica();
  await whileRunning(replica, 600_000, async ({ reconciler, next }) => {
    for (let version = 1; version <= 5; version++) {
      await publish(publisher);
      const committed = next();
      reconciler.wake();
      reconciler.wake();
      await committed;
      expect(replica.version).toBe(version);
    }
  });
  expect(replica.served).toEqual(weightsOf(1, 5));
  expect(replica.commits).toEqual([1, 2, 3, 4, 5]);
});

it('polls once more when the wake came too late for the poll at work', async () => {
  const publisher = await openPublisher();
  await publish(publisher);
  const replica = new RecordingReplica();
  const states: string[] = [];
  await whileRunning(replica, 600_000, async ({ reconciler, next }) => {
    const [stage, commit] = [replica.stage.bind(replica), replica.commit.bind(replica)];
    replica.stage = (name, bytes): Promise<void> => (states.push(reconciler.state), stage(name, bytes));
    replica.commit = async (version): Promise<{ pauseMs: number }> => {
      states.push(reconciler.state);
      // The second look at the pointer is over: only another poll can see this version.
      if (version === 1) await publish(publisher).then(() => reconciler.wake());
      return commit(version);
    };
    await next();
    await next();
  });
  expect(replica.commits).toEqual([1, 2]);
  expect(new Set(states)).toEqual(new Set(['staging', 'committing']));
});

it('finds new versions by polling alone when nobody wakes it', async () => {
  const publisher = await openPublisher();
  const replica = new RecordingReplica();
  await whileRunning(replica, 2, async ({ next }) => {
    const committed = next();
    await publish(publisher);
    await committed;
  });
  expect(replica.version).toBe(1);
});

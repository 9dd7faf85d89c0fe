import { writeFileSync } from 'node:fs';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { policyVersion } from '../domain/ids.ts';
import { CodecPool } from './delta/codec-pool.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { MemoryWeights } from './memory-weights.ts';
import { RecordingReplica } from './recording-replica.fixture.ts';
import { ReplicaReconciler, type ReconcilerEvent, type ReconcilerOptions } from './reconciler.ts';
import { FileStore } from './store/file-store.ts';
import { watchStore } from './store/watched-store.fixture.ts';
import type { ObjectSource, WeightStore } from './store/weight-store.ts';
import { bytesOf, VersionWriter, weightsOf } from './version-writer.fixture.ts';

let codec: TensorCodec;
beforeAll(async () => {
  codec = await CodecPool.start({ threads: 1 });
});
afterAll(() => codec.close());

let root: string;
let store: FileStore;
let writer: VersionWriter;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-reconciler-'));
  store = await FileStore.open(join(root, 'store'));
  writer = new VersionWriter(store, codec);
});
afterEach(() => rm(root, { recursive: true, force: true }));

interface Following {
  readonly reconciler: ReplicaReconciler;
  readonly replica: RecordingReplica;
  readonly weights: MemoryWeights;
  readonly events: ReconcilerEvent[];
}

/** A replica that serves the boot model, and its reconciler over weights in memory. */
async function follow(source: ObjectSource = store, options: Partial<ReconcilerOptions> = {}): Promise<Following> {
  const weights = await MemoryWeights.copyOf(weightsOf(0), { runId: undefined, version: policyVersion(0) }, { codec });
  const replica = new RecordingReplica(0, await bytesOf(weightsOf(0)));
  const events: ReconcilerEvent[] = [];
  const reconciler = new ReplicaReconciler(source, replica, {
    codec,
    weights,
    cacheDirectory: join(root, 'cache'),
    onEvent: (event) => events.push(event),
    verifyServed: true,
    ...options,
  });
  return { reconciler, replica, weights, events };
}

/** The store as one whose objects are not files of this machine. */
function remote(of: WeightStore = store): WeightStore {
  return { ...watchStore(of, () => undefined), localPath: () => undefined };
}

const expectServed = async ({ replica, reconciler }: Following, version: number): Promise<void> => {
  expect(replica.version).toBe(version);
  const truth = writer.checksums.get(version);
  expect(await replica.servedImage()).toBe(truth);
  expect(reconciler.status()).toMatchObject({ servedVersion: version, imageChecksum: truth });
};

it('takes all versions that came since in one commit, by deltas or from an anchor, in every encoding', async () => {
  const following = await follow(remote());
  const { reconciler, replica, events } = following;
  expect(await reconciler.poll()).toEqual({ kind: 'current', version: 0 });
  expect(reconciler.status()).toMatchObject({ state: 'idle', isCaughtUp: true, reason: undefined });
  await writer.write(weightsOf(1), { anchor: true });
  await writer.write(weightsOf(2), { encoding: 'xor' });
  await writer.write(weightsOf(3), { encoding: 'overwrite' });
  expect(await reconciler.poll()).toMatchObject({
    kind: 'committed',
    from: 0,
    version: 3,
    versionsCoalesced: 3,
    stagedTensors: 4,
    pauseMs: 3,
  });
  await expectServed(following, 3);
  await writer.write(weightsOf(4), { attempt: 2 });
  await writer.write(weightsOf(5), { attempt: 1 });
  expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 3, version: 5, versionsCoalesced: 2 });
  await writer.write(weightsOf(6));
  await writer.write(weightsOf(7), { anchor: true });
  await reconciler.poll();
  await expectServed(following, 7);
  expect(replica.commits).toEqual([3, 5, 7]);
  expect(await reconciler.poll()).toEqual({ kind: 'current', version: 7 });
  expect(events).toMatchObject([
    {
      type: 'weights-committed',
      from: 0,
      version: 3,
      imageChecksum: writer.checksums.get(3),
      servedChecksum: writer.checksums.get(3),
    },
    { type: 'weights-committed', from: 3, version: 5 },
    { type: 'weights-committed', from: 5, version: 7 },
  ]);
  for (const event of events)
    if (event.type === 'weights-committed') {
      expect(event.bytes).toBeGreaterThan(100);
      expect(Math.min(event.fetchMs, event.applyMs, event.stageMs)).toBeGreaterThan(0);
    }
  expect(await readdir(join(root, 'cache'))).toEqual([]);
});

it('stages only tensors that differ from what is served, and nothing when only the number changed', async () => {
  const following = await follow();
  const { reconciler, replica } = following;
  const changed = weightsOf(1, ['model.norm.weight']);
  await writer.write(changed);
  await reconciler.poll();
  expect(replica.stageCalls).toEqual(['model.norm.weight']);
  await writer.write(changed);
  await writer.write(weightsOf(0));
  await writer.write(changed, { anchor: true }); // Whole on disk, yet nothing to stage.
  expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 1, version: 4, stagedTensors: 0 });
  expect(replica.stageCalls).toHaveLength(1);
  await expectServed(following, 4);
});

it('looks at the pointer once more before it commits, and stages what came meanwhile', async () => {
  let looks = 0;
  const following = await follow(
    watchStore(store, ({ operation, when }) => {
      if (operation === 'readPointer' && when === 'before') looks++;
    }),
  );
  const { reconciler, replica } = following;
  await writer.write(weightsOf(1));
  let written = 1;
  replica.onStage = async (name): Promise<void> => {
    // Once in the first round and once in the second: the second newcomer has to wait for the next poll.
    if (name === 'model.norm.weight' && written < 3) await writer.write(weightsOf(++written));
  };
  expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 0, version: 2, stagedTensors: 8 });
  expect(looks).toBe(2);
  await expectServed(following, 2);
  expect(replica.commits).toEqual([2]);
  expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 2, version: 3 });
  await expectServed(following, 3);
});

describe('a failure', () => {
  it('to stage changes nothing that is served; the next poll stages again whatever may be stale', async () => {
    const following = await follow();
    const { reconciler, replica, events } = following;
    await writer.write(weightsOf(1));
    replica.onStage = (name): void => {
      if (name === 'model.layers.1.weight') throw new Error(`no memory for ${name}`);
    };
    expect(await reconciler.poll()).toMatchObject({
      kind: 'retry',
      error: { message: 'no memory for model.layers.1.weight' },
    });
    expect(events).toMatchObject([{ type: 'sync-retry', version: 0, reason: 'no memory for model.layers.1.weight' }]);
    expect([replica.version, replica.commits]).toEqual([0, []]);
    expect(reconciler.status()).toMatchObject({
      state: 'idle',
      isCaughtUp: false,
      reason: 'no memory for model.layers.1.weight',
      servedVersion: 0,
      heldVersion: 1,
      targetVersion: 1,
    });
    // The next version takes everything back to the boot weights: what the broken stage left must not be committed.
    await writer.write(weightsOf(0));
    replica.onStage = (): void => undefined;
    expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 0, version: 2 });
    await expectServed(following, 2);
    expect(reconciler.status().reason).toBeUndefined();
  });

  it('to fetch, or bytes that are damaged, are retried; a repaired store heals the replica', async () => {
    let isDown = true;
    const following = await follow(
      watchStore(remote(), ({ operation }) => {
        if (isDown && operation === 'readPointer') throw new HoneError('store-unavailable', 'The store went away.');
      }),
    );
    const { reconciler, replica } = following;
    await writer.write(weightsOf(1), { shardBytes: 1 << 20 });
    expect(await reconciler.poll()).toMatchObject({ kind: 'retry', error: { code: 'store-unavailable' } });
    isDown = false;
    const directory = join(root, 'store/run/weight_v000001');
    const name = (await readdir(directory)).find((file) => file.endsWith('.safetensors')) ?? '';
    const path = join(directory, name);
    const whole = await readFile(path);
    await writeFile(path, whole.subarray(0, 700));
    expect(await reconciler.poll()).toMatchObject({ kind: 'retry' });
    const flipped = Buffer.from(whole);
    flipped[whole.byteLength - 100]! ^= 4;
    await writeFile(path, flipped);
    expect(await reconciler.poll()).toMatchObject({
      kind: 'retry',
      error: { code: 'checksum-mismatch', message: expect.stringContaining(`weight_v000001/${name}`) },
    });
    await rm(path);
    expect(await reconciler.poll()).toMatchObject({
      kind: 'retry',
      error: { code: 'store-failed', message: expect.stringContaining(`weight_v000001/${name}`) },
    });
    expect([replica.version, replica.stageCalls]).toEqual([0, []]);
    await writeFile(path, whole);
    expect(await reconciler.poll()).toMatchObject({ kind: 'committed', version: 1 });
    await expectServed(following, 1);
  });

  it('of the newest version does not hold back the one before it, whether both came at once or one after the other', async () => {
    const damage = async (version: number): Promise<() => Promise<void>> => {
      const directory = join(root, `store/run/weight_v00000${version}`);
      const path = join(directory, (await readdir(directory)).find((file) => file.endsWith('.safetensors')) ?? '');
      const whole = await readFile(path);
      await writeFile(path, whole.subarray(0, 500));
      return () => writeFile(path, whole);
    };
    const following = await follow();
    const { reconciler, replica, events } = following;
    await writer.write(weightsOf(1));
    await writer.write(weightsOf(2));
    let mend = await damage(2);
    expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 0, version: 1 });
    await expectServed(following, 1);
    expect(events.map(({ type }) => type)).toEqual(['sync-retry', 'weights-committed']);
    expect(reconciler.status()).toMatchObject({ isCaughtUp: false, targetVersion: 2, reason: expect.any(String) });
    expect(await reconciler.poll()).toMatchObject({ kind: 'retry', error: { code: 'checksum-mismatch' } });
    await mend();
    let isFirst = true;
    replica.onStage = async (): Promise<void> => {
      if (!isFirst) return;
      isFirst = false;
      await writer.write(weightsOf(3));
      mend = await damage(3);
    };
    expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 1, version: 2 });
    await expectServed(following, 2);
    await mend();
    expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 2, version: 3 });
    await expectServed(following, 3);
    expect(reconciler.status()).toMatchObject({ isCaughtUp: true, reason: undefined });
  });

  it('to commit is final: what is served is unknown', async () => {
    const { reconciler, replica, events } = await follow();
    await writer.write(weightsOf(1));
    replica.onCommit = (): void => {
      throw new Error('device lost');
    };
    await expect(reconciler.poll()).rejects.toMatchObject({
      code: 'engine-failed',
      cure: expect.stringContaining('Replace the replica'),
      cause: { message: 'device lost' },
    });
    expect(reconciler.status()).toMatchObject({ state: 'failed', reason: expect.stringContaining('device lost') });
    expect(events).toMatchObject([{ type: 'sync-failed', version: 1 }]);
    replica.onCommit = (): void => undefined;
    await expect(reconciler.poll()).rejects.toMatchObject({ code: 'engine-failed' });
    await expect(reconciler.run({ pollEveryMs: 1, signal: AbortSignal.timeout(60_000) })).rejects.toMatchObject({
      code: 'engine-failed',
    });
    expect(replica.commits).toEqual([1]);
  });

  it('of the engine to take the version over, or to serve its bytes, counts as a failed commit', async () => {
    await writer.write(weightsOf(1));
    const stuck = await follow();
    stuck.replica.commit = (): Promise<{ pauseMs: number }> => Promise.resolve({ pauseMs: 0 });
    await expect(stuck.reconciler.poll()).rejects.toMatchObject({ code: 'engine-failed' });
    const wrong = await follow();
    wrong.replica.onCommit = (): void => void (wrong.replica.served.get('model.norm.weight')![0]! ^= 1);
    wrong.replica.stage = (): Promise<void> => Promise.resolve();
    await expect(wrong.reconciler.poll()).rejects.toMatchObject({
      code: 'engine-failed',
      message: expect.stringContaining('model.norm.weight'),
    });
  });
});

describe('what hangs ends in a typed error:', () => {
  const never = (): Promise<never> => new Promise(() => undefined);

  it('a store that does not answer, an engine that does not stage', async () => {
    await writer.write(weightsOf(1));
    let hang = true;
    const deaf = await follow(
      watchStore(store, ({ operation }) => (hang && operation === 'readPointer' ? never() : undefined)),
      { deadlines: { pointerMs: 500, stageMs: 500 } },
    );
    expect(await deaf.reconciler.poll()).toMatchObject({ kind: 'retry', error: { code: 'store-unavailable' } });
    hang = false;
    deaf.replica.onStage = never;
    expect(await deaf.reconciler.poll()).toMatchObject({
      kind: 'retry',
      error: { code: 'engine-failed', message: expect.stringContaining('model.embed_tokens.weight') },
    });
    deaf.replica.onStage = (): void => undefined;
    expect(await deaf.reconciler.poll()).toMatchObject({ kind: 'committed', version: 1 });
    await expectServed(deaf, 1);
  });

  it('an object that stops in the middle', async () => {
    await writer.write(weightsOf(1));
    const source = remote();
    const { reconciler } = await follow(
      {
        ...source,
        readObject: async (key, options) => {
          const stream = await source.readObject(key, options);
          if (stream === undefined || key.endsWith('.json')) return stream;
          return (async function* () {
            yield new Uint8Array(10);
            await never();
          })();
        },
      },
      { deadlines: { stallMs: 20 } },
    );
    expect(await reconciler.poll()).toMatchObject({
      kind: 'retry',
      error: { code: 'store-unavailable', message: expect.stringContaining('no byte arrived') },
    });
  });

  it('an engine that does not commit, for good', async () => {
    await writer.write(weightsOf(1));
    const { reconciler, replica } = await follow(store, { deadlines: { commitMs: 20 } });
    replica.onCommit = never;
    await expect(reconciler.poll()).rejects.toMatchObject({ code: 'engine-failed' });
    expect(reconciler.state).toBe('failed');
  });

  it('a poll whose signal fires, while another one that waits for it gets its result or its own abort', async () => {
    await writer.write(weightsOf(1));
    const { reconciler, replica } = await follow();
    const gate = Promise.withResolvers<void>();
    const staging = Promise.withResolvers<void>();
    replica.onStage = (): Promise<void> => (staging.resolve(), gate.promise);
    const first = new AbortController();
    const second = new AbortController();
    const polls = [reconciler.poll(first.signal), reconciler.poll(second.signal), reconciler.poll()];
    await staging.promise;
    second.abort();
    await expect(polls[1]).rejects.toMatchObject({ code: 'aborted' });
    first.abort();
    await expect(polls[0]).rejects.toMatchObject({ code: 'aborted' });
    await expect(polls[2]).rejects.toMatchObject({ code: 'aborted' });
    gate.resolve();
    replica.onStage = (): void => undefined;
    expect(await reconciler.poll()).toMatchObject({ kind: 'committed', version: 1 });
  });
});

describe('a pointer', () => {
  it('whose text names no version is refused, and never falls back to other weights', async () => {
    await writer.write(weightsOf(1));
    const { reconciler, replica, events } = await follow();
    await writer.point('run/weight_v1');
    for (let count = 0; count < 2; count++)
      expect(await reconciler.poll()).toMatchObject({
        kind: 'refused',
        error: {
          code: 'store-failed',
          message: expect.stringContaining('"run/weight_v1", which names no weight version'),
        },
      });
    expect([replica.version, replica.stageCalls]).toEqual([0, []]);
    // Said once, not at every poll.
    expect(events.map(({ type }) => type)).toEqual(['sync-refused']);
    await writer.point('run/weight_v000001');
    expect(await reconciler.poll()).toMatchObject({ kind: 'committed', version: 1 });
    expect(events.map(({ type }) => type)).toEqual(['sync-refused', 'sync-recovered', 'weights-committed']);
  });

  it('of another run is refused', async () => {
    await writer.write(weightsOf(1));
    const { reconciler, replica } = await follow();
    await reconciler.poll();
    await writer.point('other/weight_v000002');
    expect(await reconciler.poll()).toMatchObject({
      kind: 'refused',
      error: { code: 'pointer-conflict', message: expect.stringContaining('belongs to run other') },
    });
    const fresh = await follow(store, { runId: 'run' });
    expect(await fresh.reconciler.poll()).toMatchObject({ kind: 'refused', error: { code: 'pointer-conflict' } });
    expect(replica.version).toBe(1);
  });

  it('that goes back leaves the replica where it is, also between fetch and commit', async () => {
    for (let seed = 1; seed <= 3; seed++) await writer.write(weightsOf(seed));
    const following = await follow();
    const { reconciler, replica } = following;
    await reconciler.poll();
    await writer.point('run/weight_v000002');
    expect(await reconciler.poll()).toMatchObject({ kind: 'refused', error: { code: 'pointer-rewind' } });
    expect(replica.commits).toEqual([3]);
    await writer.point('run/weight_v000003');
    expect(await reconciler.poll()).toEqual({ kind: 'current', version: 3 });
    await writer.write(weightsOf(4));
    replica.onStage = (): Promise<void> => writer.point('run/weight_v000003');
    expect(await reconciler.poll()).toMatchObject({ kind: 'refused', error: { code: 'pointer-rewind' } });
    expect(replica.commits).toEqual([3]);
    await writer.point('run/weight_v000004');
    expect(await reconciler.poll()).toMatchObject({ kind: 'committed', version: 4 });
    await expectServed(following, 4);
  });

  it('to a chain that starts at no anchor is refused, naming the gap; the next anchor heals it', async () => {
    const following = await follow();
    const { reconciler, replica } = following;
    for (let seed = 1; seed <= 3; seed++) await writer.write(weightsOf(seed));
    for (const { key } of await store.list('run/weight_v000002/')) await store.remove(key);
    expect(await reconciler.poll()).toMatchObject({
      kind: 'refused',
      error: {
        code: 'delta-base-mismatch',
        message: expect.stringMatching(/weight_v000003 builds on run\/weight_v000002, .* held here is version 0/),
      },
    });
    expect(replica.version).toBe(0);
    await writer.write(weightsOf(4), { anchor: true });
    expect(await reconciler.poll()).toMatchObject({ kind: 'committed', version: 4 });
    await expectServed(following, 4);
  });

  it('whose base has the right number but other bytes is refused', async () => {
    await writer.write(weightsOf(1), { anchor: true });
    const { reconciler, replica } = await follow();
    await reconciler.poll();
    // Another publisher's line of the same run: version 1 there is not the one here.
    const rival = new VersionWriter(store, codec);
    await rival.write(weightsOf(90), { attempt: 1, visible: false });
    await rival.write(weightsOf(91));
    expect(await reconciler.poll()).toMatchObject({
      kind: 'refused',
      error: { code: 'delta-base-mismatch', message: expect.stringContaining(rival.checksums.get(1) ?? '?') },
    });
    expect(replica.version).toBe(1);
  });
});

it('shares one reconciliation among polls that come together', async () => {
  await writer.write(weightsOf(1));
  const { reconciler, replica } = await follow();
  const results = await Promise.all([reconciler.poll(), reconciler.poll(), reconciler.poll()]);
  expect(new Set(results).size).toBe(1);
  expect(replica.commits).toEqual([1]);
});

it('refuses to begin with weights that are not the ones that are served, or with another run', async () => {
  const weights = await MemoryWeights.copyOf(weightsOf(0), { runId: 'run', version: policyVersion(3) }, { codec });
  const replica = new RecordingReplica(2, await bytesOf(weightsOf(0)));
  const options = { codec, weights, cacheDirectory: root };
  expect(() => new ReplicaReconciler(store, replica, options)).toThrow(/serves version 2, .* version 3/);
  replica.version = policyVersion(3);
  expect(() => new ReplicaReconciler(store, replica, { ...options, runId: 'other' })).toThrow(/run other, .* run run/);
});

/** Runs the reconciler's loop while `work` does its part; `next` resolves at the following event. */
async function whileRunning(
  pollEveryMs: number,
  work: (loop: Following & { next: () => Promise<void> }) => Promise<void>,
): Promise<void> {
  let happened = (): void => undefined;
  const following = await follow(store, { onEvent: () => happened() });
  const abort = new AbortController();
  const running = following.reconciler.run({ pollEveryMs, signal: abort.signal });
  try {
    await work({ ...following, next: () => new Promise((resolve) => (happened = resolve)) });
  } finally {
    abort.abort();
    await running;
  }
}

it('runs until aborted; a wake brings the next version at once, and wakes that come together count as one', async () => {
  await whileRunning(600_000, async ({ reconciler, replica, next }) => {
    for (let version = 1; version <= 5; version++) {
      await writer.write(weightsOf(version));
      const committed = next();
      reconciler.wake();
      reconciler.wake();
      await committed;
      expect(replica.version).toBe(version);
    }
    expect(replica.commits).toEqual([1, 2, 3, 4, 5]);
  });
});

it('fetches damaged bytes less and less often, whoever wakes it, and takes them once they are repaired', async () => {
  await writer.write(weightsOf(1), { shardBytes: 1 << 20 });
  const directory = join(root, 'store/run/weight_v000001');
  const name = (await readdir(directory)).find((file) => file.endsWith('.safetensors')) ?? '';
  const whole = await readFile(join(directory, name));
  const flipped = Buffer.from(whole);
  flipped[whole.byteLength - 100]! ^= 4;
  await writeFile(join(directory, name), flipped);
  const abort = new AbortController();
  const startedMs = performance.now();
  let failures = 0;
  let tookMs = 0;
  const { reconciler, replica } = await follow(store, {
    deadlines: { damagedMs: 20 },
    onEvent: ({ type }) => {
      if (type === 'weights-committed') abort.abort();
      if (type !== 'sync-retry') return;
      failures += 1;
      reconciler.wake();
      if (failures !== 6) return;
      tookMs = performance.now() - startedMs;
      writeFileSync(join(directory, name), whole);
    },
  });
  await reconciler.run({ pollEveryMs: 1, signal: abort.signal });
  expect(failures).toBe(6);
  // Before the sixth try: 20 + 40 + 80 + 160 ms.
  expect(tookMs).toBeGreaterThanOrEqual(295);
  expect(replica.version).toBe(1);
});

it('polls once more when the wake came too late for the poll at work', async () => {
  await writer.write(weightsOf(1));
  const states: string[] = [];
  await whileRunning(600_000, async ({ reconciler, replica, next }) => {
    replica.onStage = (): void => void states.push(reconciler.state);
    replica.onCommit = async (version): Promise<void> => {
      states.push(reconciler.state);
      // The second look at the pointer is over: only another poll can see this version.
      if (version === 1) await writer.write(weightsOf(2)).then(() => reconciler.wake());
    };
    await next();
    await next();
    expect(replica.commits).toEqual([1, 2]);
  });
  expect(new Set(states)).toEqual(new Set(['staging', 'committing']));
});

it('finds new versions by polling alone when nobody wakes it', async () => {
  await whileRunning(2, async ({ replica, next }) => {
    const committed = next();
    await writer.write(weightsOf(1));
    await committed;
    expect(replica.version).toBe(1);
  });
});

it('is at rest when its loop has ended, even if it was told to in the middle of a commit', async () => {
  await writer.write(weightsOf(1));
  const abort = new AbortController();
  const { reconciler, replica } = await follow();
  replica.onCommit = (): void => abort.abort();
  await reconciler.run({ pollEveryMs: 1, signal: abort.signal });
  expect(replica.version).toBe(1);
  expect(reconciler.state).toBe('idle');
});

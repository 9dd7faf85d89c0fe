/** The one thing that must hold whatever happens: what a replica serves has the checksum of the version that it names. */
import fc from 'fast-check';
import { mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { CodecPool } from './delta/codec-pool.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { FolderWeights } from './folder-weights.ts';
import { imageChecksum } from './image-checksum.ts';
import type { HeldVersion } from './local-weights.ts';
import { RecordingReplica } from './recording-replica.fixture.ts';
import { ReplicaReconciler } from './reconciler.ts';
import { FileStore } from './store/file-store.ts';
import { watchStore } from './store/watched-store.fixture.ts';
import type { ObjectSource } from './store/weight-store.ts';
import { bytesOf, VersionWriter, weightsOf, writeBootModel } from './version-writer.fixture.ts';

let codec: TensorCodec;
beforeAll(async () => {
  codec = await CodecPool.start({ threads: 1 });
});
afterAll(() => codec.close());

type Step =
  | { readonly kind: 'publish'; readonly anchor: boolean; readonly encoding: 'sparse' | 'xor' | 'overwrite' }
  | { readonly kind: 'poll' }
  /** The n-th change of a tensor in the folder fails half-written. */
  | { readonly kind: 'poll-broken'; readonly at: number }
  /** The n-th read of the store fails. */
  | { readonly kind: 'poll-offline'; readonly at: number }
  | { readonly kind: 'poll-stage-failure'; readonly at: number }
  /** Bytes of the newest version flip or go until the next step. */
  | { readonly kind: 'poll-damaged'; readonly position: number; readonly cut: boolean }
  /** The process dies without a word and starts again; in the folder bits may have flipped meanwhile. */
  | { readonly kind: 'restart'; readonly flip: boolean };

const stepArbitrary: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant('publish' as const),
      anchor: fc.boolean(),
      encoding: fc.constantFrom('sparse' as const, 'xor' as const, 'overwrite' as const),
    }),
  },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('poll' as const) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('poll-broken' as const), at: fc.nat(6) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('poll-offline' as const), at: fc.nat(5) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('poll-stage-failure' as const), at: fc.nat(4) }) },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('poll-damaged' as const),
      position: fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
      cut: fc.boolean(),
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('restart' as const), flip: fc.boolean() }) },
);

class Replica {
  readonly #root: string;
  readonly #source: ObjectSource;
  readonly #bootModel: string;
  #weights: FolderWeights | undefined;
  #engine: RecordingReplica | undefined;
  #reconciler: ReplicaReconciler | undefined;
  /** Changes of tensors, or stages, until one fails. */
  breakAt = Infinity;
  stageFailsAt = Infinity;

  constructor(root: string, source: ObjectSource, bootModel: string) {
    this.#root = root;
    this.#source = source;
    this.#bootModel = bootModel;
  }

  /** As a process does: the folder is opened, the engine loads what it holds, or the boot model when that is nothing. */
  async start(): Promise<void> {
    const weights = await FolderWeights.open(join(this.#root, 'data'), { bootModel: this.#bootModel, codec });
    let served: HeldVersion | undefined = weights.held;
    let bytes = await bytesOf(weights.tensors);
    if (served === undefined) {
      const boot = await FolderWeights.open(join(this.#root, 'boot-copy'), { bootModel: this.#bootModel, codec });
      served = boot.held;
      bytes = await bytesOf(boot.tensors);
      await boot.close();
    }
    if (served === undefined) throw new Error('the boot model is never dirty');
    this.#weights = weights;
    const engine = new RecordingReplica(served.version, bytes);
    engine.onStage = (): void => {
      if (--this.stageFailsAt < 0) throw new Error('no memory');
    };
    this.#engine = engine;
    this.#reconciler = new ReplicaReconciler(this.#source, engine, {
      codec: this.#breaking(),
      weights,
      served,
      cacheDirectory: join(this.#root, 'cache'),
      verifyServed: true,
    });
  }

  async stop(): Promise<void> {
    await this.#weights?.close();
  }

  get version(): number {
    return this.#engine?.version ?? 0;
  }

  poll(): ReturnType<ReplicaReconciler['poll']> {
    if (this.#reconciler === undefined) throw new Error('not started');
    return this.#reconciler.poll();
  }

  async image(): Promise<string> {
    return (await this.#engine?.servedImage()) ?? '';
  }

  /** What the folder says that it holds, and what its bytes are. */
  async folder(): Promise<{ version: number | undefined; image: string }> {
    const checksums = new Map<string, string>();
    for (const [name, { place }] of this.#weights?.tensors ?? []) checksums.set(name, await codec.checksum(place));
    return { version: this.#weights?.held?.version, image: imageChecksum(checksums) };
  }

  #breaking(): TensorCodec {
    const change = async (place: { kind: string; path?: string; offset?: number }): Promise<void> => {
      if (--this.breakAt >= 0 || place.kind !== 'file') return;
      const bytes = await readFile(place.path ?? '');
      bytes.fill(0xee, place.offset, (place.offset ?? 0) + 64);
      await writeFile(place.path ?? '', bytes);
      throw new HoneError('store-failed', 'The disk went away.');
    };
    return {
      encode: (job, signal) => codec.encode(job, signal),
      apply: async (job, signal) => {
        await change(job.to.place);
        await codec.apply(job, signal);
      },
      copy: async (job, signal) => {
        await change(job.to);
        return codec.copy(job, signal);
      },
      checksum: (place, options) => codec.checksum(place, options),
      close: () => Promise.resolve(),
      [Symbol.asyncDispose]: () => Promise.resolve(),
    };
  }
}

it(
  'holds through publishes, anchors, failures and restarts, and the replica arrives when they stop',
  { timeout: 300_000 },
  async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(stepArbitrary, { minLength: 4, maxLength: 16 }),
        fc.boolean(),
        async (steps, isRemote) => {
          const root = await mkdtemp(join(tmpdir(), 'hone-through-'));
          const bootModel = await writeBootModel(join(root, 'boot'));
          const store = await FileStore.open(join(root, 'store'));
          const writer = new VersionWriter(store, codec);
          let offlineAt = Infinity;
          const watched = watchStore(store, ({ operation, when }) => {
            if (when === 'before' && (operation === 'readObject' || operation === 'readPointer') && --offlineAt < 0)
              throw new HoneError('store-unavailable', 'The store is away.');
          });
          const replica = new Replica(root, isRemote ? { ...watched, localPath: () => undefined } : watched, bootModel);
          await replica.start();
          const truth = writer.checksums.set(0, await replica.image());
          let seed = 0;
          let last = 0;
          const check = async (isSameProcess: boolean): Promise<void> => {
            expect(await replica.image()).toBe(truth.get(replica.version));
            if (isSameProcess) expect(replica.version).toBeGreaterThanOrEqual(last);
            last = replica.version;
            const folder = await replica.folder();
            if (folder.version !== undefined) expect(folder.image).toBe(truth.get(folder.version));
          };
          try {
            for (const step of steps) {
              switch (step.kind) {
                case 'publish':
                  await writer.write(weightsOf(++seed), step);
                  break;
                case 'poll-broken':
                  replica.breakAt = step.at;
                  break;
                case 'poll-offline':
                  offlineAt = step.at;
                  break;
                case 'poll-stage-failure':
                  replica.stageFailsAt = step.at;
                  break;
                case 'restart':
                  await replica.stop();
                  if (step.flip) await flipBit(join(root, 'data'));
                  await replica.start();
                  break;
                default:
              }
              const undo =
                step.kind === 'poll-damaged' ? await damageNewest(join(root, 'store/run'), step) : nothingToMend;
              if (step.kind !== 'publish') await replica.poll();
              await undo();
              replica.breakAt = Infinity;
              replica.stageFailsAt = Infinity;
              offlineAt = Infinity;
              await check(step.kind !== 'restart');
            }
            if (writer.version > 0) {
              const end = await replica.poll();
              expect(end.kind, JSON.stringify(end)).toMatch(/current|committed/);
              expect(replica.version).toBe(writer.version);
              await check(true);
            }
          } finally {
            await replica.stop();
            await rm(root, { recursive: true, force: true });
          }
        },
      ),
      { numRuns: 12, seed: 20_261_130 },
    );
  },
);

const nothingToMend = (): Promise<void> => Promise.resolve();

/** One bit of the weights, as a bad disk flips it. */
async function flipBit(folder: string): Promise<void> {
  const path = join(folder, 'model.safetensors');
  const bytes = await readFile(path);
  bytes[bytes.byteLength - 50]! ^= 2;
  await writeFile(path, bytes);
}

/** Damages the last file of the newest directory; returns what puts it back. */
async function damageNewest(
  run: string,
  { position, cut }: { readonly position: number; readonly cut: boolean },
): Promise<() => Promise<void>> {
  const newest = (await readdir(run).catch(() => [])).sort().at(-1);
  if (newest === undefined) return nothingToMend;
  const file = (await readdir(join(run, newest))).sort().at(position < 0.2 ? 0 : -2);
  if (file === undefined) return nothingToMend;
  const path = join(run, newest, file);
  const whole = await readFile(path);
  if (cut) await truncate(path, Math.floor(whole.byteLength * position));
  else {
    const damaged = Buffer.from(whole);
    damaged[Math.floor(whole.byteLength * position)]! ^= 1 << Math.floor(position * 8);
    await writeFile(path, damaged);
  }
  return () => writeFile(path, whole);
}

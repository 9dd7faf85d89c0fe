/**
 * Makes weights visible: bytes, then the index, then one compare-and-swap of the pointer.
 * Invariants: versions only grow; the baseline that the next delta is taken against moves only after the pointer did; nothing that
 * was uploaded is overwritten. A publisher killed before its swap leaves a directory that no pointer names: the next one publishes
 * the same version under the next free name (`weight_v000008-r1`) and, once the pointer is past it, removes what was left behind.
 * Longer than most files, as the baseline, the pointer and what is in doubt between them are one state.
 */
import { randomUUID } from 'node:crypto';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { policyVersion, type PolicyVersion } from '../domain/ids.ts';
import { forEachBounded } from './bounded-work.ts';
import { Deadline, limitForBytes } from './deadline.ts';
import type { DeltaEncoding, TensorCodec } from './delta/delta-codec.ts';
import { encodeVersion, type EncodedVersion } from './encode-version.ts';
import { imageChecksum } from './image-checksum.ts';
import { restoreVersion, withCache } from './restore-version.ts';
import { SnapshotBuffers, type Snapshot } from './snapshot-buffers.ts';
import { checkStoreKey, type Pointer, type WeightStore } from './store/weight-store.ts';
import { placeSizeBytes, type TensorPlace, type TensorPlaces } from './tensor-place.ts';
import {
  formatIdentity,
  INDEX_FILE,
  LATEST_POINTER,
  parseIdentity,
  type VersionIdentity,
} from './version-directory.ts';
import { readIndex } from './version-chain.ts';

/** More left-over directories of one version than this means that something else is wrong. */
const MAX_ATTEMPTS = 100;
/** Weight files uploaded at a time. */
const UPLOADS_IN_FLIGHT = 4;
/** Swaps without an answer whose weights are kept, in case the pointer turns out to name them. */
const MAX_UNANSWERED = 2;
const HASHES_IN_FLIGHT = 32;
const WAKE_DEADLINE_MS = 10_000;
const DEADLINE_MS = 1_800_000;
/** What a store may take to end its calls once they are called off. */
const SETTLING_MS = 2000;

export interface PublisherOptions {
  readonly runId: string;
  /** The version that `bootWeights` are; itself never published. */
  readonly bootVersion: PolicyVersion;
  /** All tensors as the replicas loaded them; they must not change before the first version is published. */
  readonly bootWeights: TensorPlaces;
  readonly codec: TensorCodec;
  readonly encoding?: DeltaEncoding;
  /** Every version that is a multiple of this is a full anchor, and the first of a run; a new replica needs at most this many deltas. */
  readonly anchorEvery: number;
  readonly shardBytes?: number;
  /** Takes the pointer over from another run (that version of it, when named); refused when left out. */
  readonly fork?: { readonly from?: VersionIdentity };
  /** Milliseconds from any fixed origin, for the report. */
  readonly now?: () => number;
  /** Milliseconds since 1970, for the index. */
  readonly wallMs?: () => number;
  /**
   * A publish, or the replay at the start, that takes longer is given up; by default half an hour, and what the model's bytes need
   * at 20 MB/s.
   */
  readonly deadlineMs?: number;
  /** Where versions of a remote store are kept while they are replayed; a folder under the system's temporary one if left out. */
  readonly cacheDirectory?: string;
  /** Random if left out. No two publishers may have the same: by it each knows its own directories. */
  readonly publisherId?: string;
  /** Tells whoever fetches that there is a new version. Nobody waits for it, and a failure is an event. */
  readonly wake?: (identity: VersionIdentity, signal: AbortSignal) => Promise<void>;
  readonly onEvent?: (event: PublisherEvent) => void;
  readonly signal?: AbortSignal;
}

export interface PublishOptions {
  readonly signal?: AbortSignal;
  /** The tensors are copied: their owner may change them from here on. */
  readonly onSnapshot?: () => void;
}

export interface PublishReport {
  readonly version: PolicyVersion;
  readonly identity: VersionIdentity;
  /** Bytes that were uploaded, index included. */
  readonly bytes: number;
  readonly changedTensors: number;
  readonly changedElements: number;
  readonly totalElements: number;
  readonly anchor: boolean;
  readonly imageChecksum: string;
  /** Until the tensors were copied. */
  readonly snapshotMs: number;
  readonly encodeMs: number;
  readonly uploadMs: number;
}

export type PublisherEvent =
  | ({ readonly type: 'weights-published' } & PublishReport)
  | { readonly type: 'wake-failed'; readonly version: PolicyVersion; readonly reason: string }
  /** Costs space and nothing else; pruning removes it. */
  | { readonly type: 'leftovers-kept'; readonly directory: string; readonly reason: string };

interface Published {
  /** Undefined = the boot weights, which no directory of this run holds. */
  readonly identity: VersionIdentity | undefined;
  readonly version: PolicyVersion;
  readonly weights: Snapshot;
  /** Whether the buffers are ours, to be used again. */
  readonly isRecycled: boolean;
}

type PublishedVersion = Published & { readonly identity: VersionIdentity };

export class Publisher implements AsyncDisposable {
  readonly #store: WeightStore;
  /** Without the boot weights: their memory is free once the first version is the baseline. */
  readonly #options: Omit<PublisherOptions, 'bootWeights'> & {
    readonly encoding: DeltaEncoding;
    readonly deadlineMs: number;
  };
  readonly #now: () => number;
  readonly #publisherId: string;
  readonly #buffers: SnapshotBuffers;
  readonly #closing = new AbortController();
  #current: Published;
  /** What the pointer holds while this run has published nothing: nothing, or the version of the run that is forked from. */
  readonly #forkedFrom: string | undefined;
  /** Versions whose swap failed without an answer: the pointer may have moved, the next publish finds out. */
  readonly #unanswered = new Map<string, PublishedVersion>();
  /** Another publisher moved the pointer: this one is out. */
  #conflict: HoneError | undefined;
  #isPublishing = false;
  #waking: Promise<void> = Promise.resolve();

  private constructor(
    store: WeightStore,
    options: PublisherOptions,
    start: { readonly current: Published; readonly forkedFrom: string | undefined },
  ) {
    this.#store = store;
    const { bootWeights, ...kept } = options;
    this.#options = {
      ...kept,
      encoding: options.encoding ?? 'sparse',
      deadlineMs: deadlineOf(options),
    };
    this.#now = options.now ?? (() => performance.now());
    this.#publisherId = options.publisherId ?? randomUUID();
    this.#buffers = new SnapshotBuffers(options.codec, bootWeights);
    this.#current = start.current;
    this.#forkedFrom = start.forkedFrom;
  }

  /**
   * Takes over where the pointer is: replays the newest anchor and the deltas after it, checksums verified. Refuses a store whose
   * conditional writes do not hold, a pointer that cannot be read, and another run's, unless `fork` says so.
   */
  static async open(store: WeightStore, options: PublisherOptions): Promise<Publisher> {
    checkOptions(options);
    const bounds = { deadlineMs: deadlineOf(options), signal: options.signal };
    return withinDeadline(`The store ${store.location} was not ready to publish to`, bounds, async (signal) => {
      await store.probeConditionalWrites({ signal });
      const pointer = await store.readPointer(LATEST_POINTER, { signal });
      const identity = pointer === undefined ? undefined : parseIdentity(pointer.value, `Pointer ${LATEST_POINTER}`);
      const isResumed = identity?.runId === options.runId;
      if (identity !== undefined && !isResumed) await checkFork(store, { options, identity, signal });
      const current =
        isResumed && identity !== undefined
          ? await resume(store, { options, identity, signal })
          : {
              identity: undefined,
              version: options.bootVersion,
              weights: await bootImage(options, signal),
              isRecycled: false,
            };
      return new Publisher(store, options, { current, forkedFrom: isResumed ? undefined : pointer?.value });
    });
  }

  /** Newest version that is known to be visible. */
  get version(): PolicyVersion {
    return this.#current.version;
  }

  /** The tensors of that version, to continue from: not to be written to, and good until the next publish. */
  get tensors(): TensorPlaces {
    return this.#current.weights.tensors;
  }

  /** xxh3-128 of each of them. */
  get checksums(): ReadonlyMap<string, string> {
    return this.#current.weights.checksums;
  }

  /**
   * Publishes all tensors as the next version. They must not change until `onSnapshot`. Throws `pointer-conflict` when another
   * publisher moved the pointer, and then always; `store-failed`, `store-unavailable` or `aborted` when the store did not take the
   * bytes in time. After each the baseline is where it was.
   */
  async publish(
    tensors: Iterable<readonly [string, TensorPlace]>,
    { signal: outer, onSnapshot }: PublishOptions = {},
  ): Promise<PublishReport> {
    if (this.#conflict !== undefined) throw this.#conflict;
    if (this.#isPublishing)
      throw new HoneError('pointer-conflict', `Version ${this.#current.version + 1} is still being published.`, {
        cure: 'Await each publish before the next.',
      });
    this.#isPublishing = true;
    const { deadlineMs, runId } = this.#options;
    const signal = outer === undefined ? this.#closing.signal : AbortSignal.any([outer, this.#closing.signal]);
    return withinDeadline(
      `Version ${this.#current.version + 1} of run ${runId} was not published`,
      { deadlineMs, signal },
      async (ending) => {
        try {
          return await this.#publish(tensors, ending, onSnapshot);
        } finally {
          this.#isPublishing = false; // Only now does nothing read the snapshot any more.
        }
      },
    );
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await this.#waking;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #publish(
    tensors: Iterable<readonly [string, TensorPlace]>,
    signal: AbortSignal,
    onSnapshot: (() => void) | undefined,
  ): Promise<PublishReport> {
    const startedMs = this.#now();
    let snapshotMs = 0;
    const [taken, confirmed] = await Promise.allSettled([
      this.#buffers.take(tensors, signal).then((weights) => {
        snapshotMs = this.#now() - startedMs;
        onSnapshot?.();
        return weights;
      }),
      this.#confirmPointer(signal),
    ]);
    if (taken.status === 'rejected') throw taken.reason;
    const weights = taken.value;
    let isKept = false;
    try {
      if (confirmed.status === 'rejected') throw confirmed.reason;
      const { runId, anchorEvery, encoding, shardBytes, wallMs, codec } = this.#options;
      const version = policyVersion(this.#current.version + 1);
      const base = version % anchorEvery === 0 ? undefined : this.#current.identity;
      const encoded = await encodeVersion(codec, {
        identity: { runId, version, attempt: 0 },
        next: weights.tensors,
        checksums: weights.checksums,
        previous: this.#current.weights.tensors,
        previousChecksums: this.#current.weights.checksums,
        base,
        encoding,
        ...(shardBytes === undefined ? {} : { shardBytes }),
        publisher: this.#publisherId,
        publishedAtMs: wallMs?.(),
        signal,
      });
      const encodedMs = this.#now();
      const identity = await this.#upload(version, encoded, signal);
      await this.#swap(confirmed.value?.tag, { identity, version, weights, isRecycled: true }, signal);
      isKept = true;
      await this.#removeLeftovers(identity, signal);
      const report: PublishReport = {
        version,
        identity,
        bytes: encoded.wireBytes,
        changedTensors: encoded.changedTensors,
        changedElements: encoded.changedElements,
        totalElements: encoded.totalElements,
        anchor: base === undefined,
        imageChecksum: encoded.imageChecksum,
        snapshotMs,
        encodeMs: encodedMs - startedMs - snapshotMs,
        uploadMs: this.#now() - encodedMs,
      };
      this.#options.onEvent?.({ type: 'weights-published', ...report });
      this.#wake(identity);
      return report;
    } finally {
      if (!isKept && ![...this.#unanswered.values()].some((held) => held.weights === weights))
        this.#buffers.giveBack(weights);
    }
  }

  /** The pointer, after making sure that it is where this publisher left it. */
  async #confirmPointer(signal: AbortSignal): Promise<Pointer | undefined> {
    const pointer = await this.#store.readPointer(LATEST_POINTER, { signal });
    const landed = pointer === undefined ? undefined : this.#unanswered.get(pointer.value);
    if (landed !== undefined) this.#advance(landed);
    const { identity } = this.#current;
    const expected = identity === undefined ? this.#forkedFrom : formatIdentity(identity);
    if (pointer?.value !== expected) throw this.#lost(pointer?.value);
    return pointer;
  }

  async #upload(version: PolicyVersion, encoded: EncodedVersion, signal: AbortSignal): Promise<VersionIdentity> {
    const { runId } = this.#options;
    for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
      const identity = { runId, version, attempt };
      if (await this.#uploadAs(identity, encoded, signal)) return identity;
    }
    throw new HoneError(
      'store-failed',
      `The store holds ${MAX_ATTEMPTS} directories of version ${version} that were never made visible.`,
      { cure: `Remove ${runId}/weight_v${String(version).padStart(6, '0')}* from the weight store.` },
    );
  }

  /** False when other bytes already have this name. Identical weight files of a killed upload are taken as they are. */
  async #uploadAs(identity: VersionIdentity, { files }: EncodedVersion, signal: AbortSignal): Promise<boolean> {
    const directory = formatIdentity(identity);
    const weightFiles = files.filter(({ name }) => name !== INDEX_FILE);
    let isTaken = false;
    await forEachBounded(weightFiles, { limit: UPLOADS_IN_FLIGHT, signal }, async ({ name, body }, ending) => {
      if (isTaken) return;
      const result = await this.#store.putObject(`${directory}/${name}`, body, { signal: ending });
      if (result === 'different') isTaken = true;
    });
    const index = files.at(-1);
    if (isTaken || index === undefined) return false;
    return (await this.#store.putObject(`${directory}/${index.name}`, index.body, { signal })) !== 'different';
  }

  /** Resolves when the version is visible; it is then the baseline. */
  async #swap(tag: string | undefined, next: PublishedVersion, signal: AbortSignal): Promise<void> {
    const value = formatIdentity(next.identity);
    let found: string | undefined = value;
    try {
      if ((await this.#store.compareAndSwapPointer(LATEST_POINTER, tag, value, { signal })) === 'conflict')
        found = (await this.#store.readPointer(LATEST_POINTER, { signal }))?.value;
    } catch (error) {
      this.#remember(value, next);
      throw error;
    }
    // After a conflict our own name means that a first try, whose answer was lost, won against its repetition.
    if (found !== value) {
      await this.#removeLoser(next.identity, found, signal);
      throw this.#lost(found);
    }
    this.#advance(next);
  }

  #remember(value: string, next: PublishedVersion): void {
    this.#unanswered.set(value, next);
    for (const [oldest, { weights }] of this.#unanswered) {
      if (this.#unanswered.size <= MAX_UNANSWERED) return;
      // Should the pointer name this one after all, the publisher says so and stops; a resumed one replays it.
      this.#unanswered.delete(oldest);
      if (weights !== next.weights) this.#buffers.giveBack(weights);
    }
  }

  #advance(published: Published): void {
    for (const { weights } of [this.#current, ...this.#unanswered.values()].filter(({ isRecycled }) => isRecycled))
      if (weights !== published.weights) this.#buffers.giveBack(weights);
    this.#current = published;
    this.#unanswered.clear();
  }

  /** Safe only now: the pointer never goes back, so no publisher can make a directory of this version visible any more. */
  async #removeLeftovers({ runId, version, attempt: published }: VersionIdentity, signal: AbortSignal): Promise<void> {
    for (let attempt = 0; attempt < published; attempt++)
      await this.#removeDirectory({ runId, version, attempt }, signal);
  }

  /** The directory of a lost race, as soon as it can be neither visible nor what a visible one builds on. */
  async #removeLoser(own: VersionIdentity, found: string | undefined, signal: AbortSignal): Promise<void> {
    if (found === undefined) return;
    let winner: VersionIdentity;
    try {
      winner = parseIdentity(found, `Pointer ${LATEST_POINTER}`);
    } catch {
      return; // The conflict names the text; nothing is removed beside a pointer that cannot be read.
    }
    if (winner.runId === own.runId && winner.version === own.version && winner.attempt !== own.attempt)
      await this.#removeDirectory(own, signal);
  }

  async #removeDirectory(identity: VersionIdentity, signal: AbortSignal): Promise<void> {
    const directory = formatIdentity(identity);
    try {
      // The index first: who sees none sees no version.
      await this.#store.remove(`${directory}/${INDEX_FILE}`, { signal });
      for (const { key } of await this.#store.list(`${directory}/`, { signal, withClaims: true }))
        await this.#store.remove(key, { signal });
    } catch (error) {
      // Whether the version is visible is decided already.
      this.#options.onEvent?.({ type: 'leftovers-kept', directory, reason: reasonOf(error) });
    }
  }

  #wake(identity: VersionIdentity): void {
    const { wake, onEvent } = this.#options;
    if (wake === undefined) return;
    const signal = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(WAKE_DEADLINE_MS)]);
    const before = this.#waking;
    this.#waking = (async () => {
      try {
        await Promise.all([before, wake(identity, signal)]);
      } catch (error) {
        onEvent?.({ type: 'wake-failed', version: identity.version, reason: reasonOf(error) });
      }
    })();
  }

  #lost(found: string | undefined): HoneError {
    this.#conflict = new HoneError(
      'pointer-conflict',
      `Another publisher moved the pointer of run ${this.#options.runId} to ${found ?? 'nothing'} after version ${this.#current.version}.`,
      {
        cure: 'Stop one of the two processes that train this run; then resume, which continues from the published version.',
      },
    );
    return this.#conflict;
  }
}

function checkOptions({ runId, anchorEvery }: PublisherOptions): void {
  checkStoreKey(runId);
  if (!Number.isSafeInteger(anchorEvery) || anchorEvery < 1)
    throw new HoneError('invalid-config', `anchorEvery is ${anchorEvery}, it must be a whole number of at least 1.`, {
      cure: 'Set how many versions may lie between two full anchors, for example 20.',
    });
}

/** A new run takes over another's pointer only when told so, and only under a name that was never published here. */
async function checkFork(
  store: WeightStore,
  { options, identity, signal }: { options: PublisherOptions; identity: VersionIdentity; signal: AbortSignal },
): Promise<void> {
  const { runId, fork, bootVersion } = options;
  const found = formatIdentity(identity);
  if (fork === undefined)
    throw new HoneError(
      'pointer-conflict',
      `The weight store already belongs to run ${identity.runId}, this run is ${runId}.`,
      { cure: 'Give each run its own store, resume the run that this one belongs to, or fork from it.' },
    );
  if (fork.from !== undefined && formatIdentity(fork.from) !== found)
    throw new HoneError(
      'pointer-conflict',
      `Run ${runId} is to fork from ${formatIdentity(fork.from)}, but the pointer names ${found}.`,
      { cure: 'Boot from the version that the pointer names, or fork without naming one.' },
    );
  const first = `${runId}/weight_v${String(bootVersion + 1).padStart(6, '0')}`;
  for (const { key } of await store.list(`${runId}/weight_v`, { signal }))
    if (!key.startsWith(first))
      throw new HoneError(
        'pointer-conflict',
        `Run ${runId} cannot fork from ${found}: the store holds versions of a run of that name already (${key}).`,
        { cure: 'Give the new run a name of its own.' },
      );
}

async function resume(
  store: WeightStore,
  { options, identity, signal }: { options: PublisherOptions; identity: VersionIdentity; signal: AbortSignal },
): Promise<Published> {
  const { runId, bootVersion, bootWeights, codec, cacheDirectory } = options;
  if (identity.version < bootVersion)
    throw new HoneError(
      'pointer-rewind',
      `Run ${runId} has published version ${identity.version}, but is to boot from version ${bootVersion}.`,
      { cure: 'Boot from the weights of the published version or an older one.' },
    );
  const boot = await bootImage(options, signal);
  const current = { identity, version: identity.version, isRecycled: false };
  if (identity.version === bootVersion) {
    const index = await readIndex(store, identity, { signal });
    if (index.imageChecksum !== undefined && index.imageChecksum !== imageChecksum(boot.checksums))
      throw new HoneError(
        'checksum-mismatch',
        `The weights at hand are not those that were published as ${formatIdentity(identity)}.`,
        { cure: 'Load the model folder or checkpoint that the run booted from.' },
      );
    return { ...current, weights: boot };
  }
  const weights = await withCache(cacheDirectory, (directory) =>
    restoreVersion(store, identity, {
      boot: { version: bootVersion, tensors: bootWeights, checksums: boot.checksums },
      codec,
      cacheDirectory: directory,
      signal,
    }),
  );
  const { tensors, held } = weights;
  checkSameModel(identity, tensors, bootWeights);
  return { ...current, weights: { tensors, checksums: held.checksums } };
}

/** A store of another model under the run's name must not become the base of this one's deltas. */
function checkSameModel(identity: VersionIdentity, found: TensorPlaces, boot: TensorPlaces): void {
  const describe = (tensor: TensorPlace | undefined): string =>
    tensor === undefined ? 'absent' : `${tensor.dtype} [${tensor.shape.join(', ')}]`;
  const problems = [...new Set([...found.keys(), ...boot.keys()])]
    .filter((name) => describe(found.get(name)) !== describe(boot.get(name)))
    .map((name) => `${name} is ${describe(found.get(name))} there and ${describe(boot.get(name))} in the boot model`);
  if (problems.length === 0) return;
  throw new HoneError(
    'delta-base-mismatch',
    `${formatIdentity(identity)} is not of the model that this run boots from: ${problems.join('; ')}.`,
    { cure: 'Boot from the model that the run began with, or give the new run a store of its own.' },
  );
}

async function bootImage({ codec, bootWeights }: PublisherOptions, signal: AbortSignal): Promise<Snapshot> {
  const checksums = new Map<string, string>();
  await forEachBounded(bootWeights, { limit: HASHES_IN_FLIGHT, signal }, async ([name, { place }], ending) => {
    checksums.set(name, await codec.checksum(place, { signal: ending }));
  });
  return { tensors: bootWeights, checksums };
}

function deadlineOf({ deadlineMs, bootWeights }: PublisherOptions): number {
  if (deadlineMs !== undefined) return deadlineMs;
  let modelBytes = 0;
  for (const { place } of bootWeights.values()) modelBytes += placeSizeBytes(place);
  return limitForBytes(DEADLINE_MS, modelBytes);
}

/** Runs the work under the outer signal and a deadline; what it throws then says which of the two ended it. */
async function withinDeadline<T>(
  what: string,
  { deadlineMs, signal }: { readonly deadlineMs: number; readonly signal: AbortSignal | undefined },
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  using deadline = new Deadline({
    signal,
    limitMs: deadlineMs,
    expired: () =>
      new HoneError('store-unavailable', `${what} within ${deadlineMs / 1000} s.`, {
        cure: 'Check the link to the store, or allow more time; nothing that is visible changed.',
      }),
  });
  const running = work(deadline.signal);
  let timer: NodeJS.Timeout | undefined;
  let onAbort = (): void => undefined;
  // A store that heeds its signal ends soon after it; one that does not is left behind.
  const left = new Promise<never>((_, reject) => {
    // The reason was set by Deadline, always to a HoneError.
    onAbort = (): void => void (timer = setTimeout(() => reject(deadline.signal.reason as Error), SETTLING_MS));
  });
  if (deadline.signal.aborted) onAbort();
  else deadline.signal.addEventListener('abort', onAbort, { once: true });
  try {
    return await Promise.race([running, left]);
  } finally {
    deadline.signal.removeEventListener('abort', onAbort);
    clearTimeout(timer);
    running.catch(() => undefined);
  }
}

/**
 * Keeps one replica on the newest published version: reads the pointer, fetches and applies what is new to the local weights and
 * stages it while the replica samples, looks at the pointer once more, then commits once for all that came. Invariants: versions
 * never go back; a failed fetch, apply or stage changes nothing that is served and is retried; a pointer that cannot be followed is
 * refused; after a failed commit the served weights are unknown, so the reconciler stops for good. Longer than most files, as what
 * is served, held, staged and refused are one state.
 */
import { HoneError, reasonOf } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import { catchUp, type CaughtUp } from './catch-up.ts';
import { Deadline, limitForBytes, throwIfAborted } from './deadline.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { isDamage } from './fetch-version.ts';
import { imageChecksum } from './image-checksum.ts';
import type { HeldVersion, LocalWeights } from './local-weights.ts';
import type {
  CommittedWeights,
  PollResult,
  ReconcilerEvent,
  ReconcilerState,
  ReconcilerStatus,
} from './reconciler-report.ts';
import { StagedTensors, type StageCosts, type StagingReplica } from './staged-tensors.ts';
import type { ObjectSource } from './store/weight-store.ts';
import { placeSizeBytes } from './tensor-place.ts';
import { LATEST_POINTER, parseIdentity, type VersionIdentity } from './version-directory.ts';

/** What a sampling engine offers. Staged tensors pile up beside those that are served, until a commit takes them all. */
export interface SyncedReplica extends StagingReplica {
  /** The version that is served. */
  readonly version: PolicyVersion;
  /** Swaps in what was staged between two decode steps. Sampling stands still for `pauseMs`. */
  commit(version: PolicyVersion): Promise<{ pauseMs: number }>;
  /** xxh3-128 of each tensor, read back from the memory that the engine computes with. */
  servedChecksums?(): Promise<ReadonlyMap<string, string>>;
}

export type { CommittedWeights, PollResult, ReconcilerEvent, ReconcilerState, ReconcilerStatus };

export interface ReconcilerOptions {
  readonly codec: TensorCodec;
  /** Where new versions are built; nobody else changes them. */
  readonly weights: LocalWeights;
  /** For downloads; a folder of its own. Not used with a store whose objects are files of this machine. */
  readonly cacheDirectory: string;
  /** What the replica serves now; what `weights` hold when left out. */
  readonly served?: HeldVersion;
  /** The run to follow; the one that is served, else the first one that the pointer names, when left out. */
  readonly runId?: string;
  /** Asks the engine after each commit what it computes with; anything but the published bytes fails the replica. */
  readonly verifyServed?: boolean;
  readonly onEvent?: (event: ReconcilerEvent) => void;
  /** Milliseconds from any fixed origin, for the times in events. */
  readonly now?: () => number;
  readonly deadlines?: Partial<ReconcilerDeadlines>;
}

export interface ReconcilerDeadlines {
  /** One look at the pointer. */
  readonly pointerMs: number;
  /** All of one catch-up: chain, fetch, apply; besides what twice the model's bytes, an anchor and the deltas after it, need at 20 MB/s. */
  readonly catchUpMs: number;
  /** Time without a byte during a fetch. */
  readonly stallMs: number;
  /** One tensor into the engine. */
  readonly stageMs: number;
  /** The commit, draining included. */
  readonly commitMs: number;
  /**
   * Pause of the loop once the same bytes came damaged twice in a row; doubled with each time more, up to 30 times this. What is damaged
   * in the store stays so until it is repaired, and fetching it at every poll and wake would cost its size each time.
   */
  readonly damagedMs: number;
}

const DEADLINES: ReconcilerDeadlines = {
  pointerMs: 60_000,
  catchUpMs: 3_600_000,
  stallMs: 60_000,
  stageMs: 120_000,
  commitMs: 120_000,
  damagedMs: 1000,
};
const LONGEST_DAMAGED_PAUSE = 30;

export class ReplicaReconciler {
  readonly #source: ObjectSource;
  readonly #replica: SyncedReplica;
  readonly #options: ReconcilerOptions;
  readonly #deadlines: ReconcilerDeadlines;
  readonly #now: () => number;
  readonly #staged: StagedTensors;
  #served: HeldVersion;
  #servedImage: string;
  #runId: string | undefined;
  #state: ReconcilerState = 'idle';
  #failure: HoneError | undefined;
  #reason: string | undefined;
  #refusal: string | undefined;
  #target: PolicyVersion | undefined;
  #isCaughtUp = false;
  #progress: ReconcilerStatus['progress'];
  #lastCommit: CommittedWeights | undefined;
  #polling: Promise<PollResult> | undefined;
  #isWoken = false;
  #endWait: (() => void) | undefined;

  constructor(source: ObjectSource, replica: SyncedReplica, options: ReconcilerOptions) {
    const served = options.served ?? options.weights.held;
    if (served === undefined || served.version !== replica.version)
      throw new HoneError(
        'invalid-config',
        `The replica serves version ${replica.version}, the weights at hand are ${served === undefined ? 'dirty' : `version ${served.version}`}.`,
        { cure: 'Say which version, with which checksums, the replica was loaded with.' },
      );
    if (options.runId !== undefined && served.runId !== undefined && options.runId !== served.runId)
      throw new HoneError(
        'invalid-config',
        `The replica is to follow run ${options.runId}, but its weights are of run ${served.runId}.`,
        { cure: 'Start it with another data folder, or from the base model of that run.' },
      );
    this.#source = source;
    this.#replica = replica;
    this.#options = options;
    this.#deadlines = { ...DEADLINES, ...options.deadlines };
    this.#now = options.now ?? (() => performance.now());
    this.#served = served;
    this.#servedImage = imageChecksum(served.checksums);
    this.#runId = options.runId ?? served.runId;
    this.#staged = new StagedTensors(replica, {
      codec: options.codec,
      stageMs: this.#deadlines.stageMs,
      now: this.#now,
    });
  }

  get state(): ReconcilerState {
    return this.#state;
  }

  status(): ReconcilerStatus {
    return {
      state: this.#state,
      reason: this.#reason,
      runId: this.#runId,
      servedVersion: this.#served.version,
      imageChecksum: this.#servedImage,
      heldVersion: this.#options.weights.held?.version,
      targetVersion: this.#target,
      isCaughtUp: this.#isCaughtUp,
      progress: this.#progress,
      lastCommit: this.#lastCommit,
    };
  }

  /**
   * Brings the replica to the newest version, if it is not there yet. Calls that come while one is at work share its result; the
   * work itself listens to the first one's signal. Throws after a failed commit, from then on always, and `aborted`.
   */
  async poll(signal?: AbortSignal): Promise<PollResult> {
    this.#polling ??= this.#reconcile(signal).finally(() => {
      this.#polling = undefined;
      this.#progress = undefined;
      if (this.#state !== 'failed') this.#state = 'idle';
    });
    if (signal === undefined) return this.#polling;
    using wait = new Deadline({ signal, limitMs: Infinity, expired: neverExpires });
    return await wait.race(this.#polling);
  }

  /** Resolves when no poll is under way: one that was called off still ends what it had begun on the weights. */
  async settled(): Promise<void> {
    await this.#polling?.catch(() => undefined);
  }

  /** Makes a running loop poll at once, or once more if it is polling now. Several calls count as one. */
  wake(): void {
    this.#isWoken = true;
    this.#endWait?.();
  }

  /** Polls on every wake, and every `pollEveryMs` as a backstop, until the signal aborts. Throws only after a failed commit. */
  async run({ pollEveryMs, signal }: { pollEveryMs: number; signal: AbortSignal }): Promise<void> {
    let damagedInARow = 0;
    while (!signal.aborted) {
      this.#isWoken = false;
      try {
        const result = await this.poll(signal);
        damagedInARow = result.kind === 'retry' && isDamage(result.error) ? damagedInARow + 1 : 0;
      } catch (error) {
        if (this.#state === 'failed' || !signal.aborted) throw error;
        // Nothing of this replica may go on behind the back of whoever ended the loop.
        await this.settled();
        return;
      }
      if (damagedInARow > 1)
        await this.#wait(this.#deadlines.damagedMs * Math.min(LONGEST_DAMAGED_PAUSE, 2 ** (damagedInARow - 2)), {
          signal,
          isEndedByWake: false,
        });
      if (!this.#isWoken) await this.#wait(pollEveryMs, { signal, isEndedByWake: true });
    }
  }

  async #wait(
    durationMs: number,
    { signal, isEndedByWake }: { signal: AbortSignal; isEndedByWake: boolean },
  ): Promise<void> {
    if (signal.aborted) return;
    await new Promise<void>((resolve) => {
      const end = (): void => {
        clearTimeout(timer);
        signal.removeEventListener('abort', end);
        this.#endWait = undefined;
        resolve();
      };
      const timer = setTimeout(end, durationMs);
      signal.addEventListener('abort', end);
      if (isEndedByWake) this.#endWait = end;
    });
  }

  async #reconcile(signal: AbortSignal | undefined): Promise<PollResult> {
    if (this.#failure !== undefined) throw this.#failure;
    let prepared: Prepared | undefined;
    /** What kept the weights from reaching the newest version, while an older one than that was reached. */
    let problem: PollResult | undefined;
    // The second round is the one more look: a version that came meanwhile is staged on top instead of after another pause.
    for (let round = 0; round < 2; round++) {
      this.#state = 'fetching';
      try {
        let text: string | undefined;
        try {
          text = await this.#readPointer(signal);
        } catch (error) {
          throwIfAborted(signal);
          // What is staged already is as good as ever.
          if (prepared !== undefined) break;
          throw error;
        }
        const target = text === undefined ? undefined : this.#readTarget(text, prepared);
        if (target === undefined || problem !== undefined) break;
        const caughtUp = await this.#catchUp(target, signal).catch((error: unknown) => {
          throwIfAborted(signal);
          // A version that cannot be had does not hold back those before it.
          problem = isRefusal(error) ? this.#refuse(error) : this.#retry(error);
          return undefined;
        });
        if (problem !== undefined && !this.#hasReached(target, prepared)) {
          if (prepared === undefined) return problem;
          break;
        }
        prepared = await this.#prepare(caughtUp, prepared, signal);
      } catch (error) {
        throwIfAborted(signal);
        return isRefusal(error) ? this.#refuse(error) : this.#retry(error);
      }
    }
    if (problem === undefined) {
      if (this.#reason !== undefined) this.#emit({ type: 'sync-recovered', version: this.#served.version });
      this.#reason = undefined;
      this.#refusal = undefined;
    }
    const result = prepared === undefined ? undefined : await this.#commit(prepared);
    this.#isCaughtUp ||= problem === undefined;
    return result ?? { kind: 'current', version: this.#served.version };
  }

  async #readPointer(signal: AbortSignal | undefined): Promise<string | undefined> {
    const { pointerMs } = this.#deadlines;
    using deadline = new Deadline({
      signal,
      limitMs: pointerMs,
      expired: () => unavailable(`the pointer ${LATEST_POINTER} could not be read within ${pointerMs / 1000} s`),
    });
    const pointer = await deadline.race(this.#source.readPointer(LATEST_POINTER, { signal: deadline.signal }));
    return pointer?.value;
  }

  /** The version to go to; undefined when the replica is there. Throws a Refusal for text that it may not follow. */
  #readTarget(text: string, prepared: Prepared | undefined): VersionIdentity | undefined {
    let target: VersionIdentity;
    try {
      target = parseIdentity(text, `Pointer ${LATEST_POINTER}`);
    } catch (error) {
      throw new Refusal(error);
    }
    this.#runId ??= target.runId;
    if (target.runId !== this.#runId)
      throw new Refusal(
        new HoneError(
          'pointer-conflict',
          `The weight store now belongs to run ${target.runId}, this replica follows ${this.#runId}.`,
          {
            cure: `Start it with --run ${target.runId}, and a data folder that has held no other run, to follow that one.`,
          },
        ),
      );
    this.#target = target.version;
    const { held } = this.#options.weights;
    const at = prepared?.held.version ?? this.#served.version;
    const newest = held?.runId === target.runId ? Math.max(at, held.version) : at;
    if (target.version < newest)
      throw new Refusal(
        new HoneError(
          'pointer-rewind',
          `The pointer names version ${target.version}, this replica already has version ${newest}.`,
          { cure: 'Nothing was changed; if the store was restored from an older copy, start the replica anew.' },
        ),
      );
    return target.version === at ? undefined : target;
  }

  /** Whether a catch-up that broke off got further than what is served or staged. */
  #hasReached({ runId }: VersionIdentity, prepared: Prepared | undefined): boolean {
    const { held } = this.#options.weights;
    return held?.runId === runId && held.version > (prepared?.held.version ?? this.#served.version);
  }

  async #prepare(
    caughtUp: CaughtUp | undefined,
    before: Prepared | undefined,
    signal: AbortSignal | undefined,
  ): Promise<Prepared> {
    const { weights } = this.#options;
    const { held } = weights;
    if (held === undefined) throw new HoneError('store-failed', 'The weights at hand are dirty after a catch-up.');
    this.#state = 'staging';
    const costs = await this.#staged.stage(weights.tensors, {
      wanted: held.checksums,
      served: this.#served.checksums,
      signal,
    });
    return {
      held,
      bytes: (caughtUp?.bytes ?? 0) + (before?.bytes ?? 0),
      fetchMs: (caughtUp?.fetchMs ?? 0) + (before?.fetchMs ?? 0),
      applyMs: (caughtUp?.applyMs ?? 0) + (before?.applyMs ?? 0),
      stagedTensors: costs.stagedTensors + (before?.stagedTensors ?? 0),
      stagedBytes: costs.stagedBytes + (before?.stagedBytes ?? 0),
      stageMs: costs.stageMs + (before?.stageMs ?? 0),
    };
  }

  async #catchUp(target: VersionIdentity, signal: AbortSignal | undefined): Promise<CaughtUp> {
    const { codec, weights, cacheDirectory } = this.#options;
    const { catchUpMs, stallMs } = this.#deadlines;
    let modelBytes = 0;
    for (const { place } of weights.tensors.values()) modelBytes += placeSizeBytes(place);
    const limitMs = limitForBytes(catchUpMs, 2 * modelBytes);
    using deadline = new Deadline({
      signal,
      limitMs,
      expired: () =>
        unavailable(`version ${target.version} was not fetched and applied within ${Math.round(limitMs / 1000)} s`),
    });
    const reason = this.#reason ?? weights.dirtyReason ?? 'a change of the weights had broken off';
    const caughtUp = await catchUp(this.#source, target, {
      codec,
      weights,
      cacheDirectory,
      stallMs,
      deadlineMs: limitMs,
      signal: deadline.signal,
      now: this.#now,
      onProgress: ({ version }, progress) => (this.#progress = { version, ...progress }),
    });
    if (caughtUp.reseededFrom !== undefined)
      this.#emit({ type: 'weights-reseeded', version: target.version, source: caughtUp.reseededFrom, reason });
    return caughtUp;
  }

  async #commit({ held, ...costs }: Prepared): Promise<PollResult> {
    this.#state = 'committing';
    const from = this.#served.version;
    const { version } = held;
    const image = imageChecksum(held.checksums);
    let pauseMs: number;
    let servedChecksum: string | undefined;
    try {
      ({ pauseMs } = await this.#bounded('commit', version, this.#replica.commit(version)));
      if (this.#replica.version !== version)
        throw new HoneError(
          'engine-failed',
          `The replica says version ${this.#replica.version} after a commit of ${version}.`,
        );
      servedChecksum = await this.#verifyServed(held, image);
    } catch (error) {
      throw this.#fail(version, error);
    }
    this.#served = held;
    this.#servedImage = image;
    this.#staged.clear();
    const committed: CommittedWeights = {
      from,
      version,
      versionsCoalesced: version - from,
      imageChecksum: image,
      ...(servedChecksum === undefined ? {} : { servedChecksum }),
      ...costs,
      pauseMs,
    };
    this.#lastCommit = committed;
    this.#emit({ type: 'weights-committed', ...committed });
    return { kind: 'committed', ...committed };
  }

  async #verifyServed({ version, checksums }: HeldVersion, image: string): Promise<string | undefined> {
    if (this.#options.verifyServed !== true) return undefined;
    const found = await this.#bounded(
      'read back',
      version,
      this.#replica.servedChecksums?.() ?? Promise.resolve(checksums),
    );
    const wrong = [...checksums].filter(([name, checksum]) => found.get(name) !== checksum).map(([name]) => name);
    if (wrong.length === 0) return image;
    throw new HoneError(
      'checksum-mismatch',
      `The engine computes with other bytes than version ${version} has: ${wrong.join(', ')}.`,
    );
  }

  async #bounded<T>(what: string, version: PolicyVersion, work: Promise<T>): Promise<T> {
    const { commitMs } = this.#deadlines;
    using deadline = new Deadline({
      limitMs: commitMs,
      expired: () =>
        new HoneError('engine-failed', `The replica did not ${what} version ${version} within ${commitMs / 1000} s.`),
    });
    return await deadline.race(work);
  }

  #fail(version: PolicyVersion, cause: unknown): HoneError {
    this.#state = 'failed';
    const failure = new HoneError(
      'engine-failed',
      `The replica failed while it committed version ${version}: what it serves is unknown (${reasonOf(cause)}).`,
      { cure: 'Replace the replica: started anew, it catches up by itself.', cause },
    );
    this.#failure = failure;
    this.#reason = failure.message;
    this.#emit({ type: 'sync-failed', version, reason: failure.message, error: failure });
    return failure;
  }

  #retry(error: unknown): PollResult {
    this.#reason = reasonOf(error);
    this.#emit({ type: 'sync-retry', version: this.#served.version, reason: this.#reason, error });
    return { kind: 'retry', error };
  }

  #refuse(cause: unknown): PollResult {
    const error = cause instanceof Refusal ? cause.error : cause;
    const refusal =
      error instanceof HoneError ? error : new HoneError('store-failed', reasonOf(error), { cause: error });
    this.#reason = refusal.message;
    if (this.#refusal !== refusal.message)
      this.#emit({ type: 'sync-refused', version: this.#served.version, reason: refusal.message, error: refusal });
    this.#refusal = refusal.message;
    return { kind: 'refused', error: refusal };
  }

  #emit(event: ReconcilerEvent): void {
    this.#options.onEvent?.(event);
  }
}

interface Prepared extends StageCosts {
  readonly held: HeldVersion;
  readonly bytes: number;
  readonly fetchMs: number;
  readonly applyMs: number;
}

/** Carries an error past those that a retry could mend. */
class Refusal extends Error {
  readonly error: unknown;

  constructor(error: unknown) {
    super(reasonOf(error));
    this.error = error;
  }
}

/** A version that does not fit what is held, or a chain without an anchor: another try of the same gives the same. */
function isRefusal(error: unknown): boolean {
  return error instanceof Refusal || (error instanceof HoneError && error.code === 'delta-base-mismatch');
}

function unavailable(what: string): HoneError {
  return new HoneError('store-unavailable', `Weights are not up to date: ${what}.`, {
    cure: 'Check the link to the weight store; it is tried again at the next poll.',
  });
}

function neverExpires(): HoneError {
  return new HoneError('aborted', 'The wait has ended.');
}

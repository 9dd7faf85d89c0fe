/**
 * Keeps one replica on the newest published version: reads the pointer, rebuilds and stages the weights while the replica samples,
 * looks at the pointer once more, then commits. Invariants: versions never go back; a failed fetch or stage changes nothing that is
 * served and is retried; after a failed commit the served weights are unknown, so the reconciler stops for good.
 */
import { HoneError } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import { LATEST_POINTER } from './publisher.ts';
import { loadVersion, type LocalVersion } from './version-chain.ts';
import { parseIdentity, type VersionIdentity } from './version-directory.ts';
import { imageOf } from './weight-image.ts';
import type { Pointer, WeightStore } from './store/weight-store.ts';

/** What a sampling engine offers. Staged tensors pile up beside those that are served, until a commit takes them all. */
export interface SyncedReplica {
  /** The version that is served. */
  readonly version: PolicyVersion;
  /** Takes the bf16 bytes of one tensor without disturbing what is served; may be called again with newer bytes. Only reads them. */
  stage(name: string, bytes: Uint8Array): Promise<void> | void;
  /** Swaps in what was staged between two decode steps. Sampling stands still for `pauseMs`. */
  commit(version: PolicyVersion): Promise<{ pauseMs: number }>;
}

export type ReconcilerState = 'idle' | 'fetching' | 'staging' | 'committing' | 'failed';

export interface CommittedWeights {
  readonly from: PolicyVersion;
  readonly version: PolicyVersion;
  readonly stagedTensors: number;
  readonly stagedBytes: number;
  readonly fetchMs: number;
  readonly stageMs: number;
  readonly pauseMs: number;
}

export type PollResult =
  | { readonly kind: 'current'; readonly version: PolicyVersion }
  | ({ readonly kind: 'committed' } & CommittedWeights)
  /** Nothing that is served changed; the next poll tries again. */
  | { readonly kind: 'retry'; readonly error: unknown };

export type ReconcilerEvent =
  | ({ readonly type: 'weights-committed' } & CommittedWeights)
  | { readonly type: 'sync-retry'; readonly version: PolicyVersion; readonly error: unknown }
  | { readonly type: 'sync-failed'; readonly version: PolicyVersion; readonly error: unknown };

export interface ReconcilerOptions {
  /** bf16 bytes of all tensors that the replica serves now, as `replica.version`. */
  readonly baseWeights: ReadonlyMap<string, Uint8Array>;
  /** The run to follow; the first one that the pointer names when left out. */
  readonly runId?: string;
  readonly onEvent?: (event: ReconcilerEvent) => void;
  /** Milliseconds from any fixed origin, for the times in events. */
  readonly now?: () => number;
}

export class ReplicaReconciler {
  readonly #store: WeightStore;
  readonly #replica: SyncedReplica;
  readonly #onEvent: (event: ReconcilerEvent) => void;
  readonly #now: () => number;
  #runId: string | undefined;
  #local: LocalVersion;
  /** Checksum of each tensor in the replica's staging area; undefined where a stage call broke off. */
  readonly #staged = new Map<string, string | undefined>();
  #state: ReconcilerState = 'idle';
  #failure: unknown;
  #polling: Promise<PollResult> | undefined;
  #isWoken = false;
  #endWait: (() => void) | undefined;

  constructor(store: WeightStore, replica: SyncedReplica, options: ReconcilerOptions) {
    this.#store = store;
    this.#replica = replica;
    this.#onEvent = options.onEvent ?? (() => undefined);
    this.#now = options.now ?? (() => performance.now());
    this.#runId = options.runId;
    this.#local = { version: replica.version, image: imageOf(options.baseWeights) };
  }

  get state(): ReconcilerState {
    return this.#state;
  }

  /**
   * Brings the replica to the newest version, if it is not there yet. Calls that come while one is at work share its result.
   * Throws when the pointer's text names no version or another run, and, from then on always, after a failed commit.
   */
  poll(): Promise<PollResult> {
    this.#polling ??= this.#reconcile().finally(() => {
      this.#polling = undefined;
      if (this.#state !== 'failed') this.#state = 'idle';
    });
    return this.#polling;
  }

  /** Makes a running loop poll at once, or once more if it is polling now. Several calls count as one. */
  wake(): void {
    this.#isWoken = true;
    this.#endWait?.();
  }

  /** Polls on every wake, and every `pollEveryMs` as a backstop, until the signal aborts. Throws what `poll` throws. */
  async run({ pollEveryMs, signal }: { pollEveryMs: number; signal: AbortSignal }): Promise<void> {
    while (!signal.aborted) {
      this.#isWoken = false;
      await this.poll();
      if (!this.#isWoken && !signal.aborted) await this.#wait(pollEveryMs, signal);
    }
  }

  async #wait(pollEveryMs: number, signal: AbortSignal): Promise<void> {
    await new Promise<void>((resolve) => {
      const end = (): void => {
        clearTimeout(timer);
        signal.removeEventListener('abort', end);
        this.#endWait = undefined;
        resolve();
      };
      const timer = setTimeout(end, pollEveryMs);
      signal.addEventListener('abort', end);
      this.#endWait = end;
    });
  }

  async #reconcile(): Promise<PollResult> {
    if (this.#state === 'failed') throw this.#failure;
    let prepared: Prepared | undefined;
    // The second round is the one more look: a version that came meanwhile is staged on top instead of after another pause.
    for (let round = 0; round < 2; round++) {
      this.#state = 'fetching';
      let pointer: Pointer | undefined;
      try {
        pointer = await this.#store.readPointer(LATEST_POINTER);
      } catch (error) {
        if (prepared !== undefined) break;
        return this.#retry(error);
      }
      const target = this.#readTarget(pointer);
      const at = prepared?.next.version ?? this.#local.version;
      if (target === undefined || target.version === at) break;
      try {
        if (target.version < at) throw rewind(target.version, at);
        prepared = await this.#prepare(target, prepared);
      } catch (error) {
        return this.#retry(error);
      }
    }
    return prepared === undefined ? { kind: 'current', version: this.#local.version } : this.#commit(prepared);
  }

  /** Not in the reach of any retry: text that cannot be understood, or another run's, must stop the replica where it is. */
  #readTarget(pointer: Pointer | undefined): VersionIdentity | undefined {
    if (pointer === undefined) return undefined;
    const target = parseIdentity(pointer.value, `Pointer ${LATEST_POINTER}`);
    this.#runId ??= target.runId;
    if (target.runId !== this.#runId)
      throw new HoneError(
        'pointer-conflict',
        `The weight store now belongs to run ${target.runId}, this replica follows ${this.#runId}.`,
        {
          cure: 'Start the replica anew from the base model of that run.',
        },
      );
    return target;
  }

  async #prepare(target: VersionIdentity, before: Prepared | undefined): Promise<Prepared> {
    const startedMs = this.#now();
    const image = await loadVersion(this.#store, target, before?.next ?? this.#local);
    const fetchedMs = this.#now();
    this.#state = 'staging';
    let stagedTensors = 0;
    let stagedBytes = 0;
    for (const [name, bytes] of image.tensors) {
      const checksum = image.checksums.get(name);
      const held = this.#staged.has(name) ? this.#staged.get(name) : this.#local.image.checksums.get(name);
      if (held === checksum) continue;
      this.#staged.set(name, undefined);
      await this.#replica.stage(name, bytes);
      this.#staged.set(name, checksum);
      stagedTensors += 1;
      stagedBytes += bytes.byteLength;
    }
    return {
      next: { version: target.version, image },
      stagedTensors: stagedTensors + (before?.stagedTensors ?? 0),
      stagedBytes: stagedBytes + (before?.stagedBytes ?? 0),
      fetchMs: fetchedMs - startedMs + (before?.fetchMs ?? 0),
      stageMs: this.#now() - fetchedMs + (before?.stageMs ?? 0),
    };
  }

  async #commit({ next, ...costs }: Prepared): Promise<PollResult> {
    this.#state = 'committing';
    const from = this.#local.version;
    let pauseMs: number;
    try {
      ({ pauseMs } = await this.#replica.commit(next.version));
      if (this.#replica.version !== next.version)
        throw new HoneError(
          'engine-failed',
          `The replica says version ${this.#replica.version} after a commit of ${next.version}.`,
        );
    } catch (error) {
      this.#state = 'failed';
      this.#failure = new HoneError(
        'engine-failed',
        `The replica failed while it committed version ${next.version}: what it serves is unknown.`,
        {
          cure: 'Replace the replica: start it anew from the base model, it catches up by itself.',
          cause: error,
        },
      );
      this.#onEvent({ type: 'sync-failed', version: next.version, error: this.#failure });
      throw this.#failure;
    }
    this.#local = next;
    this.#staged.clear();
    const committed = { from, version: next.version, ...costs, pauseMs };
    this.#onEvent({ type: 'weights-committed', ...committed });
    return { kind: 'committed', ...committed };
  }

  #retry(error: unknown): PollResult {
    this.#onEvent({ type: 'sync-retry', version: this.#local.version, error });
    return { kind: 'retry', error };
  }
}

interface Prepared {
  readonly next: LocalVersion;
  readonly stagedTensors: number;
  readonly stagedBytes: number;
  readonly fetchMs: number;
  readonly stageMs: number;
}

function rewind(found: PolicyVersion, local: PolicyVersion): HoneError {
  return new HoneError('pointer-rewind', `The pointer names version ${found}, this replica already serves ${local}.`, {
    cure: 'Nothing was changed; if the store was restored from an older copy, start the replica anew.',
  });
}

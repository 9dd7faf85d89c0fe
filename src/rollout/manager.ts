/**
 * The rollout manager: decides which group starts when, runs its rollouts, and hands full batches to the trainer.
 *
 * Admission: groups that are admitted and not yet trained or dropped number at most (maxStaleness + 1) x groupsPerStep,
 * the batch in training included. With maxStaleness 0 this is the synchronous mode: every rollout of a batch is sampled
 * by the version that trains it, and the batch is the first groupsPerStep groups of the stream that have variance,
 * whatever order they finish in.
 * Invariant: each finished rollout goes to the buffer before it counts; nothing is dropped without a reason.
 */
import type { BufferedGroup, RolloutBuffer } from './buffer.ts';
import { HoneError } from '../domain/errors.ts';
import { groupId, rolloutId } from '../domain/ids.ts';
import type { PolicyVersion, RolloutId } from '../domain/ids.ts';
import { oldestVersion } from '../domain/rollout.ts';
import type { Rollout } from '../domain/rollout.ts';
import type { Task } from '../domain/task.ts';
import { groupDropReason } from '../reward/advantage.ts';
import type { CostCounts } from '../reward/cost.ts';

export interface EpisodeRequest {
  readonly id: RolloutId;
  readonly ordinal: number;
  readonly attempt: number;
  readonly task: Task;
  readonly signal: AbortSignal;
}

export interface ManagerOptions {
  readonly groupSize: number;
  readonly groupsPerStep: number;
  readonly maxStaleness: number;
  /** Rollouts in flight at most. */
  readonly concurrency: number;
  /** Further tries of a rollout whose infrastructure failed. */
  readonly infraRetries: number;
  /** Deterministic: the task of each place in the stream. */
  readonly taskAt: (ordinal: number) => Task;
  /** Never rejects for a failed rollout: failures are rollouts with a status and a reason. */
  readonly runEpisode: (request: EpisodeRequest) => Promise<Rollout>;
  readonly currentVersion: () => PolicyVersion;
  /** Counts by which rollouts of one outcome differ in reward: groups that differ in one are kept. Default none. */
  readonly pricedCounts?: readonly (keyof CostCounts)[];
}

export interface StepBatch {
  readonly groups: readonly BufferedGroup[];
  /** Groups dropped since the last batch, by reason. */
  readonly dropped: Readonly<Record<string, number>>;
  /** Groups finished since the last batch, and how many of them had variance. */
  readonly finished: number;
  readonly varied: number;
  readonly waitMs: number;
  /** All rollouts finished since the last batch, dropped groups included, by id: sums over them have one order. */
  readonly observed: readonly { readonly task: Task; readonly rollout: Rollout }[];
}

interface OpenGroup {
  readonly ordinal: number;
  readonly task: Task;
  readonly admittedVersion: PolicyVersion;
  readonly rollouts: Rollout[];
}

interface Job {
  readonly group: OpenGroup;
  readonly attempt: number;
  readonly tries: number;
}

/** This many groups in a row without variance, and batches' worth of them, end the run: sampling on would never end. */
const MIN_FLAT_GROUPS = 200;
const FLAT_BATCHES = 20;

export class RolloutManager {
  readonly #buffer: RolloutBuffer;
  readonly #options: ManagerOptions;
  readonly #abort = new AbortController();
  readonly #queue: Job[] = [];
  readonly #running = new Set<Promise<void>>();
  #ready: BufferedGroup[] = [];
  #open = 0;
  #assigned = 0;
  #nextOrdinal: number;
  #finished = 0;
  #varied = 0;
  #dropped: Record<string, number> = {};
  #observed: { task: Task; rollout: Rollout }[] = [];
  /** Groups without variance since the last one that had some. */
  #flat = 0;
  #failure: Error | undefined;
  #wake: (() => void) | undefined;

  constructor(buffer: RolloutBuffer, options: ManagerOptions) {
    this.#buffer = buffer;
    this.#options = options;
    this.#nextOrdinal = buffer.nextOrdinal();
    // A restart: finished rollouts of open groups are kept, only the missing attempts run again.
    for (const stored of buffer.groups('open'))
      this.#enqueue({
        ordinal: stored.ordinal,
        task: stored.task,
        admittedVersion: stored.admittedVersion,
        rollouts: [...stored.rollouts],
      });
    this.#ready = buffer.groups('ready');
    const { observed, dropped, finished, varied } = buffer.unmeasured();
    this.#observed = observed;
    this.#dropped = dropped;
    this.#finished = finished;
    this.#varied = varied;
  }

  /** Groups started and neither trained nor dropped. */
  get active(): number {
    return this.#open + this.#ready.length + this.#assigned;
  }

  /** Resolves with the batch of `step`, assigned in the buffer; rejects when the manager was stopped or a bug surfaced. */
  async nextBatch(step: number): Promise<StepBatch> {
    const started = performance.now();
    for (;;) {
      this.#pump();
      if (this.#failure !== undefined) throw this.#failure;
      if (this.#abort.signal.aborted) throw new HoneError('aborted', 'The rollout manager was stopped.');
      this.#dropStale();
      if (this.#ready.length >= this.#options.groupsPerStep) break;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    this.#ready.sort((a, b) => a.ordinal - b.ordinal);
    const groups = this.#ready.splice(0, this.#options.groupsPerStep);
    this.#buffer.assign(
      step,
      groups.map((group) => group.ordinal),
    );
    this.#assigned += groups.length;
    const batch: StepBatch = {
      groups,
      dropped: this.#dropped,
      finished: this.#finished,
      varied: this.#varied,
      waitMs: performance.now() - started,
      observed: this.#observed.sort((a, b) => (a.rollout.id < b.rollout.id ? -1 : 1)),
    };
    this.#dropped = {};
    this.#finished = 0;
    this.#varied = 0;
    this.#observed = [];
    this.#pump();
    return batch;
  }

  /** The step's checkpoint is durable and its version published: its places in the stream are free. */
  stepTrained(step: number): void {
    this.#buffer.markTrained(step);
    this.#assigned = 0;
    this.#pump();
  }

  /** Aborts what is in flight and waits for it; finished rollouts stay in the buffer. */
  async stop(): Promise<void> {
    this.#abort.abort();
    this.#queue.length = 0;
    this.#signal();
    await Promise.allSettled(this.#running);
  }

  #pump(): void {
    if (this.#abort.signal.aborted || this.#failure !== undefined) return;
    const capacity = (this.#options.maxStaleness + 1) * this.#options.groupsPerStep;
    while (this.active < capacity && this.#queue.length < this.#options.concurrency) {
      const ordinal = this.#nextOrdinal++;
      const group: OpenGroup = {
        ordinal,
        task: this.#options.taskAt(ordinal),
        admittedVersion: this.#options.currentVersion(),
        rollouts: [],
      };
      this.#buffer.admit(ordinal, groupId(`g${ordinal}`), group.task, group.admittedVersion);
      this.#enqueue(group);
    }
    while (this.#running.size < this.#options.concurrency) {
      const job = this.#queue.shift();
      if (job === undefined) break;
      const run: Promise<void> = this.#runJob(job)
        .catch((error: unknown) => {
          this.#fail(error);
        })
        .finally(() => {
          this.#running.delete(run);
          try {
            this.#pump();
          } catch (error) {
            this.#fail(error);
          }
          this.#signal();
        });
      this.#running.add(run);
    }
  }

  /** The first failure is the cause; what fails after it is not. */
  #fail(error: unknown): void {
    this.#failure ??= error instanceof Error ? error : new Error(String(error));
  }

  #enqueue(group: OpenGroup): void {
    this.#open++;
    const done = new Set(group.rollouts.map((rollout) => rollout.attempt));
    for (let attempt = 0; attempt < this.#options.groupSize; attempt++)
      if (!done.has(attempt)) this.#queue.push({ group, attempt, tries: 0 });
    if (done.size >= this.#options.groupSize) this.#close(group);
  }

  async #runJob(job: Job): Promise<void> {
    const { group, attempt } = job;
    const id = rolloutId(`g${String(group.ordinal).padStart(6, '0')}-a${String(attempt).padStart(2, '0')}`);
    const rollout = await this.#options.runEpisode({
      id,
      ordinal: group.ordinal,
      attempt,
      task: group.task,
      signal: this.#abort.signal,
    });
    if (this.#abort.signal.aborted) return;
    if (rollout.status === 'infra-failed' && job.tries < this.#options.infraRetries) {
      this.#queue.unshift({ group, attempt, tries: job.tries + 1 });
      return;
    }
    this.#buffer.addRollout(group.ordinal, rollout);
    group.rollouts.push(rollout);
    this.#observed.push({ task: group.task, rollout });
    if (group.rollouts.length === this.#options.groupSize) this.#close(group);
  }

  #close(group: OpenGroup): void {
    this.#open--;
    this.#finished++;
    const { pricedCounts = [] } = this.#options;
    const reason = groupDropReason(group.rollouts, { pricedCounts });
    if (reason !== undefined) {
      this.#drop(group.ordinal, reason);
      this.#flat++;
      if (this.#flat >= Math.max(MIN_FLAT_GROUPS, FLAT_BATCHES * this.#options.groupsPerStep))
        throw this.#nothingToLearn(group);
      return;
    }
    this.#flat = 0;
    this.#varied++;
    this.#buffer.markReady(group.ordinal);
    const rollouts = [...group.rollouts].sort((a, b) => a.attempt - b.attempt);
    this.#ready.push({
      ordinal: group.ordinal,
      id: groupId(`g${group.ordinal}`),
      task: group.task,
      admittedVersion: group.admittedVersion,
      rollouts,
    });
  }

  #nothingToLearn(last: OpenGroup): HoneError {
    const reasons = Object.entries(this.#dropped).map(([reason, count]) => `${count} ${reason}`);
    const failure = last.rollouts.find((rollout) => rollout.failure !== undefined)?.failure;
    return new HoneError(
      'invalid-rollout',
      `The last ${this.#flat} groups taught nothing (${reasons.join(', ')}${failure === undefined ? '' : `; last failure: ${failure}`}), so no batch can be filled.`,
      {
        cure: 'Look at what the model answers: it may not know the format, or sampling.temperature may be too low for its answers to differ.',
      },
    );
  }

  #dropStale(): void {
    const limit = this.#options.currentVersion() - this.#options.maxStaleness;
    this.#ready = this.#ready.filter((group) => {
      const fresh = group.rollouts.every((rollout) => oldestVersion(rollout) >= limit);
      if (!fresh) this.#drop(group.ordinal, 'stale');
      return fresh;
    });
    this.#pump();
  }

  #drop(ordinal: number, reason: string): void {
    this.#buffer.drop(ordinal, reason);
    this.#dropped[reason] = (this.#dropped[reason] ?? 0) + 1;
  }

  #signal(): void {
    this.#wake?.();
    this.#wake = undefined;
  }
}

/**
 * The replica's thread: one sampler, one loop. Each turn takes all messages that came, makes one scheduling step, does a slice of
 * background work and posts all answers in one list; with nothing to do it sleeps until a message comes.
 * Invariants: a commit happens between two steps, after admission closed and those it waits for ended; the version that a request is
 * admitted at is the one that is served in the same turn; a request bound to a version never holds a token of another.
 */
import { setImmediate as yieldToEvents } from 'node:timers/promises';
import { parentPort, workerData } from 'node:worker_threads';
import type { MessagePort, Transferable } from 'node:worker_threads';

import { HoneError } from '../domain/errors.ts';
import { parseModelConfig } from '../model/config.ts';
import { createEngine } from '../model/engine.ts';
import type { Engine } from '../model/engine.ts';
import { Sampler } from '../model/sampler.ts';
import type { SampledGeneration, TensorHash, Ticket } from '../model/sampler.ts';
import { compileDeltaKernels, DeltaKernels } from '../sync/delta/delta-kernels.ts';
import { BackgroundWork } from './replica-background.ts';
import { toPlainError } from './replica-protocol.ts';
import type {
  CommitMessage,
  FromReplica,
  ReplicaSetup,
  ReplicaStats,
  SubmitMessage,
  ToReplica,
} from './replica-protocol.ts';
import { StepBatch } from './replica-step.ts';

/** Background work takes at most this share of the time of a decode step, within bounds. */
const BACKGROUND_SHARE = 0.25;
const LEAST_BACKGROUND_MS = 0.5;
const MOST_BACKGROUND_MS = 8;
/** While nothing is sampled; a message still gets an answer soon. */
const IDLE_BACKGROUND_MS = 10;

interface Running {
  readonly message: SubmitMessage;
  readonly submitted: Ticket;
}

interface Commit {
  readonly message: CommitMessage;
  /** Until then what stays the same is brought up to date, and admission is open. */
  isDraining: boolean;
  deadlineMs: number;
}

class ReplicaLoop {
  readonly #port: MessagePort;
  readonly #engine: Engine;
  readonly #sampler: Sampler;
  readonly #createHash: () => TensorHash;
  readonly #inbox: ToReplica[] = [];
  readonly #outbox: FromReplica[] = [];
  readonly #transfers: Transferable[] = [];
  readonly #running = new Map<number, Running>();
  readonly #waiting: SubmitMessage[] = [];
  readonly #background = new BackgroundWork();
  readonly #drawn: StepBatch;
  #commit: Commit | undefined;
  #stepMs = 0;
  #isClosed = false;
  #wake: (() => void) | undefined;

  constructor(
    port: MessagePort,
    parts: { engine: Engine; sampler: Sampler; slots: number; createHash: () => TensorHash },
  ) {
    this.#port = port;
    this.#engine = parts.engine;
    this.#sampler = parts.sampler;
    this.#createHash = parts.createHash;
    this.#drawn = new StepBatch(parts.slots);
    port.on('message', (batch: readonly ToReplica[]) => {
      this.#inbox.push(...batch);
      this.#wake?.();
    });
  }

  async run(): Promise<void> {
    try {
      while (!this.#isClosed) await this.#turn();
    } catch (error) {
      // What was drawn before the engine broke is good.
      const step = this.#drawn.take(this.#sampler.version);
      if (step !== undefined) this.#outbox.push(step);
      this.#flush();
      throw error;
    }
    this.#port.close();
    await this.#engine.close();
  }

  async #turn(): Promise<void> {
    for (const message of this.#inbox.splice(0)) this.#handle(message);
    const alive = this.#step();
    this.#advanceCommit();
    if (this.#commit?.isDraining !== true && !this.#background.isIdle)
      this.#background.run(
        alive > 0
          ? Math.min(MOST_BACKGROUND_MS, Math.max(LEAST_BACKGROUND_MS, this.#stepMs * BACKGROUND_SHARE))
          : IDLE_BACKGROUND_MS,
      );
    this.#advanceCommit();
    this.#flush();
    if (alive > 0 || this.#inbox.length > 0 || !this.#background.isIdle || this.#commit !== undefined)
      await yieldToEvents();
    else await this.#nextMessage();
  }

  async #nextMessage(): Promise<void> {
    if (this.#inbox.length > 0) return;
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
    this.#wake = undefined;
  }

  /** Tokens of the step come before the ends of requests that it ended. */
  #step(): number {
    if (this.#running.size === 0) return 0;
    const started = performance.now();
    const before = this.#outbox.length;
    const alive = this.#sampler.step();
    const step = this.#drawn.take(this.#sampler.version);
    if (step !== undefined) this.#outbox.splice(before, 0, step);
    this.#stepMs = performance.now() - started;
    return alive;
  }

  #handle(message: ToReplica): void {
    const { ticket } = message;
    try {
      switch (message.type) {
        case 'submit':
          if (this.#commit?.isDraining === true) this.#waiting.push(message);
          else this.#admit(message);
          return;
        case 'abort':
          this.#abort(ticket);
          return;
        case 'stage':
          this.#refuseDuringCommit('Tensors cannot be staged');
          this.#inBackground(ticket, this.#sampler.staging(message.name, message.bytes), () => ({
            type: 'done',
            ticket,
          }));
          return;
        case 'commit':
          this.#beginCommit(message);
          return;
        case 'checksums':
          this.#inBackground(ticket, this.#sampler.servedChecksums(this.#createHash), (checksums) => ({
            type: 'checksums',
            ticket,
            checksums,
          }));
          return;
        case 'threads':
          this.#engine.setThreads(message.threads);
          this.#outbox.push({ type: 'done', ticket });
          return;
        case 'stats':
          this.#outbox.push({ type: 'stats', ticket, stats: this.#stats() });
          return;
        case 'close':
          this.#isClosed = true;
          this.#outbox.push({ type: 'done', ticket });
          return;
        default:
          message satisfies never;
      }
    } catch (error) {
      this.#fail(ticket, error);
    }
  }

  #inBackground<T>(ticket: number, slices: Iterator<undefined, T>, answer: (result: T) => FromReplica): void {
    this.#background.add({
      slices,
      // The queue hands back what this very iterator returned.
      onDone: (result) => this.#outbox.push(answer(result as T)),
      onFailed: (error) => this.#fail(ticket, error),
    });
  }

  #admit(message: SubmitMessage): void {
    const { ticket, minVersion, exactVersion, tokens, sampling, seed, drawnBefore, isStreamed, isRecorded } = message;
    const served = this.#sampler.version;
    if (exactVersion !== undefined && exactVersion < served) {
      this.#outbox.push({ type: 'refused', ticket, reason: 'passed', served });
      return;
    }
    if ((minVersion ?? 0) > served || (exactVersion ?? 0) > served) {
      if (message.unmet === 'wait') this.#waiting.push(message);
      else this.#outbox.push({ type: 'refused', ticket, reason: 'not-ready', served });
      return;
    }
    const submitted = this.#sampler.submit({
      tokens,
      sampling,
      seed,
      drawnBefore,
      isRecorded,
      isPinned: exactVersion !== undefined,
      onFinish: (generation) => this.#finish(ticket, generation),
      ...(isStreamed ? { onToken: (id, drawn) => this.#drawn.add(ticket, id, drawn) } : {}),
    });
    this.#running.set(ticket, { message, submitted });
    this.#outbox.push({ type: 'admitted', ticket, version: served });
  }

  #finish(ticket: number, { cachedTokens, ...generation }: SampledGeneration): void {
    if (!this.#running.delete(ticket)) return;
    this.#outbox.push({ type: 'generated', ticket, generation, cachedTokens, versionEnd: this.#sampler.version });
    for (const array of [generation.tokens, generation.logprobs, generation.kept.ids, generation.kept.offsets])
      // A buffer can be transferred once, and only when no other array lies in it.
      if (array.byteLength > 0 && array.byteLength === array.buffer.byteLength && array.buffer instanceof ArrayBuffer)
        this.#transfers.push(array.buffer);
  }

  #abort(ticket: number): void {
    const running = this.#running.get(ticket);
    if (running !== undefined) {
      this.#sampler.abort(running.submitted);
      return;
    }
    const at = this.#waiting.findIndex((message) => message.ticket === ticket);
    if (at < 0) return;
    this.#waiting.splice(at, 1);
    this.#outbox.push({
      type: 'generated',
      ticket,
      generation: {
        tokens: new Int32Array(0),
        logprobs: new Float32Array(0),
        kept: { ids: new Int32Array(0), offsets: new Int32Array(1) },
        versions: [],
        finish: 'abort',
      },
      cachedTokens: 0,
      versionEnd: this.#sampler.version,
    });
  }

  #refuseDuringCommit(what: string): void {
    if (this.#commit === undefined) return;
    throw new HoneError('engine-failed', `${what} while version ${this.#commit.message.version} is committed.`, {
      cure: 'Wait for the commit that is under way.',
    });
  }

  #beginCommit(message: CommitMessage): void {
    const { ticket, version } = message;
    this.#refuseDuringCommit(`Version ${version} cannot be committed`);
    const served = this.#sampler.version;
    if (version < served)
      throw new HoneError(
        'engine-failed',
        `Version ${version} cannot follow version ${served}; versions never go back.`,
        {
          cure: 'Start a new replica to serve an older version.',
        },
      );
    const commit: Commit = { message, isDraining: false, deadlineMs: Infinity };
    this.#commit = commit;
    const preparing = this.#sampler.preparing();
    // When nothing is left to copy admission closes in this very turn.
    if (this.#background.isIdle && preparing.next().done === true) {
      this.#closeAdmission(commit);
      return;
    }
    this.#background.add({
      slices: preparing,
      onDone: () => this.#closeAdmission(commit),
      onFailed: (error) => {
        this.#commit = undefined;
        this.#fail(ticket, error);
      },
    });
  }

  #closeAdmission(commit: Commit): void {
    commit.isDraining = true;
    commit.deadlineMs = performance.now() + commit.message.drainMs;
    this.#sampler.holdAdmission(true);
  }

  /** Swaps as soon as nothing is left that the commit waits for, or its time is up. */
  #advanceCommit(): void {
    const commit = this.#commit;
    if (commit?.isDraining !== true) return;
    const { ticket, version, mode, drainMs } = commit.message;
    const awaited = [...this.#running.values()].filter(({ message }) => message.exactVersion !== undefined);
    const isQuiet = mode === 'in-place' || this.#sampler.running === 0;
    if ((awaited.length > 0 || !isQuiet) && performance.now() < commit.deadlineMs) return;
    for (const { message, submitted } of awaited) {
      this.#running.delete(message.ticket);
      this.#sampler.abort(submitted);
      this.#outbox.push({ type: 'refused', ticket: message.ticket, reason: 'passed', served: version });
    }
    if (mode === 'quiesce') this.#endBegun(drainMs);
    const started = performance.now();
    this.#sampler.commit(version);
    this.#outbox.push({ type: 'committed', ticket, version, pauseMs: performance.now() - started });
    this.#commit = undefined;
    this.#sampler.holdAdmission(false);
    for (const message of this.#waiting.splice(0)) this.#handle(message);
  }

  /** No reply may hold tokens of two versions: what did not end in time is cut off. */
  #endBegun(drainMs: number): void {
    for (const { message, submitted } of this.#running.values()) {
      if (!this.#sampler.hasBegun(submitted)) continue;
      this.#running.delete(message.ticket);
      this.#sampler.abort(submitted);
      this.#fail(
        message.ticket,
        new HoneError('engine-failed', `The reply did not end within the ${drainMs} ms that a commit waits for.`, {
          cure: 'Ask again from the tokens that came.',
        }),
      );
    }
  }

  #fail(ticket: number, error: unknown): void {
    this.#outbox.push({ type: 'failed', ticket, error: toPlainError(error) });
  }

  #stats(): ReplicaStats {
    const { sampledTokens, computedPromptTokens, cachedPromptTokens, kernelMs, otherMs } = this.#sampler.stats;
    return {
      running: this.#sampler.running,
      waiting: this.#running.size - this.#sampler.running + this.#waiting.length,
      sampledTokens,
      computedPromptTokens,
      cachedPromptTokens,
      kernelMs,
      outsideMs: otherMs,
    };
  }

  #flush(): void {
    if (this.#outbox.length === 0) return;
    this.#port.postMessage(this.#outbox, this.#transfers);
    this.#outbox.length = 0;
    this.#transfers.length = 0;
  }
}

function isReplicaData(data: unknown): data is { replica: ReplicaSetup } {
  return typeof data === 'object' && data !== null && 'replica' in data;
}

async function serve(port: MessagePort, setup: ReplicaSetup): Promise<void> {
  const { configJson, served, version, build, threads, slots, contextLength, prefillChunk, inFlight } = setup;
  const engine = await createEngine({ build, threads });
  const sampler = Sampler.create(engine, parseModelConfig(configJson), served, {
    version,
    slots,
    ...(contextLength === undefined ? {} : { contextLength }),
    ...(prefillChunk === undefined ? {} : { prefillChunk }),
    ...(inFlight === undefined ? {} : { inFlight }),
  });
  const kernels = new DeltaKernels(await compileDeltaKernels());
  // One tensor is hashed at a time.
  const createHash = (): TensorHash => {
    kernels.resetHash('tensor');
    return {
      update: (bytes) => kernels.hashBytes('tensor', bytes),
      digest: () => kernels.digest('tensor').toString('hex'),
    };
  };
  const tensorBytes = new Map([...served].map(([name, bytes]) => [name, bytes.byteLength]));
  // This thread's own copy of the map would keep the bytes for as long as the thread lives.
  if (served instanceof Map) served.clear();
  const loop = new ReplicaLoop(port, { engine, sampler, slots, createHash });
  port.postMessage([
    { type: 'ready', contextLength: sampler.contextLength, build: engine.build, tensorBytes },
  ] satisfies FromReplica[]);
  await loop.run();
}

if (parentPort !== null && isReplicaData(workerData)) {
  const port = parentPort;
  try {
    await serve(port, workerData.replica);
  } catch (error) {
    port.postMessage([{ type: 'broken', error: toPlainError(error) }] satisfies FromReplica[]);
    port.close();
  }
}

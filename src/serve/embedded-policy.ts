/**
 * The embedded engine as a Policy: a sampler in a thread of its own, so that serving HTTP never waits for a decode step.
 * It owns the thread's life, the way of requests and tokens to and from it, and weight commits. Invariants: each request settles
 * exactly once; a replica that broke fails every request, with its cause, until it is replaced.
 */
import { Worker } from 'node:worker_threads';

import { HoneError, reasonOf } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { GenerateRequest, Generation, Policy } from '../domain/policy.ts';
import { Deadline } from '../sync/deadline.ts';
import { fromPlainError, ownBuffer } from './replica-protocol.ts';
import type {
  CommitMode,
  FromReplica,
  ReplicaSetup,
  ReplicaStats,
  StepMessage,
  SubmitMessage,
  ToReplica,
} from './replica-protocol.ts';
import { decodeKeptRows } from './wire/kept-set-code.ts';

export type { CommitMode, ReplicaStats } from './replica-protocol.ts';
export type EmbeddedPolicyOptions = ReplicaSetup;

/** A request whose tokens are taken as they come and not gathered. */
export type StreamRequest = Omit<GenerateRequest, 'signal' | 'onToken' | 'session'>;

/** Called in order, between two turns of the event loop, and never after `ended` settled. */
export interface StreamSink {
  /** The request may start, and this version was served when that was decided. */
  admitted(version: PolicyVersion): void;
  /** `kept` is the row in the kept-set code. */
  token(drawn: {
    readonly id: number;
    readonly logprob: number;
    readonly kept: Uint8Array;
    readonly version: PolicyVersion;
  }): void;
}

export type StreamEnd =
  | {
      readonly kind: 'ended';
      readonly finish: Generation['finish'];
      readonly cachedTokens: number;
      readonly versionEnd: PolicyVersion;
    }
  /** `not-ready`: newer weights are asked for than are served; `passed`: older ones, which never come back here. */
  | { readonly kind: 'refused'; readonly reason: 'not-ready' | 'passed'; readonly served: PolicyVersion };

export interface ReplicaStream {
  /** Rejects when the request makes no sense or the replica broke. */
  readonly ended: Promise<StreamEnd>;
  /** Ends it within a step; `ended` says `abort`. */
  abort(): void;
}

export interface CommitOptions {
  readonly mode?: CommitMode;
  /** What the commit waits for is ended after this. */
  readonly drainMs?: number;
}

interface Pending {
  readonly resolve: (message: FromReplica) => void;
  readonly reject: (error: HoneError) => void;
  readonly sink: StreamSink | undefined;
}

const DEFAULT_DRAIN_MS = 30_000;
/** The thread ends between two decode steps. */
const CLOSE_MS = 10_000;
/** Bytes that may wait to be packed; a larger tensor waits alone. */
const STAGING_WINDOW_BYTES = 64 * 1024 * 1024;

export class EmbeddedPolicy implements Policy {
  readonly #worker: Worker;
  readonly #pending = new Map<number, Pending>();
  readonly #outbox: ToReplica[] = [];
  readonly #broken = Promise.withResolvers<HoneError>();
  #isFlushing = false;
  #nextTicket = 0;
  #version: PolicyVersion;
  #contextLength = 0;
  #build: 'plain' | 'fma' = 'plain';
  #tensorBytes: ReadonlyMap<string, number> = new Map();
  /** Tensors on their way into the engine, in order. */
  readonly #staging: Promise<void>[] = [];
  #stagingBytes = 0;
  #committing: PolicyVersion | undefined;
  #failure: HoneError | undefined;

  private constructor(worker: Worker, version: PolicyVersion) {
    this.#worker = worker;
    this.#version = version;
  }

  /** Starts the replica's thread and loads the weights. Rejects with the engine's own error when they do not fit. */
  static async start(setup: EmbeddedPolicyOptions): Promise<EmbeddedPolicy> {
    const extension = import.meta.url.endsWith('.ts') ? 'ts' : 'js';
    const worker = new Worker(new URL(`./replica-worker.${extension}`, import.meta.url), {
      workerData: { replica: setup },
    });
    const policy = new EmbeddedPolicy(worker, setup.version);
    await new Promise<void>((resolve, reject) => {
      worker.on('message', (batch: readonly FromReplica[]) => {
        for (const message of batch) {
          if (message.type === 'ready') {
            policy.#contextLength = message.contextLength;
            policy.#build = message.build;
            policy.#tensorBytes = message.tensorBytes;
            resolve();
          } else {
            policy.#receive(message);
          }
        }
      });
      worker.on('error', (cause) =>
        policy.#break(
          new HoneError('engine-failed', `The replica's thread failed: ${reasonOf(cause)}.`, {
            cure: 'Start a new replica.',
            cause,
          }),
        ),
      );
      worker.on('exit', () => {
        policy.#break(
          new HoneError('engine-failed', "The replica's thread has ended.", { cure: 'Start a new replica.' }),
        );
        reject(policy.#failure ?? new Error('unreachable'));
      });
    });
    return policy;
  }

  get version(): PolicyVersion {
    return this.#version;
  }

  /** Why the replica serves nothing more; undefined while it works. */
  get failure(): HoneError | undefined {
    return this.#failure;
  }

  /** Resolves with the failure once there is one; closing is one too. */
  get broken(): Promise<HoneError> {
    return this.#broken.promise;
  }

  get contextLength(): number {
    return this.#contextLength;
  }

  get build(): 'plain' | 'fma' {
    return this.#build;
  }

  /** An aborted request resolves with what was drawn so far and finish `abort`. A version that is not served yet is waited for. */
  async generate(request: GenerateRequest): Promise<Generation> {
    const { exactVersion, signal, onToken } = request;
    if (signal?.aborted === true) throw new HoneError('aborted', 'The request was aborted before it was sent.');
    const message = this.#submission(request, { unmet: 'wait', isStreamed: onToken !== undefined, isRecorded: true });
    const abort = (): void => this.#post({ type: 'abort', ticket: message.ticket });
    signal?.addEventListener('abort', abort, { once: true });
    try {
      const answer = await this.#ask(
        message,
        onToken === undefined
          ? undefined
          : {
              admitted: () => undefined,
              token: ({ id, logprob, kept, version }) =>
                onToken(id, { logprob, kept: decodeKeptRows(kept)[0] ?? new Int32Array(0), version }),
            },
      );
      if (answer.type === 'refused') throw versionPassed(exactVersion, answer.served);
      if (answer.type !== 'generated') throw unexpected(answer);
      return answer.generation;
    } finally {
      signal?.removeEventListener('abort', abort);
    }
  }

  /** Hands each token to the sink and keeps none. A version that is not served is refused at once. Throws like `generate`. */
  stream(request: StreamRequest, sink: StreamSink): ReplicaStream {
    const message = this.#submission(request, { unmet: 'refuse', isStreamed: true, isRecorded: false });
    const ended = this.#ask(message, sink).then((answer): StreamEnd => {
      if (answer.type === 'refused') return { kind: 'refused', reason: answer.reason, served: answer.served };
      if (answer.type !== 'generated') throw unexpected(answer);
      const { generation, cachedTokens, versionEnd } = answer;
      return { kind: 'ended', finish: generation.finish, cachedTokens, versionEnd };
    });
    return { ended, abort: () => this.#post({ type: 'abort', ticket: message.ticket }) };
  }

  /**
   * Takes the bf16 bytes of one tensor of the next version; what is served stays as it is. They are copied at once, and packed
   * between decode steps: the call ends as soon as not too much waits for that, and a commit comes after all of it.
   */
  async stage(name: string, bytes: Uint8Array): Promise<void> {
    this.#assertWorks();
    const expected = this.#tensorBytes.get(name);
    if (bytes.byteLength !== expected)
      throw new HoneError(
        'invalid-model',
        expected === undefined
          ? `The model has no tensor ${name}.`
          : `Tensor ${name} was staged with ${bytes.byteLength} bytes; it has ${expected}.`,
        { cure: 'Publish weights of the model that is served.' },
      );
    this.#refuseDuringCommit('Tensors cannot be staged');
    while (this.#stagingBytes > 0 && this.#stagingBytes + expected > STAGING_WINDOW_BYTES) await this.#staging[0];
    this.#assertWorks();
    const copy = new Uint8Array(new SharedArrayBuffer(expected));
    copy.set(bytes);
    this.#stagingBytes += expected;
    // After the checks above it fails only when the replica breaks, which every later call tells.
    const packed: Promise<void> = this.#ask({ type: 'stage', ticket: this.#nextTicket++, name, bytes: copy })
      .catch(() => undefined)
      .then(() => {
        void this.#staging.shift();
        this.#stagingBytes -= expected;
      });
    this.#staging.push(packed);
  }

  /**
   * Serves the staged tensors from a decode step on. Before that, requests bound to the served version end (`quiesce`: all that
   * have begun), new ones wait. `pauseMs` is how long sampling stood still. A second commit at the same time is refused.
   */
  async commit(
    version: PolicyVersion,
    { mode = 'in-place', drainMs = DEFAULT_DRAIN_MS }: CommitOptions = {},
  ): Promise<{ pauseMs: number }> {
    this.#refuseDuringCommit(`Version ${version} cannot be committed`);
    this.#committing = version;
    try {
      const answer = await this.#ask({ type: 'commit', ticket: this.#nextTicket++, version, mode, drainMs });
      if (answer.type !== 'committed') throw unexpected(answer);
      return { pauseMs: answer.pauseMs };
    } finally {
      this.#committing = undefined;
    }
  }

  /** xxh3-128 of each tensor as the engine computes with it, read back out of its memory between decode steps. */
  async servedChecksums(): Promise<ReadonlyMap<string, string>> {
    const answer = await this.#ask({ type: 'checksums', ticket: this.#nextTicket++ });
    if (answer.type !== 'checksums') throw unexpected(answer);
    return answer.checksums;
  }

  /** Threads that compute; no result depends on it. */
  async setThreads(threads: number): Promise<void> {
    await this.#ask({ type: 'threads', ticket: this.#nextTicket++, threads });
  }

  async stats(): Promise<ReplicaStats> {
    const answer = await this.#ask({ type: 'stats', ticket: this.#nextTicket++ });
    if (answer.type !== 'stats') throw unexpected(answer);
    return answer.stats;
  }

  /** Ends the thread; requests in flight fail. Safe to call twice. */
  async close(): Promise<void> {
    if (this.#failure === undefined) {
      using deadline = new Deadline({ limitMs: CLOSE_MS, expired: () => closed() });
      // A thread that stands still is ended all the same.
      await deadline.race(this.#ask({ type: 'close', ticket: this.#nextTicket++ })).catch(() => undefined);
    }
    this.#break(closed());
    await this.#worker.terminate();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** The failure may have come during a wait. */
  #assertWorks(): void {
    if (this.#failure !== undefined) throw this.#failure;
  }

  #refuseDuringCommit(what: string): void {
    if (this.#committing === undefined) return;
    throw new HoneError('engine-failed', `${what} while version ${this.#committing} is committed.`, {
      cure: 'Wait for the commit that is under way.',
    });
  }

  #submission(request: StreamRequest, how: Pick<SubmitMessage, 'unmet' | 'isStreamed' | 'isRecorded'>): SubmitMessage {
    const { tokens, sampling, seed, drawnBefore = 0, minVersion, exactVersion } = request;
    if (tokens.length >= this.#contextLength)
      throw new HoneError(
        'context-too-small',
        `The prompt has ${tokens.length} tokens, and the context holds ${this.#contextLength}.`,
        { cure: 'Shorten the prompt, or use a model with a longer context.' },
      );
    return {
      type: 'submit',
      ticket: this.#nextTicket++,
      tokens: ownBuffer(tokens),
      sampling,
      seed,
      drawnBefore,
      minVersion,
      exactVersion,
      ...how,
    };
  }

  #ask(message: ToReplica, sink?: StreamSink): Promise<FromReplica> {
    if (this.#failure !== undefined) return Promise.reject(this.#failure);
    return new Promise((resolve, reject) => {
      this.#pending.set(message.ticket, { resolve, reject, sink });
      this.#post(message);
    });
  }

  #post(message: ToReplica): void {
    this.#outbox.push(message);
    if (this.#isFlushing) return;
    this.#isFlushing = true;
    setImmediate(() => {
      this.#isFlushing = false;
      if (this.#failure === undefined) this.#worker.postMessage(this.#outbox);
      this.#outbox.length = 0;
    });
  }

  #receive(message: FromReplica): void {
    switch (message.type) {
      case 'step':
        this.#handOut(message);
        return;
      case 'admitted':
        this.#pending.get(message.ticket)?.sink?.admitted(message.version);
        return;
      case 'committed':
        this.#version = message.version;
        break;
      case 'broken':
        this.#break(fromPlainError(message.error));
        return;
      case 'failed':
      case 'refused':
      case 'generated':
      case 'checksums':
      case 'done':
      case 'stats':
      case 'ready':
        break;
      default:
        message satisfies never;
        return;
    }
    if (!('ticket' in message)) return;
    const pending = this.#pending.get(message.ticket);
    this.#pending.delete(message.ticket);
    if (message.type === 'failed') pending?.reject(fromPlainError(message.error));
    else pending?.resolve(message);
  }

  #handOut({ tickets, ids, logprobs, kept, keptOffsets, version }: StepMessage): void {
    for (let index = 0; index < tickets.length; index++)
      this.#pending.get(tickets[index] ?? -1)?.sink?.token({
        id: ids[index] ?? -1,
        logprob: logprobs[index] ?? Number.NaN,
        kept: kept.subarray(keptOffsets[index], keptOffsets[index + 1]),
        version,
      });
  }

  #break(error: HoneError): void {
    this.#failure ??= error;
    for (const pending of this.#pending.values()) pending.reject(this.#failure);
    this.#pending.clear();
    this.#broken.resolve(this.#failure);
  }
}

function closed(): HoneError {
  return new HoneError('engine-failed', 'The replica is closed.', { cure: 'Start a new replica.' });
}

function versionPassed(exactVersion: PolicyVersion | undefined, served: PolicyVersion): HoneError {
  return new HoneError(
    'version-not-ready',
    `Version ${exactVersion} was asked for and version ${served} is served; versions never go back.`,
    { cure: 'Ask again without a fixed version, or for the one that is served.' },
  );
}

function unexpected(answer: FromReplica): HoneError {
  return new HoneError('engine-failed', `The replica answered ${answer.type} out of turn.`, {
    cure: 'Start a new replica.',
  });
}

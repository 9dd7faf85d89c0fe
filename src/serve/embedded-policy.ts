/**
 * The embedded engine as a Policy: a sampler in a thread of its own, so that serving HTTP never waits for a decode step.
 * It owns the thread's life, admission of requests, and weight commits. Invariants: each request settles exactly once;
 * a replica that broke fails every request, with its cause, until it is replaced.
 */
import { Worker } from 'node:worker_threads';

import { HoneError, reasonOf } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { GenerateRequest, Generation, Policy } from '../domain/policy.ts';
import { fromPlainError } from './replica-protocol.ts';
import type { FromReplica, ReplicaSetup, ReplicaStats, SubmitMessage, ToReplica } from './replica-protocol.ts';

export type { ReplicaStats } from './replica-protocol.ts';
export type EmbeddedPolicyOptions = ReplicaSetup;

interface Pending {
  readonly resolve: (message: FromReplica) => void;
  readonly reject: (error: HoneError) => void;
  readonly onToken: ((id: number) => void) | undefined;
}

/** Structured cloning copies the whole buffer behind a view, so views into larger buffers are copied first. */
function ownBuffer<T extends Int32Array | Uint8Array>(array: T): T {
  // slice keeps the concrete array type; the generic hides it from the checker.
  return array.byteLength === array.buffer.byteLength ? array : (array.slice() as T);
}

export class EmbeddedPolicy implements Policy {
  readonly #worker: Worker;
  readonly #pending = new Map<number, Pending>();
  readonly #outbox: ToReplica[] = [];
  #isFlushing = false;
  #nextTicket = 0;
  #version: PolicyVersion;
  #contextLength = 0;
  #build: 'plain' | 'fma' = 'plain';
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

  get contextLength(): number {
    return this.#contextLength;
  }

  get build(): 'plain' | 'fma' {
    return this.#build;
  }

  /** An aborted request resolves with what was drawn so far and finish `abort`. */
  async generate(request: GenerateRequest): Promise<Generation> {
    const { tokens, sampling, seed, minVersion, exactVersion, signal, onToken } = request;
    if (tokens.length >= this.#contextLength)
      throw new HoneError(
        'context-too-small',
        `The prompt has ${tokens.length} tokens, and the context holds ${this.#contextLength}.`,
        { cure: 'Shorten the prompt, or use a model with a longer context.' },
      );
    if (signal?.aborted === true) throw new HoneError('aborted', 'The request was aborted before it was sent.');
    const ticket = this.#nextTicket++;
    const abort = (): void => this.#post({ type: 'abort', ticket });
    signal?.addEventListener('abort', abort, { once: true });
    try {
      const message: SubmitMessage = {
        type: 'submit',
        ticket,
        tokens: ownBuffer(tokens),
        sampling,
        seed,
        minVersion,
        exactVersion,
        isStreamed: onToken !== undefined,
      };
      const answer = await this.#ask(message, onToken);
      if (answer.type !== 'generated') throw unexpected(answer);
      return answer.generation;
    } finally {
      signal?.removeEventListener('abort', abort);
    }
  }

  /** Takes the bf16 bytes of one tensor of the next version; what is served stays as it is. */
  async stage(name: string, bytes: Uint8Array): Promise<void> {
    await this.#ask({ type: 'stage', ticket: this.#nextTicket++, name, bytes: ownBuffer(bytes) });
  }

  /** Serves the staged tensors from the next decode step on. `pauseMs` is how long sampling stood still. */
  async commit(version: PolicyVersion): Promise<{ pauseMs: number }> {
    const answer = await this.#ask({ type: 'commit', ticket: this.#nextTicket++, version });
    if (answer.type !== 'committed') throw unexpected(answer);
    return { pauseMs: answer.pauseMs };
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
    if (this.#failure === undefined)
      await this.#ask({ type: 'close', ticket: this.#nextTicket++ }).catch(() => undefined);
    this.#break(new HoneError('engine-failed', 'The replica is closed.', { cure: 'Start a new replica.' }));
    await this.#worker.terminate();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #ask(message: ToReplica, onToken?: (id: number) => void): Promise<FromReplica> {
    if (this.#failure !== undefined) return Promise.reject(this.#failure);
    return new Promise((resolve, reject) => {
      this.#pending.set(message.ticket, { resolve, reject, onToken });
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
      case 'tokens': {
        const onToken = this.#pending.get(message.ticket)?.onToken;
        if (onToken !== undefined) for (const id of message.ids) onToken(id);
        return;
      }
      case 'committed':
        this.#version = message.version;
        break;
      case 'broken':
        this.#break(fromPlainError(message.error));
        return;
      case 'failed':
      case 'generated':
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

  #break(error: HoneError): void {
    this.#failure ??= error;
    for (const pending of this.#pending.values()) pending.reject(this.#failure);
    this.#pending.clear();
  }
}

function unexpected(answer: FromReplica): HoneError {
  return new HoneError('engine-failed', `The replica answered ${answer.type} out of turn.`, {
    cure: 'Start a new replica.',
  });
}

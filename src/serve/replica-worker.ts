/**
 * The replica's thread: one sampler, one loop. Each turn takes all messages that came, makes one scheduling step, and
 * posts all answers in one list; with nothing to sample it sleeps until a message comes.
 * Invariants: a commit happens between two steps; a request that needs a version waits until it is served, and one that
 * is bound to a version never holds a token of another.
 */
import { setImmediate as yieldToEvents } from 'node:timers/promises';
import { parentPort, workerData } from 'node:worker_threads';
import type { MessagePort, Transferable } from 'node:worker_threads';

import { HoneError } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { Generation } from '../domain/policy.ts';
import { emptyKeptSets } from '../domain/rollout.ts';
import { parseModelConfig } from '../model/config.ts';
import { createEngine } from '../model/engine.ts';
import type { Engine } from '../model/engine.ts';
import { Sampler } from '../model/sampler.ts';
import type { Ticket } from '../model/sampler.ts';
import { toPlainError } from './replica-protocol.ts';
import type { FromReplica, ReplicaSetup, ReplicaStats, SubmitMessage, ToReplica } from './replica-protocol.ts';

class ReplicaLoop {
  readonly #port: MessagePort;
  readonly #engine: Engine;
  readonly #sampler: Sampler;
  readonly #inbox: ToReplica[] = [];
  readonly #outbox: FromReplica[] = [];
  readonly #transfers: Transferable[] = [];
  readonly #running = new Map<number, { readonly message: SubmitMessage; readonly submitted: Ticket }>();
  readonly #waiting: SubmitMessage[] = [];
  readonly #streamed = new Map<number, number[]>();
  #version: PolicyVersion;
  #isClosed = false;
  #wake: (() => void) | undefined;

  constructor(port: MessagePort, parts: { engine: Engine; sampler: Sampler; version: PolicyVersion }) {
    this.#port = port;
    this.#engine = parts.engine;
    this.#sampler = parts.sampler;
    this.#version = parts.version;
    port.on('message', (batch: readonly ToReplica[]) => {
      this.#inbox.push(...batch);
      this.#wake?.();
    });
  }

  async run(): Promise<void> {
    while (!this.#isClosed) {
      for (const message of this.#inbox.splice(0)) this.#handle(message);
      const alive = this.#running.size === 0 ? 0 : this.#sampler.step();
      for (const ticket of this.#streamed.keys()) this.#sendStreamed(ticket);
      this.#flush();
      if (alive > 0 || this.#inbox.length > 0) await yieldToEvents();
      else await this.#nextMessage();
    }
    this.#port.close();
    await this.#engine.close();
  }

  async #nextMessage(): Promise<void> {
    if (this.#inbox.length > 0) return;
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
    this.#wake = undefined;
  }

  #handle(message: ToReplica): void {
    const { ticket } = message;
    try {
      switch (message.type) {
        case 'submit':
          this.#admit(message);
          return;
        case 'abort':
          this.#abort(ticket);
          return;
        case 'stage':
          this.#sampler.stage(message.name, message.bytes);
          this.#outbox.push({ type: 'done', ticket });
          return;
        case 'commit':
          this.#commit(ticket, message.version);
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
      this.#outbox.push({ type: 'failed', ticket, error: toPlainError(error) });
    }
  }

  #admit(message: SubmitMessage): void {
    const { ticket, minVersion, exactVersion, tokens, sampling, seed, isStreamed } = message;
    if (exactVersion !== undefined && exactVersion < this.#version) {
      this.#fail(
        ticket,
        `Version ${exactVersion} was asked for and version ${this.#version} is served; versions never go back.`,
      );
      return;
    }
    if ((minVersion ?? 0) > this.#version || (exactVersion ?? 0) > this.#version) {
      this.#waiting.push(message);
      return;
    }
    const submitted = this.#sampler.submit({
      tokens,
      sampling,
      seed,
      onFinish: ({ cachedTokens: _cached, ...generation }) => this.#finish(ticket, generation),
      ...(isStreamed ? { onToken: (id: number) => this.#stream(ticket, id) } : {}),
    });
    this.#running.set(ticket, { message, submitted });
  }

  #finish(ticket: number, generation: Generation): void {
    if (!this.#running.delete(ticket)) return;
    this.#sendStreamed(ticket);
    this.#outbox.push({ type: 'generated', ticket, generation });
    for (const array of [generation.tokens, generation.logprobs, generation.kept.ids, generation.kept.offsets])
      // A buffer can be transferred once, and only when no other array lies in it.
      if (array.byteLength > 0 && array.byteLength === array.buffer.byteLength && array.buffer instanceof ArrayBuffer)
        this.#transfers.push(array.buffer);
  }

  #stream(ticket: number, id: number): void {
    const ids = this.#streamed.get(ticket);
    if (ids === undefined) this.#streamed.set(ticket, [id]);
    else ids.push(id);
  }

  #sendStreamed(ticket: number): void {
    const ids = this.#streamed.get(ticket);
    if (ids === undefined) return;
    this.#streamed.delete(ticket);
    this.#outbox.push({ type: 'tokens', ticket, ids });
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
    const nothing: Generation = {
      tokens: new Int32Array(0),
      logprobs: new Float32Array(0),
      kept: emptyKeptSets(0),
      versions: [],
      finish: 'abort',
    };
    this.#outbox.push({ type: 'generated', ticket, generation: nothing });
  }

  #commit(ticket: number, version: PolicyVersion): void {
    const started = performance.now();
    this.#sampler.commit(version);
    this.#version = version;
    this.#outbox.push({ type: 'committed', ticket, version, pauseMs: performance.now() - started });
    for (const { message, submitted } of this.#running.values()) {
      if (message.exactVersion === undefined || message.exactVersion === version) continue;
      this.#running.delete(message.ticket);
      this.#sampler.abort(submitted);
      this.#fail(
        message.ticket,
        `Version ${message.exactVersion} was asked for, and version ${version} was committed while the reply was sampled.`,
      );
    }
    for (const message of this.#waiting.splice(0)) this.#admit(message);
  }

  #fail(ticket: number, sentence: string): void {
    this.#outbox.push({
      type: 'failed',
      ticket,
      error: toPlainError(
        new HoneError('engine-failed', sentence, {
          cure: 'Ask again without a fixed version, or for the one that is served.',
        }),
      ),
    });
  }

  #stats(): ReplicaStats {
    const { sampledTokens, computedPromptTokens, cachedPromptTokens, kernelMs, otherMs } = this.#sampler.stats;
    return {
      running: this.#running.size,
      waiting: this.#waiting.length,
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
  const { configJson, served, version, build, threads, slots, contextLength, prefillChunk } = setup;
  const engine = await createEngine({ build, threads });
  const sampler = Sampler.create(engine, parseModelConfig(configJson), served, {
    version,
    slots,
    ...(contextLength === undefined ? {} : { contextLength }),
    ...(prefillChunk === undefined ? {} : { prefillChunk }),
  });
  const loop = new ReplicaLoop(port, { engine, sampler, version });
  port.postMessage([
    { type: 'ready', contextLength: sampler.contextLength, build: engine.build },
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

/**
 * Continuous batching over one model: each `step` admits requests, computes a bounded chunk of prompts and one token of
 * every running request in a single batch. New weights are staged beside the current ones, in slices between steps, and swapped in
 * by a commit that moves no bytes. Invariants: what a request draws depends on its prompt, sampling, seed, the number of tokens drawn
 * before and the weights, never on the rest of the batch; cached rows never serve a prompt under other weights.
 */
import { HoneError } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { Generation } from '../domain/policy.ts';
import type { VersionSpan } from '../domain/rollout.ts';
import { CacheSlots, type Slot } from './cache-slots.ts';
import type { ModelConfig } from './config.ts';
import { drawStep } from './draw-step.ts';
import type { Engine } from './engine.ts';
import { readChecksums, type TensorHash } from './read-checksums.ts';
import { checkRequest, type SampleRequest } from './sample-request.ts';
import { createRopeTable, PackedWeights, ParameterLayout, type RopeTable, type RowRange } from './weights.ts';

export type { TensorHash } from './read-checksums.ts';
export type { SampledGeneration, SampleRequest } from './sample-request.ts';

/** Names a submitted request. */
export type Ticket = number;

export interface SamplerOptions {
  readonly version: PolicyVersion;
  /** Sequences in the cache: the most that run at once, idle ones kept for their prefixes included. */
  readonly slots: number;
  /** Default: the model's. */
  readonly contextLength?: number;
  /** Prompt tokens computed in one step, over all requests. */
  readonly prefillChunk?: number;
  /** What a commit does with the cached rows of requests that have drawn: they stay, or the new weights compute them anew. */
  readonly inFlight?: 'keep' | 'recompute';
}

export interface SamplerStats {
  readonly steps: number;
  readonly sampledTokens: number;
  readonly computedPromptTokens: number;
  readonly cachedPromptTokens: number;
  readonly kernelMs: number;
  /** Time of `step` outside kernels, callbacks included. */
  readonly otherMs: number;
}

interface Queued {
  readonly ticket: Ticket;
  readonly request: SampleRequest;
}

interface Running extends Queued {
  readonly slot: Slot;
  readonly cachedTokens: number;
  /** Tokens drawn here. */
  drawn: number;
  /** Commits since its last token that made its rows start over. */
  restarts: number;
  readonly tokens: number[];
  readonly logprobs: number[];
  readonly kept: Int32Array[];
  readonly keptOffsets: number[];
  readonly versions: VersionSpan[];
}

/** bf16 bytes of one slice of staging, copying or reading: well under a millisecond. */
const SLICE_BYTES = 256 * 1024;
/** The same while nothing is sampled yet; bounds the scratch memory. */
const LOAD_BYTES = 8 * 1024 * 1024;
/** A request that this many commits made start over without a token goes on with the rows that it has, or it would never end. */
const MAX_RESTARTS = 3;

export class Sampler {
  readonly config: ModelConfig;
  readonly #engine: Engine;
  readonly #layout: ParameterLayout;
  readonly #rope: RopeTable;
  readonly #cache: CacheSlots;
  readonly #prefillChunk: number;
  readonly #inFlight: 'keep' | 'recompute';
  /** Every id: the row of a token that nothing was cut off for. */
  readonly #wholeRow: Int32Array;
  #isHeld = false;
  #current: PackedWeights;
  #next: PackedWeights;
  /** Tensors of `#next` that differ from `#current` and were not staged. */
  #stale: Set<string>;
  #staged = new Set<string>();
  #version: PolicyVersion;
  #epoch = 0;
  #tickets = 0;
  #queue: Queued[] = [];
  #running: Running[] = [];
  #stats = { steps: 0, sampledTokens: 0, computedPromptTokens: 0, cachedPromptTokens: 0, kernelMs: 0, otherMs: 0 };

  /** Takes the served bf16 bytes of every tensor; throws `invalid-model` when one is missing, unknown or misshapen. */
  static create(
    engine: Engine,
    config: ModelConfig,
    served: ReadonlyMap<string, Uint8Array>,
    options: SamplerOptions,
  ): Sampler {
    return new Sampler(engine, config, served, options);
  }

  private constructor(
    engine: Engine,
    config: ModelConfig,
    served: ReadonlyMap<string, Uint8Array>,
    options: SamplerOptions,
  ) {
    const { version, slots, contextLength = config.contextLength, prefillChunk = 256, inFlight = 'keep' } = options;
    if (slots < 1 || prefillChunk < 1 || contextLength > config.contextLength)
      throw new HoneError(
        'invalid-config',
        `A sampler cannot have ${slots} slots, a prefill chunk of ${prefillChunk} and a context of ${contextLength}.`,
        {
          cure: `Use at least one of each, and at most the model's context of ${config.contextLength}.`,
        },
      );
    this.config = config;
    this.#engine = engine;
    this.#version = version;
    this.#prefillChunk = prefillChunk;
    this.#inFlight = inFlight;
    this.#wholeRow = Int32Array.from({ length: config.vocabSize }, (_, id) => id);
    this.#layout = new ParameterLayout(config);
    this.#layout.check(new Map([...served].map(([name, bytes]) => [name, bytes.length / 2])));
    this.#current = new PackedWeights(engine, { config, layout: this.#layout });
    this.#next = new PackedWeights(engine, { config, layout: this.#layout });
    this.#rope = createRopeTable(engine, config, contextLength);
    this.#cache = new CacheSlots(engine, config, { slots, contextLength });
    for (const [name, bytes] of served)
      for (const part of this.#current.partsOf(name, LOAD_BYTES)) {
        const { start, end } = this.#current.byteRange(name, part);
        this.#write(this.#current, { name, bytes: bytes.subarray(start, end), part });
      }
    this.#stale = new Set(served.keys());
  }

  get version(): PolicyVersion {
    return this.#version;
  }

  get contextLength(): number {
    return this.#cache.contextLength;
  }

  get stats(): SamplerStats {
    return { ...this.#stats };
  }

  /** Queues a request. Throws `context-too-small` when its prompt leaves no room for one token. */
  submit(request: SampleRequest): Ticket {
    checkRequest(request, { contextLength: this.contextLength, vocabSize: this.config.vocabSize });
    const ticket = ++this.#tickets;
    this.#queue.push({ ticket, request: { ...request, tokens: request.tokens.slice() } });
    return ticket;
  }

  /** Ends a request now, with what it has sampled; a ticket that is not alive is ignored. */
  abort(ticket: Ticket): void {
    const running = this.#running.find((candidate) => candidate.ticket === ticket);
    if (running !== undefined) this.#finish(running, 'abort');
    const queued = this.#queue.findIndex((candidate) => candidate.ticket === ticket);
    if (queued < 0) return;
    const [entry] = this.#queue.splice(queued, 1);
    entry?.request.onFinish({
      tokens: new Int32Array(0),
      logprobs: new Float32Array(0),
      kept: { ids: new Int32Array(0), offsets: new Int32Array(1) },
      versions: [],
      finish: 'abort',
      cachedTokens: 0,
    });
  }

  /** One scheduling step. Returns how many requests are alive afterwards; 0 = nothing to do. */
  step(): number {
    const started = performance.now();
    const kernelStarted = this.#engine.kernelMs;
    this.#admit();
    if (this.#running.length > 0) this.#advance();
    const kernelMs = this.#engine.kernelMs - kernelStarted;
    this.#stats.steps++;
    this.#stats.kernelMs += kernelMs;
    this.#stats.otherMs += performance.now() - started - kernelMs;
    return this.#running.length + this.#queue.length;
  }

  /** While true only pinned requests start; the others keep their place in the queue. */
  holdAdmission(isHeld: boolean): void {
    this.#isHeld = isHeld;
  }

  /** Whether the request has a slot, so that it may have drawn. */
  hasBegun(ticket: Ticket): boolean {
    return this.#running.some((running) => running.ticket === ticket);
  }

  /** Requests that have started. */
  get running(): number {
    return this.#running.length;
  }

  /** Takes the bf16 bytes of one tensor of the next version. Sampling goes on with the current one until `commit`. */
  stage(name: string, bytes: Uint8Array): void {
    for (const _slice of this.staging(name, bytes));
  }

  /** `stage` in slices, one a turn of the iterator, so that sampling steps fit between them. The bytes must not change meanwhile. */
  *staging(name: string, bytes: Uint8Array): Generator<undefined, void> {
    const { size } = this.#layout.get(name);
    if (bytes.length !== size * 2)
      throw new HoneError(
        'invalid-model',
        `Tensor ${name} was staged with ${bytes.length} bytes; it has ${size * 2}.`,
        { cure: 'Publish weights of the model that is served.' },
      );
    // Until it is whole it is neither the old tensor nor the new one.
    this.#staged.delete(name);
    this.#stale.add(name);
    for (const part of this.#next.partsOf(name, SLICE_BYTES)) {
      const { start, end } = this.#next.byteRange(name, part);
      this.#write(this.#next, { name, bytes: bytes.subarray(start, end), part });
      yield;
    }
    this.#stale.delete(name);
    this.#staged.add(name);
  }

  /**
   * Brings tensors that were not staged up to date beside the current ones, in slices. A commit does what is left of this itself,
   * while sampling stands still.
   */
  *preparing(): Generator<undefined, void> {
    for (const name of this.#stale) {
      for (const part of this.#next.partsOf(name, SLICE_BYTES)) {
        this.#next.copy(name, this.#current, part);
        yield;
      }
      this.#stale.delete(name);
    }
  }

  /** Between two steps: what was staged becomes current, other tensors carry over. `inFlight` says what requests that have drawn do. */
  commit(version: PolicyVersion): void {
    for (const _slice of this.preparing());
    [this.#current, this.#next] = [this.#next, this.#current];
    this.#stale = this.#staged;
    this.#staged = new Set();
    this.#version = version;
    this.#epoch++;
    for (const running of this.#running) {
      // A request that has drawn nothing belongs to no version yet: its prompt is computed by the weights that will answer.
      const startsOver = running.drawn === 0 || this.#inFlight === 'recompute';
      if (!startsOver || running.restarts === MAX_RESTARTS) continue;
      running.restarts++;
      running.slot.rows = 0;
      running.slot.epoch = this.#epoch;
    }
  }

  /**
   * Checksums of the tensors that are served, by name, read back out of the forms that the forward pass computes with. In slices;
   * a commit in between makes the result worthless, so nobody may commit until it is done.
   */
  servedChecksums(createHash: () => TensorHash): Generator<undefined, Map<string, string>> {
    return readChecksums(this.#current, this.#layout, createHash);
  }

  #write(weights: PackedWeights, { name, bytes, part }: { name: string; bytes: Uint8Array; part: RowRange }): void {
    const engine = this.#engine;
    const mark = engine.mark();
    const pointer = engine.alloc(bytes.length);
    engine.bytes(pointer, bytes.length).set(bytes);
    weights.write(name, pointer, part);
    engine.release(mark);
  }

  #admit(): void {
    const waiting: Queued[] = [];
    let full = false;
    for (const entry of this.#queue) {
      const isHeld = this.#isHeld && entry.request.isPinned !== true;
      const slot: Slot | string = full || isHeld ? 'none' : this.#cache.acquire(entry.request.tokens, this.#epoch);
      if (typeof slot === 'string') {
        full ||= slot === 'none' && !isHeld;
        waiting.push(entry);
        continue;
      }
      this.#stats.cachedPromptTokens += slot.rows;
      this.#running.push({
        ...entry,
        slot,
        cachedTokens: slot.rows,
        drawn: 0,
        restarts: 0,
        tokens: [],
        logprobs: [],
        kept: [],
        keptOffsets: [0],
        versions: [],
      });
    }
    this.#queue = waiting;
  }

  /** Computes this step's rows and hands out what was drawn. */
  #advance(): void {
    let budget = this.#prefillChunk;
    const parts: { running: Running; rows: number }[] = [];
    const drawing: Running[] = [];
    for (const running of this.#running) {
      const { slot } = running;
      const missing = slot.length - slot.rows;
      // More than the token drawn last is missing at the start and, where a commit asks for it, after one.
      const isPrompt = running.drawn === 0 || missing > 1;
      const rows = isPrompt ? Math.min(missing, budget) : missing;
      if (isPrompt) {
        budget -= rows;
        this.#stats.computedPromptTokens += rows;
      }
      if (rows === 0) continue;
      parts.push({ running, rows });
      if (rows === missing) drawing.push(running);
    }
    const draws = drawStep(
      {
        engine: this.#engine,
        config: this.config,
        weights: this.#current,
        rope: this.#rope,
        cache: this.#cache,
        wholeRow: this.#wholeRow,
      },
      { parts, drawing },
    );
    for (const { running, rows } of parts) running.slot.rows += rows;
    for (const [index, running] of drawing.entries())
      this.#deliver(running, {
        id: draws.ids[index] ?? -1,
        logprob: draws.logprobs[index] ?? Number.NaN,
        kept: draws.kept[index] ?? new Int32Array(0),
      });
  }

  #deliver(running: Running, drawn: { id: number; logprob: number; kept: Int32Array }): void {
    // A callback of this very step may have aborted it.
    if (!this.#running.includes(running)) return;
    const { slot, request, versions } = running;
    const { id, logprob, kept } = drawn;
    if (id < 0)
      throw new HoneError('engine-failed', `The model's logits are not finite at version ${this.#version}.`, {
        cure: 'The weights have diverged; go back to an earlier version.',
      });
    const place = running.drawn++;
    running.restarts = 0;
    if (request.isRecorded !== false) {
      running.tokens.push(id);
      running.logprobs.push(logprob);
      running.kept.push(kept);
      running.keptOffsets.push((running.keptOffsets[place] ?? 0) + kept.length);
    }
    const span = versions.at(-1);
    if (span?.version === this.#version) versions[versions.length - 1] = { ...span, end: place + 1 };
    else versions.push({ version: this.#version, start: place, end: place + 1 });
    this.#stats.sampledTokens++;
    const stops = request.sampling.stopIds.includes(id);
    const isFull = running.drawn >= request.sampling.maxTokens || slot.length + 1 > this.contextLength - 1;
    if (!stops && !isFull) {
      slot.tokens[slot.length] = id;
      slot.length++;
    }
    request.onToken?.(id, { logprob, kept, version: this.#version });
    if ((stops || isFull) && this.#running.includes(running)) this.#finish(running, stops ? 'stop' : 'length');
  }

  #finish(running: Running, finish: Generation['finish']): void {
    this.#running = this.#running.filter((other) => other !== running);
    this.#cache.free(running.slot);
    const ids = new Int32Array(running.keptOffsets.at(-1) ?? 0);
    for (const [index, row] of running.kept.entries()) ids.set(row, running.keptOffsets[index]);
    running.request.onFinish({
      tokens: Int32Array.from(running.tokens),
      logprobs: Float32Array.from(running.logprobs),
      kept: { ids, offsets: Int32Array.from(running.keptOffsets) },
      versions: running.versions,
      finish,
      cachedTokens: running.cachedTokens,
    });
  }
}

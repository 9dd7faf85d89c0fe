/**
 * Continuous batching over one model: each `step` admits requests, computes a bounded chunk of prompts and one token of
 * every running request in a single batch. New weights are staged beside the current ones and swapped in between steps.
 * Invariant: what a request draws depends on its prompt, sampling, seed and the weights, never on the rest of the batch.
 */
import { HoneError } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { Generation } from '../domain/policy.ts';
import type { VersionSpan } from '../domain/rollout.ts';
import { CacheSlots, type Slot } from './cache-slots.ts';
import type { ModelConfig } from './config.ts';
import type { Engine } from './engine.ts';
import { checkRequest, type SampleRequest } from './sample-request.ts';
import { forward } from './transformer.ts';
import { createRopeTable, PackedWeights, ParameterLayout, type RopeTable } from './weights.ts';

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
  readonly tokens: number[];
  readonly logprobs: number[];
  readonly kept: Int32Array[];
  readonly keptOffsets: number[];
  readonly versions: VersionSpan[];
}

interface Draws {
  readonly ids: Int32Array;
  readonly logprobs: Float32Array;
  readonly kept: readonly Int32Array[];
}

export class Sampler {
  readonly config: ModelConfig;
  readonly #engine: Engine;
  readonly #layout: ParameterLayout;
  readonly #rope: RopeTable;
  readonly #cache: CacheSlots;
  readonly #prefillChunk: number;
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
    const { version, slots, contextLength = config.contextLength, prefillChunk = 256 } = options;
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
    this.#layout = new ParameterLayout(config);
    this.#layout.check(new Map([...served].map(([name, bytes]) => [name, bytes.length / 2])));
    this.#current = new PackedWeights(engine, { config, layout: this.#layout });
    this.#next = new PackedWeights(engine, { config, layout: this.#layout });
    this.#rope = createRopeTable(engine, config, contextLength);
    this.#cache = new CacheSlots(engine, config, { slots, contextLength });
    for (const [name, bytes] of served) this.#write(this.#current, name, bytes);
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

  /** Takes the bf16 bytes of one tensor of the next version. Sampling goes on with the current one until `commit`. */
  stage(name: string, bytes: Uint8Array): void {
    const { size } = this.#layout.get(name);
    if (bytes.length !== size * 2)
      throw new HoneError(
        'invalid-model',
        `Tensor ${name} was staged with ${bytes.length} bytes; it has ${size * 2}.`,
        { cure: 'Publish weights of the model that is served.' },
      );
    this.#write(this.#next, name, bytes);
    this.#staged.add(name);
  }

  /** Between two steps: what was staged becomes current, other tensors carry over. Requests that have drawn keep their cache. */
  commit(version: PolicyVersion): void {
    for (const name of this.#stale) if (!this.#staged.has(name)) this.#next.copy(name, this.#current);
    [this.#current, this.#next] = [this.#next, this.#current];
    this.#stale = this.#staged;
    this.#staged = new Set();
    this.#version = version;
    this.#epoch++;
    // A request that has drawn nothing belongs to no version yet: its prompt is computed by the weights that will answer.
    for (const { slot, tokens } of this.#running)
      if (tokens.length === 0) {
        slot.rows = 0;
        slot.epoch = this.#epoch;
      }
  }

  #write(weights: PackedWeights, name: string, bytes: Uint8Array): void {
    const engine = this.#engine;
    const mark = engine.mark();
    const pointer = engine.alloc(bytes.length);
    engine.bytes(pointer, bytes.length).set(bytes);
    weights.write(name, pointer);
    engine.release(mark);
  }

  #admit(): void {
    const waiting: Queued[] = [];
    let full = false;
    for (const entry of this.#queue) {
      const slot: Slot | string = full ? 'none' : this.#cache.acquire(entry.request.tokens, this.#epoch);
      if (typeof slot === 'string') {
        full ||= slot === 'none';
        waiting.push(entry);
        continue;
      }
      this.#stats.cachedPromptTokens += slot.rows;
      this.#running.push({
        ...entry,
        slot,
        cachedTokens: slot.rows,
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
      const isPrompt = running.tokens.length === 0;
      const rows = isPrompt ? Math.min(missing, budget) : missing;
      if (isPrompt) {
        budget -= rows;
        this.#stats.computedPromptTokens += rows;
      }
      if (rows === 0) continue;
      parts.push({ running, rows });
      if (rows === missing) drawing.push(running);
    }
    const draws = this.#compute(parts, drawing);
    for (const { running, rows } of parts) running.slot.rows += rows;
    for (const [index, running] of drawing.entries())
      this.#deliver(running, {
        id: draws.ids[index] ?? -1,
        logprob: draws.logprobs[index] ?? Number.NaN,
        kept: draws.kept[index] ?? new Int32Array(0),
      });
  }

  #compute(parts: readonly { running: Running; rows: number }[], drawing: readonly Running[]): Draws {
    const engine = this.#engine;
    const total = parts.reduce((sum, part) => sum + part.rows, 0);
    const tokens = new Int32Array(total);
    const positions = new Int32Array(total);
    const offsets = new Int32Array(total);
    const wantedIndex = new Int32Array(drawing.length);
    const wantedPositions = new Int32Array(drawing.length);
    const wantedOffsets = new Int32Array(drawing.length);
    const settings = new Float64Array(drawing.length * 8);
    let row = 0;
    let wanted = 0;
    for (const { running, rows } of parts) {
      const { slot, request } = running;
      tokens.set(slot.tokens.subarray(slot.rows, slot.rows + rows), row);
      offsets.fill(this.#cache.offset(slot), row, row + rows);
      for (let index = 0; index < rows; index++) positions[row + index] = slot.rows + index;
      row += rows;
      if (running !== drawing[wanted]) continue;
      wantedIndex[wanted] = row - 1;
      wantedPositions[wanted] = slot.length - 1;
      wantedOffsets[wanted] = this.#cache.offset(slot);
      const { temperature, topK, topP, minP, greedy } = request.sampling;
      settings.set(
        [1 / temperature, topK, topP, minP, greedy ? 1 : 0, request.seed >>> 0, running.tokens.length],
        wanted * 8,
      );
      wanted++;
    }
    const mark = engine.mark();
    const logits = forward(
      { engine, tape: undefined },
      {
        config: this.config,
        weights: this.#current,
        rope: this.#rope,
        tokens: engine.allocI32(tokens),
        rows: { count: total, positions: engine.allocI32(positions), offsets: engine.allocI32(offsets) },
        wanted: {
          count: wanted,
          index: engine.allocI32(wantedIndex),
          positions: engine.allocI32(wantedPositions),
          offsets: engine.allocI32(wantedOffsets),
        },
        keys: (layer) => this.#cache.keys(layer),
        values: (layer) => this.#cache.values(layer),
        sequences: { all: 0, wanted: 0, count: 0 },
      },
    );
    const vocabulary = this.config.vocabSize;
    const settingsPointer = engine.alloc(settings.byteLength);
    engine.f64(settingsPointer, settings.length).set(settings);
    const ids = engine.alloc(wanted * 4);
    const logprobs = engine.alloc(wanted * 4);
    const counts = engine.alloc(wanted * 4);
    const kept = engine.alloc(wanted * vocabulary * 4);
    engine.run('sample', wanted, 1, ids, logprobs, counts, kept, logits.pointer, vocabulary, settingsPointer);
    const countView = engine.i32(counts, wanted);
    const draws: Draws = {
      ids: engine.i32(ids, wanted).slice(),
      logprobs: engine.f32(logprobs, wanted).slice(),
      kept: Array.from({ length: wanted }, (_, index) =>
        engine.i32(kept + index * vocabulary * 4, countView[index] ?? 0).slice(),
      ),
    };
    engine.release(mark);
    return draws;
  }

  #deliver(running: Running, drawn: { id: number; logprob: number; kept: Int32Array }): void {
    // A callback of this very step may have aborted it.
    if (!this.#running.includes(running)) return;
    const { slot, request, tokens, versions } = running;
    const { id } = drawn;
    if (id < 0)
      throw new HoneError('engine-failed', `The model's logits are not finite at version ${this.#version}.`, {
        cure: 'The weights have diverged; go back to an earlier version.',
      });
    const place = tokens.length;
    tokens.push(id);
    running.logprobs.push(drawn.logprob);
    running.kept.push(drawn.kept);
    running.keptOffsets.push((running.keptOffsets[place] ?? 0) + drawn.kept.length);
    const span = versions.at(-1);
    if (span?.version === this.#version) versions[versions.length - 1] = { ...span, end: place + 1 };
    else versions.push({ version: this.#version, start: place, end: place + 1 });
    this.#stats.sampledTokens++;
    const stops = request.sampling.stopIds.includes(id);
    const isFull = tokens.length >= request.sampling.maxTokens || slot.length + 1 > this.contextLength - 1;
    if (!stops && !isFull) {
      slot.tokens[slot.length] = id;
      slot.length++;
    }
    request.onToken?.(id);
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

/**
 * AdamW over a model's tensors: f32 masters, gradient accumulators, moments and the served bf16 copy, one arena each.
 * Invariants: a step with any gradient that is not finite moves nothing; saving and restoring changes no bit of what
 * follows; the served copy is always the rounding of the masters.
 */
import type { ModelConfig } from './config.ts';
import type { Engine } from './engine.ts';
import type { GradientArena, ParameterLayout } from './weights.ts';

export interface StepOptions {
  readonly learningRate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  /** Decoupled; applies to matrices, not to norms and biases. */
  readonly weightDecay: number;
  /** Largest gradient norm; Infinity = no clipping. */
  readonly clipNorm: number;
}

export interface StepResult {
  /** Before clipping; not finite when the step was refused. */
  readonly gradientNorm: number;
  readonly applied: boolean;
}

export interface OptimizerState {
  readonly step: number;
  readonly firstMoments: Map<string, Float32Array>;
  readonly secondMoments: Map<string, Float32Array>;
}

/** Byte addresses of the per-parameter arenas. */
interface Arenas {
  readonly master: number;
  readonly gradient: number;
  /** The tied head's share of the embedding gradient; 0 when untied. */
  readonly headGradient: number;
  readonly first: number;
  readonly second: number;
  readonly served: number;
}

const BLOCK = 4096;

export class Optimizer {
  readonly #engine: Engine;
  readonly #layout: ParameterLayout;
  readonly #arenas: Arenas;
  readonly #headSize: number;
  #step = 0;

  constructor(engine: Engine, options: { config: ModelConfig; layout: ParameterLayout }) {
    const { config, layout } = options;
    this.#engine = engine;
    this.#layout = layout;
    this.#headSize = config.tiedEmbeddings ? config.vocabSize * config.hiddenSize : 0;
    const arena = (count: number): number => {
      const pointer = engine.allocFloats(count);
      engine.f32(pointer, count).fill(0);
      return pointer;
    };
    const { total } = layout;
    this.#arenas = {
      master: arena(total),
      gradient: arena(total),
      headGradient: this.#headSize === 0 ? 0 : arena(this.#headSize),
      first: arena(total),
      second: arena(total),
      served: engine.alloc(total * 2),
    };
  }

  /** Where backward passes add. */
  get gradientArena(): GradientArena {
    return { base: this.#arenas.gradient, head: this.#arenas.headGradient };
  }

  /** Byte address of a tensor's served bf16 values. */
  servedPointer(name: string): number {
    return this.#arenas.served + this.#layout.get(name).offset * 2;
  }

  setMasters(weights: ReadonlyMap<string, Float32Array>): void {
    const { master, served } = this.#arenas;
    this.#write(master, weights);
    this.#engine.run('round_bf16', this.#layout.total, 65536, served, master);
  }

  /** One step over what was accumulated; clears the gradients. */
  step(options: StepOptions): StepResult {
    const engine = this.#engine;
    const { master, gradient, first, second, served } = this.#arenas;
    this.#foldHead();
    const gradientNorm = this.#gradientNorm();
    if (!Number.isFinite(gradientNorm)) {
      engine.f32(gradient, this.#layout.total).fill(0);
      return { gradientNorm, applied: false };
    }
    this.#step++;
    const { learningRate, beta1, beta2, epsilon, weightDecay, clipNorm } = options;
    const scale = gradientNorm > clipNorm ? clipNorm / gradientNorm : 1;
    const inverseBias1 = 1 / (1 - power(beta1, this.#step));
    const inverseBias2 = 1 / (1 - power(beta2, this.#step));
    for (const { offset, size, shape } of this.#layout.parameters) {
      const at = offset * 4;
      const decay = shape.length > 1 ? weightDecay : 0;
      const tensors = [master + at, first + at, second + at, gradient + at, served + offset * 2];
      const rates = [learningRate, beta1, beta2, epsilon, decay, scale, inverseBias1, inverseBias2];
      engine.run('adamw', size, 8192, ...tensors, ...rates);
    }
    return { gradientNorm, applied: true };
  }

  /** Moves the tied head's share into the embedding's gradient. */
  #foldHead(): void {
    const { gradient, headGradient } = this.#arenas;
    if (headGradient === 0) return;
    const { offset, size } = this.#layout.get('model.embed_tokens.weight');
    this.#engine.run('take', size / 4, BLOCK, gradient + offset * 4, headGradient);
  }

  /** Sums fixed blocks in order, so that it does not depend on threads. */
  #gradientNorm(): number {
    const engine = this.#engine;
    const mark = engine.mark();
    const blocks = Math.ceil(this.#layout.total / BLOCK);
    const partials = engine.alloc(blocks * 8);
    engine.run('sum_squares', blocks, 4, partials, this.#arenas.gradient, this.#layout.total);
    const norm = Math.sqrt(engine.f64(partials, blocks).reduce((sum, value) => sum + value, 0));
    engine.release(mark);
    return norm;
  }

  servedWeights(): Map<string, Uint8Array> {
    return new Map(
      this.#layout.parameters.map(({ name, size }) => [
        name,
        this.#engine.bytes(this.servedPointer(name), size * 2).slice(),
      ]),
    );
  }

  master(): Map<string, Float32Array> {
    return this.#read(this.#arenas.master);
  }

  gradients(): Map<string, Float32Array> {
    const { gradient, headGradient } = this.#arenas;
    const copies = this.#read(gradient);
    const embedding = copies.get('model.embed_tokens.weight') ?? new Float32Array(0);
    const head = this.#engine.f32(headGradient, this.#headSize);
    for (const [index, value] of head.entries()) embedding[index] = (embedding[index] ?? 0) + value;
    return copies;
  }

  state(): OptimizerState {
    const { first, second } = this.#arenas;
    return { step: this.#step, firstMoments: this.#read(first), secondMoments: this.#read(second) };
  }

  /** Sets masters and moments exactly, and clears the gradients. Throws `invalid-model` on a tensor that does not fit. */
  restore(master: ReadonlyMap<string, Float32Array>, state: OptimizerState): void {
    for (const tensors of [master, state.firstMoments, state.secondMoments])
      this.#layout.check(new Map([...tensors].map(([name, values]) => [name, values.length])));
    const { gradient, headGradient, first, second } = this.#arenas;
    this.#write(first, state.firstMoments);
    this.#write(second, state.secondMoments);
    this.#engine.f32(gradient, this.#layout.total).fill(0);
    this.#engine.f32(headGradient, this.#headSize).fill(0);
    this.#step = state.step;
    this.setMasters(master);
  }

  #read(arena: number): Map<string, Float32Array> {
    return new Map(
      this.#layout.parameters.map(({ name, offset, size }) => [
        name,
        this.#engine.f32(arena + offset * 4, size).slice(),
      ]),
    );
  }

  #write(arena: number, tensors: ReadonlyMap<string, Float32Array>): void {
    for (const { name, offset, size } of this.#layout.parameters) {
      const values = tensors.get(name);
      if (values !== undefined) this.#engine.f32(arena + offset * 4, size).set(values);
    }
  }
}

/** base^exponent by squaring: the same bits everywhere. */
function power(base: number, exponent: number): number {
  let result = 1;
  let square = base;
  for (let rest = exponent; rest > 0; rest = Math.floor(rest / 2)) {
    if (rest % 2 === 1) result *= square;
    square *= square;
  }
  return result;
}

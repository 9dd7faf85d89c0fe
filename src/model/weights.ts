/**
 * Where a model's weights lie in engine memory. `ParameterLayout` orders all tensors in one arena; `PackedWeights`
 * holds the bf16-rounded values as kernels read them: panels for the forward pass and, for training, for the backward.
 * Invariant: both sampler and trainer compute with these values and with nothing more precise.
 */
import { HoneError } from '../domain/errors.ts';
import { parameterShapes, type ModelConfig } from './config.ts';
import { cosineSine, exponential, logarithm } from './elementary.ts';
import type { Engine } from './engine.ts';

export interface Parameter {
  readonly name: string;
  readonly shape: readonly number[];
  /** In elements, from the start of an arena. */
  readonly offset: number;
  readonly size: number;
}

/** All tensors one after the other, in the order of `parameterShapes`; every size is a multiple of 8. */
export class ParameterLayout {
  readonly parameters: readonly Parameter[];
  readonly total: number;
  readonly #byName = new Map<string, Parameter>();

  constructor(config: ModelConfig) {
    let offset = 0;
    for (const [name, shape] of parameterShapes(config)) {
      const size = shape.reduce((product, extent) => product * extent, 1);
      this.#byName.set(name, { name, shape, offset, size });
      offset += size;
    }
    this.parameters = [...this.#byName.values()];
    this.total = offset;
  }

  get(name: string): Parameter {
    const parameter = this.#byName.get(name);
    if (parameter === undefined)
      throw new HoneError('invalid-model', `The model has no tensor ${name}.`, {
        cure: `Its tensors are named like ${this.parameters[0]?.name ?? 'none'}.`,
      });
    return parameter;
  }

  /** Throws `invalid-model` unless `sizes` has exactly this model's tensors, each with the right number of elements. */
  check(sizes: ReadonlyMap<string, number>): void {
    for (const { name, size, shape } of this.parameters) {
      const have = sizes.get(name);
      if (have === undefined)
        throw new HoneError('invalid-model', `Tensor ${name} is missing.`, {
          cure: 'Use a complete model folder whose config.json fits its weights.',
        });
      if (have !== size)
        throw new HoneError(
          'invalid-model',
          `Tensor ${name} has ${have} elements; config.json asks for ${shape.join(' x ')} = ${size}.`,
          {
            cure: 'Use weights and config.json of the same model.',
          },
        );
    }
    for (const name of sizes.keys()) this.get(name);
  }
}

/** Rows [first, first + outputs) of a packed matrix with `inputs` columns; y = x w^T + bias. Addresses are in bytes. */
export interface Projection {
  readonly inputs: number;
  readonly outputs: number;
  /** Panels of 8 outputs, as `pack_rows` writes them. */
  readonly panels: number;
  /** 0 = no bias. */
  readonly bias: number;
  /** Panels of 8 inputs over `columnRows` outputs, of which these begin at `firstColumnRow`; 0 = forward only. */
  readonly columns: number;
  readonly columnRows: number;
  readonly firstColumnRow: number;
  /** Gradient accumulators, 0 when forward only. */
  readonly gradient: number;
  readonly biasGradient: number;
}

export interface Norm {
  readonly weight: number;
  readonly gradient: number;
}

export interface LayerWeights {
  readonly inputNorm: Norm;
  readonly query: Projection;
  readonly keyValue: Projection;
  readonly queryKeyValue: Projection;
  readonly queryNorm: Norm | undefined;
  readonly keyNorm: Norm | undefined;
  readonly output: Projection;
  readonly postNorm: Norm;
  readonly gateUp: Projection;
  readonly down: Projection;
}

/** Where gradients go: one arena in layout order, and the tied head's share apart, so that its sums keep their order. */
export interface GradientArena {
  readonly base: number;
  readonly head: number;
}

/** A matrix of one or more tensors stacked by rows. */
interface Matrix {
  readonly inputs: number;
  readonly outputs: number;
  readonly panels: number;
  readonly columns: number;
}

interface Place {
  readonly matrix: Matrix;
  readonly firstRow: number;
}

const EMBEDDING = 'model.embed_tokens.weight';

/** Rows [first, first + count) of a tensor; `first` is a multiple of 8. */
export interface RowRange {
  readonly first: number;
  readonly count: number;
}

export class PackedWeights {
  readonly layers: readonly LayerWeights[];
  /** bf16, [vocabulary][hidden]. */
  readonly embedding: number;
  readonly embeddingGradient: number;
  readonly finalNorm: Norm;
  readonly head: Projection;

  readonly #engine: Engine;
  readonly #layout: ParameterLayout;
  readonly #matrices = new Map<string, Place[]>();
  readonly #vectors = new Map<string, number>();

  constructor(engine: Engine, options: { config: ModelConfig; layout: ParameterLayout; gradients?: GradientArena }) {
    const { config, layout, gradients } = options;
    this.#engine = engine;
    this.#layout = layout;
    const gradientOf = (name: string): number =>
      gradients === undefined ? 0 : gradients.base + layout.get(name).offset * 4;
    const norm = (name: string): Norm => {
      const weight = engine.allocFloats(layout.get(name).size);
      this.#vectors.set(name, weight);
      return { weight, gradient: gradientOf(name) };
    };
    const stack = (
      names: readonly string[],
    ): { whole: Projection; part: (first: number, count: number) => Projection } => {
      const parameters = names.map((name) => layout.get(`${name}.weight`));
      const inputs = parameters[0]?.shape[1] ?? 0;
      const rows = parameters.map((parameter) => parameter.shape[0] ?? 0);
      const outputs = rows.reduce((sum, count) => sum + count, 0);
      const matrix: Matrix = {
        inputs,
        outputs,
        panels: engine.allocFloats(Math.ceil(outputs / 8) * 8 * inputs),
        columns: gradients === undefined ? 0 : engine.allocFloats(outputs * inputs),
      };
      const hasBias = config.qkvBias && names[0]?.endsWith('q_proj') === true;
      const bias = hasBias ? engine.allocFloats(outputs) : 0;
      let firstRow = 0;
      const firstRows = names.map((name, index) => {
        const first = firstRow;
        this.#matrices.set(`${name}.weight`, [{ matrix, firstRow: first }]);
        if (hasBias) this.#vectors.set(`${name}.bias`, bias + first * 4);
        firstRow += rows[index] ?? 0;
        return first;
      });
      firstRows.push(outputs);
      const part = (first: number, count: number): Projection => {
        const from = firstRows[first] ?? 0;
        const name = names[first] ?? '';
        return {
          inputs,
          outputs: (firstRows[first + count] ?? outputs) - from,
          panels: matrix.panels + from * inputs * 4,
          bias: bias === 0 ? 0 : bias + from * 4,
          columns: matrix.columns,
          columnRows: outputs,
          firstColumnRow: from,
          gradient: gradientOf(`${name}.weight`),
          biasGradient: bias === 0 ? 0 : gradientOf(`${name}.bias`),
        };
      };
      return { whole: part(0, names.length), part };
    };

    this.embedding = engine.alloc(layout.get(EMBEDDING).size * 2);
    this.embeddingGradient = gradientOf(EMBEDDING);
    this.layers = Array.from({ length: config.layers }, (_, index) => {
      const prefix = `model.layers.${index}.`;
      const inputNorm = norm(`${prefix}input_layernorm.weight`);
      const attention = stack(['q', 'k', 'v'].map((letter) => `${prefix}self_attn.${letter}_proj`));
      return {
        inputNorm,
        queryKeyValue: attention.whole,
        query: attention.part(0, 1),
        keyValue: attention.part(1, 2),
        queryNorm: config.qkNorm ? norm(`${prefix}self_attn.q_norm.weight`) : undefined,
        keyNorm: config.qkNorm ? norm(`${prefix}self_attn.k_norm.weight`) : undefined,
        output: stack([`${prefix}self_attn.o_proj`]).whole,
        postNorm: norm(`${prefix}post_attention_layernorm.weight`),
        gateUp: stack([`${prefix}mlp.gate_proj`, `${prefix}mlp.up_proj`]).whole,
        down: stack([`${prefix}mlp.down_proj`]).whole,
      };
    });
    this.finalNorm = norm('model.norm.weight');
    const head = stack([config.tiedEmbeddings ? 'model.embed_tokens' : 'lm_head']).whole;
    this.head = config.tiedEmbeddings && gradients !== undefined ? { ...head, gradient: gradients.head } : head;
  }

  /** Takes one tensor's served bytes (bf16, at a byte address) into the packed forms; of a part, only those of its rows. */
  write(name: string, served: number, part: RowRange = this.rowsOf(name)): void {
    const engine = this.#engine;
    const { size, width, first, count } = this.#extent(name, part);
    const vector = this.#vectors.get(name);
    if (vector !== undefined) engine.run('expand', size, 4096, vector + first * width * 4, served);
    if (name === EMBEDDING) engine.copy(this.embedding + first * width * 2, served, size * 2);
    for (const { matrix, firstRow } of this.#matrices.get(name) ?? []) {
      const { inputs, outputs, panels, columns } = matrix;
      const row = firstRow + first;
      engine.run('pack_rows', Math.ceil(count / 8), 4, panels + row * inputs * 4, served, count, inputs);
      if (columns !== 0) engine.run('pack_columns', inputs / 8, 4, columns, served, count, inputs, outputs, row);
    }
  }

  /** Copies one tensor's packed forward values, or those of a part of its rows, from another set of the same model. */
  copy(name: string, from: PackedWeights, part: RowRange = this.rowsOf(name)): void {
    const engine = this.#engine;
    const { size, width, first, count } = this.#extent(name, part);
    const vector = this.#vectors.get(name);
    if (vector !== undefined)
      engine.copy(vector + first * width * 4, (from.#vectors.get(name) ?? 0) + first * width * 4, size * 4);
    if (name === EMBEDDING)
      engine.copy(this.embedding + first * width * 2, from.embedding + first * width * 2, size * 2);
    const sources = from.#matrices.get(name) ?? [];
    for (const [index, { matrix, firstRow }] of (this.#matrices.get(name) ?? []).entries()) {
      const start = (firstRow + first) * matrix.inputs * 4;
      engine.copy(
        matrix.panels + start,
        (sources[index]?.matrix.panels ?? 0) + start,
        Math.ceil(count / 8) * 8 * matrix.inputs * 4,
      );
    }
  }

  /**
   * Reads rows of one tensor back out of the forms that the forward pass computes with, as the bf16 words that were written.
   * Throws `engine-failed` when a value is no bf16, or two forms of the tensor differ.
   */
  read(name: string, part: RowRange, target: Uint16Array): void {
    const engine = this.#engine;
    const { size, width, first, count } = this.#extent(name, part);
    const vector = this.#vectors.get(name);
    let isRead = false;
    if (vector !== undefined) {
      const words = engine.i32(vector + first * width * 4, size);
      for (let index = 0; index < size; index++) {
        const word = words[index] ?? 0;
        if ((word & 0xffff) !== 0) throw damaged(name);
        target[index] = word >>> 16;
      }
      isRead = true;
    }
    if (name === EMBEDDING) {
      const bytes = engine.bytes(this.embedding + first * width * 2, size * 2);
      target.set(new Uint16Array(bytes.buffer, bytes.byteOffset, size));
      isRead = true;
    }
    for (const { matrix, firstRow } of this.#matrices.get(name) ?? []) {
      const { inputs, panels } = matrix;
      const words = engine.i32(panels + (firstRow + first) * inputs * 4, Math.ceil(count / 8) * 8 * inputs);
      for (let panel = 0; panel * 8 < count; panel++) {
        const rows = Math.min(8, count - panel * 8);
        for (let row = 0; row < rows; row++) {
          let from = panel * 8 * inputs + row;
          let to = (panel * 8 + row) * inputs;
          for (let column = 0; column < inputs; column++, from += 8, to++) {
            const word = words[from] ?? 0;
            if ((word & 0xffff) !== 0 || (isRead && target[to] !== word >>> 16)) throw damaged(name);
            target[to] = word >>> 16;
          }
        }
      }
      isRead = true;
    }
  }

  /** All rows of a tensor; one of a single dimension has rows of one element. */
  rowsOf(name: string): RowRange {
    return { first: 0, count: this.#layout.get(name).shape[0] ?? 0 };
  }

  /** The tensor's rows in parts of about so many bf16 bytes; each begins where a panel does. */
  *partsOf(name: string, partBytes: number): Generator<RowRange> {
    const { count } = this.rowsOf(name);
    const { width } = this.#extent(name, { first: 0, count });
    const step = Math.max(8, Math.floor(partBytes / (width * 2 * 8)) * 8);
    for (let first = 0; first < count; first += step) yield { first, count: Math.min(step, count - first) };
  }

  /** Bytes of a range of rows as they are served. */
  byteRange(name: string, part: RowRange): { start: number; end: number } {
    const { width, first, size } = this.#extent(name, part);
    return { start: first * width * 2, end: (first * width + size) * 2 };
  }

  #extent(name: string, { first, count }: RowRange): RowRange & { readonly width: number; readonly size: number } {
    const { size, shape } = this.#layout.get(name);
    const width = size / (shape[0] ?? 1);
    return { first, count, width, size: count * width };
  }
}

function damaged(name: string): HoneError {
  return new HoneError('engine-failed', `Tensor ${name} in the engine's memory is not what was loaded.`, {
    cure: 'Replace the replica; if it happens again on this machine, test its memory.',
  });
}

/** Cosines and sines for every position, [context][headDim / 2] each. */
export interface RopeTable {
  readonly cosines: number;
  readonly sines: number;
}

export function createRopeTable(engine: Engine, config: ModelConfig, contextLength: number): RopeTable {
  const half = config.headDim / 2;
  const cosines = engine.allocFloats(contextLength * half);
  const sines = engine.allocFloats(contextLength * half);
  const cosineView = engine.f32(cosines, contextLength * half);
  const sineView = engine.f32(sines, contextLength * half);
  for (let index = 0; index < half; index++) {
    const frequency = inverseFrequency(config, index);
    for (let position = 0; position < contextLength; position++) {
      const [cosine, sine] = cosineSine(position * frequency);
      cosineView[position * half + index] = cosine;
      sineView[position * half + index] = sine;
    }
  }
  return { cosines, sines };
}

function inverseFrequency(config: ModelConfig, index: number): number {
  const frequency = exponential((-2 * index * logarithm(config.ropeTheta)) / config.headDim);
  const scaling = config.ropeScaling;
  if (scaling === undefined) return frequency;
  const wavelength = (2 * Math.PI) / frequency;
  const { factor, lowFrequencyFactor, highFrequencyFactor, originalContextLength } = scaling;
  if (wavelength < originalContextLength / highFrequencyFactor) return frequency;
  if (wavelength > originalContextLength / lowFrequencyFactor) return frequency / factor;
  const smooth = (originalContextLength / wavelength - lowFrequencyFactor) / (highFrequencyFactor - lowFrequencyFactor);
  return ((1 - smooth) * frequency) / factor + smooth * frequency;
}

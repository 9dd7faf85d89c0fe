/**
 * The trainable model: log-probabilities that losses are made of, their gradients, and steps of the optimizer.
 * Invariants: the forward pass sees only the bf16-rounded weights that `servedWeights` returns; gradient bits depend
 * neither on threads nor on how sequences are split into micro-batches (each sum runs over rows in sequence order);
 * a step with any non-finite gradient moves nothing.
 */
import { HoneError } from '../domain/errors.ts';
import type { ModelConfig } from './config.ts';
import type { Engine } from './engine.ts';
import { buildBatch, checkSequence, splitMicroBatches, type Batch, type SequenceInput } from './micro-batch.ts';
import type { Context } from './operations.ts';
import { Optimizer, type OptimizerState, type StepOptions, type StepResult } from './optimizer.ts';
import { Tape, type Value } from './tape.ts';
import { forward } from './transformer.ts';
import { createRopeTable, PackedWeights, ParameterLayout, type RopeTable } from './weights.ts';

export type { SequenceInput } from './micro-batch.ts';
export type { OptimizerState, StepOptions, StepResult } from './optimizer.ts';

export interface SequenceOutput {
  /** Renormalised over the kept row, at the sequence's temperature. */
  readonly logprobs: Float32Array;
  /** Of the full vocabulary at the same temperature, in nats. */
  readonly entropies: Float32Array;
}

/** dLoss / d(output); `entropies` absent = 0. */
export interface SequenceGradient {
  readonly logprobs: Float32Array;
  readonly entropies?: Float32Array;
}

export interface TrainingOptions {
  /** Rows of a micro-batch; a longer sequence makes one of its own. */
  readonly microBatchTokens?: number;
  /** Activations kept between the loss and the backward pass; micro-batches beyond it are computed a second time. */
  readonly maxActivationBytes?: number;
}

interface Pass {
  readonly batch: Batch;
  readonly tape: Tape;
  readonly logits: Value;
}

export class TrainingModel {
  readonly config: ModelConfig;
  readonly #engine: Engine;
  readonly #layout: ParameterLayout;
  readonly #optimizer: Optimizer;
  readonly #weights: PackedWeights;
  readonly #rope: RopeTable;
  readonly #microBatchTokens: number;
  readonly #maxActivationBytes: number;

  /** Takes f32 masters by Hugging Face name; throws `invalid-model` when a tensor is missing, unknown or misshapen. */
  static create(
    engine: Engine,
    config: ModelConfig,
    weights: ReadonlyMap<string, Float32Array>,
    options: TrainingOptions = {},
  ): TrainingModel {
    return new TrainingModel(engine, config, weights, options);
  }

  private constructor(
    engine: Engine,
    config: ModelConfig,
    weights: ReadonlyMap<string, Float32Array>,
    options: TrainingOptions,
  ) {
    this.config = config;
    this.#engine = engine;
    this.#microBatchTokens = options.microBatchTokens ?? 2048;
    this.#maxActivationBytes = options.maxActivationBytes ?? 1024 ** 3;
    this.#layout = new ParameterLayout(config);
    this.#layout.check(new Map([...weights].map(([name, values]) => [name, values.length])));
    this.#optimizer = new Optimizer(engine, { config, layout: this.#layout });
    this.#weights = new PackedWeights(engine, {
      config,
      layout: this.#layout,
      gradients: this.#optimizer.gradientArena,
    });
    this.#rope = createRopeTable(engine, config, config.contextLength);
    this.#optimizer.setMasters(weights);
    this.#refresh();
  }

  /** Packs the served values for the kernels. */
  #refresh(): void {
    for (const { name } of this.#layout.parameters) this.#weights.write(name, this.#optimizer.servedPointer(name));
  }

  /** The forward pass alone. */
  evaluate(sequences: readonly SequenceInput[]): SequenceOutput[] {
    const engine = this.#engine;
    for (const sequence of sequences) checkSequence(this.config, engine, sequence);
    return splitMicroBatches(sequences, this.#microBatchTokens).flatMap((part) => this.#evaluatePart(part));
  }

  #evaluatePart(part: readonly SequenceInput[]): SequenceOutput[] {
    const engine = this.#engine;
    const mark = engine.mark();
    try {
      const batch = buildBatch(engine, this.config, part);
      return this.#outputs(part, batch, batch.rows.count === 0 ? undefined : this.#forward(batch, undefined));
    } finally {
      engine.release(mark);
    }
  }

  /**
   * Adds the gradient of a loss of `sequences`. `loss` is called once, with all outputs in the order of the sequences.
   * Several calls before a `step` add up; one call over all sequences and one call each give the same bits.
   */
  accumulate(sequences: readonly SequenceInput[], loss: (outputs: SequenceOutput[]) => SequenceGradient[]): void {
    const engine = this.#engine;
    for (const sequence of sequences) {
      if (sequence.targets !== undefined)
        throw new HoneError('invalid-rollout', 'A sequence to train names other targets than its own tokens.', {
          cure: 'Leave targets out; they are for evaluate() alone.',
        });
      checkSequence(this.config, engine, sequence);
    }
    const start = engine.mark();
    try {
      const parts = splitMicroBatches(sequences, this.#microBatchTokens);
      const outputs: SequenceOutput[] = [];
      const passes = parts.map((part) => {
        const mark = engine.mark();
        const pass = this.#record(part);
        outputs.push(...this.#outputs(part, pass.batch, pass.logits));
        if (parts.length === 1 || engine.mark() - start <= this.#maxActivationBytes) return pass;
        engine.release(mark);
        return undefined;
      });
      const gradients = loss(outputs);
      checkGradients(sequences, gradients);
      let first = 0;
      for (const [index, part] of parts.entries()) {
        const mark = engine.mark();
        this.#backward(passes[index] ?? this.#record(part), part, gradients.slice(first, first + part.length));
        engine.release(mark);
        first += part.length;
      }
    } finally {
      engine.release(start);
    }
  }

  #record(part: readonly SequenceInput[]): Pass {
    const batch = buildBatch(this.#engine, this.config, part);
    const tape = new Tape();
    return {
      batch,
      tape,
      logits:
        batch.rows.count === 0
          ? { pointer: 0, rows: 0, width: this.config.vocabSize, gradient: 0 }
          : this.#forward(batch, tape),
    };
  }

  #forward(batch: Batch, tape: Tape | undefined): Value {
    const engine = this.#engine;
    const context: Context = { engine, tape };
    const layerFloats = batch.cacheFloats;
    const caches = engine.allocFloats(layerFloats * 2 * (tape === undefined ? 1 : this.config.layers));
    // Without a backward pass no layer needs another layer's keys.
    const cache = (layer: number): number => caches + (tape === undefined ? 0 : layer * layerFloats * 8);
    return forward(context, {
      config: this.config,
      weights: this.#weights,
      rope: this.#rope,
      tokens: batch.tokens,
      rows: batch.rows,
      wanted: batch.wanted,
      keys: cache,
      values: (layer) => cache(layer) + layerFloats * 4,
      sequences: batch.sequences,
    });
  }

  #outputs(part: readonly SequenceInput[], batch: Batch, logits: Value | undefined): SequenceOutput[] {
    const engine = this.#engine;
    const rows = batch.wanted.count;
    const mark = engine.mark();
    const logprobs = engine.allocFloats(rows);
    const entropies = engine.allocFloats(rows);
    if (logits !== undefined)
      engine.run(
        'head_logprob',
        rows,
        1,
        logprobs,
        entropies,
        logits.pointer,
        this.config.vocabSize,
        batch.targets,
        batch.inverseTemperatures,
        batch.kept,
        batch.keptOffsets,
      );
    let row = 0;
    const outputs = part.map(({ positions }) => {
      const output = {
        logprobs: engine.f32(logprobs + row * 4, positions.length).slice(),
        entropies: engine.f32(entropies + row * 4, positions.length).slice(),
      };
      row += positions.length;
      return output;
    });
    engine.release(mark);
    return outputs;
  }

  #backward(pass: Pass, part: readonly SequenceInput[], gradients: readonly SequenceGradient[]): void {
    const { batch, tape, logits } = pass;
    const engine = this.#engine;
    const rows = batch.wanted.count;
    const logprobGradients = engine.allocFloats(rows);
    const entropyGradients = engine.allocFloats(rows);
    const logprobView = engine.f32(logprobGradients, rows);
    const entropyView = engine.f32(entropyGradients, rows).fill(0);
    let row = 0;
    for (const [index, { positions }] of part.entries()) {
      const gradient = gradients[index];
      logprobView.set(gradient?.logprobs ?? [], row);
      entropyView.set(gradient?.entropies ?? [], row);
      row += positions.length;
    }
    if (rows === 0) return;
    logits.gradient = engine.allocFloats(rows * logits.width);
    engine.run(
      'head_gradient',
      rows,
      1,
      logits.gradient,
      logits.pointer,
      logits.width,
      batch.targets,
      batch.inverseTemperatures,
      batch.kept,
      batch.keptOffsets,
      logprobGradients,
      entropyGradients,
    );
    tape.backward();
  }

  /** One AdamW step over what was accumulated; clears the gradients. Refuses, moving nothing, when any is not finite. */
  step(options: StepOptions): StepResult {
    const result = this.#optimizer.step(options);
    if (result.applied) this.#refresh();
    return result;
  }

  /** bf16 little-endian bytes of every tensor, in Hugging Face shapes: the values that were trained with. */
  servedWeights(): Map<string, Uint8Array> {
    return this.#optimizer.servedWeights();
  }

  /** Copies of the f32 masters. */
  master(): Map<string, Float32Array> {
    return this.#optimizer.master();
  }

  /** Copies of the accumulated gradients. */
  gradients(): Map<string, Float32Array> {
    return this.#optimizer.gradients();
  }

  optimizerState(): OptimizerState {
    return this.#optimizer.state();
  }

  /** Sets masters and optimizer exactly, and clears the gradients: the next step is the one that would have followed. */
  restore(master: ReadonlyMap<string, Float32Array>, optimizer: OptimizerState): void {
    this.#optimizer.restore(master, optimizer);
    this.#refresh();
  }
}

function checkGradients(sequences: readonly SequenceInput[], gradients: readonly SequenceGradient[]): void {
  if (gradients.length !== sequences.length)
    throw new HoneError(
      'invalid-config',
      `The loss returned ${gradients.length} gradients for ${sequences.length} sequences.`,
      { cure: 'Return one gradient a sequence, in order.' },
    );
  for (const [index, { positions }] of sequences.entries()) {
    const { logprobs, entropies = logprobs } = gradients[index] ?? { logprobs: new Float32Array(0) };
    if (logprobs.length !== positions.length || entropies.length !== positions.length)
      throw new HoneError(
        'invalid-config',
        `The loss returned a gradient of the wrong length for a sequence of ${positions.length} positions.`,
        { cure: 'Return one number a position.' },
      );
  }
}

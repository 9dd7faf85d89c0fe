import { createHash } from 'node:crypto';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { createRandom } from '../domain/ids.ts';
import type { ModelConfig } from './config.ts';
import { createEngine, type Engine } from './engine.ts';
import { bf16Spacing, livelyWeights, randomSequence, roundToBf16, SMALL_MODELS } from './small-model.fixture.ts';
import {
  TrainingModel,
  type SequenceGradient,
  type SequenceInput,
  type SequenceOutput,
  type StepOptions,
} from './training.ts';

const [QWEN3, QWEN2, LLAMA] = SMALL_MODELS as [ModelConfig, ModelConfig, ModelConfig];
const STEP: StepOptions = {
  learningRate: 1e-2,
  beta1: 0.9,
  beta2: 0.99,
  epsilon: 1e-8,
  weightDecay: 0.01,
  clipNorm: 1,
};

let engine: Engine;
beforeAll(async () => {
  engine = await createEngine({ build: 'plain', threads: 1 });
});
afterAll(() => engine.close());

function sequences(seed: number, config: ModelConfig): SequenceInput[] {
  const random = createRandom(seed);
  return [20, 37, 9].map((length, index) =>
    randomSequence(random, { length, vocabulary: config.vocabSize, hasKept: index !== 1 }),
  );
}

/** A loss that is linear in every log-probability and entropy, so that its gradient is known and nothing cancels. */
function linearLoss(
  inputs: readonly SequenceInput[],
  seed: number,
): { value: (outputs: SequenceOutput[]) => number; gradients: SequenceGradient[] } {
  const random = createRandom(seed);
  const gradients = inputs.map(({ positions }) => ({
    logprobs: Float32Array.from(positions, () => random.next() - 0.5),
    entropies: Float32Array.from(positions, () => random.next() - 0.5),
  }));
  const dot = (a: Float32Array, b: Float32Array): number => a.reduce((sum, x, index) => sum + x * (b[index] ?? 0), 0);
  return {
    gradients,
    value: (outputs) =>
      outputs.reduce(
        (sum, { logprobs, entropies }, index) =>
          sum +
          dot(logprobs, gradients[index]?.logprobs ?? logprobs) +
          dot(entropies, gradients[index]?.entropies ?? entropies),
        0,
      ),
  };
}

function digest(tensors: ReadonlyMap<string, Float32Array | Uint8Array>): string {
  const hash = createHash('sha256');
  for (const [name, values] of tensors)
    hash.update(name).update(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
  return hash.digest('hex').slice(0, 16);
}

function train(model: TrainingModel, steps: number, first = 0): void {
  for (let step = first; step < first + steps; step++) {
    const inputs = sequences(step, model.config);
    model.accumulate(inputs, () => linearLoss(inputs, step).gradients);
    expect(model.step(STEP).applied).toBe(true);
  }
}

describe('gradients', () => {
  /*
   * The forward pass sees bf16 weights, so each element moves by its own bf16 spacing: both ends are exact, and the
   * central difference errs by the third derivative only. Errors are relative to |gradient| |direction|; f32 noise of
   * the loss, about 1e-6, over a direction of about 1e-2 allows 1e-3.
   */
  it.each(SMALL_MODELS)('agree with central differences in every tensor of $architecture', (config) => {
    const mark = engine.mark();
    const weights = livelyWeights(config, 1);
    const model = TrainingModel.create(engine, config, weights);
    const inputs = sequences(5, config);
    const loss = linearLoss(inputs, 6);
    model.accumulate(inputs, () => loss.gradients);
    const gradients = model.gradients();
    const state = model.optimizerState();
    const random = createRandom(8);
    for (const [name, values] of weights) {
      const gradient = gradients.get(name) ?? new Float32Array(0);
      const direction = values.map((x) => (random.next() < 0.5 ? -1 : 1) * bf16Spacing(x));
      const lossAt = (sign: number): number => {
        const moved = values.map((x, index) => roundToBf16(x + sign * (direction[index] ?? 0)));
        model.restore(new Map(weights).set(name, moved), state);
        return loss.value(model.evaluate(inputs));
      };
      const difference = (lossAt(1) - lossAt(-1)) / 2;
      const derivative = gradient.reduce((sum, x, index) => sum + x * (direction[index] ?? 0), 0);
      const size = Math.hypot(...gradient) * Math.hypot(...direction);
      expect(size, name).toBeGreaterThan(1e-6);
      expect(Math.abs(difference - derivative) / size, name).toBeLessThan(1e-3);
    }
    engine.release(mark);
  });

  it('are the same bits for any split into micro-batches and calls, kept activations or recomputed ones', () => {
    const inputs = sequences(3, QWEN3);
    const { gradients } = linearLoss(inputs, 4);
    const digests = [
      { microBatchTokens: 2048 },
      { microBatchTokens: 1 },
      { microBatchTokens: 50 },
      { microBatchTokens: 1, maxActivationBytes: 0 },
    ].map((options) => {
      const mark = engine.mark();
      const model = TrainingModel.create(engine, QWEN3, livelyWeights(QWEN3, 2), options);
      model.accumulate(inputs, () => gradients);
      const result = digest(model.gradients());
      engine.release(mark);
      return result;
    });
    const mark = engine.mark();
    const model = TrainingModel.create(engine, QWEN3, livelyWeights(QWEN3, 2));
    for (const [index, input] of inputs.entries()) model.accumulate([input], () => gradients.slice(index, index + 1));
    digests.push(digest(model.gradients()));
    engine.release(mark);
    expect(new Set(digests).size).toBe(1);
  });

  it('are exactly 0 where nothing was wanted: later tokens, ids outside kept rows, singleton rows', () => {
    const mark = engine.mark();
    const config = { ...LLAMA };
    const model = TrainingModel.create(engine, config, livelyWeights(config, 2));
    const tokens = Int32Array.from([1, 2, 3, 4, 5, 6]);
    const one = {
      tokens,
      positions: Int32Array.from([2]),
      kept: { ids: Int32Array.from([3, 9]), offsets: Int32Array.from([0, 2]) },
      temperature: 1,
    };
    model.accumulate([one], () => [{ logprobs: Float32Array.from([1]) }]);
    const head = model.gradients().get('lm_head.weight') ?? new Float32Array(0);
    const embedding = model.gradients().get('model.embed_tokens.weight') ?? new Float32Array(0);
    const touched = (values: Float32Array): number[] => [
      ...new Set(
        [...values.keys()].filter((index) => values[index] !== 0).map((index) => Math.floor(index / config.hiddenSize)),
      ),
    ];
    expect(touched(head)).toEqual([3, 9]);
    expect(touched(embedding)).toEqual([1, 2]);
    model.step({ ...STEP, learningRate: 0 });
    const single = { ...one, kept: { ids: Int32Array.from([3]), offsets: Int32Array.from([0, 1]) } };
    model.accumulate([single], (outputs) => {
      expect(outputs[0]?.logprobs[0]).toBe(0);
      return [{ logprobs: Float32Array.from([1]) }];
    });
    for (const values of model.gradients().values()) expect(values.every((x) => x === 0)).toBe(true);
    engine.release(mark);
  });

  it('of a sequence do not see tokens after its last wanted position', () => {
    const mark = engine.mark();
    const model = TrainingModel.create(engine, QWEN2, livelyWeights(QWEN2, 2));
    const evaluate = (last: number): number | undefined =>
      model.evaluate([
        { tokens: Int32Array.from([5, 6, 7, last]), positions: Int32Array.from([1, 2]), temperature: 1 },
      ])[0]?.logprobs[1];
    expect(evaluate(8)).toBe(evaluate(40));
    engine.release(mark);
  });
});

describe('a step', () => {
  it('gives one golden hash for 1, 2 and 3 threads', async () => {
    for (const threads of [1, 2, 3]) {
      const own = await createEngine({ build: 'plain', threads });
      const start = own.mark();
      // On a busy machine a worker may sleep through a small model; again, then, until one has helped.
      for (let attempt = 0; attempt === 0 || (own.workerChunks === 0 && threads > 1); attempt++) {
        own.release(start);
        const model = TrainingModel.create(own, QWEN3, livelyWeights(QWEN3, 9));
        train(model, 3);
        expect(digest(model.master()), `${threads} threads`).toBe('50f64fd6ee538f53');
        expect(attempt).toBeLessThan(500);
      }
      await own.close();
    }
  });

  it('is AdamW: the first step moves every weight by the learning rate against its gradient', () => {
    const mark = engine.mark();
    const weights = livelyWeights(QWEN2, 4);
    const model = TrainingModel.create(engine, QWEN2, weights);
    const inputs = sequences(1, QWEN2);
    model.accumulate(inputs, () => linearLoss(inputs, 1).gradients);
    const gradients = model.gradients();
    const { gradientNorm } = model.step({ ...STEP, weightDecay: 0.1, clipNorm: Infinity });
    expect(gradientNorm).toBeCloseTo(Math.hypot(...[...gradients.values()].map((values) => Math.hypot(...values))), 3);
    for (const [name, after] of model.master()) {
      const decay = name.includes('norm') || name.endsWith('bias') ? 0 : 0.1;
      const before = weights.get(name) ?? after;
      for (let index = 0; index < after.length; index += 7) {
        const gradient = gradients.get(name)?.[index] ?? 0;
        const old = before[index] ?? 0;
        const expected = old - STEP.learningRate * (gradient / (Math.abs(gradient) + 1e-8) + decay * old);
        expect(Math.abs((after[index] ?? 0) - expected)).toBeLessThan(2e-5);
      }
    }
    engine.release(mark);
  });

  it('serves the bf16 rounding of the masters, and computes with nothing else', () => {
    const mark = engine.mark();
    const model = TrainingModel.create(engine, QWEN3, livelyWeights(QWEN3, 4));
    train(model, 2);
    const inputs = sequences(1, QWEN3);
    const before = model.evaluate(inputs);
    const rounded = new Map([...model.master()].map(([name, values]) => [name, values.map(roundToBf16)]));
    for (const [name, bytes] of model.servedWeights()) {
      const words = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2);
      const widened = new Float32Array(Uint32Array.from(words, (word) => word << 16).buffer);
      expect(widened).toEqual(rounded.get(name));
    }
    expect(TrainingModel.create(engine, QWEN3, rounded).evaluate(inputs)).toEqual(before);
    engine.release(mark);
  });

  it('after a restore is the step that would have followed, to the bit', () => {
    const mark = engine.mark();
    const model = TrainingModel.create(engine, QWEN3, livelyWeights(QWEN3, 4));
    train(model, 2);
    const saved = { master: model.master(), optimizer: model.optimizerState() };
    train(model, 2, 2);
    const resumed = TrainingModel.create(engine, QWEN3, livelyWeights(QWEN3, 5));
    const pending = sequences(8, QWEN3);
    resumed.accumulate(pending, () => linearLoss(pending, 8).gradients);
    resumed.restore(saved.master, saved.optimizer);
    train(resumed, 2, 2);
    expect(digest(resumed.master())).toBe(digest(model.master()));
    expect(digest(resumed.servedWeights())).toBe(digest(model.servedWeights()));
    engine.release(mark);
  });

  it.each([Number.NaN, Infinity])('with a gradient of %s moves nothing, and the next one is clean', (bad) => {
    const mark = engine.mark();
    const model = TrainingModel.create(engine, QWEN3, livelyWeights(QWEN3, 4));
    train(model, 1);
    const before = [
      digest(model.master()),
      digest(model.servedWeights()),
      digest(model.optimizerState().secondMoments),
    ];
    const inputs = sequences(1, QWEN3);
    model.accumulate(inputs, () =>
      linearLoss(inputs, 1).gradients.map(({ logprobs }) => ({ logprobs: logprobs.fill(bad, 0, 1) })),
    );
    expect(model.step(STEP).applied).toBe(false);
    expect([
      digest(model.master()),
      digest(model.servedWeights()),
      digest(model.optimizerState().secondMoments),
    ]).toEqual(before);
    expect(model.optimizerState().step).toBe(1);
    train(model, 1, 1);
    engine.release(mark);
  });

  it('of the fused build agrees with the plain one to rounding', async () => {
    const fused = await createEngine({ build: 'fma', threads: 1 });
    const mark = engine.mark();
    const inputs = sequences(2, QWEN3);
    const [a, b] = [engine, fused].map((own) => {
      const model = TrainingModel.create(own, QWEN3, livelyWeights(QWEN3, 4));
      model.accumulate(inputs, () => linearLoss(inputs, 1).gradients);
      const { gradientNorm } = model.step({ ...STEP, learningRate: 0 });
      return [gradientNorm, ...model.evaluate(inputs).flatMap(({ logprobs }) => [...logprobs])];
    });
    for (const [index, value] of (a ?? []).entries()) expect(Math.abs(value - (b?.[index] ?? 0))).toBeLessThan(1e-4);
    engine.release(mark);
    await fused.close();
  });

  it('learns: a repeated sequence becomes certain', () => {
    const mark = engine.mark();
    const model = TrainingModel.create(engine, QWEN3, livelyWeights(QWEN3, 4));
    const tokens = Int32Array.from({ length: 24 }, (_, index) => (index * 7) % 23);
    const input = { tokens, positions: Int32Array.from({ length: 23 }, (_, index) => index + 1), temperature: 1 };
    const mean = (): number => (model.evaluate([input])[0]?.logprobs.reduce((sum, x) => sum + x, 0) ?? 0) / 23;
    expect(mean()).toBeLessThan(-2);
    for (let step = 0; step < 60; step++) {
      model.accumulate([input], ([output]) => [
        { logprobs: new Float32Array(output?.logprobs.length ?? 0).fill(-1 / 23) },
      ]);
      model.step(STEP);
    }
    expect(mean()).toBeGreaterThan(-0.1);
    engine.release(mark);
  });
});

describe('bad input', () => {
  const cases: readonly (readonly [string, Partial<SequenceInput>, RegExp])[] = [
    ['position 0', { positions: Int32Array.from([0]) }, /position 0 is out of order or range/],
    ['positions out of order', { positions: Int32Array.from([2, 1]) }, /out of order or range/],
    ['a position after the end', { positions: Int32Array.from([4]) }, /out of order or range/],
    ['a foreign token', { tokens: Int32Array.from([1, 99, 3, 4]) }, /token 99 is not in the vocabulary of 67/],
    ['temperature 0', { temperature: 0 }, /temperature is 0/],
    [
      'a kept row without its token',
      { kept: { ids: Int32Array.from([5]), offsets: Int32Array.from([0, 1]) } },
      /is not in its kept row/,
    ],
    [
      'too few kept rows',
      { kept: { ids: Int32Array.from([]), offsets: Int32Array.from([0]) } },
      /0 kept rows for 1 positions/,
    ],
  ];
  it.each(cases)('%s is refused by name', (_, change, message) => {
    const mark = engine.mark();
    const model = TrainingModel.create(engine, QWEN3, livelyWeights(QWEN3, 4));
    const good: SequenceInput = {
      tokens: Int32Array.from([1, 2, 3, 4]),
      positions: Int32Array.from([2]),
      temperature: 1,
    };
    expect(() => model.evaluate([{ ...good, ...change }])).toThrow(message);
    engine.release(mark);
  });

  it('a missing, unknown or misshapen tensor is named', () => {
    const weights = livelyWeights(QWEN3, 4);
    const without = new Map(weights);
    without.delete('model.norm.weight');
    expect(() => TrainingModel.create(engine, QWEN3, without)).toThrow(/model\.norm\.weight is missing/);
    expect(() =>
      TrainingModel.create(engine, QWEN3, new Map(weights).set('lm_head.weight', new Float32Array(8))),
    ).toThrow(/no tensor lm_head\.weight/);
    expect(() =>
      TrainingModel.create(engine, QWEN3, new Map(weights).set('model.norm.weight', new Float32Array(8))),
    ).toThrow(/8 elements; config\.json asks for 32/);
  });

  it('a loss with the wrong shape is refused, and sequences without positions are none', () => {
    const mark = engine.mark();
    const model = TrainingModel.create(engine, QWEN3, livelyWeights(QWEN3, 4));
    const inputs = sequences(1, QWEN3);
    expect(() => model.accumulate(inputs, () => [])).toThrow(/0 gradients for 3 sequences/);
    expect(() => model.accumulate(inputs, () => inputs.map(() => ({ logprobs: new Float32Array(1) })))).toThrow(
      /wrong length/,
    );
    const empty = { tokens: Int32Array.from([1]), positions: new Int32Array(0), temperature: 1 };
    model.accumulate([empty], (outputs) => outputs);
    expect(model.evaluate([empty, ...inputs]).slice(1)).toEqual(model.evaluate(inputs));
    engine.release(mark);
  });
});

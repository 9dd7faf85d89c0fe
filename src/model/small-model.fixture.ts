/**
 * Small models of each family and random sequences for the engine's tests. The weights are exact in bf16 and large
 * enough that distributions are far from uniform, so that a wrong bit or a wrong sign shows.
 */
import { createRandom, type Random } from '../domain/ids.ts';
import { initialWeights, type ModelConfig } from './config.ts';
import type { SequenceInput } from './training.ts';

const SHAPE = {
  hiddenSize: 32,
  intermediateSize: 48,
  layers: 3,
  heads: 4,
  kvHeads: 2,
  headDim: 16,
  vocabSize: 67,
  contextLength: 96,
};
const CONSTANTS = { rmsNormEpsilon: 1e-6, ropeTheta: 10_000, ropeScaling: undefined, eosTokenIds: [] };

export const SMALL_MODELS: readonly ModelConfig[] = [
  { ...SHAPE, ...CONSTANTS, architecture: 'qwen3', qkNorm: true, qkvBias: false, tiedEmbeddings: true },
  { ...SHAPE, ...CONSTANTS, architecture: 'qwen2', qkNorm: false, qkvBias: true, tiedEmbeddings: false },
  {
    ...SHAPE,
    ...CONSTANTS,
    architecture: 'llama',
    heads: 3,
    kvHeads: 3,
    headDim: 24,
    qkNorm: false,
    qkvBias: false,
    tiedEmbeddings: false,
  },
];

const bits = new Uint32Array(1);
const value = new Float32Array(bits.buffer);

/** The nearest value with a bf16 representation. */
export function roundToBf16(x: number): number {
  value[0] = x;
  const word = bits[0] ?? 0;
  bits[0] = ((word + 0x7fff + ((word >>> 16) & 1)) >>> 16) << 16;
  return value[0] ?? 0;
}

/** The distance between bf16 values around x. */
export function bf16Spacing(x: number): number {
  value[0] = Math.abs(x) < 1e-3 ? 1e-3 : x;
  bits[0] = (bits[0] ?? 0) & 0x7f800000;
  return (value[0] ?? 0) / 128;
}

export function livelyWeights(config: ModelConfig, seed: number): Map<string, Float32Array> {
  const random = createRandom(seed);
  const weights = initialWeights(config, seed);
  for (const [name, values] of weights) {
    const isVector = name.endsWith('norm.weight') || name.endsWith('bias');
    const factor = name.includes('embed') || name.includes('head') ? 20 : 8;
    for (let index = 0; index < values.length; index++)
      values[index] = roundToBf16(
        isVector ? (values[index] ?? 0) + (random.next() - 0.5) / 2 : (values[index] ?? 0) * factor,
      );
  }
  return weights;
}

export function randomTokens(random: Random, length: number, vocabulary: number): Int32Array {
  return Int32Array.from({ length }, () => random.below(vocabulary));
}

/** A sequence with about 40 % of its positions wanted, over kept rows or over the whole vocabulary. */
export function randomSequence(
  random: Random,
  options: { length: number; vocabulary: number; hasKept: boolean },
): SequenceInput {
  const { length, vocabulary, hasKept } = options;
  const tokens = randomTokens(random, length, vocabulary);
  const positions = [...tokens.keys()].filter((position) => position > 0 && random.next() < 0.4);
  const temperature = 0.7 + random.next() / 2;
  if (!hasKept) return { tokens, positions: Int32Array.from(positions), temperature };
  const ids: number[] = [];
  const offsets = [0];
  for (const position of positions) {
    const row = new Set([tokens[position] ?? 0]);
    for (let extra = random.below(10); extra > 0; extra--) row.add(random.below(vocabulary));
    ids.push(...[...row].sort((a, b) => a - b));
    offsets.push(ids.length);
  }
  return {
    tokens,
    positions: Int32Array.from(positions),
    temperature,
    kept: { ids: Int32Array.from(ids), offsets: Int32Array.from(offsets) },
  };
}

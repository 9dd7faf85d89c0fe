/**
 * A bf16 model that is shaped like a decoder and has no meaning: normally distributed weights, and steps of it that change bits as an
 * optimizer whose master weights are finer than bf16 does. Invariant: same size, seed and density give the same bytes.
 */
import type { TensorPlaces } from '../src/sync/tensor-place.ts';
import { float32ToBfloat16 } from '../src/tensor/dtype.ts';

export interface SyntheticTensor {
  readonly name: string;
  readonly shape: readonly number[];
  readonly offset: number;
  readonly sizeBytes: number;
}

export interface SyntheticModel {
  readonly tensors: readonly SyntheticTensor[];
  readonly sizeBytes: number;
  /** All tensors back to back, shared between threads. */
  readonly bytes: Uint8Array;
}

/** What a step changed, and what an ideal coder would need for it. */
export interface SyntheticStep {
  readonly bytes: Uint8Array;
  readonly changedElements: number;
  readonly elements: number;
  /** Sum over tensors of the entropy of independent positions and the order-0 entropy of the XORed values. */
  readonly boundBytes: number;
}

const SPREAD = 0.02;
const QUANTILES = 65_536;
const LARGEST_STEP_ULPS = 8;

/** A model of about `sizeBytes`: embedding, attention, feed-forward and norms of as many layers as fit. */
export function createSyntheticModel({ sizeBytes, seed }: { sizeBytes: number; seed: number }): SyntheticModel {
  const hidden = 2 ** Math.max(5, Math.min(13, Math.floor(Math.log2(Math.sqrt(sizeBytes / 2 / 250)))));
  const tensors: SyntheticTensor[] = [];
  let offset = 0;
  const add = (name: string, ...shape: number[]): void => {
    const tensorBytes = 2 * shape.reduce((product, extent) => product * extent, 1);
    tensors.push({ name, shape, offset, sizeBytes: tensorBytes });
    offset += tensorBytes;
  };
  add('model.embed_tokens.weight', 32 * hidden, hidden);
  for (let layer = 0; layer === 0 || offset + 22 * hidden * hidden < sizeBytes; layer++) {
    const name = `model.layers.${layer}`;
    add(`${name}.input_layernorm.weight`, hidden);
    add(`${name}.self_attn.q_proj.weight`, hidden, hidden);
    add(`${name}.self_attn.k_proj.weight`, hidden / 4, hidden);
    add(`${name}.self_attn.v_proj.weight`, hidden / 4, hidden);
    add(`${name}.self_attn.o_proj.weight`, hidden, hidden);
    add(`${name}.post_attention_layernorm.weight`, hidden);
    add(`${name}.mlp.gate_proj.weight`, 2.75 * hidden, hidden);
    add(`${name}.mlp.up_proj.weight`, 2.75 * hidden, hidden);
    add(`${name}.mlp.down_proj.weight`, hidden, 2.75 * hidden);
  }
  add('model.norm.weight', hidden);
  const bytes = new Uint8Array(new SharedArrayBuffer(offset));
  const weights = new Uint16Array(bytes.buffer);
  const table = normalQuantiles();
  let state = seedState(seed);
  for (let index = 0; index < weights.length; index++) {
    state = nextState(state);
    weights[index] = table[state >>> 16]!;
  }
  return { tensors, sizeBytes: offset, bytes };
}

/**
 * Writes the model after one step into `into`. Each master weight lies anywhere within its bf16 rounding interval and moves by the
 * same small amount up or down: so small weights change more often, and by more units in the last place, than large ones.
 */
export function stepSyntheticModel(
  model: SyntheticModel,
  { density, seed, into }: { density: number; seed: number; into: Uint8Array },
): SyntheticStep {
  const move = moveForDensity(density);
  // By the upper 9 bits of a weight's magnitude: chance of a change, and whole units moved in any case.
  const chance = new Float64Array(256);
  const whole = new Uint8Array(256);
  for (let exponent = 0; exponent < 256; exponent++) {
    const units = Math.min(LARGEST_STEP_ULPS, move / unitAt(exponent));
    whole[exponent] = Math.floor(units);
    chance[exponent] = (units - Math.floor(units)) * 2 ** 31;
  }
  const before = new Uint16Array(model.bytes.buffer);
  const after = new Uint16Array(into.buffer, into.byteOffset, into.byteLength / 2);
  let state = seedState(seed);
  let changedElements = 0;
  let boundBits = 0;
  const values = new Uint32Array(65_536);
  for (const { offset, sizeBytes } of model.tensors) {
    values.fill(0);
    let changed = 0;
    const end = (offset + sizeBytes) / 2;
    for (let index = offset / 2; index < end; index++) {
      state = nextState(state);
      const bits = before[index]!;
      const exponent = (bits >>> 7) & 0xff;
      const units = whole[exponent]! + (state >>> 1 < chance[exponent]! ? 1 : 0);
      if (units === 0) {
        after[index] = bits;
        continue;
      }
      const magnitude = bits & 0x7fff;
      // The lowest bit took no part in the draw above.
      const moved = (state & 1) === 0 ? magnitude + units : magnitude - units;
      const next = (bits & 0x8000) | Math.max(0, moved);
      after[index] = next;
      if (next !== bits) {
        changed++;
        values[bits ^ next]!++;
      }
    }
    changedElements += changed;
    boundBits += entropyBits(changed, sizeBytes / 2, values);
  }
  return { bytes: into, changedElements, elements: before.length, boundBytes: boundBits / 8 };
}

/** The model's tensors as places in memory, or in a file that holds them back to back. */
export function placesOf(model: SyntheticModel, home: Uint8Array | string): TensorPlaces {
  return new Map(
    model.tensors.map(({ name, shape, offset, sizeBytes }) => [
      name,
      {
        dtype: 'BF16',
        shape,
        place:
          typeof home === 'string'
            ? { kind: 'file', path: home, offset, sizeBytes }
            : { kind: 'memory', bytes: home.subarray(offset, offset + sizeBytes) },
      },
    ]),
  );
}

/** Bits of independent positions and of the order-0 values: `values` counts each XOR of `changed` of `elements` bf16 elements. */
export function entropyBits(changed: number, elements: number, values: Uint32Array): number {
  const part = (count: number, total: number): number => (count === 0 ? 0 : count * Math.log2(total / count));
  let bits = part(changed, elements) + part(elements - changed, elements);
  for (const count of values) bits += part(count, changed);
  return bits;
}

/** Value of the last bit of a bf16 with this exponent. */
function unitAt(exponent: number): number {
  return 2 ** (Math.max(1, exponent) - 127 - 7);
}

function moveForDensity(density: number): number {
  const table = normalQuantiles();
  const share = (move: number): number => {
    let sum = 0;
    for (const bits of table) sum += Math.min(1, move / unitAt((bits >>> 7) & 0xff));
    return sum / table.length;
  };
  let low = 0;
  let high = 1;
  for (let round = 0; round < 60; round++) {
    const middle = (low + high) / 2;
    if (share(middle) < density) low = middle;
    else high = middle;
  }
  return high;
}

/** Equally likely values of a normal distribution, as bf16. */
function normalQuantiles(): Uint16Array {
  const values = new Float32Array(QUANTILES);
  const half = QUANTILES / 2;
  // Steps along the density, small enough that the sum of the steps is the quantile.
  let value = 0;
  for (let index = 0; index < half; index++) {
    const target = 0.5 + (index + 0.5) / QUANTILES;
    value = refine(value, target);
    values[half + index] = value * SPREAD;
    values[half - 1 - index] = -value * SPREAD;
  }
  return float32ToBfloat16(values);
}

/** The normal quantile of `target`, by Newton steps from one nearby. */
function refine(start: number, target: number): number {
  let value = start;
  for (let round = 0; round < 6; round++) {
    const density = Math.exp((-value * value) / 2) / Math.sqrt(2 * Math.PI);
    value += Math.max(-0.5, Math.min(0.5, (target - cumulative(value)) / density));
  }
  return value;
}

/** The normal distribution function for values from 0 to about 5, by its power series. */
function cumulative(value: number): number {
  let term = value;
  let sum = value;
  for (let n = 1; n < 100 && Math.abs(term) > 1e-15; n++) {
    term *= (value * value) / (2 * n + 1);
    sum += term;
  }
  return 0.5 + (sum * Math.exp((-value * value) / 2)) / Math.sqrt(2 * Math.PI);
}

function seedState(seed: number): number {
  return (Math.imul(seed, 0x9e3779b1) ^ 0x85ebca6b) | 1;
}

/** xorshift32. */
function nextState(state: number): number {
  let next = state;
  next ^= next << 13;
  next ^= next >>> 17;
  next ^= next << 5;
  return next;
}

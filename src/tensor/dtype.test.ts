import { describe, expect, it } from 'vitest';

import { createRandom } from '../domain/ids.ts';
import {
  bfloat16ToFloat32,
  DTYPES,
  dtypeRank,
  float16ToFloat32,
  float32ToBfloat16,
  isDtype,
  roundToBfloat16,
  tensorSizeBytes,
} from './dtype.ts';

const fromBits = (words: readonly number[]): Float32Array => new Float32Array(Uint32Array.from(words).buffer);

/** Nearest bfloat16 by distance in float64, ties to the even one: written apart from the bit trick under test. */
function nearestBfloat16(value: number): number {
  const word = new Uint32Array(Float32Array.of(value).buffer)[0] ?? 0;
  const low = word >>> 16;
  const lowValue = fromBits([low << 16])[0] ?? 0;
  const high = low + 1;
  // One step above the largest finite value counts as 2^128 for rounding, then becomes infinity.
  const highValue = (high & 0x7fff) === 0x7f80 ? Math.sign(value) * 2 ** 128 : (fromBits([high << 16])[0] ?? 0);
  const below = Math.abs(value - lowValue);
  const above = Math.abs(highValue - value);
  if (below === above) return low % 2 === 0 ? low : high;
  return below < above ? low : high;
}

describe('float32 to bfloat16', () => {
  it('rounds to nearest even over the whole range', () => {
    const random = createRandom(1);
    const words: number[] = [];
    for (let count = 0; count < 100_000; count++) words.push(random.below(2 ** 32));
    // Exact ties on even and odd neighbours, and their two sides.
    for (let count = 0; count < 20_000; count++)
      words.push((random.below(2 ** 16) * 65536 + 0x8000 + random.below(3) - 1) >>> 0);
    const values = fromBits(words.filter((word) => (word & 0x7f800000) !== 0x7f800000));
    const rounded = float32ToBfloat16(values);
    expect(Array.from(rounded)).toEqual(Array.from(values, nearestBfloat16));
  });

  it('keeps NaN, infinities and signed zeros, and overflows to infinity', () => {
    const values = fromBits([
      0x7f800001, 0xff800001, 0x7fffffff, 0x7fc00000, 0x7f800000, 0xff800000, 0x80000000, 0, 0x7f7fffff, 0xff7fffff,
    ]);
    const halves = float32ToBfloat16(values);
    for (let index = 0; index < 4; index++) expect((halves[index] ?? 0) & 0x7fff).toBeGreaterThan(0x7f80);
    expect((halves[1] ?? 0) >>> 15).toBe(1);
    expect(Array.from(halves.subarray(4))).toEqual([0x7f80, 0xff80, 0x8000, 0, 0x7f80, 0xff80]);
  });

  it('agrees with rounding in place and with the way back', () => {
    const random = createRandom(2);
    const values = fromBits(Array.from({ length: 10_000 }, () => random.below(2 ** 32)));
    const halves = float32ToBfloat16(values);
    const back = bfloat16ToFloat32(halves);
    expect(new Uint32Array(roundToBfloat16(values).buffer)).toEqual(new Uint32Array(back.buffer));
    expect(float32ToBfloat16(back)).toEqual(halves);
  });
});

it('reads every float16 exactly', () => {
  const halves = Uint16Array.from({ length: 65_536 }, (_, index) => index);
  const values = float16ToFloat32(halves);
  for (const half of halves) {
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >>> 10) & 31;
    const fraction = half & 1023;
    const value = values[half] ?? 0;
    if (exponent === 31) expect(value).toBe(fraction === 0 ? sign * Infinity : NaN);
    else if (
      !Object.is(value, sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15)))
    )
      expect.fail(`half ${half} read as ${value}`);
  }
});

it('knows sizes, sub-byte types and overflow', () => {
  expect(tensorSizeBytes('BF16', [3, 5])).toBe(30);
  expect(tensorSizeBytes('F32', [])).toBe(4);
  expect(tensorSizeBytes('I64', [0, 9])).toBe(0);
  expect(tensorSizeBytes('F4', [4])).toBe(2);
  expect(tensorSizeBytes('F4', [3])).toBeUndefined();
  expect(tensorSizeBytes('F6_E2M3', [4])).toBe(3);
  expect(tensorSizeBytes('U8', [2 ** 30, 2 ** 30])).toBeUndefined();
  expect(tensorSizeBytes('F64', [2 ** 50])).toBeUndefined();
  expect(isDtype('toString')).toBe(false);
  expect(DTYPES.map(dtypeRank)).toEqual(DTYPES.map((_, index) => index));
});

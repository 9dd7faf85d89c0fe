/** Statistics against closed forms, a vector file, and the bootstrap's own promises: seeded, paired, fast, calibrated. */
import { describe, expect, it } from 'vitest';

import { readVectors } from '../../test/read-vectors.fixture.ts';
import { createRandom } from './ids.ts';
import { bootstrapIntervals, excludesZero, mean, percentile, weightedSum } from './statistics.ts';

function uniform(count: number, seed: number): Float64Array {
  const random = createRandom(seed);
  return Float64Array.from({ length: count }, () => random.next());
}

describe('percentile', () => {
  it.each(readVectors<{ xs: number[]; rho: number }, { value: number }>('percentile'))(
    'meets $in',
    ({ in: { xs, rho }, out }) => {
      expect(
        percentile(
          xs.toSorted((a, b) => a - b),
          rho / 100,
        ),
      ).toBeCloseTo(out.value, 12);
    },
  );
});

describe('mean', () => {
  it('is undefined for nothing', () => {
    expect(mean([])).toBeUndefined();
    expect(mean([1, 2, 6])).toBe(3);
  });
});

describe('excludesZero', () => {
  it('wants both ends on one side', () => {
    expect(excludesZero({ estimate: 1, low: 0.1, high: 2 })).toBe(true);
    expect(excludesZero({ estimate: -1, low: -2, high: -0.1 })).toBe(true);
    expect(excludesZero({ estimate: 0, low: -1, high: 1 })).toBe(false);
    expect(excludesZero({ estimate: 1, low: 0, high: 2 })).toBe(false);
  });
});

describe('bootstrapIntervals', () => {
  const column = uniform(600, 1);
  const evaluate = (multiplicities: Int32Array): readonly number[] => [weightedSum(column, multiplicities) / 600];

  it('has the width of the normal interval of a mean', () => {
    const [interval] = bootstrapIntervals({ count: 600, evaluate }, { seed: 5 });
    const halfWidth = ((interval?.high ?? 0) - (interval?.low ?? 0)) / 2;
    // Uniform values: standard error sqrt(1/12/600) = 0.01179; 5 % for the sample's own deviation and 2,000 resamples.
    expect(halfWidth / (1.96 * Math.sqrt(1 / 12 / 600))).toBeCloseTo(1, 1);
    expect(interval?.estimate).toBeCloseTo(mean(column) ?? Number.NaN, 12);
  });

  it('is the same for the same seed and different for another', () => {
    const run = (seed: number): unknown => bootstrapIntervals({ count: 600, evaluate }, { seed, resamples: 200 });
    expect(run(1)).toEqual(run(1));
    expect(run(1)).not.toEqual(run(2));
  });

  it('covers the true mean about as often as it says', () => {
    let covered = 0;
    for (let trial = 0; trial < 200; trial++) {
      const sample = uniform(80, 1000 + trial);
      const statistic = (multiplicities: Int32Array): readonly number[] => [weightedSum(sample, multiplicities) / 80];
      const [interval] = bootstrapIntervals({ count: 80, evaluate: statistic }, { seed: trial, resamples: 300 });
      if (interval !== undefined && interval.low <= 0.5 && interval.high >= 0.5) covered++;
    }
    // Binomial(200, .95) lies in 180..198 with 99.8 %.
    expect(covered).toBeGreaterThanOrEqual(180);
    expect(covered).toBeLessThanOrEqual(198);
  });

  it('takes 2,000 resamples of ratios over 600 tasks in under half a second', () => {
    const other = uniform(600, 2);
    const ratio = (multiplicities: Int32Array): readonly number[] => [
      weightedSum(column, multiplicities) / weightedSum(other, multiplicities),
      weightedSum(column, multiplicities) - weightedSum(other, multiplicities),
    ];
    const start = performance.now();
    bootstrapIntervals({ count: 600, evaluate: ratio }, { seed: 1 });
    expect(performance.now() - start).toBeLessThan(500);
  });

  it('leaves out resamples in which a ratio has nothing below the line', () => {
    const hits = new Float64Array([1, 0, 0]);
    const perHit = (multiplicities: Int32Array): readonly number[] => [1 / weightedSum(hits, multiplicities)];
    const [interval] = bootstrapIntervals({ count: 3, evaluate: perHit }, { seed: 1 });
    expect(Number.isFinite(interval?.high)).toBe(true);
  });

  it('refuses a single task', () => {
    expect(() => bootstrapIntervals({ count: 1, evaluate }, { seed: 1 })).toThrow(/at least 2 tasks/);
  });
});

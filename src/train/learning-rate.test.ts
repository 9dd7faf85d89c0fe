/** Warm-up, peak and decay. */
import { expect, it } from 'vitest';

import { learningRateAt } from './learning-rate.ts';

const schedule = { learningRate: 0.01, warmupSteps: 4, learningRateDecay: null };

it('rises linearly to its peak and stays there', () => {
  expect([1, 2, 4, 5, 100].map((step) => learningRateAt(schedule, step))).toEqual([0.0025, 0.005, 0.01, 0.01, 0.01]);
  expect(learningRateAt({ ...schedule, warmupSteps: 0 }, 1)).toBe(0.01);
});

it('falls by a power of the steps where it is to', () => {
  const decayed = { ...schedule, learningRateDecay: { steps: 100, power: 0.5 } };
  expect(learningRateAt(decayed, 1)).toBe(0.0025);
  expect(learningRateAt(decayed, 301)).toBeCloseTo(0.01 / 2, 15);
});

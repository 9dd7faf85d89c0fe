/** Baselines: vectors, what each is for, and what has none. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import { createRandom } from '../domain/ids.ts';
import {
  effortBaselines,
  leaveOneOutBaselines,
  lengthWeightedBaseline,
  meanBaseline,
  optimalBaseline,
} from './baseline.ts';

type Output = { mean: number; lengthWeighted: number; leaveOneOut: number[] };

describe('the vectors', () => {
  it.each(readVectors<{ R: number[]; L: number[] }, Output>('baseline'))('meet $in', ({ in: { R, L }, out }) => {
    expect(vectorError(meanBaseline(R), out.mean)).toBeLessThanOrEqual(1e-12);
    expect(vectorError(lengthWeightedBaseline(R, L), out.lengthWeighted)).toBeLessThanOrEqual(1e-12);
    for (const [index, value] of leaveOneOutBaselines(R).entries())
      expect(vectorError(value, out.leaveOneOut[index] ?? Number.NaN)).toBeLessThanOrEqual(1e-12);
  });
});

const rewards = fc.array(fc.double({ min: -1, max: 1, noNaN: true }), { minLength: 2, maxLength: 16 });

it('leave-one-out makes n / (n - 1) times the mean-centred advantage', () => {
  fc.assert(
    fc.property(rewards, (list) => {
      const mean = meanBaseline(list);
      const factor = list.length / (list.length - 1);
      // Relative to the largest reward: each side rounds a sum of n of them.
      const scale = Math.max(...list.map(Math.abs), 1e-300);
      for (const [index, other] of leaveOneOutBaselines(list).entries()) {
        const reward = list[index] ?? Number.NaN;
        expect(Math.abs(reward - other - factor * (reward - mean))).toBeLessThanOrEqual(4e-15 * scale);
      }
    }),
    { numRuns: 300, seed: 11 },
  );
});

it('is exactly the reward where all are equal, even where their mean rounds', () => {
  const equal = [0.1, 0.1, 0.1];
  expect(meanBaseline(equal)).toBe(0.1);
  expect(leaveOneOutBaselines(equal)).toEqual(equal);
  expect(lengthWeightedBaseline(equal, [1, 1, 1])).toBe(0.1);
  expect(optimalBaseline(equal, [0.1, 0.2, 0.3])).toBe(0.1);
  expect([...effortBaselines(equal, ['low', 'low', 'low'])]).toEqual([['low', 0.1]]);
});

it('takes the mean of each effort on its own', () => {
  const byEffort = effortBaselines([1, 0, 0.5, 0], ['low', 'high', 'low', 'high']);
  expect(Object.fromEntries(byEffort)).toEqual({ low: 0.75, high: 0 });
});

it('the optimal one minimises the variance of the gradient', () => {
  // Rewards that grow with the score's size, so that the mean is not the best constant.
  const random = createRandom(8);
  const draws = Array.from({ length: 500 }, () => {
    const score = 4 * random.next() - 1;
    return { score, reward: score * score + random.next() };
  });
  const second = (baseline: number): number =>
    draws.reduce((sum, { score, reward }) => sum + ((reward - baseline) * score) ** 2, 0);
  const list = draws.map(({ reward }) => reward);
  const best = optimalBaseline(
    list,
    draws.map(({ score }) => score * score),
  );
  for (const shift of [-0.1, -0.001, 0.001, 0.1]) expect(second(best + shift)).toBeGreaterThan(second(best));
  expect(second(best)).toBeLessThan(0.9 * second(meanBaseline(list)));
});

describe('what has no baseline', () => {
  it.each<[string, () => unknown, RegExp]>([
    ['no rewards', () => meanBaseline([]), /0 rewards, needs 1/],
    ['one reward, left out', () => leaveOneOutBaselines([1]), /1 rewards, needs 2/],
    ['no rewards by length', () => lengthWeightedBaseline([], []), /0 rewards/],
    ['no rewards by effort', () => effortBaselines([], []), /0 rewards/],
    ['a NaN reward', () => meanBaseline([1, Number.NaN]), /the reward NaN/],
    ['an infinite reward', () => optimalBaseline([1, Infinity], [1, 1]), /the reward Infinity/],
    ['lengths of 0', () => lengthWeightedBaseline([1, 0], [0, 0]), /Every one of 2 rollouts has the length 0/],
    ['a negative length', () => lengthWeightedBaseline([1, 0], [1, -3]), /the length -3/],
    ['a NaN norm', () => optimalBaseline([1, 0], [1, Number.NaN]), /squared score norm NaN/],
    ['a length missing', () => lengthWeightedBaseline([1, 0], [1]), /2 rewards come with 1 entries of length/],
    ['an effort missing', () => effortBaselines([1, 0], ['low']), /2 rewards come with 1 entries of effort/],
  ])('%s', (_, compute, message) => {
    expect(compute).toThrow(message);
  });
});

/** The slope of success on cost: the toy's closed form, what centring by task repairs, coverage, and when it refuses. */
import { describe, expect, it } from 'vitest';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import { createRandom } from '../domain/ids.ts';
import type { OperatingSample } from './reference.ts';
import { measureSlope, momentsOf, requireSlope } from './slope.ts';

interface Toy {
  readonly q: number;
  readonly pGood: number;
  readonly pBad: number;
  readonly c: number;
}

/** Every number of candidates with its probability and its chance of success, up to a tail below 1e-30. */
function enumerate({ q, pGood, pBad, c }: Toy): { success: number; cost: number; weight: number }[] {
  const stay = c / (1 + c);
  const points: { success: number; cost: number; weight: number }[] = [];
  for (let cost = 0; stay ** cost > 1e-30; cost++) {
    const success = q * (1 - (1 - pGood) ** cost) + (1 - q) * (1 - (1 - pBad) ** cost);
    points.push({ success, cost, weight: stay ** cost / (1 + c) });
  }
  return points;
}

/** Success rises by `slope` per unit of cost within each task, while hard tasks start lower and cost more. */
function drawSamples(seed: number, options: { tasks: number; attempts: number; slope: number }): OperatingSample[] {
  const random = createRandom(seed);
  return Array.from({ length: options.tasks }, (_, task) => {
    const difficulty = random.next();
    return Array.from({ length: options.attempts }, () => {
      const extra = random.next();
      const chance = 0.7 - 0.5 * difficulty + options.slope * extra;
      return { taskId: `task-${task}`, success: random.next() < chance ? 1 : 0, cost: 1 + 5 * difficulty + extra };
    });
  }).flat();
}

describe('momentsOf', () => {
  it.each(readVectors<Toy, { ESK: number; cov: number; var: number; slope: number }>('olsSlope'))(
    'meets the vector $in by enumeration of the toy',
    ({ in: toy, out }) => {
      const { weight, success, cost, costSquares, products } = momentsOf(enumerate(toy));
      expect(vectorError(weight, 1)).toBeLessThanOrEqual(1e-12);
      expect(vectorError(cost, toy.c)).toBeLessThanOrEqual(1e-12);
      expect(vectorError(products + success * cost, out.ESK)).toBeLessThanOrEqual(1e-12);
      expect(vectorError(products, out.cov)).toBeLessThanOrEqual(1e-12);
      expect(vectorError(costSquares, out.var)).toBeLessThanOrEqual(1e-12);
      expect(vectorError(products / costSquares, out.slope)).toBeLessThanOrEqual(1e-12);
    },
  );

  it('has no dust where all costs are equal', () => {
    expect(momentsOf([0.1, 0.1, 0.1].map((cost, index) => ({ success: index, cost })))).toMatchObject({
      costSquares: 0,
      products: 0,
    });
  });
});

describe('measureSlope', () => {
  it('is the sum of products over the sum of squares within tasks, and the plain regression beside it', () => {
    const samples = [
      { taskId: 'easy', success: 0.5, cost: 1 },
      { taskId: 'easy', success: 1, cost: 3 },
      { taskId: 'hard', success: 0, cost: 8 },
      { taskId: 'hard', success: 0.2, cost: 10 },
      { taskId: 'once', success: 1, cost: 20 },
    ];
    const { withinTask, pooled, tasks, usableTasks, rollouts } = measureSlope(samples, { seed: 1, resamples: 50 });
    expect(withinTask.estimate).toBeCloseTo((0.5 + 0.2) / (2 + 2), 14);
    const { products, costSquares } = momentsOf(samples);
    expect(pooled.estimate).toBeCloseTo(products / costSquares, 14);
    expect({ tasks, usableTasks, rollouts }).toEqual({ tasks: 3, usableTasks: 2, rollouts: 5 });
  });

  it('sees the slope that hard tasks hide from the pooled regression', () => {
    const samples = drawSamples(1, { tasks: 200, attempts: 8, slope: 0.25 });
    const { withinTask, pooled } = measureSlope(samples, { seed: 2, resamples: 300 });
    expect(withinTask.low).toBeGreaterThan(0.1);
    expect(withinTask.high).toBeLessThan(0.4);
    expect(pooled.high).toBeLessThan(0);
    expect(requireSlope(measureSlope(samples, { seed: 2, resamples: 300 }), { effort: 'low' })).toBe(
      withinTask.estimate,
    );
  });

  it('covers the true slope about as often as it says', () => {
    const runs = 250;
    let covered = 0;
    for (let run = 0; run < runs; run++) {
      const samples = drawSamples(1000 + run, { tasks: 40, attempts: 6, slope: 0.25 });
      const { withinTask } = measureSlope(samples, { seed: run, resamples: 300 });
      if (withinTask.low <= 0.25 && withinTask.high >= 0.25) covered += 1;
    }
    // 250 runs tell it to 1.4 points.
    expect(covered / runs).toBeGreaterThan(0.91);
    expect(covered / runs).toBeLessThan(0.985);
  });

  it('gives the same band for the same seed', () => {
    const samples = drawSamples(5, { tasks: 10, attempts: 3, slope: 0.2 });
    const measure = (seed: number) => measureSlope(samples, { seed, resamples: 100 });
    expect(measure(1)).toStrictEqual(measure(1));
    expect(measure(1).withinTask).not.toEqual(measure(2).withinTask);
  });

  it('refuses broken samples and a single task', () => {
    const sound = { taskId: 'a', success: 1, cost: 1 };
    expect(() => measureSlope([sound, { ...sound, cost: -2 }], { seed: 1 })).toThrow('has the cost -2');
    expect(() => measureSlope([sound, sound], { seed: 1 })).toThrow('at least 2 tasks, got 1');
  });
});

describe('requireSlope', () => {
  const estimateOf = (estimate: number, band: readonly [number, number]) => ({
    withinTask: { estimate, low: band[0], high: band[1] },
    pooled: { estimate: 1, low: 1, high: 1 },
    tasks: 24,
    usableTasks: 20,
    rollouts: 100,
  });

  it('refuses a band that includes 0 and says how many tasks would shorten it enough', () => {
    const message =
      'The slope of success on cost at effort low is 0.01 with a band of [-0.01, 0.031] over 24 tasks: it may be 0.';
    expect(() => requireSlope(estimateOf(0.01, [-0.01, 0.031]), { effort: 'low' })).toThrow(
      expect.objectContaining({
        code: 'invalid-config',
        message,
        // Half the band is 2.05 estimates, and four of five tries need 1.43 of them between estimate and 0.
        cure: 'About 207 tasks would be needed to tell; or give the starting price as a number.',
      }),
    );
  });

  it('names the trap when more cost came with less success', () => {
    for (const low of [-0.05, -0.03]) {
      expect(() => requireSlope(estimateOf(-0.02, [low, low + 0.02]), { effort: 'low' })).toThrow(
        expect.objectContaining({
          message: expect.stringContaining('more cost did not come with more success'),
          cure: expect.stringContaining('Agents that stop when they succeed'),
        }),
      );
    }
  });

  it('refuses costs that never differ within a task', () => {
    const samples = ['a', 'b', 'c'].flatMap((taskId) => [0, 1].map((success) => ({ taskId, success, cost: 0.1 })));
    const estimate = measureSlope(samples, { seed: 1, resamples: 20 });
    expect(estimate.withinTask.estimate).toBeNaN();
    expect(() => requireSlope(estimate, { effort: 'low' })).toThrow('of 3 tasks, 0 have rollouts whose costs differ');
  });

  it('starts no price from the slope of fewer than ten tasks, and says how many there were', () => {
    const nine = { ...estimateOf(0.01, [0.005, 0.02]), usableTasks: 9 };
    expect(() => requireSlope(nine, { effort: 'low' })).toThrow(
      'The slope of success on cost at effort low cannot be measured: of 24 tasks, 9 have rollouts whose costs differ, needs at least 10.',
    );
    expect(() => requireSlope({ ...nine, usableTasks: 1 }, { effort: 'low' })).toThrow('1 has rollouts whose costs');
    expect(requireSlope({ ...nine, usableTasks: 10 }, { effort: 'low' })).toBe(0.01);
  });

  it('passes with the band just above 0', () => {
    expect(requireSlope(estimateOf(0.01, [1e-9, 0.02]), { effort: 'low' })).toBe(0.01);
  });
});

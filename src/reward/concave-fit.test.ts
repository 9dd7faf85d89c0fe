/** The concave fit: optimal by its optimality conditions and by brute force, what it interpolates, and slopes with bands. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { createRandom } from '../domain/ids.ts';
import { fitConcave, requireEffortSlope, slopesAcrossEfforts } from './concave-fit.ts';
import type { ConcaveFit, FrontierPoint } from './concave-fit.ts';
import type { OperatingSample } from './reference.ts';

const point = fc.record({
  cost: fc.double({ min: 0, max: 50, noNaN: true }).map((cost) => Math.round(cost * 8) / 8),
  success: fc.double({ min: 0, max: 1, noNaN: true }),
  weight: fc.integer({ min: 1, max: 40 }),
});
const points = (maxLength: number) =>
  fc.array(point, { minLength: 2, maxLength }).filter((list) => new Set(list.map(({ cost }) => cost)).size >= 2);

function squaredError(list: readonly FrontierPoint[], value: (cost: number) => number): number {
  return list.reduce((sum, { cost, success, weight = 1 }) => sum + weight * (success - value(cost)) ** 2, 0);
}

/** Projected coordinate descent on constant + sum of b_j min(cost, knot_j), b_j >= 0: slow, simple, and sure. */
function bruteForceError(list: readonly FrontierPoint[]): number {
  const knots = [...new Set(list.map(({ cost }) => cost))].sort((a, b) => a - b).slice(1);
  const columns = [list.map(() => 1), ...knots.map((knot) => list.map(({ cost }) => Math.min(cost, knot)))];
  const weights = list.map(({ weight = 1 }) => weight);
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  // Centred columns: the constant is then free of the others.
  const centred = columns.slice(1).map((column) => {
    const mean = column.reduce((sum, value, i) => sum + value * (weights[i] ?? 0), 0) / total;
    return column.map((value) => value - mean);
  });
  const mean = list.reduce((sum, { success }, i) => sum + success * (weights[i] ?? 0), 0) / total;
  const residuals = list.map(({ success }) => success - mean);
  const coefficients = centred.map(() => 0);
  for (let sweep = 0; sweep < 4000; sweep++) {
    for (const [j, column] of centred.entries()) {
      let product = 0;
      let square = 0;
      for (const [i, value] of column.entries()) {
        product += (weights[i] ?? 0) * value * (residuals[i] ?? 0);
        square += (weights[i] ?? 0) * value * value;
      }
      const before = coefficients[j] ?? 0;
      const after = Math.max(0, before + product / square);
      coefficients[j] = after;
      for (const [i, value] of column.entries()) residuals[i] = (residuals[i] ?? 0) - (after - before) * value;
    }
  }
  return residuals.reduce((sum, residual, i) => sum + (weights[i] ?? 0) * residual ** 2, 0);
}

function expectConcave(fit: ConcaveFit): void {
  const slopes = fit.knots.slice(0, -1).map(({ cost }) => fit.slopeAt(cost).right);
  for (const [index, slope] of slopes.entries()) {
    expect(slope).toBeGreaterThanOrEqual(-1e-12);
    if (index > 0) expect(slope).toBeLessThanOrEqual((slopes[index - 1] ?? Number.NaN) + 1e-12);
  }
}

const hyperbola = (a: number, b: number) => (cost: number) => (a * cost) / (1 + b * cost);

describe('fitConcave', () => {
  it('is concave, does not fall, and meets the optimality conditions of the least squares', () => {
    fc.assert(
      fc.property(points(50), (list) => {
        const fit = fitConcave(list);
        expectConcave(fit);
        const total = list.reduce((sum, { weight }) => sum + weight, 0);
        const weighed = list.map(({ cost, success, weight }) => weight * (success - fit.value(cost)));
        const gradient = (column: (cost: number) => number): number =>
          weighed.reduce((sum, residual, i) => sum + residual * column(list[i]?.cost ?? Number.NaN), 0) / (50 * total);
        // The constant is free; letting the slope fall anywhere must not lower the error, and is neutral at kinks.
        expect(Math.abs(gradient(() => 50))).toBeLessThan(1e-11);
        for (const { cost: knot } of list) {
          const { left, right } = fit.slopeAt(knot);
          const slope = gradient((cost) => Math.min(cost, knot));
          expect(slope).toBeLessThan(1e-11);
          if (knot > (fit.knots[0]?.cost ?? 0) && left > right + 1e-9) expect(Math.abs(slope)).toBeLessThan(1e-11);
        }
      }),
      { numRuns: 300, seed: 8 },
    );
  });

  it('has no more error than brute force finds', () => {
    fc.assert(
      fc.property(points(6), (list) => {
        const found = squaredError(list, fitConcave(list).value);
        const brute = bruteForceError(list);
        expect(found).toBeLessThanOrEqual(brute + 1e-9);
        expect(brute).toBeLessThanOrEqual(found + 1e-3);
      }),
      { numRuns: 40, seed: 9 },
    );
  });

  it('goes through data that are concave already', () => {
    fc.assert(
      fc.property(fc.uniqueArray(fc.integer({ min: 1, max: 400 }), { minLength: 2, maxLength: 50 }), (costs) => {
        const curve = hyperbola(0.3, 0.3);
        const fit = fitConcave(costs.map((cost) => ({ cost: cost / 10, success: curve(cost / 10) })));
        for (const cost of costs) expect(Math.abs(fit.value(cost / 10) - curve(cost / 10))).toBeLessThan(1e-10);
      }),
      { numRuns: 100, seed: 10 },
    );
  });

  it('does not depend on order or unit, nor on whether a point is given once with its weight or in parts', () => {
    const list = [
      { cost: 2, success: 0.2, weight: 3 },
      { cost: 6, success: 0.6, weight: 1 },
      { cost: 15, success: 0.5, weight: 2 },
      { cost: 20, success: 0.7, weight: 2 },
    ];
    const fit = fitConcave(list);
    expect(fitConcave(list.toReversed()).knots).toStrictEqual(fit.knots);
    const inParts = list.flatMap(({ cost, success, weight }) =>
      Array.from({ length: weight }, (_, part) => ({ cost, success: success + (part - (weight - 1) / 2) * 0.1 })),
    );
    const scaled = fitConcave(list.map(({ cost, success, weight }) => ({ cost: cost * 1e6, success, weight })));
    for (const { cost } of list) {
      expect(fitConcave(inParts).value(cost)).toBeCloseTo(fit.value(cost), 13);
      expect(scaled.value(cost * 1e6)).toBeCloseTo(fit.value(cost), 13);
    }
  });

  it('pools what breaks the shape, weighted', () => {
    const falling = fitConcave([
      { cost: 1, success: 0.6, weight: 3 },
      { cost: 2, success: 0.2, weight: 1 },
    ]);
    expect(falling.value(1)).toBeCloseTo(0.5, 15);
    expect(falling.slopeAt(1.5)).toEqual({ left: 0, right: 0 });
    // Convex data: the straight line of plain least squares.
    const convex = fitConcave([0, 0, 1].map((success, index) => ({ cost: index + 1, success })));
    expect(convex.slopeAt(1.5).right).toBeCloseTo(0.5, 14);
    expect(convex.value(2)).toBeCloseTo(1 / 3, 14);
  });

  it('goes to the origin on the left where that is concave, and is flat on the right', () => {
    const fit = fitConcave([
      { cost: 2, success: 0.4 },
      { cost: 4, success: 0.6 },
      { cost: 8, success: 0.8 },
    ]);
    expect([0, 1, 2, 3, 8, 100].map((cost) => Number(fit.value(cost).toFixed(12)))).toEqual([
      0, 0.2, 0.4, 0.5, 0.8, 0.8,
    ]);
    expect(fit.slopeAt(1).left).toBeCloseTo(0.2, 14);
    expect(fit.slopeAt(2).left).toBeCloseTo(0.2, 14);
    expect(fit.slopeAt(4).left).toBeCloseTo(0.1, 14);
    expect(fit.slopeAt(4).right).toBeCloseTo(0.05, 14);
    expect(fit.slopeAt(9)).toEqual({ left: 0, right: 0 });
    // An agent that needs a cost of 2 before anything works: the line from the origin would bend upwards.
    const late = fitConcave([
      { cost: 3, success: 0.2 },
      { cost: 4, success: 0.4 },
    ]);
    expect(late.slopeAt(1).left).toBeCloseTo(0.2, 14);
    expect(late.value(2)).toBeCloseTo(0, 14);
    expect(
      fitConcave([
        { cost: 0, success: 0.1 },
        { cost: 1, success: 0.3 },
      ]).slopeAt(0).left,
    ).toBeCloseTo(0.2, 14);
  });

  it.each([
    [[{ cost: 1, success: 0.5 }], 'needs points at 2 different costs, got 1 from 1 points'],
    [
      [
        { cost: 1, success: 0.5 },
        { cost: 1, success: 0.6 },
      ],
      'got 1 from 2 points',
    ],
    [
      [
        { cost: -1, success: 0.5 },
        { cost: 1, success: 0.6 },
      ],
      'the point of cost -1, success 0.5 and weight 1',
    ],
    [
      [
        { cost: 2, success: Number.NaN },
        { cost: 1, success: 0.6 },
      ],
      'success NaN',
    ],
    [
      [
        { cost: 2, success: 1, weight: 0 },
        { cost: 1, success: 0.6 },
      ],
      'weight 0',
    ],
  ])('refuses %j', (list, sentence) => {
    expect(() => fitConcave(list)).toThrow(sentence);
  });

  it('is not asked for costs below 0', () => {
    const fit = fitConcave([
      { cost: 1, success: 0.5 },
      { cost: 2, success: 0.6 },
    ]);
    expect(() => fit.value(-1)).toThrow('The frontier was asked for at a cost of -1, must be at least 0.');
    expect(() => fit.slopeAt(Number.NaN)).toThrow('at a cost of NaN');
  });
});

describe('tangentAt', () => {
  it('is near the true slope of the toy at all three efforts, over the whole grid', () => {
    const costs = [2, 6, 15];
    const biases = costs.map(() => [] as number[]);
    for (let row = 0; row < 10; row++) {
      for (let column = 0; column < 10; column++) {
        const good = 0.05 * 16 ** (row / 9);
        const bad = good * (0.05 + (0.85 * column) / 9);
        const success = (c: number): number => (hyperbola(good, good)(c) + hyperbola(bad, bad)(c)) / 2;
        const fit = fitConcave(costs.map((cost) => ({ cost, success: success(cost) })));
        for (const [index, cost] of costs.entries()) {
          const slope = (good / (1 + good * cost) ** 2 + bad / (1 + bad * cost) ** 2) / 2;
          biases[index]?.push(Math.log(fit.tangentAt(cost) / slope));
        }
      }
    }
    // In log units: a tenth, where steering repairs a factor of 3. One chord alone is off by 0.5.
    for (const [low, high] of biases.map((list) => [Math.min(...list), Math.max(...list)])) {
      expect(low).toBeGreaterThan(-0.11);
      expect(high).toBeLessThan(0.11);
    }
  });

  it('is the slope of the piece between knots, and at most the last piece at the end', () => {
    const fit = fitConcave([0.4, 0.6, 0.7].map((success, index) => ({ cost: 2 ** (index + 1), success })));
    expect(fit.tangentAt(3)).toBeCloseTo(0.1, 14);
    expect(fit.tangentAt(4)).toBeCloseTo(Math.sqrt(0.1 * 0.025), 14);
    expect(fit.tangentAt(8)).toBeCloseTo(0.025 ** 2 / Math.sqrt(0.1 * 0.025), 14);
    expect(fit.tangentAt(9)).toBe(0);
  });
});

describe('slopesAcrossEfforts', () => {
  /** Rollouts of the toy at three efforts on the same tasks; tasks differ in how good a candidate is. */
  function drawEfforts(seed: number, options: { tasks: number; attempts: number; good: number }) {
    const random = createRandom(seed);
    const costs = { low: 2, medium: 6, high: 15 };
    return Object.fromEntries(
      Object.entries(costs).map(([effort, c]): [string, OperatingSample[]] => [
        effort,
        Array.from({ length: options.tasks * options.attempts }, (_, index) => {
          const cost = Math.floor(Math.log(1 - random.next()) / Math.log(c / (1 + c)));
          return {
            taskId: `task-${index % options.tasks}`,
            cost,
            success: random.next() < (1 - options.good) ** cost ? 0 : 1,
          };
        }),
      ]),
    );
  }

  it('finds the slopes of the toy from samples, within the band and the bias of three points', () => {
    const good = 0.2;
    const slopes = slopesAcrossEfforts(drawEfforts(1, { tasks: 100, attempts: 20, good }), { seed: 1, resamples: 300 });
    expect(Object.keys(slopes)).toEqual(['low', 'medium', 'high']);
    for (const [effort, c] of [
      ['low', 2],
      ['medium', 6],
      ['high', 15],
    ] as const) {
      const slope = slopes[effort] ?? { estimate: Number.NaN, low: Number.NaN, high: Number.NaN };
      const truth = good / (1 + good * c) ** 2;
      expect(slope.low).toBeLessThan(truth * 1.2);
      expect(slope.high).toBeGreaterThan(truth / 1.2);
      expect(slope.high / slope.low).toBeLessThan(4);
      expect(requireEffortSlope(slope, { effort, tasks: 100 })).toBe(slope.estimate);
    }
  });

  it('resamples tasks and not rollouts: the same rollouts again leave the band as it is', () => {
    const samples = drawEfforts(2, { tasks: 20, attempts: 4, good: 0.2 });
    const twice = Object.fromEntries(Object.entries(samples).map(([effort, list]) => [effort, [...list, ...list]]));
    const once = slopesAcrossEfforts(samples, { seed: 3, resamples: 100 });
    for (const [effort, { low, high }] of Object.entries(slopesAcrossEfforts(twice, { seed: 3, resamples: 100 }))) {
      expect(low).toBeCloseTo(once[effort]?.low ?? Number.NaN, 10);
      expect(high).toBeCloseTo(once[effort]?.high ?? Number.NaN, 10);
    }
  });

  it('refuses to start where the band includes 0', () => {
    const few = slopesAcrossEfforts(drawEfforts(4, { tasks: 4, attempts: 2, good: 0.2 }), { seed: 1, resamples: 200 });
    const high = few['high'] ?? { estimate: Number.NaN, low: Number.NaN, high: Number.NaN };
    expect(high.low).toBe(0);
    expect(() => requireEffortSlope({ ...high, low: 0.1 }, { effort: 'high', tasks: 9 })).toThrow(
      'The slope of the frontier at effort high cannot be told from 9 tasks, needs at least 10.',
    );
    expect(() => requireEffortSlope({ estimate: 0.1, low: 0, high: 0.2 }, { effort: 'high', tasks: 40 })).toThrow(
      expect.objectContaining({
        code: 'invalid-config',
        message:
          'The slope of the frontier at effort high is 0.1 with a band of [0, 0.2] over 40 tasks: it may be flat there.',
        cure: 'Evaluate on more tasks, at least 82, or at efforts further apart; or give the starting price as a number.',
      }),
    );
  });

  it('refuses efforts that say nothing', () => {
    const sample = { taskId: 'a', success: 1, cost: 1 };
    const other = { taskId: 'b', success: 0, cost: 2 };
    expect(() => slopesAcrossEfforts({ low: [sample], high: [] }, { seed: 1 })).toThrow('Effort high has no rollouts');
    expect(() => slopesAcrossEfforts({ low: [sample, other] }, { seed: 1 })).toThrow('at 2 different costs, got 1');
    expect(() => slopesAcrossEfforts({ low: [sample], high: [{ ...sample, cost: 2 }] }, { seed: 1 })).toThrow(
      'at least 2 tasks, got 1',
    );
    expect(() => slopesAcrossEfforts({ low: [{ ...sample, cost: -1 }] }, { seed: 1 })).toThrow('has the cost -1');
  });
});

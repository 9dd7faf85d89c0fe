/** Landing points against the vectors, their own defining equations, and numeric eigenvalues of the linearised loop. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import { criticalRate } from './critical-rate.fixture.ts';
import { fixedLanding, steeredLanding } from './equilibrium.ts';
import { STARTING_COSTS } from './study-record.ts';
import { successCurvature, successRate, successSlope, toyProblem, TOY_PROBLEM_COUNT } from './toy-task.ts';

interface EquilibriumVector {
  s0: number;
  lambda0: number;
  cFixed: number;
  uFixed: number;
  vFixed: number;
  cStar: number;
  lambdaStar: number;
  uStar: number;
  vStar: number;
  tau: number;
}

const cell = fc.record({
  index: fc.integer({ min: 0, max: TOY_PROBLEM_COUNT - 1 }),
  startingCost: fc.constantFrom(...STARTING_COSTS),
  alpha: fc.oneof(fc.constantFrom(0, 1), fc.double({ min: 0, max: 1, noNaN: true })),
});

it.each(readVectors<{ pGood: number; pBad: number; c0: number; alpha: number }, EquilibriumVector>('equilibrium'))(
  'meets the vector of $in',
  ({ in: { pGood, pBad, c0, alpha }, out }) => {
    const input = { pGood, pBad, startingCost: c0, alpha };
    const fixed = fixedLanding(input);
    const steered = steeredLanding(input);
    const pairs: [number, number][] = [
      [successRate({ pGood, pBad, q: 0.5, cost: c0 }), out.s0],
      [fixed.price, out.lambda0],
      [fixed.cost, out.cFixed],
      [fixed.successGain, out.uFixed],
      [fixed.costSaving, out.vFixed],
      [steered.cost, out.cStar],
      [steered.price, out.lambdaStar],
      [steered.successGain, out.uStar],
      [steered.costSaving, out.vStar],
      [steered.successGain + steered.costSaving, out.tau],
    ];
    for (const [actual, expected] of pairs) expect(vectorError(actual, expected)).toBeLessThanOrEqual(1e-12);
  },
);

describe('fixedLanding', () => {
  it('raises cost exactly where c0 < 1 / sqrt(g b), in all 300 cells', () => {
    let raised = 0;
    for (let index = 0; index < TOY_PROBLEM_COUNT; index++) {
      const problem = toyProblem(index);
      for (const startingCost of STARTING_COSTS) {
        const { cost } = fixedLanding({ ...problem, startingCost });
        expect(cost > startingCost).toBe(startingCost < 1 / Math.sqrt(problem.pGood * problem.pBad));
        if (cost > startingCost) raised++;
      }
    }
    expect(raised).toBeGreaterThan(100);
    expect(raised).toBeLessThan(250);
  });

  it('stays at the start while nothing is learned, and pays nothing for a price above every slope', () => {
    const problem = toyProblem(42);
    expect(fixedLanding({ ...problem, startingCost: 6, q: 0.5 }).cost).toBeCloseTo(6, 12);
    expect(fixedLanding({ ...problem, startingCost: 6, slopeFactor: 1000 }).cost).toBe(0);
    expect(fixedLanding({ ...problem, startingCost: 6, slopeFactor: 1000, q: 0.8 }).cost).toBe(0);
  });

  it('refuses a slope factor of 0 and a start of 0', () => {
    expect(() => fixedLanding({ ...toyProblem(0), startingCost: 6, slopeFactor: 0 })).toThrow('slope factor is 0');
    expect(() => fixedLanding({ ...toyProblem(0), startingCost: 0 })).toThrow('starting cost is 0');
  });
});

describe('steeredLanding', () => {
  it('is exact at both ends', () => {
    for (let index = 0; index < TOY_PROBLEM_COUNT; index++) {
      const problem = toyProblem(index);
      for (const startingCost of STARTING_COSTS) {
        const s0 = successRate({ ...problem, q: 0.5, cost: startingCost });
        const keepSuccess = steeredLanding({ ...problem, startingCost, alpha: 0 }).cost;
        expect(vectorError(keepSuccess, s0 / (problem.pGood * (1 - s0)))).toBeLessThanOrEqual(1e-13);
        expect(vectorError(steeredLanding({ ...problem, startingCost, alpha: 1 }).cost, startingCost)).toBeLessThan(
          1e-14,
        );
      }
    }
  });

  it('lies on the target line, and the bisection for q < 1 runs into the closed form', () => {
    fc.assert(
      fc.property(cell, fc.double({ min: 0.5, max: 1, noNaN: true }), ({ index, startingCost, alpha }, q) => {
        const input = { ...toyProblem(index), startingCost, alpha };
        const landing = steeredLanding({ ...input, q });
        // (1 - alpha) u = alpha v: u and v are differences near 1, so rounding is absolute.
        expect(Math.abs((1 - alpha) * landing.successGain - alpha * landing.costSaving)).toBeLessThan(1e-13 * 20);
        const almost = steeredLanding({ ...input, q: 1 - 1e-13 });
        expect(almost.cost / steeredLanding(input).cost).toBeCloseTo(1, 10);
      }),
      { numRuns: 300, seed: 3 },
    );
  });

  it('refuses an alpha outside [0, 1], and a target that no cost reaches', () => {
    const input = { ...toyProblem(5), startingCost: 6 };
    expect(() => steeredLanding({ ...input, alpha: -0.1 })).toThrow('Alpha is -0.1');
    expect(() => steeredLanding({ ...input, pBad: 0, q: 0.01, alpha: 0 })).toThrow(/No mean cost up to .* reaches/u);
  });
});

describe('criticalRate', () => {
  it('separates real from complex poles of the linearised loop', () => {
    fc.assert(
      fc.property(cell, fc.double({ min: 0.01, max: 16, noNaN: true }), ({ index, startingCost, alpha }, actorRate) => {
        const input = { ...toyProblem(index), startingCost, alpha };
        const critical = criticalRate(input, { actorRate });
        expect(discriminant(input, { actorRate, rate: critical * 0.98 })).toBeGreaterThan(0);
        expect(discriminant(input, { actorRate, rate: critical * 1.02 })).toBeLessThan(0);
      }),
      { numRuns: 300, seed: 4 },
    );
  });

  it('is hundreds of times smaller at low effort with a small pGood than in the middle of the grid', () => {
    const hard = criticalRate({ pGood: 0.05, pBad: 0.02, startingCost: 2, alpha: 0 }, { actorRate: 4 });
    const easy = criticalRate({ pGood: 0.3, pBad: 0.015, startingCost: 6, alpha: 0.5 }, { actorRate: 4 });
    expect(hard).toBeCloseTo(3.6e-4, 5);
    expect(easy).toBeCloseTo(0.138, 3);
  });
});

/**
 * Of the characteristic polynomial of one step's map on (log cost, log price), differentiated numerically around the
 * landing; its sign says whether the two eigenvalues are real.
 */
function discriminant(
  input: { pGood: number; pBad: number; startingCost: number; alpha: number },
  { actorRate, rate }: { actorRate: number; rate: number },
): number {
  const { pGood, pBad, startingCost, alpha } = input;
  const { cost, price } = steeredLanding(input);
  const s0 = successRate({ pGood, pBad, q: 0.5, cost: startingCost });
  const move = (logCost: number, logPrice: number): [number, number] => {
    const point = { pGood, pBad, q: 1, cost: Math.exp(logCost) };
    const gap = (1 - alpha) * (successRate(point) / s0 - 1) - alpha * (1 - point.cost / startingCost);
    return [(actorRate / 3) * point.cost * (successSlope(point) - Math.exp(logPrice)), rate * gap];
  };
  const step = 1e-5;
  const at = [Math.log(cost), Math.log(price)] as const;
  const [upCost, upPrice] = move(at[0] + step, at[1]);
  const [downCost, downPrice] = move(at[0] - step, at[1]);
  const [richCost] = move(at[0], at[1] + step);
  const [poorCost] = move(at[0], at[1] - step);
  const ownCost = (upCost - downCost) / (2 * step);
  const priceFromCost = (upPrice - downPrice) / (2 * step);
  const costFromPrice = (richCost - poorCost) / (2 * step);
  expect(successCurvature({ pGood, pBad, q: 1, cost })).toBeLessThan(0);
  return ownCost ** 2 + 4 * costFromPrice * priceFromCost;
}

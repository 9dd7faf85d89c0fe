import { describe, expect, it } from 'vitest';

import { fixedLanding, steeredLanding } from './equilibrium.ts';
import { elasticityAt, improveCurve, landFixed, landSteered } from './landing.ts';
import type { Curve } from './smooth-curve.ts';
import { successRate, successSlope, toyProblem } from './toy-task.ts';

const ALPHAS = [0, 0.25, 0.5, 0.75, 1];

function toyCurve(index: number, q: number): Curve {
  const { pGood, pBad } = toyProblem(index);
  return {
    start: 0,
    value: (cost) => successRate({ pGood, pBad, q, cost }),
    slope: (cost) => successSlope({ pGood, pBad, q, cost }),
  };
}

describe('landings', () => {
  it('are those of the closed form on the frontier of the learned toy task', () => {
    for (const index of [0, 37, 55, 99]) {
      const { pGood, pBad } = toyProblem(index);
      const before = toyCurve(index, 0.5);
      const after = toyCurve(index, 1);
      for (const startingCost of [2, 6, 15]) {
        const base = { cost: startingCost, success: before.value(startingCost) };
        for (const alpha of ALPHAS) {
          const landing = landSteered(after, { base, alpha });
          const truth = steeredLanding({ pGood, pBad, startingCost, alpha });
          expect(landing.cost / truth.cost).toBeCloseTo(1, 11);
          expect(landing.price / truth.price).toBeCloseTo(1, 10);
          expect((1 - alpha) * landing.successGain - alpha * landing.costSaving).toBeCloseTo(0, 12);
        }
        for (const slopeFactor of [1, 3, 1 / 3]) {
          const price = slopeFactor * before.slope(startingCost);
          const truth = fixedLanding({ pGood, pBad, startingCost, slopeFactor });
          expect(landFixed(after, { base, price }).cost).toBeCloseTo(truth.cost, 9);
        }
      }
    }
  });

  it('stay at the base for every alpha when nothing improves, and for a fixed price only if it is the slope', () => {
    const curve = toyCurve(44, 0.5);
    const base = { cost: 6, success: curve.value(6) };
    for (const alpha of ALPHAS) expect(landSteered(curve, { base, alpha }).cost).toBeCloseTo(6, 12);
    expect(landFixed(curve, { base, price: curve.slope(6) }).cost).toBeCloseTo(6, 9);
    expect(landFixed(curve, { base, price: 3 * curve.slope(6) }).costSaving).toBeGreaterThan(0.5);
    expect(landFixed(curve, { base, price: curve.slope(6) / 3 }).costSaving).toBeLessThan(-0.8);
  });

  it('follow the closed form when success rises by a share: c = c0 / ((1 + p)(1 + g c0) - g c0) at alpha 0', () => {
    const chance = 0.2;
    const curve: Curve = {
      start: 0,
      value: (cost) => (chance * cost) / (1 + chance * cost),
      slope: (cost) => chance / (1 + chance * cost) ** 2,
    };
    const base = { cost: 6, success: curve.value(6) };
    const better = improveCurve(curve, { law: 'success', percent: 25 });
    const frugal = landSteered(better, { base, alpha: 0 });
    expect(frugal.cost).toBeCloseTo(6 / (1.25 * 2.2 - 1.2), 12);
    expect(frugal.successGain).toBeCloseTo(0, 12);
    const able = landSteered(better, { base, alpha: 1 });
    expect(able).toMatchObject({ cost: 6, costSaving: 0 });
    expect(able.successGain).toBeCloseTo(0.25, 12);
    // Small improvements: both gains grow as p / (alpha + elasticity (1 - alpha)).
    const slight = improveCurve(curve, { law: 'success', percent: 0.1 });
    const half = landSteered(slight, { base, alpha: 0.5 });
    const total = 0.001 / (0.5 + 0.5 * elasticityAt(curve, base));
    expect(half.successGain / (0.5 * total)).toBeCloseTo(1, 2);
    expect(half.costSaving / (0.5 * total)).toBeCloseTo(1, 2);
  });

  it('mean by p percent fewer failures and by p percent less cost what they say', () => {
    const curve = toyCurve(55, 0.5);
    const surer = improveCurve(curve, { law: 'failures', percent: 40 });
    expect(1 - surer.value(6)).toBeCloseTo(0.6 * (1 - curve.value(6)), 14);
    expect(surer.slope(6)).toBeCloseTo(0.6 * curve.slope(6), 14);
    const cheaper = improveCurve(curve, { law: 'cost', percent: 40 });
    expect(cheaper.value(3.6)).toBeCloseTo(curve.value(6), 14);
    const base = { cost: 6, success: curve.value(6) };
    expect(landSteered(cheaper, { base, alpha: 0 }).costSaving).toBeCloseTo(0.4, 12);
    const step = 1e-6;
    for (const law of ['success', 'failures', 'cost'] as const) {
      const better = improveCurve(curve, { law, percent: 15 });
      expect((better.value(5 + step) - better.value(5 - step)) / (2 * step)).toBeCloseTo(better.slope(5), 8);
    }
  });

  it('never exceed a success of 1, and reach cost 0 where no effort is needed any more', () => {
    const curve = toyCurve(90, 0.5);
    const base = { cost: 15, success: curve.value(15) };
    const better = improveCurve(curve, { law: 'success', percent: 400 });
    expect(better.value(15)).toBe(1);
    expect(better.slope(15)).toBe(0);
    expect(landSteered(better, { base, alpha: 1 }).success).toBe(1);
    const surer = improveCurve(toyCurve(0, 0.5), { law: 'failures', percent: 50 });
    const hard = { cost: 2, success: toyCurve(0, 0.5).value(2) };
    expect(landSteered(surer, { base: hard, alpha: 0 }).cost).toBe(0);
    expect(landFixed(surer, { base: hard, price: 1 }).cost).toBe(0);
  });

  it.each([
    [{ base: { cost: 0, success: 0.5 }, alpha: 0.5 }, /reference cost is 0/u],
    [{ base: { cost: 1, success: 0 }, alpha: 0.5 }, /reference success is 0/u],
    [{ base: { cost: 1, success: 0.5 }, alpha: 1.5 }, /alpha is 1.5/u],
    [{ base: { cost: 1, success: 0.5 }, alpha: Number.NaN }, /alpha is NaN/u],
  ])('refuse %j', (options, message) => {
    expect(() => landSteered(toyCurve(5, 0.5), options)).toThrow(message);
  });

  it('refuse improvements and prices out of range', () => {
    const curve = toyCurve(5, 0.5);
    expect(() => improveCurve(curve, { law: 'success', percent: -1 })).toThrow('An improvement of -1 %');
    expect(() => improveCurve(curve, { law: 'cost', percent: 100 })).toThrow('An improvement of 100 %');
    expect(() => landFixed(curve, { base: { cost: 1, success: 0.5 }, price: 0 })).toThrow('A price of cost is 0');
  });
});

import { describe, expect, it } from 'vitest';

import { settling, simulateLandings } from './simulation.ts';
import type { SimulationOptions } from './simulation.ts';
import { smoothCurve } from './smooth-curve.ts';

const CURVE = smoothCurve(
  [2, 6, 15].map((cost) => ({ cost, success: (0.2 * cost) / (1 + 0.2 * cost), slope: 0.2 / (1 + 0.2 * cost) ** 2 })),
);
const OPTIONS: SimulationOptions = {
  alphas: [0, 0.5, 1],
  percents: [25],
  law: 'success',
  halfLifeSteps: 75,
  slopeError: 3,
  steps: 1000,
  actorRate: 0.015,
  controller: {
    rate: 0.02,
    decay: { steps: 500, power: 0.6 },
    proportional: 0.2,
    slewLimit: 0.05,
    clip: 20,
    deadZone: 0,
  },
};
const EFFORTS = [
  { effort: 'medium', cost: 6 },
  { effort: 'high', cost: 15 },
];

describe('simulateLandings', () => {
  it('brings every alpha towards its landing, from a right price and from one wrong by 3', () => {
    const efforts = simulateLandings({ curve: CURVE, efforts: EFFORTS }, OPTIONS);
    expect(efforts.map(({ effort }) => effort)).toEqual(['medium', 'high']);
    for (const { effort, steered } of efforts) {
      for (const { alpha, landing, courses } of steered) {
        expect(courses.map(({ startFactor }) => startFactor)).toEqual([1, 3, 1 / 3]);
        // Where the curve is flat and all is to be saved the price has furthest to go: it is still on its way.
        const isSlow = effort === 'high' && alpha === 0;
        for (const { costs, settledAt } of courses) {
          expect(Math.abs((costs.at(-1) ?? 0) / landing.cost - 1)).toBeLessThan(isSlow ? 0.1 : 0.01);
          if (!isSlow) expect(settledAt).toBeLessThan(900);
        }
      }
    }
    expect(efforts[1]?.steered[0]?.courses[0]?.settledAt).toBeNull();
  });

  it('leaves a fixed price that is wrong by 3 far from where a right one ends', () => {
    const [medium] = simulateLandings({ curve: CURVE, efforts: EFFORTS }, OPTIONS);
    const saving = medium?.fixed.map(({ landing }) => landing.costSaving) ?? [];
    expect(saving[1]).toBeGreaterThan(0.4);
    expect(saving[2]).toBeLessThan(-0.5);
  });

  it('moves nothing when nothing improves and the price is the slope', () => {
    const [medium] = simulateLandings({ curve: CURVE, efforts: EFFORTS }, { ...OPTIONS, percents: [0] });
    for (const { landing, courses } of medium?.steered ?? []) {
      expect(landing.cost).toBeCloseTo(6, 10);
      expect(courses[0]?.costs.at(-1)).toBeCloseTo(6, 6);
      expect(courses[0]?.settledAt).toBe(0);
    }
  });

  it('rings when the controller is too fast for the actor', () => {
    const fast = {
      ...OPTIONS,
      controller: { ...OPTIONS.controller, rate: 1, decay: null, proportional: 0, slewLimit: null },
    };
    const [medium] = simulateLandings({ curve: CURVE, efforts: EFFORTS }, fast);
    const swings = medium?.steered.map(({ courses }) => courses[0]?.swings ?? 0) ?? [];
    expect(Math.max(...swings)).toBeGreaterThan(3);
  });

  it('takes a starting price that is given, and refuses an effort at which the curve is flat', () => {
    const [medium] = simulateLandings(
      { curve: CURVE, efforts: [{ effort: 'medium', cost: 6, startPrice: 0.1 }] },
      OPTIONS,
    );
    expect(medium?.startPrice).toBe(0.1);
    expect(medium?.steered[0]?.courses[0]?.prices[0]).toBeCloseTo(0.1, 14);
    const flat = smoothCurve([{ cost: 1, success: 0.5, slope: 0 }]);
    expect(() => simulateLandings({ curve: flat, efforts: [{ effort: 'high', cost: 3 }] }, OPTIONS)).toThrow(
      'The curve is flat at effort high (cost 3)',
    );
  });
});

describe('settling', () => {
  it('finds the step from which the gap stays within a point, and counts sides', () => {
    expect(settling(Float64Array.of(0, 0.2, 0.02, 0.005, -0.005))).toEqual({ settledAt: 3, swings: 0 });
    expect(settling(Float64Array.of(0, 0.2, -0.02, 0.03, 0.001))).toEqual({ settledAt: 4, swings: 2 });
    expect(settling(Float64Array.of(0, 0.2))).toEqual({ settledAt: null, swings: 0 });
    expect(settling(Float64Array.of(0, 0.001))).toEqual({ settledAt: 0, swings: 0 });
  });
});

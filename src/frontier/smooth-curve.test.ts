import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { smoothCurve } from './smooth-curve.ts';
import type { CurvePoint } from './smooth-curve.ts';

/** Points of s = pc / (1 + pc), with its slopes. */
function hyperbola(chance: number, costs: readonly number[]): CurvePoint[] {
  return costs.map((cost) => ({
    cost,
    success: (chance * cost) / (1 + chance * cost),
    slope: chance / (1 + chance * cost) ** 2,
  }));
}

describe('smoothCurve', () => {
  it('goes through its points with their slopes', () => {
    const points = hyperbola(0.2, [2, 6, 15]);
    const curve = smoothCurve(points);
    for (const { cost, success, slope } of points) {
      expect(curve.value(cost)).toBeCloseTo(success, 14);
      expect(curve.slope(cost)).toBeCloseTo(slope, 14);
    }
    expect(curve).toMatchObject({ start: 0, from: 2, to: 15 });
    expect(curve.value(0)).toBe(0);
  });

  it('is near the true curve between its points, and beyond the last', () => {
    const curve = smoothCurve(hyperbola(0.2, [2, 6, 15]));
    for (const cost of [2.5, 4, 8, 12]) {
      const truth = (0.2 * cost) / (1 + 0.2 * cost);
      expect(Math.abs(curve.value(cost) / truth - 1)).toBeLessThan(0.02);
    }
    // The tail of pc / (1 + pc) is reached where its room, cost + 1 / p, is within the last cost: never beyond it.
    expect(curve.value(1e9)).toBeLessThanOrEqual(1);
    expect(curve.value(Infinity)).toBeCloseTo(0.75 + 15 * (0.2 / 16), 12);
    expect(curve.value(20)).toBeGreaterThan(curve.value(15));
  });

  it('never falls, never bends upwards, and its slope is its derivative, for any concave points', () => {
    const rises = fc.array(
      fc.record({
        width: fc.double({ min: 0.1, max: 10, noNaN: true }),
        share: fc.double({ min: 0.1, max: 0.9, noNaN: true }),
      }),
      { minLength: 1, maxLength: 6 },
    );
    fc.assert(
      fc.property(rises, fc.double({ min: 0.2, max: 3, noNaN: true }), (steps, firstCost) => {
        // Slopes fall by a share at every point, and chords lie between them.
        const points: CurvePoint[] = [{ cost: firstCost, success: 0.01, slope: 1e-3 }];
        for (const { width, share } of steps) {
          const last = points.at(-1) ?? { cost: 0, success: 0, slope: 0 };
          const chord = last.slope * (0.3 + 0.7 * share);
          points.push({ cost: last.cost + width, success: last.success + chord * width, slope: chord * share });
        }
        const curve = smoothCurve(points);
        const end = 2 * curve.to;
        const grid = Array.from(
          { length: 400 },
          (_, index) => curve.start + ((index + 0.5) / 400) * (end - curve.start),
        );
        for (const [index, cost] of grid.entries()) {
          const next = grid[index + 1] ?? cost;
          expect(curve.value(next)).toBeGreaterThanOrEqual(curve.value(cost) - 1e-15);
          expect(curve.slope(next)).toBeLessThanOrEqual(curve.slope(cost) + 1e-12);
          const area =
            curve.value(next) - curve.value(cost) - ((curve.slope(next) + curve.slope(cost)) / 2) * (next - cost);
          // Exact on one quadratic; at a knot or in the tail within the change of slope times the width.
          expect(Math.abs(area)).toBeLessThanOrEqual((curve.slope(cost) - curve.slope(next)) * (next - cost) + 1e-14);
        }
      }),
      { numRuns: 60, seed: 5 },
    );
  });

  it('keeps the slopes of points on a straight piece, a little above them', () => {
    const points = [
      { cost: 1.5, success: 0.3, slope: 0.09 },
      { cost: 6, success: 0.48, slope: 0.04 },
      { cost: 9, success: 0.6, slope: 0.04 },
      { cost: 15, success: 0.84, slope: 0.02 },
    ];
    const curve = smoothCurve(points);
    for (const { cost, slope } of points) expect(curve.slope(cost)).toBeCloseTo(slope, 14);
    for (const cost of [1.5, 15])
      expect(curve.value(cost)).toBeCloseTo(points.find((point) => point.cost === cost)?.success ?? 0, 14);
    // The slope falls by .05 within 4.5 before, and by .02 within 6 after: the smaller product is .12, its half .06.
    for (const cost of [6, 7, 9]) expect(curve.value(cost)).toBeCloseTo(0.3 + 0.04 * (cost - 1.5) + 0.06, 14);
    // Before, the slope is the chord of the lifted point after .06 / .05, and goes on falling up to the point.
    expect(curve.slope(2.7)).toBeCloseTo(0.04 + 0.06 / 4.5, 14);
    expect(curve.slope(5)).toBeGreaterThan(0.04);
    expect(curve.slope(12)).toBeCloseTo(0.03, 14);
  });

  it('bends over a tenth of the interval where a slope is that of the whole interval', () => {
    const curve = smoothCurve([
      { cost: 10, success: 0.1, slope: 0.03 },
      { cost: 20, success: 0.4, slope: 0.01 },
      { cost: 40, success: 0.5, slope: 0.002 },
    ]);
    expect([10, 19, 20, 40].map((cost) => Number(curve.slope(cost).toFixed(12)))).toEqual([0.03, 0.03, 0.01, 0.002]);
    expect(curve.slope(19.5)).toBeCloseTo(0.02, 14);
    expect(curve.value(10)).toBeCloseTo(0.1, 14);
    expect(curve.value(20)).toBeCloseTo(0.4 - 0.01, 14);
    const flattening = smoothCurve([
      { cost: 1, success: 0.2, slope: 0.2 },
      { cost: 2, success: 0.3, slope: 0.1 },
      { cost: 3, success: 0.3, slope: 0 },
    ]);
    expect([1, 1.1, 2, 2.1, 3].map((cost) => Number(flattening.slope(cost).toFixed(12)))).toEqual([
      0.2, 0.1, 0.1, 0, 0,
    ]);
    expect(flattening.value(9)).toBeCloseTo(0.31, 14);
  });

  it('starts at no cost with the slope that makes the first piece smooth', () => {
    const curve = smoothCurve([
      { cost: 0, success: 0.2, slope: 0.1 },
      { cost: 2, success: 0.4, slope: 0.05 },
      { cost: 6, success: 0.5, slope: 0.01 },
    ]);
    expect(curve).toMatchObject({ start: 0, from: 0, to: 6 });
    expect([0, 2, 6].map((cost) => curve.value(cost))).toEqual([0.2, 0.4, 0.5]);
    expect([0, 1, 2].map((cost) => Number(curve.slope(cost).toFixed(12)))).toEqual([0.15, 0.1, 0.05]);
    const perfect = smoothCurve([{ cost: 2, success: 1, slope: 0.3 }]);
    expect([2, 3].map((cost) => perfect.slope(cost))).toEqual([0.3, 0]);
    expect(perfect.value(3)).toBe(1);
    const nothing = smoothCurve([{ cost: 0, success: 0.3, slope: 0 }]);
    expect([0, 5].map((cost) => nothing.value(cost))).toEqual([0.3, 0.3]);
  });

  it('starts where the first line reaches no success when the first slope is too steep for the origin', () => {
    const curve = smoothCurve([
      { cost: 10, success: 0.1, slope: 0.05 },
      { cost: 20, success: 0.4, slope: 0.01 },
    ]);
    expect(curve.start).toBeCloseTo(8, 12);
    expect(curve.value(5)).toBe(0);
    expect(curve.slope(5)).toBe(0);
    expect(curve.value(9)).toBeCloseTo(0.05, 12);
  });

  it.each([
    [[{ cost: -1, success: 0.1, slope: 1 }], 'A point of the curve has the cost -1, not a finite number from 0 up.'],
    [[{ cost: 1, success: 1.2, slope: 1 }], 'A point of the curve has the success 1.2, not from 0 to 1.'],
    [[{ cost: 1, success: 0.1, slope: Number.NaN }], 'A point of the curve has the slope NaN, not a number from 0 up.'],
    [
      [
        { cost: 1, success: 0.1, slope: 0.1 },
        { cost: 2, success: 0.5, slope: 0 },
      ],
      'The points at cost 1 and 2 are not those of a concave curve: slope 0.1, chord 0.4, slope 0.',
    ],
    [[], 'A curve needs at least 1 point, got 0.'],
  ])('refuses %j', (points, message) => {
    expect(() => smoothCurve(points)).toThrow(message);
  });
});

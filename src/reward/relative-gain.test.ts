/** Relative gains and the gap: vectors, both ends exactly, no unit. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import { gapOf, relativeGains } from './relative-gain.ts';

const positive = fc.double({ min: 1e-3, max: 1e3, noNaN: true });
const gain = fc.double({ min: -5, max: 5, noNaN: true });

describe('relativeGains', () => {
  it.each(readVectors<{ s: number; s0: number; c: number; c0: number }, { u: number; v: number }>('relGain'))(
    'meets the vector $in',
    ({ in: { s, s0, c, c0 }, out }) => {
      const gains = relativeGains({ success: s, cost: c }, { success: s0, cost: c0 });
      expect(vectorError(gains.successGain, out.u)).toBeLessThanOrEqual(1e-12);
      expect(vectorError(gains.costSaving, out.v)).toBeLessThanOrEqual(1e-12);
    },
  );

  it('is +0 at the reference, and not clipped far away from it', () => {
    const reference = { success: 0.3, cost: 7 };
    expect(relativeGains(reference, reference)).toStrictEqual({ successGain: 0, costSaving: 0 });
    expect(relativeGains({ success: 0.9, cost: 70 }, reference).costSaving).toBe(-9);
  });

  it('has no unit: scaling a measure and its reference leaves the gap where it is', () => {
    const share = fc.double({ min: 0, max: 1, noNaN: true });
    fc.assert(
      fc.property(positive, positive, positive, positive, positive, positive, share, (s, c, s0, c0, a, b, alpha) => {
        const gap = gapOf(relativeGains({ success: s, cost: c }, { success: s0, cost: c0 }), alpha);
        const scaled = relativeGains({ success: a * s, cost: b * c }, { success: a * s0, cost: b * c0 });
        expect(Math.abs(gapOf(scaled, alpha) - gap)).toBeLessThanOrEqual(1e-14 * (s / s0 + c / c0 + 1));
      }),
      { numRuns: 300, seed: 3 },
    );
  });

  it.each([0, -0.1, Number.NaN, Infinity])('refuses the reference %d', (value) => {
    const point = { success: 0.5, cost: 1 };
    expect(() => relativeGains(point, { success: value, cost: 1 })).toThrow(
      `The reference success is ${value}, must be finite and above 0`,
    );
    expect(() => relativeGains(point, { success: 0.5, cost: value })).toThrow(
      `The reference cost is ${value}, must be finite and above 0`,
    );
  });

  it('refuses a mean that is not finite', () => {
    const reference = { success: 0.5, cost: 1 };
    expect(() => relativeGains({ success: Number.NaN, cost: 1 }, reference)).toThrow('The mean success is NaN');
    expect(() => relativeGains({ success: 1, cost: Infinity }, reference)).toThrow('The mean cost is Infinity');
  });
});

describe('gapOf', () => {
  it('is exactly u at alpha 0 and exactly -v at alpha 1, and does not read the other', () => {
    fc.assert(
      fc.property(gain, gain, (successGain, costSaving) => {
        expect(gapOf({ successGain, costSaving }, 0)).toBe(successGain);
        expect(gapOf({ successGain, costSaving }, 1)).toBe(0 - costSaving);
      }),
      { numRuns: 100, seed: 4 },
    );
    expect(gapOf({ successGain: 0.25, costSaving: Number.NaN }, 0)).toBe(0.25);
    expect(gapOf({ successGain: Infinity, costSaving: 0 }, 1)).toBe(0);
  });

  it('is refused where a gain that it reads is not finite', () => {
    expect(() => gapOf({ successGain: Number.NaN, costSaving: 0.1 }, 0.5)).toThrow(/success gain is NaN .* no gap/);
    expect(() => gapOf({ successGain: 0.1, costSaving: -Infinity }, 1)).toThrow(/cost saving -Infinity/);
  });

  it('is 0 along the direction of the owner, and has the sign of what is ahead', () => {
    expect(gapOf({ successGain: 0.125, costSaving: 0.375 }, 0.25)).toBe(0);
    expect(gapOf({ successGain: 0.2, costSaving: 0.1 }, 0.5)).toBeGreaterThan(0);
    expect(gapOf({ successGain: 0.1, costSaving: 0.2 }, 0.5)).toBeLessThan(0);
  });

  it.each([-0.01, 1.01, Number.NaN, Infinity])('refuses alpha %d', (alpha) => {
    expect(() => gapOf({ successGain: 0, costSaving: 0 }, alpha)).toThrow(`alpha is ${alpha}, must lie in [0, 1].`);
  });
});

/** F-beta, its tangent and the exact error against vectors and closed forms. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { readVectors } from '../../test/read-vectors.fixture.ts';
import { HoneError } from '../domain/errors.ts';
import { fBeta, fBetaGradient, linearise, normalisedReward } from './f-beta.ts';

type Input = { beta: number; P: number; R: number; P0: number; R0: number };
type Output = { f: number; f0: number; dP0: number; dR0: number; wP: number; linear: number; errorExact: number };

/** Relative 1e-12 with a floor of 1e-3, as the vectors ask. */
function expectClose(actual: number, expected: number): void {
  expect(Math.abs(actual - expected)).toBeLessThanOrEqual(1e-12 * Math.max(1e-3, Math.abs(expected)));
}

describe('the linearisation of F-beta', () => {
  it.each(readVectors<Input, Output>('fBeta'))('meets the vector $in', ({ in: { beta, P, R, P0, R0 }, out }) => {
    const point = { precision: P, recall: R };
    const line = linearise({ precision: P0, recall: R0, beta });
    const gradient = fBetaGradient({ precision: P0, recall: R0 }, beta);
    expectClose(fBeta(point, beta), out.f);
    expectClose(fBeta({ precision: P0, recall: R0 }, beta), out.f0);
    expectClose(gradient.precision, out.dP0);
    expectClose(gradient.recall, out.dR0);
    expectClose(line.precisionWeight, out.wP);
    expectClose(line.value(point), out.linear);
    expectClose(line.exactError(point), out.errorExact);
  });

  const unit = fc.double({ min: 0.01, max: 1, noNaN: true });

  it('never underestimates, and its closed-form error is the difference', () => {
    fc.assert(
      fc.property(
        unit,
        unit,
        unit,
        unit,
        fc.constantFrom(0.25, 0.5, 1, 2),
        (precision, recall, precision0, recall0, beta) => {
          const line = linearise({ precision: precision0, recall: recall0, beta });
          const point = { precision, recall };
          expect(line.exactError(point)).toBeLessThanOrEqual(0);
          expect(fBeta(point, beta) - line.value(point)).toBeCloseTo(line.exactError(point), 12);
        },
      ),
      { numRuns: 300, seed: 3 },
    );
  });

  it('has the direction of the gradient: weight to 1 as dF/dP to dF/dR', () => {
    const gradient = fBetaGradient({ precision: 0.7, recall: 0.3 }, 0.5);
    expectClose(
      linearise({ precision: 0.7, recall: 0.3, beta: 0.5 }).precisionWeight,
      gradient.precision / gradient.recall,
    );
  });

  it('weighs precision by one half only on the ray R = beta P / sqrt 2', () => {
    for (const precision of [0.2, 0.5, 0.9]) {
      expectClose(linearise({ precision, recall: (0.5 * precision) / Math.SQRT2, beta: 0.5 }).precisionWeight, 0.5);
      expect(linearise({ precision, recall: precision, beta: 0.5 }).precisionWeight).toBeCloseTo(4, 12);
    }
  });

  it.each([
    [0, 0.5],
    [0.5, 0],
    [Number.NaN, 0.5],
    [1.2, 0.5],
  ])('refuses precision %d, recall %d, and names the cure', (precision, recall) => {
    const attempt = (): unknown => linearise({ precision, recall, beta: 0.5 });
    expect(attempt).toThrow(HoneError);
    expect(attempt).toThrow(/cannot be linearised at precision/);
  });

  it('refuses a beta that is not above 0', () => {
    expect(() => fBeta({ precision: 1, recall: 1 }, 0)).toThrow(/beta is 0/);
  });

  it('is 0, and not NaN, at the origin', () => {
    expect(fBeta({ precision: 0, recall: 0 }, 0.5)).toBe(0);
    expect(() => fBetaGradient({ precision: 0, recall: 0 }, 0.5)).toThrow(HoneError);
  });
});

describe('normalisedReward', () => {
  it('is 1 for a perfect sample and 0 for a void one, whatever the weight', () => {
    for (const weight of [0, 0.5, 4, 16]) {
      expect(normalisedReward({ precision: 1, recall: 1 }, weight)).toBe(1);
      expect(normalisedReward({ precision: 0, recall: 0 }, weight)).toBe(0);
    }
    expectClose(normalisedReward({ precision: 0.5, recall: 0.25 }, 4), 2.25 / 5);
  });
});

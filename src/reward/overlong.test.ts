/** The over-long penalty: vectors, its three pieces, monotone for every limit, and refused limits. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import { overlongPenalty, overlongProblem } from './overlong.ts';

describe('the over-long penalty', () => {
  it.each(readVectors<{ L: number; Lmax: number; Lcache: number }, { r: number }>('dapoOverlong'))(
    'meets the vector $in',
    ({ in: { L, Lmax, Lcache }, out }) => {
      expect(vectorError(overlongPenalty(L, { limit: Lmax, buffer: Lcache }), out.r)).toBeLessThanOrEqual(1e-12);
    },
  );

  it('stays -1 however far beyond the limit', () => {
    for (const length of [101, 200, 1e9, Infinity])
      expect(overlongPenalty(length, { limit: 100, buffer: 20 })).toBe(-1);
  });

  it('never rises with length, and stays within [-1, 0]', () => {
    const limits = fc
      .tuple(fc.double({ min: 1e-3, max: 1e5, noNaN: true }), fc.double({ min: 1e-6, max: 1, noNaN: true }))
      .map(([limit, share]) => ({ limit, buffer: limit * share }));
    const lengths = fc.array(fc.double({ min: 0, max: 2e5, noNaN: true }), { minLength: 2, maxLength: 30 });
    fc.assert(
      fc.property(limits, lengths, (limit, list) => {
        const ascending = [...list, limit.limit, limit.limit - limit.buffer].sort((a, b) => a - b);
        let previous = 0;
        for (const length of ascending) {
          const penalty = overlongPenalty(length, limit);
          expect(penalty).toBeLessThanOrEqual(previous);
          expect(penalty).toBeGreaterThanOrEqual(-1);
          previous = penalty;
        }
      }),
      { numRuns: 300, seed: 2 },
    );
  });

  it('refuses limits that make no ramp, and lengths that are none', () => {
    expect(overlongProblem({ limit: 100, buffer: 100 })).toBeUndefined();
    expect(overlongProblem({ limit: 0, buffer: 1 })).toMatch(/limit is 0/);
    expect(() => overlongPenalty(1, { limit: 100, buffer: 101 })).toThrow(/buffer is 101.*at most limit \(100\)/);
    expect(() => overlongPenalty(1, { limit: 100, buffer: 0 })).toThrow(/buffer is 0/);
    expect(() => overlongPenalty(1, { limit: Number.NaN, buffer: 1 })).toThrow(/limit is NaN/);
    expect(() => overlongPenalty(-1, { limit: 100, buffer: 20 })).toThrow(/length -1/);
    expect(() => overlongPenalty(Number.NaN, { limit: 100, buffer: 20 })).toThrow(/length NaN/);
  });
});

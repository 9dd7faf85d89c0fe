/** Many objectives: two are the rule of success and cost bit for bit; at rest gains run along the direction. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { gapsOf } from './objectives.ts';
import { gapOf } from './relative-gain.ts';

const gain = fc.double({ min: -5, max: 5, noNaN: true });
const share = fc.double({ min: 0, max: 1, noNaN: true });

describe('gapsOf', () => {
  it('is the gap of success and cost bit for bit, both ends included, wherever the reference stands', () => {
    fc.assert(
      fc.property(gain, gain, fc.oneof(share, fc.constantFrom(0, 1, 0.1, 0.9)), (successGain, costSaving, alpha) => {
        const gap = gapOf({ successGain, costSaving }, alpha);
        const direction = [alpha, 1 - alpha];
        expect(gapsOf({ gains: [successGain, costSaving], direction, reference: 0 })).toStrictEqual([0, gap]);
        expect(
          gapsOf({ gains: [costSaving, successGain], direction: direction.toReversed(), reference: 1 }),
        ).toStrictEqual([gap, 0]);
      }),
      { numRuns: 300, seed: 5 },
    );
  });

  it('is that gap too where the shares are written with their own rounding', () => {
    // 1 - 0.9 is not 0.1 in binary.
    const gaps = gapsOf({ gains: [0.7, 0.3], direction: [0.9, 0.1], reference: 0 });
    expect(gaps).toStrictEqual([0, gapOf({ successGain: 0.7, costSaving: 0.3 }, 0.9)]);
    expect(gapsOf({ gains: [-0.2, 0], direction: [1, 0], reference: 0 })).toStrictEqual([0, 0]);
  });

  it('is 0 exactly where the gains run along the direction', () => {
    const direction = [0.5, 0.25, 0.25, 0];
    expect(gapsOf({ gains: [0.2, 0.1, 0.1, 0], direction, reference: 0 })).toEqual([0, 0, 0, 0]);
    // Objective 2 lags and gets dearer; objective 3 is only to be held, and has lost.
    const [, , lagging, held] = gapsOf({ gains: [0.2, 0.1, 0, -0.1], direction, reference: 0 });
    expect(lagging).toBeCloseTo(0.05, 15);
    expect(held).toBeCloseTo(0.05, 15);
  });

  it('compares each objective with the reference alone', () => {
    const gaps = gapsOf({ gains: [0.3, 0.1, -0.2], direction: [0.2, 0.3, 0.5], reference: 1 });
    expect(gaps[0]).toBeCloseTo(0.2 * 0.1 - 0.3 * 0.3, 15);
    expect(gaps[1]).toBe(0);
    expect(gaps[2]).toBeCloseTo(0.5 * 0.1 - 0.3 * -0.2, 15);
  });

  it('refuses a direction that does not say where to go', () => {
    const gains = [0.1, 0.2, 0.3];
    const gaps = (direction: number[], reference = 0) => gapsOf({ gains, direction, reference });
    expect(() => gaps([0.5, 0.5])).toThrow('Steering got 3 gains and 2 shares');
    expect(() => gapsOf({ gains: [1], direction: [1], reference: 0 })).toThrow('Steering got 1 gains and 1 shares');
    expect(() => gaps([0.6, 0.6, -0.2])).toThrow('The share of objective 2 is -0.2, must be at least 0.');
    expect(() => gaps([0.6, Number.NaN, 0.4])).toThrow('The share of objective 1 is NaN');
    expect(() => gaps([0.5, 0.25, 0.125])).toThrow('The shares [0.5, 0.25, 0.125] sum to 0.875, must sum to 1.');
    expect(() => gaps([0.5, 0.25, 0.25 + 1e-8])).toThrow('must sum to 1');
    expect(gaps([0.5, 0.25, 0.25 + 1e-10])).toHaveLength(3);
    expect(() => gaps([0.5, 0.25, 0.25], 3)).toThrow('The reference objective is 3, of 3 objectives.');
    expect(() => gaps([0, 0.5, 0.5])).toThrow('The reference objective 0 has the share 0 beside 2 others');
    expect(() => gapsOf({ gains: [Number.NaN, 1], direction: [0, 1], reference: 1 })).toThrow(
      'The gain of objective 0 is NaN, must be finite.',
    );
  });
});

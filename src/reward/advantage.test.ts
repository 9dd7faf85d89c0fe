/** Advantages: vectors, groups by id, the raw outcome as filter, lost members out of everything. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { readVectors } from '../../test/read-vectors.fixture.ts';
import { groupId } from '../domain/ids.ts';
import type { Outcome } from '../domain/rollout.ts';
import { centre, computeAdvantages } from './advantage.ts';
import type { GroupMember } from './advantage.ts';

function outcome(precision: number, recall: number, rest: Partial<Outcome> = {}): Outcome {
  return { truePositives: 0, predicted: 0, actual: 0, precision, recall, valid: true, cheated: false, ...rest };
}

function member(group: string, reward: number, raw = outcome(reward, reward)): GroupMember {
  return { groupId: groupId(group), status: 'completed', reward, outcome: raw };
}

const lost = (group: string): GroupMember => ({ groupId: groupId(group), status: 'infra-failed' });

describe('centre', () => {
  it.each(readVectors<{ R: number[] }, { leaveOneOut: number[]; popStd: number; advMean: number[] }>('baseline'))(
    'meets the vector $in.R',
    ({ in: { R }, out }) => {
      const close = (actual: readonly number[], expected: readonly number[]): void => {
        expect(actual.length).toBe(expected.length);
        for (const [index, value] of actual.entries())
          expect(Math.abs(value - (expected[index] ?? Number.NaN))).toBeLessThanOrEqual(1e-12);
      };
      close(centre(R), out.advMean);
      close(
        centre(R, { baseline: 'leave-one-out' }),
        R.map((reward, index) => reward - (out.leaveOneOut[index] ?? Number.NaN)),
      );
      close(
        centre(R, { normaliseDeviation: true }),
        out.advMean.map((advantage) => (out.popStd === 0 ? 0 : advantage / out.popStd)),
      );
    },
  );

  const rewards = fc.array(fc.double({ min: -1, max: 1, noNaN: true }), { minLength: 2, maxLength: 16 });

  it('sums to 0, and leave-one-out is n/(n-1) of it', () => {
    fc.assert(
      fc.property(rewards, (list) => {
        const mean = centre(list);
        const factor = list.length / (list.length - 1);
        expect(Math.abs(mean.reduce((sum, value) => sum + value, 0))).toBeLessThan(1e-12);
        for (const [index, value] of centre(list, { baseline: 'leave-one-out' }).entries()) {
          expect(Math.abs(value - factor * (mean[index] ?? Number.NaN))).toBeLessThan(1e-14);
        }
      }),
      { numRuns: 200, seed: 11 },
    );
  });

  it('gives exactly 0 for equal rewards, even where their mean rounds', () => {
    expect(centre([0.1, 0.1, 0.1], { normaliseDeviation: true })).toEqual([0, 0, 0]);
  });
});

describe('computeAdvantages', () => {
  it('groups by id and not by position, with groups of unequal size', () => {
    const { values, groups } = computeAdvantages([
      member('a', 1),
      member('b', 0),
      member('a', 0),
      member('b', 1),
      member('b', 0.5),
    ]);
    expect(values).toEqual([0.5, -0.5, -0.5, 0.5, 0]);
    expect(groups.map(({ groupId: id, scored, dropReason }) => [id, scored, dropReason])).toEqual([
      ['a', 2, undefined],
      ['b', 3, undefined],
    ]);
  });

  it('does not depend on the order of the batch', () => {
    const batch = ['a', 'b', 'a', 'c', 'b', 'a', 'c'].map((group, index) => member(group, (index * 5) % 7));
    const { values } = computeAdvantages(batch);
    const reversed = computeAdvantages(batch.toReversed()).values.toReversed();
    for (const [index, value] of values.entries()) expect(reversed[index]).toBeCloseTo(value ?? Number.NaN, 14);
  });

  it('drops a group whose raw outcomes are equal, however the shaped rewards differ', () => {
    const failed = outcome(0, 0);
    const { values, groups } = computeAdvantages([member('a', -0.1, failed), member('a', -0.3, failed)]);
    expect(values).toEqual([undefined, undefined]);
    expect(groups[0]?.dropReason).toBe('zero-variance');
  });

  it('keeps a group in which only one member differs, whole', () => {
    const { values } = computeAdvantages([member('a', 1), member('a', 1), member('a', 1), member('a', 0)]);
    expect(values).toEqual([0.25, 0.25, 0.25, -0.75]);
  });

  it('sees a cheated perfect answer as different from an honest one', () => {
    const { values } = computeAdvantages([member('a', 1), member('a', 0, outcome(1, 1, { cheated: true }))]);
    expect(values).toEqual([0.5, -0.5]);
  });

  it('leaves lost members out of the mean and without an advantage', () => {
    const { values, groups } = computeAdvantages([member('a', 1), lost('a'), member('a', 0)]);
    expect(values).toEqual([0.5, undefined, -0.5]);
    expect(groups[0]).toMatchObject({ scored: 2, lost: 1, rewardMean: 0.5 });
  });

  it('drops a group of which one scored member is left', () => {
    const { values, groups } = computeAdvantages([member('a', 1), lost('a')]);
    expect(values).toEqual([undefined, undefined]);
    expect(groups[0]?.dropReason).toBe('too-few-members');
  });

  it('refuses a scored rollout without a finite reward or without an outcome', () => {
    expect(() => computeAdvantages([member('a', Number.NaN), member('a', 1)])).toThrow(/has the reward NaN/);
    expect(() =>
      computeAdvantages([{ groupId: groupId('a'), status: 'completed', reward: 1 }, member('a', 1)]),
    ).toThrow(/has no outcome/);
  });
});

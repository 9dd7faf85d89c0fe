/** Advantages: vectors, groups by id, the raw outcome as filter, lost members out of everything, and cheating never pays. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import { groupId } from '../domain/ids.ts';
import type { Outcome } from '../domain/rollout.ts';
import { computeAdvantages, groupDropReason, steeringWarnings } from './advantage.ts';
import type { AdvantageOptions, GroupMember } from './advantage.ts';

const BASELINES = ['mean', 'leave-one-out', 'length-weighted', 'effort'] as const;
const DEVIATIONS = ['none', 'group', 'effort'] as const;

function outcome(precision: number, recall: number, rest: Partial<Outcome> = {}): Outcome {
  return { truePositives: 0, predicted: 0, actual: 0, precision, recall, valid: true, cheated: false, ...rest };
}

function cost(sampledTokens: number): GroupMember['cost'] {
  return { tokens: sampledTokens, sampledTokens, turns: 1, toolSeconds: 0 };
}

function member(group: string, reward: number, raw = outcome(reward, reward)): GroupMember {
  return {
    groupId: groupId(group),
    status: 'completed',
    reward,
    outcome: raw,
    effort: 'standard',
    cost: cost(10),
  };
}

const cheat = (group: string): GroupMember => member(group, 0, outcome(1, 1, { cheated: true }));

const lost = (group: string): GroupMember => ({
  groupId: groupId(group),
  status: 'infra-failed',
  effort: 'standard',
  cost: cost(0),
});

/** A group of these rewards in which raw outcomes differ, so that it is never dropped. */
function groupOf(rewards: readonly number[], lengths: readonly number[] = []): GroupMember[] {
  return rewards.map((reward, index) => ({
    ...member('g', reward, outcome(index / rewards.length, 0)),
    cost: cost(lengths[index] ?? 10),
  }));
}

describe('the vectors', () => {
  type Output = { leaveOneOut: number[]; popStd: number; advMean: number[]; advLW: number[] };
  it.each(readVectors<{ R: number[]; L: number[] }, Output>('baseline'))('meet $in', ({ in: { R, L }, out }) => {
    const check = (options: AdvantageOptions, expected: readonly number[]): void => {
      const { values } = computeAdvantages(groupOf(R, L), options);
      expect(values.length).toBe(expected.length);
      for (const [index, value] of values.entries())
        expect(vectorError(value ?? Number.NaN, expected[index] ?? Number.NaN)).toBeLessThanOrEqual(1e-12);
    };
    check({}, out.advMean);
    check({ baseline: 'effort' }, out.advMean);
    check({ baseline: 'length-weighted' }, out.advLW);
    check(
      { baseline: 'leave-one-out' },
      R.map((reward, index) => reward - (out.leaveOneOut[index] ?? Number.NaN)),
    );
    const divided = out.advMean.map((advantage) => (out.popStd === 0 ? 0 : advantage / out.popStd));
    check({ deviation: 'group' }, divided);
    check({ deviation: 'effort' }, divided);
  });
});

describe('by any rule', () => {
  it.each(BASELINES)('equal rewards have the advantage 0 exactly, with the baseline %s', (baseline) => {
    for (const deviation of DEVIATIONS)
      expect(computeAdvantages(groupOf([0.1, 0.1, 0.1]), { baseline, deviation }).values).toEqual([0, 0, 0]);
  });

  it('means are subtracted: the advantages of a group sum to 0', () => {
    const rewards = fc.array(fc.double({ min: -1, max: 1, noNaN: true }), { minLength: 2, maxLength: 16 });
    fc.assert(
      fc.property(rewards, fc.constantFrom('mean' as const, 'leave-one-out' as const), (list, baseline) => {
        const { values } = computeAdvantages(groupOf(list), { baseline });
        expect(Math.abs(values.reduce<number>((sum, value) => sum + (value ?? Number.NaN), 0))).toBeLessThan(1e-12);
      }),
      { numRuns: 200, seed: 11 },
    );
  });
});

describe('by effort', () => {
  const at = (effort: string, group: string, reward: number): GroupMember => ({ ...member(group, reward), effort });
  const batch = [
    at('low', 'a', 1),
    at('low', 'a', 0),
    at('low', 'b', 0),
    at('low', 'b', 0.5),
    at('high', 'c', 1),
    at('high', 'c', 0.5),
  ];

  it('compares with the mean of the effort across groups', () => {
    expect(computeAdvantages(batch, { baseline: 'effort' }).values).toEqual([
      0.625, -0.375, -0.375, 0.125, 0.25, -0.25,
    ]);
  });

  it('divides by the deviation of the effort across groups, and so weighs its tasks alike', () => {
    const plain = computeAdvantages(batch).values;
    const divided = computeAdvantages(batch, { deviation: 'effort' }).values;
    const ratios = divided.map((value, index) => (plain[index] ?? Number.NaN) / (value ?? Number.NaN));
    // Of 1, 0, 0, 0.5 and of 1, 0.5.
    const low = Math.sqrt((0.625 ** 2 + 2 * 0.375 ** 2 + 0.125 ** 2) / 4);
    for (const [index, ratio] of ratios.entries()) expect(ratio).toBeCloseTo(index < 4 ? low : 0.25, 14);
  });

  it('refuses a group of two efforts, and reads no effort where no option does', () => {
    const mixed = [at('low', 'a', 1), at('high', 'a', 0)];
    expect(() => computeAdvantages(mixed, { baseline: 'effort' })).toThrow(/efforts low and high/);
    expect(() => computeAdvantages(mixed, { deviation: 'effort' })).toThrow(/efforts low and high/);
    expect(computeAdvantages(mixed).values).toEqual([0.5, -0.5]);
  });

  it('takes a batch in which everything was lost', () => {
    expect(computeAdvantages([lost('a')], { baseline: 'effort', deviation: 'effort' }).values).toEqual([undefined]);
  });
});

describe('cheating', () => {
  it('is compared with honest failures that cost more than nothing, and does not beat them', () => {
    const failure = outcome(0, 0);
    const members = [member('a', 0.5, outcome(1, 0)), member('a', -0.25, failure), cheat('a')];
    const { values, groups } = computeAdvantages(members);
    expect(values).toEqual([0.5, -0.25, -0.25]);
    expect(groups[0]?.rewardMean).toBeCloseTo(0.25 / 3, 15);
  });

  it('counts as 0 where every honest reward is above 0', () => {
    expect(computeAdvantages([member('a', 1), member('a', 0.5), cheat('a')]).values).toEqual([0.5, 0, -0.5]);
  });

  it('never has an advantage above an honest member of its group', () => {
    const members = fc
      .array(
        fc.record({
          group: fc.constantFrom('a', 'b', 'c'),
          reward: fc.double({ min: -2, max: 1, noNaN: true }),
          precision: fc.double({ min: 0, max: 1, noNaN: true }),
          tokens: fc.integer({ min: 1, max: 500 }),
          kind: fc.constantFrom('honest', 'honest', 'cheated', 'lost'),
        }),
        { minLength: 2, maxLength: 20 },
      )
      .map((list) =>
        list.map(({ group, reward, precision, tokens, kind }): GroupMember => {
          if (kind === 'lost') return lost(group);
          const base = kind === 'cheated' ? cheat(group) : member(group, reward, outcome(precision, 0));
          return { ...base, effort: group === 'c' ? 'high' : 'low', cost: cost(tokens) };
        }),
      );
    let compared = 0;
    fc.assert(
      fc.property(
        members,
        fc.constantFrom(...BASELINES),
        fc.constantFrom(...DEVIATIONS),
        (batch, baseline, deviation) => {
          const { values } = computeAdvantages(batch, { baseline, deviation });
          for (const [index, { outcome: raw, groupId: group }] of batch.entries()) {
            const advantage = values[index];
            if (raw?.cheated !== true || advantage === undefined) continue;
            for (const [other, rival] of batch.entries()) {
              const honest = values[other];
              if (rival.groupId !== group || rival.outcome?.cheated !== false || honest === undefined) continue;
              compared++;
              expect(advantage).toBeLessThanOrEqual(honest);
            }
          }
        },
      ),
      { numRuns: 500, seed: 12 },
    );
    expect(compared).toBeGreaterThan(500);
  });
});

describe('groupDropReason', () => {
  it('reads raw outcomes alone: members need no reward yet', () => {
    const raw = (precision: number, recall: number): GroupMember => {
      const { reward: _, ...rest } = member('a', 0, outcome(precision, recall));
      return rest;
    };
    expect(groupDropReason([raw(0, 0), raw(0, 0)])).toBe('zero-variance');
    expect(groupDropReason([raw(0, 0), raw(0, 1)])).toBeUndefined();
    expect(groupDropReason([raw(0, 0), lost('a')])).toBe('too-few-members');
    expect(groupDropReason([])).toBe('too-few-members');
    expect(groupDropReason([raw(0, 0), cheat('a')])).toBe('zero-variance');
    const { outcome: __, ...unverified } = raw(0, 0);
    expect(() => groupDropReason([unverified])).toThrow(/has no outcome/);
  });
});

describe('a group of one outcome whose counts are priced', () => {
  const solved = (reward: number, tokens: number, lookups = 0): GroupMember => ({
    ...member('a', reward, outcome(1, 1)),
    cost: cost(tokens),
    lookups,
  });
  const pricedCounts = ['sampledTokens', 'lookups'] as const;

  it('is kept where a priced count differs, and dropped without the option or where none does', () => {
    const byTokens = [solved(1, 10), solved(1, 20)];
    const byLookups = [solved(1, 10, 0), solved(1, 10, 3)];
    for (const group of [byTokens, byLookups]) {
      expect(groupDropReason(group)).toBe('zero-variance');
      expect(groupDropReason(group, { pricedCounts: [] })).toBe('zero-variance');
      expect(groupDropReason(group, { pricedCounts })).toBeUndefined();
      expect(groupDropReason(group, { pricedCounts: ['turns'] })).toBe('zero-variance');
    }
    const failed = byTokens.map((each) => ({ ...each, outcome: outcome(0, 0) }));
    expect(groupDropReason(failed, { pricedCounts })).toBeUndefined();
    expect(groupDropReason([...byTokens.slice(1), lost('a')], { pricedCounts })).toBe('too-few-members');
  });

  it('teaches to be cheaper', () => {
    const group = [solved(0.75, 25), solved(0.5, 50)];
    expect(computeAdvantages(group).values).toEqual([undefined, undefined]);
    const { values, groups } = computeAdvantages(group, { pricedCounts });
    expect(values).toEqual([0.125, -0.125]);
    expect(groups[0]?.dropReason).toBeUndefined();
  });

  it('is told from one that its prices leave flat, which only scoring can see', () => {
    const flat = [solved(0.5, 25), solved(0.5, 50)];
    for (const baseline of ['mean', 'leave-one-out', 'length-weighted'] as const) {
      const { values, groups } = computeAdvantages(flat, { pricedCounts, baseline });
      expect(values).toEqual([undefined, undefined]);
      expect(groups[0]?.dropReason).toBe('zero-reward-variance');
    }
    const differing = [member('a', 0, outcome(0, 1)), member('a', 0, outcome(0, 0))];
    expect(computeAdvantages(differing).values).toEqual([0, 0]);
    expect(computeAdvantages(differing, { pricedCounts: ['turns'] }).groups[0]?.dropReason).toBe(
      'zero-reward-variance',
    );
  });

  it('teaches by the mean of its effort, though its own rewards are equal', () => {
    const batch = [solved(0.5, 25), solved(0.5, 50), member('b', 1), member('b', 0.5)];
    const { values } = computeAdvantages(batch, { pricedCounts: ['sampledTokens'], baseline: 'effort' });
    expect(values).toEqual([-0.125, -0.125, 0.375, -0.125]);
  });

  it('reads no count of what cheated, as the void takes its price away', () => {
    const cheats = [10, 20].map((tokens) => ({ ...cheat('a'), cost: cost(tokens) }));
    expect(groupDropReason(cheats, { pricedCounts: ['sampledTokens'] })).toBe('zero-variance');
  });

  it('refuses a member without a priced count', () => {
    expect(() => groupDropReason([member('a', 1), member('a', 1)], { pricedCounts: ['lookups'] })).toThrow(
      'A completed rollout of group a has no lookups, which are priced.',
    );
  });
});

describe('steeringWarnings', () => {
  it('warns of the deviation of each group beside a steered price, and of nothing else', () => {
    expect(steeringWarnings({ isSteered: true, deviation: 'group' })).toEqual([
      expect.stringMatching(/'none' or 'effort'/),
    ]);
    expect(steeringWarnings({ isSteered: false, deviation: 'group' })).toEqual([]);
    for (const deviation of ['none', 'effort'] as const)
      expect(steeringWarnings({ isSteered: true, deviation })).toEqual([]);
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
    expect(() => computeAdvantages([{ ...lost('a'), status: 'completed', reward: 1 }, member('a', 1)])).toThrow(
      /has no outcome/,
    );
  });
});

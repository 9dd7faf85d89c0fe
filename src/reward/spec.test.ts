/** The reward spec: defaults, strictness, parts that add up, and the absolute void. */
import { describe, expect, it } from 'vitest';

import type { Outcome } from '../domain/rollout.ts';
import { createRewardState, evaluateReward, precisionWeightOf, rewardSpecSchema, updateRewardState } from './spec.ts';

const outcome: Outcome = {
  truePositives: 1,
  predicted: 2,
  actual: 1,
  precision: 0.5,
  recall: 1,
  valid: true,
  cheated: false,
};

describe('the reward spec', () => {
  it('has defaults, survives JSON, and refuses unknown keys', () => {
    const spec = rewardSpecSchema.parse({});
    expect(spec).toMatchObject({ beta: 0.5, precisionWeight: 'measured', lookupPrice: 0 });
    expect(rewardSpecSchema.parse(JSON.parse(JSON.stringify(spec)))).toEqual(spec);
    expect(rewardSpecSchema.safeParse({ lookupPrise: 1 }).success).toBe(false);
  });

  it('measures the weight from the baseline, and never defaults it', () => {
    const spec = rewardSpecSchema.parse({});
    expect(precisionWeightOf(createRewardState(spec, { precision: 0.5, recall: 0.25 }))).toBeCloseTo(1, 12);
    expect(() => createRewardState(spec)).toThrow(/no baseline/);
    expect(precisionWeightOf(createRewardState(rewardSpecSchema.parse({ precisionWeight: 2 })))).toBe(2);
  });

  it('moves a measured weight after lasting drift, and a fixed one never', () => {
    const drifted = { precision: 0.5, recall: 0.5 };
    const spec = rewardSpecSchema.parse({ recalibrationPatience: 2 });
    const first = updateRewardState(spec, createRewardState(spec, { precision: 0.5, recall: 0.25 }), drifted);
    const second = updateRewardState(spec, first.state, drifted);
    expect(first.event).toBeUndefined();
    expect(second.event?.to.precisionWeight).toBeCloseTo(4, 12);
    expect(precisionWeightOf(second.state)).toBeCloseTo(4, 12);
    const fixed = rewardSpecSchema.parse({ precisionWeight: 1 });
    expect(updateRewardState(fixed, createRewardState(fixed), drifted)).toEqual({ state: createRewardState(fixed) });
  });

  it('adds up: normalised detection minus the price of look-ups', () => {
    const spec = rewardSpecSchema.parse({ precisionWeight: 3, lookupPrice: 0.01 });
    const { reward, components } = evaluateReward(spec, {
      state: createRewardState(spec),
      outcome,
      cost: { lookups: 4 },
    });
    expect(reward).toBeCloseTo((3 * 0.5 + 1) / 4 - 0.04, 12);
    expect(components.precision + components.recall + components.lookups + components.cheating).toBeCloseTo(reward, 12);
  });

  it('falls with every look-up, whatever the outcome', () => {
    const spec = rewardSpecSchema.parse({ precisionWeight: 3, lookupPrice: 0.01 });
    const state = createRewardState(spec);
    for (const precision of [0, 0.5, 1]) {
      const rewards = [0, 1, 2, 3].map(
        (lookups) => evaluateReward(spec, { state, outcome: { ...outcome, precision }, cost: { lookups } }).reward,
      );
      for (const [index, reward] of rewards.entries())
        if (index > 0) expect(reward).toBeLessThan(rewards[index - 1] ?? 0);
    }
  });

  it('voids a cheated rollout last: exactly 0, prices included', () => {
    const spec = rewardSpecSchema.parse({ precisionWeight: 3, lookupPrice: 0.01 });
    const cheated = { ...outcome, cheated: true };
    const { reward, components } = evaluateReward(spec, {
      state: createRewardState(spec),
      outcome: cheated,
      cost: { lookups: 4 },
    });
    expect(reward).toBe(0);
    expect(components.cheating).toBeCloseTo(-(components.precision + components.recall + components.lookups), 12);
  });
});

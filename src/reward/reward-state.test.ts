/** Stored states: bit for bit through JSON, and refused with the difference when they belong to another reward. */
import { describe, expect, it } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { createRewardState } from './reward-start.ts';
import { budgetKey, precisionWeightOf, restoreRewardState, rewardStateSchema } from './reward-state.ts';
import type { RewardState } from './reward-state.ts';
import { drawRollouts } from './scored-rollout.fixture.ts';
import { rewardSpecSchema } from './spec.ts';
import { startSteering } from './steering.ts';

const EFFORTS = ['low', 'high'];
const taskIds = Array.from({ length: 40 }, (_, task) => `t${task}`);
const baseline = drawRollouts({ seed: 1, efforts: { low: 2, high: 6 }, tasks: 40, rolloutsPerTask: 6 });
const frontier = {
  kind: 'frontier',
  alpha: 0.5,
  costs: [{ weights: { lookups: 1 } }],
  startingPrice: { from: 'given', prices: { low: 0.1, high: 0.02 } },
};
const budget = { kind: 'budget', form: 'hard', scope: 'task', weights: { tokens: 1 } };
const latency = { kind: 'latency', kappa: 1, dropOff: { edges: [0, 5], counts: [1] }, latency: { from: 'measured' } };
const full = rewardSpecSchema.parse({ terms: [frontier, budget, latency] });
const { state } = createRewardState(full, { baseline, efforts: EFFORTS, taskIds, seed: 1 });

function refusal(written: unknown, stored: { state?: unknown; efforts?: string[]; taskIds?: string[] } = {}): string {
  try {
    restoreRewardState(rewardSpecSchema.parse(written), { state, efforts: EFFORTS, taskIds, ...stored });
  } catch (error) {
    if (error instanceof HoneError) return `${error.code}: ${error.message}`;
    throw error;
  }
  return 'was not refused';
}

describe('a stored reward state', () => {
  it('comes back from JSON bit for bit', () => {
    const written = JSON.stringify(state);
    const restored = restoreRewardState(full, { state: JSON.parse(written), efforts: EFFORTS, taskIds });
    expect(restored).toEqual(state);
    expect(JSON.stringify(restored)).toBe(written);
    expect(rewardStateSchema.parse(state)).toEqual(state);
  });

  it('comes back where only what is not measured has changed', () => {
    const changed = rewardSpecSchema.parse({
      base: { kind: 'detection', recalibrationPatience: 5 },
      terms: [
        { ...frontier, alpha: 0.25, controller: { rate: 0.1 } },
        { ...budget, form: 'ramp', rampWidth: 10, kappa: 0.1 },
        { ...latency, kappa: 2 },
        { kind: 'cost', weights: { turns: 1 } },
      ],
    });
    expect(restoreRewardState(changed, { state, efforts: EFFORTS, taskIds })).toEqual(state);
  });

  it('has the weight of precision that is in force', () => {
    expect(precisionWeightOf(state, full)).toBe(state.calibration?.precisionWeight);
    expect(precisionWeightOf(state, rewardSpecSchema.parse({ base: { kind: 'detection', precisionWeight: 3 } }))).toBe(
      3,
    );
    expect(precisionWeightOf(state, rewardSpecSchema.parse({ base: { kind: 'correct' } }))).toBeUndefined();
  });

  it('keeps budgets by effort, or by task at each effort', () => {
    expect(budgetKey('effort', { effort: 'low', taskId: 't1' })).toBe('low');
    expect(budgetKey('task', { effort: 'low', taskId: 't1' })).toBe('low/t1');
  });

  const terms = [frontier, budget, latency];
  const { frontier: prices } = state;
  const without = (change: Partial<RewardState>): unknown => ({ ...state, ...change });
  it.each<[string, unknown, Parameters<typeof refusal>[1], RegExp]>([
    [
      'what is no state',
      { terms },
      { state: { kind: 'fixed', precisionWeight: 2 } },
      /invalid-config: .*cannot be read.*steps/,
    ],
    [
      'a price that is no number',
      { terms },
      {
        state: without({
          frontier: {
            low: {
              reference: prices?.['low']?.reference ?? { tasks: 1, rollouts: 1, means: [], covariances: [] },
              prices: { cost: { ...startSteering(1), logPrice: Number.NaN } },
            },
          },
        }),
      },
      /frontier\.low\.prices\.cost\.logPrice/,
    ],
    [
      'a term more',
      { terms: [frontier, budget] },
      {},
      /run-config-changed: .*it has a latency model for the term latency, and the spec does not/,
    ],
    ['no frontier', { terms: [budget, latency] }, {}, /it has prices, and the spec has no frontier term/],
    [
      'a frontier that it lacks',
      { terms },
      { state: without({ frontier: null }) },
      /it has no prices for the term frontier/,
    ],
    [
      'other efforts',
      { terms },
      { efforts: ['low', 'max'] },
      /it lacks prices at effort max; it has prices at effort high, and the spec does not/,
    ],
    [
      'another cost',
      { terms: [{ ...frontier, costs: [{ name: 'words', weights: { tokens: 1 } }] }, budget, latency] },
      {},
      /it lacks a price of words at effort low/,
    ],
    [
      'more of a base',
      { base: { kind: 'correct' }, terms },
      {},
      /it has a measured weight of precision, and the spec does not measure one.*has 3 means, and the spec needs 2/,
    ],
    [
      'a weight that it lacks',
      { terms },
      { state: without({ calibration: null }) },
      /the weight of precision is measured, and it has none/,
    ],
    [
      'another beta',
      { base: { kind: 'detection', beta: 1 }, terms },
      {},
      /its base was measured with beta 0\.5, and the spec has 1/,
    ],
    [
      'the same cost made of other counts',
      { terms: [{ ...frontier, costs: [{ weights: { tokens: 1 } }] }, budget, latency] },
      {},
      /its cost cost of the term frontier was measured with weights\.lookups 1, and the spec has none; its .* weights\.tokens unset, and the spec has 1/,
    ],
    [
      'other prices to start from',
      { terms: [{ ...frontier, startingPrice: { from: 'given', prices: { low: 0.1, high: 0.03 } } }, budget, latency] },
      {},
      /its term frontier was measured with startingPrice\.prices\.high\.cost 0\.02, and the spec has 0\.03/,
    ],
    [
      'a budget at another percentile and price',
      { terms: [frontier, { ...budget, percentile: 75, weights: { tokens: 2 } }, latency] },
      {},
      /its term budget was measured with percentile 50, and the spec has 75; .*weights\.tokens 1, and the spec has 2/,
    ],
    [
      'a phase that is not there',
      { terms },
      { state: without({ phase: { index: 2, steps: 0, reached: 0 } }) },
      /in phase number 3, and the spec has 0/,
    ],
    [
      'a budget of another name',
      { terms: [frontier, { ...budget, name: 'limit' }, latency] },
      {},
      /it lacks budgets for the term limit/,
    ],
    [
      'another pool',
      { terms },
      { taskIds: ['t0', 'new'] },
      /its term budget has no budget for 2 of 4 keys, the first low\/new/,
    ],
  ])('refuses %s', (_, written, stored, message) => {
    expect(refusal(written, stored)).toMatch(message);
  });
});

/** References by parts: the same as measured anew under any weight of precision; prices that rest and forget. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { vectorError } from '../../test/read-vectors.fixture.ts';
import { weightedCost } from './cost.ts';
import {
  directionOf,
  errorOfGap,
  forgetGaps,
  measureFrontier,
  measureMoments,
  pricesAt,
  referenceOf,
  steerFrontier,
} from './frontier-state.ts';
import type { FrontierState } from './frontier-state.ts';
import { measureReference } from './reference.ts';
import { drawRollouts, rolloutWith } from './scored-rollout.fixture.ts';
import { successOf } from './scored-rollout.ts';
import { startSteering, steer } from './steering.ts';
import { frontierTermSchema, rewardBaseSchema } from './terms.ts';
import type { FrontierTerm } from './terms.ts';

const detection = rewardBaseSchema.parse({ kind: 'detection' });
const correct = rewardBaseSchema.parse({ kind: 'correct' });
const baseline = drawRollouts({ seed: 5, efforts: { low: 3 }, tasks: 40, rolloutsPerTask: 4, cheatShare: 0.1 });

function termWith(options: object = {}): FrontierTerm {
  return frontierTermSchema.parse({ kind: 'frontier', alpha: 0.5, costs: [{ weights: { lookups: 1 } }], ...options });
}

const twoCosts = [
  { name: 'looks', weights: { lookups: 1 }, share: 0.75 },
  { name: 'words', weights: { tokens: 0.01 }, share: 0.25 },
];

describe('the reference of the frontier', () => {
  it('is the one measured from success itself, at any weight of precision, errors and covariance too', () => {
    const term = termWith({ alpha: 0.4, costs: twoCosts });
    for (const base of [detection, correct]) {
      const moments = measureMoments(baseline, { term, base });
      for (const precisionWeight of [0, 0.5, 4, 16]) {
        for (const [cost, { weights }] of term.costs.entries()) {
          const anew = measureReference(
            baseline.map((rollout) => ({
              taskId: rollout.taskId,
              success: successOf(base, rollout.outcome, precisionWeight),
              cost: weightedCost(rollout.cost, weights),
            })),
          );
          const kept = referenceOf(moments, { base, precisionWeight, cost });
          for (const key of [
            'success',
            'cost',
            'successError',
            'costError',
            'covariance',
            'tasks',
            'rollouts',
          ] as const)
            expect(vectorError(kept[key], anew[key]), `${key} at weight ${precisionWeight}`).toBeLessThan(1e-12);
        }
      }
    }
  });

  it('counts no success of a rollout that cheated, but its cost', () => {
    const rollouts = ['t0', 't1'].map((task, index) =>
      rolloutWith({ task, outcome: { cheated: index === 0 }, cost: { lookups: 4 } }),
    );
    const reference = referenceOf(measureMoments(rollouts, { term: termWith(), base: correct }), {
      base: correct,
      precisionWeight: 0,
      cost: 0,
    });
    expect(reference).toMatchObject({ success: 0.5, cost: 4 });
  });
});

describe('the frontier', () => {
  const moments = measureMoments(baseline, { term: termWith({ costs: twoCosts }), base: detection });
  const state: FrontierState = {
    low: { reference: moments, prices: { looks: startSteering(0.05), words: startSteering(0.2) } },
  };

  it('splits what is not success among the costs by their shares', () => {
    expect(directionOf(termWith({ alpha: 0.25 }))).toEqual([0.25, 0.75]);
    expect(directionOf(termWith({ alpha: 0.5, costs: twoCosts }))).toEqual([0.5, 0.375, 0.125]);
    expect(directionOf(termWith({ alpha: 0.5, costs: twoCosts.map(({ share: _, ...cost }) => cost) }))).toEqual([
      0.5, 0.25, 0.25,
    ]);
  });

  it('measures gains, savings and gaps of each cost against its reference', () => {
    const term = termWith({ costs: twoCosts });
    const batch = drawRollouts({ seed: 6, efforts: { low: 2 }, tasks: 20, rolloutsPerTask: 4 });
    const context = { term, state, base: detection, precisionWeight: 4 };
    const measured = measureFrontier({ effort: 'low', rollouts: batch, success: 0.3 }, context);
    const looks = referenceOf(moments, { base: detection, precisionWeight: 4, cost: 0 });
    const cost = batch.reduce((sum, rollout) => sum + rollout.cost.lookups, 0) / batch.length;
    const gain = 0.3 / looks.success - 1;
    const saving = 1 - cost / looks.cost;
    expect(measured.successGain).toBeCloseTo(gain, 12);
    expect(measured.costSaving['looks']).toBeCloseTo(saving, 12);
    expect(measured.gap['looks']).toBeCloseTo(0.375 * gain - 0.5 * saving, 12);
    const spread = Math.sqrt(
      ((0.375 * (1 + gain)) / looks.success) ** 2 * looks.successError ** 2 +
        ((0.5 * (1 - saving)) / looks.cost) ** 2 * looks.costError ** 2 +
        2 * ((0.375 * (1 + gain)) / looks.success) * ((0.5 * (1 - saving)) / looks.cost) * looks.covariance,
    );
    expect(measured.gapError['looks']).toBeCloseTo(spread, 12);
    expect(Object.keys(measured.price)).toEqual(['looks', 'words']);
    expect(measured.price['looks']).toBeCloseTo(0.05, 12);
  });

  it('has the published error of the gap with one cost', () => {
    const term = termWith({ alpha: 0 });
    const reference = referenceOf(measureMoments(baseline, { term, base: detection }), {
      base: detection,
      precisionWeight: 1,
      cost: 0,
    });
    const error = errorOfGap(term, { reference, gains: { successGain: 0, costSaving: 0 }, cost: 0 });
    expect(error).toBeCloseTo(reference.successError / reference.success, 12);
  });

  it('moves each price by its own gap as the controller does, and leaves other efforts as they are', () => {
    const term = termWith({ costs: twoCosts });
    const both: FrontierState = {
      ...state,
      high: { reference: moments, prices: { looks: startSteering(1), words: startSteering(1) } },
    };
    const gap = { looks: 0.2, words: -0.3 };
    const none = { looks: 0, words: 0 };
    const measurement = { successGain: 0, cost: none, costSaving: none, gap, gapError: none, price: none };
    const { state: next, events } = steerFrontier({ term, state: both }, { low: measurement });
    expect(next['high']).toBe(both['high']);
    expect(next['low']?.reference).toBe(moments);
    for (const name of ['looks', 'words'] as const)
      expect(next['low']?.prices[name]).toEqual(
        steer(startSteering(name === 'looks' ? 0.05 : 0.2), gap[name], term.controller, { gapError: 0 }).state,
      );
    expect(events).toEqual([]);
  });

  it('tells once when a price is at the end of its clip', () => {
    const term = termWith({ controller: { clip: 1.1, slewLimit: null, rate: 1, decay: null } });
    const none = { cost: 0 };
    const measurement = {
      successGain: 0,
      cost: none,
      costSaving: none,
      gap: { cost: 0.5 },
      gapError: none,
      price: none,
    };
    const start: FrontierState = { low: { reference: moments, prices: { cost: startSteering(0.1) } } };
    const first = steerFrontier({ term, state: start }, { low: measurement });
    expect(first.events).toHaveLength(1);
    expect(first.events[0]).toMatchObject({
      event: 'frontier-constraint-not-binding',
      effort: 'low',
      cost: 'cost',
      bound: 'high',
    });
    expect(first.events[0]?.price).toBeCloseTo(0.11, 12);
    expect(steerFrontier({ term, state: first.state }, { low: measurement }).events).toEqual([]);
  });

  it('forgets gaps and nothing else', () => {
    fc.assert(
      fc.property(fc.double({ min: -1, max: 1, noNaN: true }), (previousGap) => {
        const price = { ...startSteering(0.3), updates: 7, previousGap };
        const before: FrontierState = { low: { reference: moments, prices: { cost: price } } };
        expect(forgetGaps(before)).toEqual({
          low: { reference: moments, prices: { cost: { ...price, previousGap: null } } },
        });
      }),
      { numRuns: 100, seed: 16 },
    );
  });

  it('has no price at an effort that it did not start with', () => {
    expect(() => pricesAt(termWith({ costs: twoCosts }), state, 'max')).toThrow(
      /the effort max, at which cost has no price/,
    );
  });
});

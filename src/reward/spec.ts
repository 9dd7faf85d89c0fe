/**
 * The reward as data: what a run's config says, what state it carries, and what one rollout earns under it.
 * Parts add up in a fixed order and are reported one by one; the void for cheating comes last and is absolute: 0.
 * JSON in, JSON out, so that a run folder can be scored again.
 */
import { z } from 'zod';

import { HoneError } from '../domain/errors.ts';
import type { Outcome } from '../domain/rollout.ts';
import { normalisedReward } from './f-beta.ts';
import type { PrecisionRecall } from './f-beta.ts';
import { calibrate, recalibrate } from './recalibration.ts';
import type { Calibration, RecalibrationEvent } from './recalibration.ts';

export const rewardSpecSchema = z.strictObject({
  beta: z.number().positive().default(0.5).describe('of F-beta; below 1 weighs precision above recall'),
  precisionWeight: z
    .union([z.literal('measured'), z.number().nonnegative()])
    .default('measured')
    .describe('weight of precision against a recall weight of 1; measured = (R/P)^2 / beta^2 from the policy itself'),
  recalibrationBand: z
    .number()
    .gt(1)
    .default(1.25)
    .describe('factor by which a measured weight may be off before it is measured anew'),
  recalibrationPatience: z.int().positive().default(3).describe('measurements in a row outside the band before it is'),
  lookupPrice: z
    .number()
    .nonnegative()
    .default(0)
    .describe('reward subtracted for each look-up; the reward lies in [0, 1] before it'),
});
export type RewardSpec = z.infer<typeof rewardSpecSchema>;

/** `fixed` never moves; `measured` moves with the policy. Plain JSON, stored in checkpoints. */
export type RewardState =
  | { readonly kind: 'fixed'; readonly precisionWeight: number }
  | { readonly kind: 'measured'; readonly calibration: Calibration };

export interface RewardEvaluation {
  readonly reward: number;
  /** Sum to the reward, up to rounding. */
  readonly components: {
    readonly precision: number;
    readonly recall: number;
    readonly lookups: number;
    /** What cheating took away. */
    readonly cheating: number;
  };
}

/** `baseline` is the starting policy's mean precision and recall over samples; needed for a measured weight. */
export function createRewardState(spec: RewardSpec, baseline?: PrecisionRecall): RewardState {
  if (spec.precisionWeight !== 'measured') return { kind: 'fixed', precisionWeight: spec.precisionWeight };
  if (baseline === undefined) {
    throw new HoneError('invalid-config', 'The weight of precision is to be measured, but no baseline was given.', {
      cure: 'Evaluate the starting policy first, or set reward.precisionWeight to a number.',
    });
  }
  return {
    kind: 'measured',
    calibration: calibrate({ precision: baseline.precision, recall: baseline.recall, beta: spec.beta }),
  };
}

export function precisionWeightOf(state: RewardState): number {
  return state.kind === 'fixed' ? state.precisionWeight : state.calibration.precisionWeight;
}

/** Takes a new measurement of the policy; the event is to be recorded when there is one. */
export function updateRewardState(
  spec: RewardSpec,
  state: RewardState,
  measured: PrecisionRecall,
): { readonly state: RewardState; readonly event?: RecalibrationEvent } {
  if (state.kind === 'fixed') return { state };
  const options = { band: spec.recalibrationBand, patience: spec.recalibrationPatience };
  const { state: calibration, event } = recalibrate(state.calibration, measured, options);
  const next: RewardState = calibration === state.calibration ? state : { kind: 'measured', calibration };
  return event === undefined ? { state: next } : { state: next, event };
}

export function evaluateReward(
  spec: RewardSpec,
  rollout: { readonly state: RewardState; readonly outcome: Outcome; readonly cost: { readonly lookups: number } },
): RewardEvaluation {
  const { outcome, cost } = rollout;
  const weight = precisionWeightOf(rollout.state);
  const precision = (weight * outcome.precision) / (1 + weight);
  const recall = outcome.recall / (1 + weight);
  // `0 -` and not a negation: without look-ups the part is 0, never -0.
  const lookups = 0 - spec.lookupPrice * cost.lookups;
  const earned = normalisedReward(outcome, weight) + lookups;
  if (outcome.cheated) return { reward: 0, components: { precision, recall, lookups, cheating: 0 - earned } };
  return { reward: earned, components: { precision, recall, lookups, cheating: 0 } };
}

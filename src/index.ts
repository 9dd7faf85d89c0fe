/**
 * What the package exports: a run's config, the error that every failure is, and the reward library for whoever computes rewards
 * elsewhere (docs/rewards.md). All else is private.
 */
export { HoneError } from './domain/errors.ts';
export type { HoneErrorCode } from './domain/errors.ts';
export { defineRun } from './run/config.ts';
export type { RunConfigInput } from './run/config.ts';

export { rewardSpecSchema, requiredMeasurements } from './reward/spec.ts';
export type { RewardSpec } from './reward/spec.ts';
export { createRewardState } from './reward/reward-start.ts';
export { restoreRewardState } from './reward/reward-state.ts';
export type { RewardState } from './reward/reward-state.ts';
export type { ScoredRollout } from './reward/scored-rollout.ts';
export { scoreBatch } from './reward/score-batch.ts';
export type { RewardEvaluation } from './reward/score-batch.ts';
export { advanceRewardState } from './reward/reward-advance.ts';

export { fBeta, linearise } from './reward/f-beta.ts';
export { gapOf, relativeGains } from './reward/relative-gain.ts';
export { gapsOf } from './reward/objectives.ts';
export { gapError, measureReference, rolloutsForError } from './reward/reference.ts';
export { priceOf, priceOfMixture, proximalStep, startSteering, steer } from './reward/steering.ts';
export { measureSlope, requireSlope } from './reward/slope.ts';
export { fitConcave, slopesAcrossEfforts } from './reward/concave-fit.ts';
export { fitDropOff, latencyPenalty } from './reward/drop-off.ts';
export { fitLatencyModel, predictLatency } from './reward/latency-model.ts';
export { applyBudget, budgetPhase, measureBudgets } from './reward/budget.ts';
export { overlongPenalty } from './reward/overlong.ts';
export {
  effortBaselines,
  leaveOneOutBaselines,
  lengthWeightedBaseline,
  meanBaseline,
  optimalBaseline,
} from './reward/baseline.ts';
export { computeAdvantages } from './reward/advantage.ts';

/**
 * What a reward learns from a step: the policy is measured on all rollouts that finished since the last one, dropped groups
 * included, then prices move, then the tangent of F-beta, then the phase. Raw outcomes only; pure; the same batch gives the
 * same state bit for bit.
 */
import type { Effort } from '../domain/effort.ts';
import { silencedBudgets } from './budget-silence.ts';
import type { SilencedEvent } from './budget-silence.ts';
import { fBeta, linearise } from './f-beta.ts';
import type { PrecisionRecall } from './f-beta.ts';
import { forgetGaps, measureFrontier, steerFrontier } from './frontier-state.ts';
import type { ConstraintEvent, FrontierMeasurement } from './frontier-state.ts';
import { recalibrate } from './recalibration.ts';
import type { RecalibrationEvent } from './recalibration.ts';
import { advancePhase, phaseInForce } from './reward-phase.ts';
import type { PhaseEvent, PhaseMetrics, PhaseState } from './reward-phase.ts';
import { precisionWeightOf } from './reward-state.ts';
import type { RewardState } from './reward-state.ts';
import { successOf } from './scored-rollout.ts';
import type { ScoredRollout } from './scored-rollout.ts';
import { frontierTermOf } from './spec.ts';
import type { RewardSpec } from './spec.ts';

export type RewardEvent = RecalibrationEvent | PhaseEvent | ConstraintEvent | SilencedEvent;

/** One effort's part of a batch. Records are by the name of a cost, and empty without a frontier term. */
export interface EffortMeasurement extends Omit<FrontierMeasurement, 'successGain'> {
  readonly rollouts: number;
  /** Mean, raw, under the weight of precision that the batch was scored with. */
  readonly success: number;
  /** Against the starting policy; absent without a frontier term. */
  readonly successGain?: number;
}

/** Means over all efforts of a batch, raw, the cheated as 0. */
export interface DetectionMeasurement extends PrecisionRecall {
  readonly fBeta: number;
  /** F-beta minus the tangent that the reward climbs, in units of F-beta, at most 0; absent where its weight is a number. */
  readonly tangentError?: number;
}

export interface RewardAdvance {
  readonly state: RewardState;
  readonly events: readonly RewardEvent[];
  /** By effort; only those that the batch has. */
  readonly measured: Readonly<Record<Effort, EffortMeasurement>>;
  /** Absent for an empty batch and a base that is no detection score. */
  readonly detection?: DetectionMeasurement;
}

/**
 * Once an optimizer step. `batch` may be empty: then the phase's clock alone moves. An effort without rollouts keeps its
 * prices bit for bit, and so do all of them in a phase without the frontier term. Throws `invalid-rollout` for an effort
 * that has no price or a cost that cannot be counted.
 */
export function advanceRewardState(
  spec: RewardSpec,
  state: RewardState,
  batch: readonly ScoredRollout[],
): RewardAdvance {
  const term = frontierTermOf(spec);
  const precisionWeight = precisionWeightOf(state, spec) ?? 0;
  const measured: Record<Effort, EffortMeasurement> = {};
  const gaps: Record<Effort, FrontierMeasurement> = {};
  for (const [effort, rollouts] of Map.groupBy(batch, (rollout) => rollout.effort)) {
    const success = meanSuccess(spec, rollouts, precisionWeight) ?? 0;
    const plain = { rollouts: rollouts.length, success };
    if (term === undefined || state.frontier === null) {
      measured[effort] = { ...plain, cost: {}, costSaving: {}, gap: {}, gapError: {}, price: {} };
      continue;
    }
    const context = { term, state: state.frontier, base: spec.base, precisionWeight };
    const frontier = measureFrontier({ effort, rollouts, success }, context);
    gaps[effort] = frontier;
    measured[effort] = { ...plain, ...frontier };
  }

  const events: RewardEvent[] = silencedBudgets(spec, state, batch);
  let { frontier, calibration } = state;
  const isSteered = hasFrontier(spec, state.phase);
  if (term !== undefined && frontier !== null && isSteered) {
    const steered = steerFrontier({ term, state: frontier }, gaps);
    frontier = steered.state;
    events.push(...steered.events);
  }

  const means = meanPrecisionRecall(batch);
  const detection = means === undefined ? undefined : measureDetection(spec, state, means);
  if (calibration !== null && means !== undefined && spec.base.kind === 'detection') {
    const { recalibrationBand: band, recalibrationPatience: patience } = spec.base;
    const { state: next, event } = recalibrate(calibration, means, { band, patience });
    calibration = next;
    if (event !== undefined) {
      events.push(event);
      if (frontier !== null) frontier = forgetGaps(frontier);
    }
  }

  const metrics: PhaseMetrics = {
    precision: means?.precision,
    recall: means?.recall,
    f_beta: detection?.fBeta,
    success: meanSuccess(spec, batch, precisionWeight),
  };
  const { state: phase, event: phaseEvent } = advancePhase(spec, state.phase, metrics);
  if (phaseEvent !== undefined) {
    events.push(phaseEvent);
    if (frontier !== null && !isSteered && hasFrontier(spec, phase)) frontier = forgetGaps(frontier);
  }
  return {
    state: { ...state, steps: state.steps + 1, phase, calibration, frontier },
    events,
    measured,
    ...(detection === undefined ? {} : { detection }),
  };
}

function measureDetection(
  { base }: RewardSpec,
  { calibration }: RewardState,
  means: PrecisionRecall,
): DetectionMeasurement | undefined {
  if (base.kind !== 'detection') return undefined;
  const measured = { ...means, fBeta: fBeta(means, base.beta) };
  if (calibration === null) return measured;
  const tangent = linearise({ ...calibration.reference, beta: base.beta });
  return { ...measured, tangentError: tangent.exactError(means) };
}

function hasFrontier(spec: RewardSpec, phase: PhaseState): boolean {
  return phaseInForce(spec, phase).terms.some(({ kind }) => kind === 'frontier');
}

function meanSuccess(
  { base }: RewardSpec,
  rollouts: readonly ScoredRollout[],
  precisionWeight: number,
): number | undefined {
  if (rollouts.length === 0) return undefined;
  let sum = 0;
  for (const { outcome } of rollouts) sum += successOf(base, outcome, precisionWeight);
  return sum / rollouts.length;
}

function meanPrecisionRecall(
  batch: readonly ScoredRollout[],
): { readonly precision: number; readonly recall: number } | undefined {
  if (batch.length === 0) return undefined;
  let precision = 0;
  let recall = 0;
  for (const { outcome } of batch) {
    if (outcome.cheated) continue;
    precision += outcome.precision;
    recall += outcome.recall;
  }
  return { precision: precision / batch.length, recall: recall / batch.length };
}

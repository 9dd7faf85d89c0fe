/**
 * What the reward reads of a rollout, and what counts as success before any price. Success is the base of the reward on
 * the raw outcome, in [0, 1]; a rollout that cheated has none, in every measurement. It is linear in its parts, so means
 * of the parts give the mean of success exactly, whatever the weight of precision becomes.
 */
import type { Effort } from '../domain/effort.ts';
import { HoneError } from '../domain/errors.ts';
import type { GroupId, TaskId } from '../domain/ids.ts';
import type { Outcome } from '../domain/rollout.ts';
import type { CostCounts } from './cost.ts';
import { normalisedReward } from './f-beta.ts';
import type { RewardBase } from './terms.ts';

/** A finished rollout. One that infrastructure lost is none: it is left out, never scored 0. */
export interface ScoredRollout {
  readonly taskId: TaskId;
  readonly groupId: GroupId;
  readonly effort: Effort;
  /** Raw, as the verifier measured it. */
  readonly outcome: Outcome;
  readonly cost: CostCounts;
  /** Wall time; absent where nobody measured it. */
  readonly latencySeconds?: number;
}

/** Found everything and nothing else, by fair means or not: what the void for cheating has still to take away. */
export function isExact({ precision, recall }: Outcome): boolean {
  return precision === 1 && recall === 1;
}

/** Found everything and nothing else, by fair means. */
export function isCorrect(outcome: Outcome): boolean {
  return !outcome.cheated && isExact(outcome);
}

/** Throws `invalid-rollout` unless precision and recall both lie in [0, 1]. */
export function requireOutcome({ taskId, outcome: { precision, recall } }: ScoredRollout): void {
  if (precision >= 0 && precision <= 1 && recall >= 0 && recall <= 1) return;
  throw new HoneError(
    'invalid-rollout',
    `A rollout of task ${taskId} has the precision ${precision} and the recall ${recall}, each of which lies in [0, 1].`,
    { cure: 'Look at the verifier of the task: it gives both as shares, 0 and 0 where there is nothing to measure.' },
  );
}

/** In [0, 1]; `precisionWeight` is read by a base of kind detection alone. */
export function successOf(base: RewardBase, outcome: Outcome, precisionWeight: number): number {
  if (base.kind === 'correct') return isCorrect(outcome) ? 1 : 0;
  return outcome.cheated ? 0 : normalisedReward(outcome, precisionWeight);
}

/** The parts that success is a weighted mean of: precision and recall, or 1 for correct and 0 for not; all 0 when cheated. Each in [0, 1]. */
export function successParts(base: RewardBase, outcome: Outcome): number[] {
  if (base.kind === 'correct') return [isCorrect(outcome) ? 1 : 0];
  return outcome.cheated ? [0, 0] : [outcome.precision, outcome.recall];
}

/** What each part counts in success: w / (1 + w) and 1 / (1 + w) for precision weight w, or 1. They sum to 1. */
export function partWeights(base: RewardBase, precisionWeight: number): number[] {
  if (base.kind === 'correct') return [1];
  return [precisionWeight / (1 + precisionWeight), 1 / (1 + precisionWeight)];
}

/** In the order of their first rollout. */
export function groupsOf(rollouts: readonly ScoredRollout[]): Map<GroupId, ScoredRollout[]> {
  return Map.groupBy(rollouts, ({ groupId }) => groupId);
}

/** Share of a group that is correct, in [0, 1]; the group has at least one member. */
export function groupAccuracy(members: readonly ScoredRollout[]): number {
  return members.filter(({ outcome }) => isCorrect(outcome)).length / members.length;
}

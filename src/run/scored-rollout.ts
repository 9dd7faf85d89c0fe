/** What the reward reads of a rollout: who did what, the raw outcome, and what it cost. */
import type { Outcome, Rollout } from '../domain/rollout.ts';
import type { ScoredRollout } from '../reward/scored-rollout.ts';

export function scoredRollout(rollout: Rollout & { readonly outcome: Outcome }): ScoredRollout {
  const { taskId, groupId, effort, outcome, cost, lookups, latencySeconds } = rollout;
  return {
    taskId,
    groupId,
    effort,
    outcome,
    cost: { ...cost, lookups },
    ...(latencySeconds === undefined ? {} : { latencySeconds }),
  };
}

export function isScored(rollout: Rollout): rollout is Rollout & { readonly outcome: Outcome } {
  return rollout.outcome !== undefined;
}

/**
 * Groups in which a hard budget leaves nothing of success: their bases differ, and are all equal after it, so that only other
 * terms can still teach, and the budget itself not even to be cheaper. Told with the step, so that the owner can choose a
 * ramp or a higher percentile.
 */
import { budgetPhase, budgetWarning, isSilencedByBudget } from './budget.ts';
import { weightedCost } from './cost.ts';
import { phaseInForce } from './reward-phase.ts';
import { budgetKey, precisionWeightOf } from './reward-state.ts';
import type { RewardState } from './reward-state.ts';
import { groupAccuracy, groupsOf, successOf } from './scored-rollout.ts';
import type { ScoredRollout } from './scored-rollout.ts';
import type { RewardSpec } from './spec.ts';

export interface SilencedEvent {
  readonly event: 'reward-budget-silenced';
  /** Name of the budget term. */
  readonly term: string;
  readonly silenced: number;
  /** Groups of the batch. */
  readonly groups: number;
  readonly message: string;
}

/** One event for each hard budget in force that silenced a group of the batch, judged on the base alone. */
export function silencedBudgets(
  spec: RewardSpec,
  state: RewardState,
  batch: readonly ScoredRollout[],
): SilencedEvent[] {
  const groups = [...groupsOf(batch).values()];
  const precisionWeight = precisionWeightOf(state, spec) ?? 0;
  const events: SilencedEvent[] = [];
  for (const term of phaseInForce(spec, state.phase).terms) {
    if (term.kind !== 'budget' || term.form !== 'hard') continue;
    const { form, accuracyThreshold, alternateSteps, name, scope, weights } = term;
    const phase = budgetPhase(state.phase.steps, alternateSteps);
    const silenced = groups.filter((members) => {
      const [first] = members;
      const budget = first === undefined ? null : (state.budgets[name]?.[budgetKey(scope, first)] ?? null);
      const gate = { form, accuracyThreshold, phase, budget, meanAccuracy: groupAccuracy(members) };
      return isSilencedByBudget(
        members.map(({ outcome, cost }) => ({
          baseReward: successOf(spec.base, outcome, precisionWeight),
          cost: weightedCost(cost, weights),
        })),
        gate,
      );
    }).length;
    const message = budgetWarning({ silenced, groups: groups.length });
    if (message !== undefined)
      events.push({ event: 'reward-budget-silenced', term: name, silenced, groups: groups.length, message });
  }
  return events;
}

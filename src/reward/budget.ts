/**
 * Alternating length budgets: for some steps a rollout may not cost more than what correct rollouts cost at the start,
 * for the next ones it may. Budgets are measured once, on the initial policy, and frozen.
 * Source: Kimi K2.5 (Toggle) for the alternation and the accuracy gate, SWE-1.7 for cost in place of length.
 * Invariant: whatever the base reward, negative ones included, the reward never rises with cost.
 */
import { z } from 'zod';

import { HoneError } from '../domain/errors.ts';
import { percentile as percentileOf } from '../domain/statistics.ts';

/** A budget is interpolated between costs, so that one equal to it may differ in its last bits. */
const TIE = 1e-12;

/** The fields that a budget term of the reward spec is made of; `budgetProblem` says what they may not combine to. */
export const budgetFields = {
  form: z
    .enum(['hard', 'ramp'])
    .describe(
      'hard = no reward above 0 beyond the budget; ramp = a price that grows over rampWidth and keeps a gradient',
    ),
  percentile: z
    .number()
    .min(0)
    .max(100)
    .default(50)
    .describe('the budget is this percentile of the cost of correct rollouts of the initial policy; unit: percent'),
  accuracyThreshold: z
    .number()
    .min(0)
    .max(1)
    .default(0.5)
    .describe('share of a group that must be correct before its budget binds; exactly this share does bind'),
  alternateSteps: z
    .int()
    .positive()
    .nullable()
    .default(null)
    .describe('optimizer steps with the budget, then as many without, in turn; null = always with'),
  rampWidth: z
    .number()
    .positive()
    .optional()
    .describe('ramp only: cost above the budget at which the whole kappa is charged; unit: of the cost'),
  kappa: z.number().positive().optional().describe('ramp only: reward taken rampWidth or more above the budget'),
};

export interface BudgetForm {
  readonly form: 'hard' | 'ramp';
  readonly rampWidth?: number | undefined;
  readonly kappa?: number | undefined;
}

export interface BudgetGate extends BudgetForm {
  /** In the unit of the cost, at least 0; null = no limit. */
  readonly budget: number | null;
  /** Share of the group that is correct, in [0, 1]. */
  readonly meanAccuracy: number;
  readonly accuracyThreshold: number;
  readonly phase: 'budget' | 'free';
}

/** What is wrong with a form and its fields, as a sentence with the cure; undefined when nothing is. */
export function budgetProblem({ form, rampWidth, kappa }: BudgetForm): string | undefined {
  if (form === 'ramp') {
    if (rampWidth === undefined || kappa === undefined) return 'form ramp needs rampWidth and kappa: give both';
    return undefined;
  }
  if (rampWidth !== undefined || kappa !== undefined) {
    return 'form hard reads neither rampWidth nor kappa: leave them out, or set form to ramp';
  }
  return undefined;
}

/**
 * floor(step / alternateSteps) mod 2, 0 being `budget`; `step` counts from 0; null = always `budget`.
 * Throws `invalid-config` unless step is an integer of at least 0 and alternateSteps one of at least 1.
 */
export function budgetPhase(step: number, alternateSteps: number | null): 'budget' | 'free' {
  if (!(Number.isInteger(step) && step >= 0)) {
    throw new HoneError('invalid-config', `Budget phases were asked for step ${step}.`, {
      cure: 'Steps are integers from 0.',
    });
  }
  if (alternateSteps === null) return 'budget';
  if (!(Number.isInteger(alternateSteps) && alternateSteps > 0)) {
    throw new HoneError('invalid-config', `alternateSteps is ${alternateSteps}, must be an integer of at least 1.`, {
      cure: 'Give the optimizer steps of one phase, or null for a budget that always binds.',
    });
  }
  return Math.floor(step / alternateSteps) % 2 === 0 ? 'budget' : 'free';
}

/**
 * The budget of each key (a task or an effort): the type-7 percentile (0 to 100) of the cost of its correct samples;
 * null = none was correct, no limit. Keys ascend, so the order of the samples changes nothing.
 * Throws `invalid-config` on no samples or a percentile outside [0, 100], `invalid-rollout` on a negative or NaN cost.
 */
export function measureBudgets(
  samples: readonly { readonly key: string; readonly cost: number; readonly correct: boolean }[],
  percentile: number,
): Record<string, number | null> {
  if (!(percentile >= 0 && percentile <= 100)) {
    throw new HoneError('invalid-config', `The budget's percentile is ${percentile}, must lie in [0, 100].`, {
      cure: 'Use 50 for the median cost of correct rollouts.',
    });
  }
  if (samples.length === 0) {
    throw new HoneError('invalid-config', 'Budgets are to be measured, but there are no rollouts to measure.', {
      cure: 'Roll out the initial policy on the tasks of the run first.',
    });
  }
  const costs = new Map<string, number[]>();
  for (const { key, cost, correct } of samples) {
    checkCost(cost);
    const list = costs.get(key);
    if (list === undefined) costs.set(key, correct ? [cost] : []);
    else if (correct) list.push(cost);
  }
  return Object.fromEntries(
    [...costs]
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, list]) => [
        key,
        list.length === 0 ? null : percentileOf(Float64Array.from(list).sort(), percentile / 100),
      ]),
  );
}

/**
 * The reward after the budget. It binds in phase `budget` when meanAccuracy >= accuracyThreshold and there is a limit;
 * a cost equal to it passes. hard: min(base, 0) above it, so a base below 0 is not lifted.
 * ramp: base - kappa x clip((cost - budget) / rampWidth, 0, 1).
 * Throws `invalid-rollout` on a cost that is negative or not finite, a mean accuracy outside [0, 1] or a NaN base.
 */
export function applyBudget(baseReward: number, gate: BudgetGate & { readonly cost: number }): number {
  const { cost, budget } = gate;
  checkCost(cost);
  if (!Number.isFinite(baseReward)) {
    throw new HoneError('invalid-rollout', `A rollout's reward before its budget is ${baseReward}.`, {
      cure: 'Look at the verifier and the base of the reward: both give finite numbers.',
    });
  }
  if (budget === null || !isBinding(gate) || cost <= budget * (1 + TIE)) return baseReward;
  if (gate.form === 'hard') return Math.min(baseReward, 0);
  const { rampWidth, kappa } = gate;
  if (rampWidth === undefined || kappa === undefined || !(rampWidth > 0 && kappa > 0)) {
    throw new HoneError('invalid-config', `A ramp has the width ${rampWidth} and the kappa ${kappa}.`, {
      cure: 'Give both, above 0.',
    });
  }
  return baseReward - kappa * Math.min((cost - budget) / rampWidth, 1);
}

/**
 * Whether the budget takes the signal of a group's base: base rewards that differ, all equal after it. Happens under `hard`
 * when every rewarded member is over budget; this budget then teaches nothing, not even to be cheaper.
 */
export function isSilencedByBudget(
  members: readonly { readonly baseReward: number; readonly cost: number }[],
  gate: BudgetGate,
): boolean {
  const rewards = members.map(({ baseReward, cost }) => applyBudget(baseReward, { ...gate, cost }));
  return (
    members.some(({ baseReward }) => baseReward !== members[0]?.baseReward) &&
    rewards.every((reward) => reward === rewards[0])
  );
}

/** A sentence for the user when budgets silenced groups of a batch; undefined when they silenced none. */
export function budgetWarning({
  silenced,
  groups,
}: {
  readonly silenced: number;
  readonly groups: number;
}): string | undefined {
  if (silenced === 0) return undefined;
  return `The hard budget left no difference in what rollouts earn for success in ${silenced} of ${groups} groups, because all that earned something cost more than it; only other terms can still tell their rollouts apart. Use form ramp, which keeps a gradient, or a higher percentile.`;
}

function isBinding({ phase, meanAccuracy, accuracyThreshold }: BudgetGate): boolean {
  if (!(meanAccuracy >= 0 && meanAccuracy <= 1)) {
    throw new HoneError('invalid-rollout', `A group's mean accuracy is ${meanAccuracy}, must lie in [0, 1].`, {
      cure: 'It is the share of scored members that are correct; a group with no scored member has no budget to apply.',
    });
  }
  return phase === 'budget' && meanAccuracy >= accuracyThreshold;
}

function checkCost(cost: number): void {
  if (cost >= 0 && Number.isFinite(cost)) return;
  throw new HoneError('invalid-rollout', `A rollout costs ${cost}, must be finite and at least 0.`, {
    cure: 'Look at the recorder that counted and at the weights of the cost.',
  });
}

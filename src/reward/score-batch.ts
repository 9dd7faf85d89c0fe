/**
 * What each rollout of a batch earns: the base on the raw outcome, then the terms in force in one fixed order, then the
 * void for cheating, which is last and absolute: 0. Every part is reported under its own name. Scoring changes no state,
 * and a rollout's reward depends on the others through its group's share of correct rollouts alone.
 */
import { HoneError } from '../domain/errors.ts';
import type { GroupId } from '../domain/ids.ts';
import type { Outcome } from '../domain/rollout.ts';
import { applyBudget, budgetPhase } from './budget.ts';
import { weightedCost } from './cost.ts';
import { fitDropOff, latencyPenalty } from './drop-off.ts';
import { normalisedReward } from './f-beta.ts';
import { pricesAt } from './frontier-state.ts';
import { predictLatency } from './latency-model.ts';
import { overlongPenalty } from './overlong.ts';
import { phaseInForce } from './reward-phase.ts';
import { budgetKey, precisionWeightOf } from './reward-state.ts';
import type { RewardState } from './reward-state.ts';
import { groupAccuracy, groupsOf, isExact, requireOutcome, successOf } from './scored-rollout.ts';
import type { ScoredRollout } from './scored-rollout.ts';
import type { RewardSpec } from './spec.ts';
import type { RewardTerm } from './terms.ts';

export interface RewardEvaluation {
  /** What training climbs. */
  readonly reward: number;
  /**
   * Sum to the reward, up to rounding: precision and recall (or correct), every term of the spec by its name, 0 where it is
   * not in force, and cheating: what the void took away.
   */
  readonly components: Readonly<Record<string, number>>;
  /** The phase in force; `all` where the spec names none. */
  readonly phase: string;
  /** Success per unit of cost that was charged, by the name of the cost; empty unless a frontier term is in force. */
  readonly prices: Readonly<Record<string, number>>;
  /** Raw success in [0, 1]: the base alone, 0 when cheated. */
  readonly success: number;
  /** Raw. */
  readonly outcome: Outcome;
}

/** Gates on the base come first, prices after them. */
const TERM_ORDER: readonly RewardTerm['kind'][] = ['budget', 'overlong', 'cost', 'frontier', 'latency'];

/**
 * One evaluation a rollout, in the order given. Groups are told by groupId and should be whole, as a budget binds by the
 * group's share of correct rollouts. Throws `invalid-rollout` on a precision or recall outside [0, 1], and when a term's input
 * is missing on a rollout: an effort without a price, a task without a budget, a latency that was not recorded.
 */
export function scoreBatch(
  spec: RewardSpec,
  state: RewardState,
  rollouts: readonly ScoredRollout[],
): RewardEvaluation[] {
  const { base } = spec;
  for (const rollout of rollouts) requireOutcome(rollout);
  const phase = phaseInForce(spec, state.phase);
  const accuracies = new Map([...groupsOf(rollouts)].map(([id, members]) => [id, groupAccuracy(members)]));
  const charges = TERM_ORDER.flatMap((kind) => phase.terms.filter((term) => term.kind === kind)).map((term) => ({
    name: term.name,
    charge: chargeOf(term, { state, accuracies }),
  }));
  const frontier = phase.terms.find((term) => term.kind === 'frontier');
  const weight = precisionWeightOf(state, spec) ?? 0;
  return rollouts.map((rollout) => {
    const { outcome, effort } = rollout;
    const components: Record<string, number> = {};
    let earned: number;
    if (base.kind === 'correct') {
      earned = isExact(outcome) ? 1 : 0;
      components['correct'] = earned;
    } else {
      earned = normalisedReward(outcome, weight);
      components['precision'] = (weight * outcome.precision) / (1 + weight);
      components['recall'] = outcome.recall / (1 + weight);
    }
    const success = successOf(base, outcome, weight);
    for (const { name } of spec.terms) components[name] = 0;
    for (const { name, charge } of charges) {
      const part = charge(rollout, earned);
      components[name] = part;
      earned += part;
    }
    components['cheating'] = outcome.cheated ? 0 - earned : 0;
    const prices =
      frontier?.kind === 'frontier' && state.frontier !== null ? pricesAt(frontier, state.frontier, effort) : {};
    return { reward: outcome.cheated ? 0 : earned, components, phase: phase.name, prices, success, outcome };
  });
}

/** What a term adds to a rollout that has earned so much before it. */
type Charge = (rollout: ScoredRollout, earned: number) => number;

interface ChargeContext {
  readonly state: RewardState;
  readonly accuracies: ReadonlyMap<GroupId, number>;
}

function chargeOf(term: RewardTerm, { state, accuracies }: ChargeContext): Charge {
  switch (term.kind) {
    case 'cost':
      // `0 -` and not a negation: what costs nothing adds 0, never -0.
      return ({ cost }) => 0 - weightedCost(cost, term.weights);
    case 'overlong':
      return ({ cost }) => term.weight * overlongPenalty(cost.sampledTokens, term);
    case 'budget':
      return budgetCharge(term, { state, accuracies });
    case 'frontier': {
      const { frontier } = state;
      if (frontier === null) throw new RangeError('a frontier term has prices');
      return ({ cost, effort }) => {
        const prices = pricesAt(term, frontier, effort);
        let charged = 0;
        for (const { name, weights } of term.costs) charged += (prices[name] ?? 0) * weightedCost(cost, weights);
        return 0 - charged;
      };
    }
    case 'latency': {
      const dropOff = fitDropOff(term.dropOff);
      return (rollout) => 0 - term.kappa * latencyPenalty(dropOff, latencyOf(term, state, rollout));
    }
    default:
      return term satisfies never;
  }
}

function budgetCharge(term: Extract<RewardTerm, { kind: 'budget' }>, { state, accuracies }: ChargeContext): Charge {
  const { form, rampWidth, kappa, accuracyThreshold } = term;
  // Alternation begins with the phase, so that a phase that has a budget begins with it.
  const phase = budgetPhase(state.phase.steps, term.alternateSteps);
  const budgets = state.budgets[term.name] ?? {};
  return (rollout, earned) => {
    const key = budgetKey(term.scope, rollout);
    const budget = budgets[key];
    if (budget === undefined) {
      throw new HoneError('invalid-rollout', `A rollout of ${key} has no budget in the term ${term.name}.`, {
        cure: `Budgets were measured for ${Object.keys(budgets).length} keys at start: train on the tasks and efforts of the baseline only, or set the scope to effort.`,
      });
    }
    const meanAccuracy = accuracies.get(rollout.groupId) ?? 0;
    const cost = weightedCost(rollout.cost, term.weights);
    return (
      applyBudget(earned, { cost, budget, meanAccuracy, accuracyThreshold, phase, form, rampWidth, kappa }) - earned
    );
  };
}

function latencyOf(
  { name, latency }: Extract<RewardTerm, { kind: 'latency' }>,
  state: RewardState,
  { cost, taskId, latencySeconds }: ScoredRollout,
): number {
  if (latency.from === 'model') return predictLatency(latency, cost);
  if (latency.from === 'measured') {
    const model = state.latencyModels[name];
    if (model === undefined) throw new RangeError(`no latency model for the term ${name}`);
    return predictLatency(model, cost);
  }
  if (latencySeconds !== undefined) return latencySeconds;
  throw new HoneError('invalid-rollout', `A rollout of task ${taskId} has no latency, which the term ${name} reads.`, {
    cure: "Record latencySeconds, or set the term's latency to { from: 'model' } with numbers.",
  });
}

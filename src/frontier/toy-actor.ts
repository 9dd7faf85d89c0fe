/**
 * The actor of the sampled study: the policy gradient of a batch, from its sums alone, and the optimizer's step. The sums
 * suffice because within a cell the scores take two forms, a - rho and (K - c) / (1 + c), and the reward S - lambda K is
 * linear; the tests compare with a loop over rollouts. Nothing is allocated in a step.
 */
import { createAscent, createAscentState } from './ascent.ts';
import type { AscentState } from './ascent.ts';
import { TALLY, TALLY_COLUMNS } from './rollout-sampler.ts';
import { STARTING_COSTS, STUDY_EFFORTS } from './study-record.ts';
import type { StudyPlan } from './study-record.ts';

const EFFORTS = STUDY_EFFORTS.length;
/** Two logits, then log(cost / starting cost) by effort. */
const PARAMETERS = 2 + EFFORTS;

/** Parameters are the action's logits for inputs 0 and 1, then log(c / c0) by effort; all 0 before training. */
export interface ToyActor extends AscentState {
  /** rho and c that `parameters` stand for: what the sampler reads. `readPolicy` keeps them in step. */
  readonly actionChances: Float64Array;
  readonly costs: Float64Array;
  /** s-hat and c-hat of the batch by effort; NaN for an effort without rollouts. */
  readonly successes: Float64Array;
  readonly candidates: Float64Array;
}

export function createToyActor(): ToyActor {
  const actor = {
    ...createAscentState(PARAMETERS),
    actionChances: new Float64Array(2),
    costs: new Float64Array(EFFORTS),
    successes: new Float64Array(EFFORTS),
    candidates: new Float64Array(EFFORTS),
  };
  readPolicy(actor);
  return actor;
}

/** rho and c from the parameters. */
export function readPolicy({ parameters, actionChances, costs }: ToyActor): void {
  for (let input = 0; input < 2; input++) actionChances[input] = 1 / (1 + Math.exp(-parameters[input]!));
  for (let effort = 0; effort < EFFORTS; effort++) {
    costs[effort] = STARTING_COSTS[effort]! * Math.exp(parameters[2 + effort]!);
  }
}

/**
 * g = (1 / B) sum of w (R - b) score over the batch that `tally` sums, with R = S - price K; also the batch's means by effort.
 * b and w are the baseline's: `none` 0; `batch` the batch's mean reward; the others are each effort's own: `effort` its mean,
 * `leave-one-out` the mean of the others (w = n / (n - 1)), `length-weighted` sum R K / sum K, `deviation` its mean with
 * w = 1 / standard deviation. An effort that cannot have the baseline (one rollout, equal rewards) contributes 0.
 */
export function batchGradient(
  actor: ToyActor,
  tally: Float64Array,
  { prices, baseline }: { readonly prices: Float64Array; readonly baseline: StudyPlan['baseline'] },
): void {
  const { gradient, actionChances, costs, successes, candidates } = actor;
  gradient.fill(0);
  let batch = 0;
  let batchReward = 0;
  for (let cell = 0; cell < 2 * EFFORTS; cell++) {
    const row = cell * TALLY_COLUMNS;
    batch += tally[row]!;
    batchReward += tally[row + TALLY.successes]! - prices[cell >> 1]! * tally[row + TALLY.candidates]!;
  }
  for (let effort = 0; effort < EFFORTS; effort++) {
    const price = prices[effort]!;
    const even = 2 * effort * TALLY_COLUMNS;
    const odd = even + TALLY_COLUMNS;
    const count = tally[even]! + tally[odd]!;
    const successSum = tally[even + TALLY.successes]! + tally[odd + TALLY.successes]!;
    const candidateSum = tally[even + TALLY.candidates]! + tally[odd + TALLY.candidates]!;
    const squareSum = tally[even + TALLY.squares]! + tally[odd + TALLY.squares]!;
    const crossSum = tally[even + TALLY.successCandidates]! + tally[odd + TALLY.successCandidates]!;
    successes[effort] = successSum / count;
    candidates[effort] = candidateSum / count;
    if (count === 0) continue;

    const rewardSum = successSum - price * candidateSum;
    const rewardCandidateSum = crossSum - price * squareSum;
    let reference = rewardSum / count;
    let weight = 1;
    if (baseline === 'none') reference = 0;
    else if (baseline === 'batch') reference = batchReward / batch;
    else if (baseline === 'leave-one-out') weight = count > 1 ? count / (count - 1) : 0;
    else if (baseline === 'length-weighted') reference = candidateSum > 0 ? rewardCandidateSum / candidateSum : 0;
    else if (baseline === 'deviation') {
      const rewardSquareSum = successSum - 2 * price * crossSum + price * price * squareSum;
      const variance = rewardSquareSum / count - reference * reference;
      weight = variance > 1e-12 ? 1 / Math.sqrt(variance) : 0;
    }
    const scale = weight / batch;
    const cost = costs[effort]!;
    gradient[2 + effort] =
      (scale * (rewardCandidateSum - cost * rewardSum - reference * (candidateSum - cost * count))) / (1 + cost);
    for (let input = 0; input < 2; input++) {
      const row = input === 0 ? even : odd;
      const advantage =
        tally[row + TALLY.successes]! - price * tally[row + TALLY.candidates]! - reference * tally[row]!;
      const actionAdvantage =
        tally[row + TALLY.actionSuccesses]! -
        price * tally[row + TALLY.actionCandidates]! -
        reference * tally[row + TALLY.actions]!;
      gradient[input]! += scale * (actionAdvantage - actionChances[input]! * advantage);
    }
  }
}

export interface ToyOptimizer {
  /** Takes update t = 1, 2, ... uphill along the actor's gradient, and brings rho and c in step. */
  step(actor: ToyActor, update: number): void;
}

/** The plan's steps uphill; a frozen skill or a bound on cost is kept here. */
export function createToyOptimizer(
  plan: Pick<StudyPlan, 'actor' | 'steps' | 'isSkillFrozen' | 'costFloor' | 'costCeiling'>,
): ToyOptimizer {
  const ascend = createAscent(plan.actor, { steps: plan.steps, firstMoved: plan.isSkillFrozen ? 2 : 0 });
  const lowest = plan.costFloor === null ? -Infinity : Math.log(plan.costFloor);
  const highest = plan.costCeiling === null ? Infinity : Math.log(plan.costCeiling);
  return {
    step(actor, update) {
      const { parameters } = actor;
      ascend(actor, update);
      for (let index = 2; index < PARAMETERS; index++) {
        parameters[index] = Math.min(highest, Math.max(lowest, parameters[index]!));
      }
      readPolicy(actor);
    },
  };
}

/**
 * The toy task in closed form: an agent picks one of two actions (good with chance q), then draws a geometric number of
 * candidates with mean `cost`; each is right with pGood or pBad, and one right candidate is a success.
 * Owns the problem grid, the success curve with its derivatives, the score function and the exact policy gradient.
 * The effort logit is `logCost` (mean cost = e^logCost), never u: u is a gain. Source of the task: the public study of
 * the steered slope penalty ("SWE-2, extended"); derivatives by hand.
 */
import { HoneError } from '../domain/errors.ts';
import { STARTING_COSTS } from './study-record.ts';
import type { ToyProblem } from './study-record.ts';

/** Problems in the grid: 10 values of pGood x 10 ratios pBad / pGood. */
export const TOY_PROBLEM_COUNT = 100;

/** Chance of the good action before any training: both logits are 0. */
export const STARTING_Q = 0.5;

export type Candidates = Pick<ToyProblem, 'pGood' | 'pBad'>;

/** Where a policy stands on one problem: q in [0, 1] is the chance of the good action, cost >= 0 the mean number of candidates. */
export interface ToyPoint extends Candidates {
  readonly q: number;
  readonly cost: number;
}

/**
 * Problem `index` (0 to 99) of the grid: pGood = geomspace(0.05, 0.80, 10) at floor(index / 10), pBad / pGood =
 * linspace(0.05, 0.90, 10) at index mod 10. Throws `invalid-config` outside.
 */
export function toyProblem(index: number): ToyProblem {
  if (!Number.isInteger(index) || index < 0 || index >= TOY_PROBLEM_COUNT) {
    throw new HoneError('invalid-config', `The toy task has no problem ${index}.`, {
      cure: `Problems are the whole numbers from 0 to ${TOY_PROBLEM_COUNT - 1}.`,
    });
  }
  const pGood = 0.05 * 16 ** (Math.floor(index / 10) / 9);
  return { index, pGood, pBad: pGood * (0.05 + (0.85 * (index % 10)) / 9) };
}

/** s: the chance of success, in [0, 1]: q g c / (1 + g c) + (1 - q) b c / (1 + b c). Throws `invalid-config` on a point that is none. */
export function successRate(point: ToyPoint): number {
  checkToyPoint(point);
  const { pGood, pBad, q, cost } = point;
  return (q * pGood * cost) / (1 + pGood * cost) + ((1 - q) * pBad * cost) / (1 + pBad * cost);
}

/** s': success for one more candidate of mean cost: q g / (1 + g c)^2 + (1 - q) b / (1 + b c)^2. Errors as `successRate`. */
export function successSlope(point: ToyPoint): number {
  checkToyPoint(point);
  const { pGood, pBad, q, cost } = point;
  return (q * pGood) / (1 + pGood * cost) ** 2 + ((1 - q) * pBad) / (1 + pBad * cost) ** 2;
}

/** s'': how fast the slope falls, at most 0: -2 q g^2 / (1 + g c)^3 - 2 (1 - q) b^2 / (1 + b c)^3. Errors as `successRate`. */
export function successCurvature(point: ToyPoint): number {
  checkToyPoint(point);
  const { pGood, pBad, q, cost } = point;
  return (-2 * q * pGood ** 2) / (1 + pGood * cost) ** 3 - (2 * (1 - q) * pBad ** 2) / (1 + pBad * cost) ** 3;
}

/** The state before training, by effort (low, medium, high). */
export interface ToyStart {
  /** s0: successes at q = 1/2 and the starting costs. */
  readonly successes: readonly number[];
  /** c0: mean candidates, (2, 6, 15). */
  readonly costs: readonly number[];
  /** lambda0: the slopes there, so that the starting price pays for exactly what a candidate brings. */
  readonly prices: readonly number[];
}

/** s0, c0 and lambda0 of a problem, exact. */
export function toyStart({ pGood, pBad }: Candidates): ToyStart {
  const points = STARTING_COSTS.map((cost) => ({ pGood, pBad, q: STARTING_Q, cost }));
  return { successes: points.map(successRate), costs: STARTING_COSTS, prices: points.map(successSlope) };
}

/** 1 / (1 + e^-x), without overflow and without loss near 0. */
export function sigmoid(logit: number): number {
  if (logit >= 0) return 1 / (1 + Math.exp(-logit));
  const exponential = Math.exp(logit);
  return exponential / (1 + exponential);
}

/** The policy's five parameters: the action's logits for the two inputs, and the log mean cost of the three efforts. */
export interface ToyParameters {
  readonly logits: readonly [number, number];
  readonly logCosts: readonly number[];
}

/** Chance of the good action, averaged over the two inputs: ((1 - rho0) + rho1) / 2. */
export function goodActionChance([logit0, logit1]: readonly [number, number]): number {
  return (sigmoid(-logit0) + sigmoid(logit1)) / 2;
}

export interface ToyGradient {
  readonly q: number;
  /** J: the mean of success - price x cost over inputs and efforts. */
  readonly objective: number;
  readonly logits: readonly [number, number];
  readonly logCosts: readonly number[];
}

/**
 * The exact policy gradient with both inputs and all efforts equally likely; `prices` are the lambda in force, by effort.
 * dJ/dz = -+ rho (1 - rho) D / 2 with D the mean of s(q = 1) - s(q = 0); dJ/dlogCost = c (s' - lambda) / 3.
 */
export function expectedGradient(
  candidates: Candidates,
  { parameters, prices }: { readonly parameters: ToyParameters; readonly prices: readonly number[] },
): ToyGradient {
  const { pGood, pBad } = candidates;
  const { logits, logCosts } = parameters;
  if (logCosts.length === 0 || logCosts.length !== prices.length) {
    throw new HoneError('invalid-config', `There are ${logCosts.length} efforts and ${prices.length} prices.`, {
      cure: 'Give one price an effort.',
    });
  }
  const q = goodActionChance(logits);
  const share = 1 / logCosts.length;
  let objective = 0;
  let actionValue = 0;
  const costGradients: number[] = [];
  for (const [effort, logCost] of logCosts.entries()) {
    const cost = Math.exp(logCost);
    const price = prices[effort] ?? Number.NaN;
    objective += share * (successRate({ pGood, pBad, q, cost }) - price * cost);
    actionValue += share * ((pGood * cost) / (1 + pGood * cost) - (pBad * cost) / (1 + pBad * cost));
    costGradients.push(share * cost * (successSlope({ pGood, pBad, q, cost }) - price));
  }
  const [logit0, logit1] = logits;
  return {
    q,
    objective,
    logits: [
      (-sigmoid(logit0) * sigmoid(-logit0) * actionValue) / 2,
      (sigmoid(logit1) * sigmoid(-logit1) * actionValue) / 2,
    ],
    logCosts: costGradients,
  };
}

/** Throws `invalid-config` unless 0 < pGood <= 1, 0 <= pBad <= 1, 0 <= q <= 1 and cost is finite and at least 0. */
function checkToyPoint({ pGood, pBad, q, cost }: ToyPoint): void {
  if (pGood > 0 && pGood <= 1 && pBad >= 0 && pBad <= 1 && q >= 0 && q <= 1 && cost >= 0 && cost < Infinity) return;
  throw new HoneError(
    'invalid-config',
    `pGood ${pGood}, pBad ${pBad}, q ${q} and cost ${cost} are no point of the toy task.`,
    {
      cure: 'The three chances lie in [0, 1], pGood above 0; the mean cost is finite and at least 0.',
    },
  );
}

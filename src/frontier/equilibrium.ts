/**
 * Where training on the toy task ends, in closed form: the cost that a fixed price leads to, the point that steering with
 * a given alpha leads to, and the controller's rate above which that point is approached by ringing.
 * Invariant: steered landings lie on (1 - alpha) s / s0 + alpha c / c0 = 1, with the price equal to the local slope.
 * Source: the steered slope penalty's fixed point, solved for q = 1; derived by hand, checked against numeric roots.
 */
import { HoneError } from '../domain/errors.ts';
import { STARTING_Q, successCurvature, successRate, successSlope } from './toy-task.ts';
import type { Candidates } from './toy-task.ts';

/** What a landing is computed from: a problem, an effort's starting cost, and q where training ends (1 = skill learned). */
export interface LandingInput extends Candidates {
  /** c0 > 0. */
  readonly startingCost: number;
  /** In [0, 1]; 1 unless given. */
  readonly q?: number;
}

export interface Landing {
  readonly cost: number;
  readonly success: number;
  /** lambda at the landing. */
  readonly price: number;
  /** u = s / s0 - 1. */
  readonly successGain: number;
  /** v = 1 - c / c0. */
  readonly costSaving: number;
}

/**
 * Where a price that never moves leads: the cost at which the slope equals it, (sqrt(g / lambda) - 1) / g at q = 1.
 * `slopeFactor` > 0 multiplies the starting price (1 = the true slope). A price above the slope at 0 leads to cost 0.
 */
export function fixedLanding(input: LandingInput & { readonly slopeFactor?: number }): Landing {
  const { pGood, pBad, startingCost, q = 1, slopeFactor = 1 } = input;
  checkStart(startingCost);
  if (!(slopeFactor > 0 && slopeFactor < Infinity)) {
    throw new HoneError('invalid-config', `The slope factor is ${slopeFactor}.`, {
      cure: 'Give a finite factor above 0; 1 is the true slope.',
    });
  }
  const price = slopeFactor * successSlope({ pGood, pBad, q: STARTING_Q, cost: startingCost });
  const excess = (cost: number): number => successSlope({ pGood, pBad, q, cost }) - price;
  let cost = 0;
  if (q === 1) cost = Math.max(0, (Math.sqrt(pGood / price) - 1) / pGood);
  else if (excess(0) > 0) cost = bisect((candidate) => -excess(candidate), startingCost);
  return landingAt(input, { cost, price });
}

/**
 * Where steering with alpha in [0, 1] leads, with the constraint binding. At q = 1 in closed form, without cancellation
 * in either branch: alpha = 0 gives the cost s0 / (g (1 - s0)) that keeps success, alpha = 1 gives c0. Otherwise by bisection.
 * Throws `invalid-config` on an alpha outside [0, 1] and where no cost reaches the target (q too small).
 */
export function steeredLanding(input: LandingInput & { readonly alpha: number }): Landing {
  const { pGood, pBad, startingCost, q = 1, alpha } = input;
  checkStart(startingCost);
  checkAlpha(alpha);
  const startingSuccess = successRate({ pGood, pBad, q: STARTING_Q, cost: startingCost });
  const successWeight = (1 - alpha) / startingSuccess;
  const costWeight = alpha / startingCost;
  let cost = startingCost;
  if (q === 1) {
    const half = successWeight * pGood + costWeight - pGood;
    const root = Math.sqrt(half ** 2 + 4 * costWeight * pGood);
    cost = half > 0 ? 2 / (half + root) : (root - half) / (2 * costWeight * pGood);
  } else if (alpha < 1) {
    const target = (candidate: number): number =>
      successWeight * successRate({ pGood, pBad, q, cost: candidate }) + costWeight * candidate - 1;
    cost = bisect(target, startingCost);
  }
  return landingAt(input, { cost, price: successSlope({ pGood, pBad, q, cost }) });
}

/**
 * The largest controller rate (in log price a step, per unit of gap) at which the linearised loop of plain gradient steps
 * approaches the steered landing without ringing: kappa c^2 s''^2 / (4 lambda h), with kappa = actorRate / 3 (a third of
 * the batch moves each effort) and h = (1 - alpha) s' / s0 + alpha / c0.
 */
export function criticalRate(
  input: LandingInput & { readonly alpha: number },
  { actorRate }: { readonly actorRate: number },
): number {
  const { pGood, pBad, startingCost, q = 1, alpha } = input;
  const { cost, price } = steeredLanding(input);
  const startingSuccess = successRate({ pGood, pBad, q: STARTING_Q, cost: startingCost });
  const curvature = successCurvature({ pGood, pBad, q, cost });
  const gapSlope = ((1 - alpha) * price) / startingSuccess + alpha / startingCost;
  return ((actorRate / 3) * (cost * curvature) ** 2) / (4 * price * gapSlope);
}

function landingAt(input: LandingInput, { cost, price }: { cost: number; price: number }): Landing {
  const { pGood, pBad, startingCost, q = 1 } = input;
  const success = successRate({ pGood, pBad, q, cost });
  const startingSuccess = successRate({ pGood, pBad, q: STARTING_Q, cost: startingCost });
  return { cost, success, price, successGain: success / startingSuccess - 1, costSaving: 1 - cost / startingCost };
}

/** The root of a function that rises with cost and is below 0 at cost 0, to the last bit. */
function bisect(rising: (cost: number) => number, guess: number): number {
  let low = 0;
  let high = guess;
  while (rising(high) < 0) {
    low = high;
    high *= 2;
    if (high > 1e12) {
      throw new HoneError('invalid-config', `No mean cost up to ${high} reaches the target.`, {
        cure: 'The chance of the good action is too small for this problem; use a larger q.',
      });
    }
  }
  for (;;) {
    const middle = (low + high) / 2;
    if (middle <= low || middle >= high) return high;
    if (rising(middle) < 0) low = middle;
    else high = middle;
  }
}

function checkStart(startingCost: number): void {
  if (startingCost > 0 && startingCost < Infinity) return;
  throw new HoneError('invalid-config', `The starting cost is ${startingCost}.`, {
    cure: 'Give a finite mean cost above 0.',
  });
}

function checkAlpha(alpha: number): void {
  if (alpha >= 0 && alpha <= 1) return;
  throw new HoneError('invalid-config', `Alpha is ${alpha}.`, {
    cure: 'Alpha lies in [0, 1]: 0 keeps success and saves cost, 1 keeps cost and gains success.',
  });
}

/**
 * Where training on the toy task ends, in closed form: the cost that a fixed price leads to, the point that steering with
 * a given alpha leads to.
 * Invariant: steered landings lie on (1 - alpha) s / s0 + alpha c / c0 = 1, with the price equal to the local slope.
 * Source: the steered slope penalty's fixed point, solved for q = 1; derived by hand, checked against numeric roots.
 */
import { HoneError } from '../domain/errors.ts';
import { lowestTrue } from './bisection.ts';
import { STARTING_Q, successRate, successSlope } from './toy-task.ts';
import type { Candidates } from './toy-task.ts';

/** What a landing is computed from: a problem, an effort's starting cost, and q where training ends (1 = skill learned). */
export interface LandingInput extends Candidates {
  /** c0 > 0. */
  readonly startingCost: number;
  /** In [0, 1]; 1 unless given. */
  readonly q?: number;
}

/** Where training on a toy problem ends. */
export interface ToyLanding {
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
export function fixedLanding(input: LandingInput & { readonly slopeFactor?: number }): ToyLanding {
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
  else if (excess(0) > 0) cost = rootOf((candidate) => -excess(candidate), startingCost);
  return landingAt(input, { cost, price });
}

/**
 * Where steering with alpha in [0, 1] leads, with the constraint binding. At q = 1 in closed form, without cancellation
 * in either branch: alpha = 0 gives the cost s0 / (g (1 - s0)) that keeps success, alpha = 1 gives c0. Otherwise by bisection.
 * Throws `invalid-config` on an alpha outside [0, 1] and where no cost reaches the target (q too small).
 */
export function steeredLanding(input: LandingInput & { readonly alpha: number }): ToyLanding {
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
    cost = rootOf(target, startingCost);
  }
  return landingAt(input, { cost, price: successSlope({ pGood, pBad, q, cost }) });
}

function landingAt(input: LandingInput, { cost, price }: { cost: number; price: number }): ToyLanding {
  const { pGood, pBad, startingCost, q = 1 } = input;
  const success = successRate({ pGood, pBad, q, cost });
  const startingSuccess = successRate({ pGood, pBad, q: STARTING_Q, cost: startingCost });
  return { cost, success, price, successGain: success / startingSuccess - 1, costSaving: 1 - cost / startingCost };
}

/** The root of a function that rises with cost and is below 0 at cost 0, to the last bit. */
function rootOf(rising: (cost: number) => number, guess: number): number {
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
  return lowestTrue((cost) => rising(cost) >= 0, [low, high]);
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

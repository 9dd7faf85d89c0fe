/** For tests: how fast a controller may be, as a yardstick for the loop of plain gradient steps. Nothing that ships needs it. */
import { steeredLanding } from './equilibrium.ts';
import type { LandingInput } from './equilibrium.ts';
import { STARTING_Q, successCurvature, successRate } from './toy-task.ts';

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

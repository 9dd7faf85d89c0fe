/**
 * What a rollout cost, as one number: a weighted sum of what was counted. The weights are the owner's prices; a cost is
 * in whatever unit they have (dollars, seconds, plain tokens). Never negative.
 */
import { z } from 'zod';

import { HoneError } from '../domain/errors.ts';
import type { Cost } from '../domain/rollout.ts';

/** The counts that a price may be put on: a rollout's cost and its look-ups. */
export interface CostCounts extends Cost {
  readonly lookups: number;
}

/** In the one order in which costs are summed. */
export const COST_COUNTS = [
  'tokens',
  'sampledTokens',
  'turns',
  'toolSeconds',
  'lookups',
] as const satisfies readonly (keyof CostCounts)[];

const price = z.number().nonnegative().default(0);

export const costWeightsSchema = z
  .strictObject({
    tokens: price.describe('price of a token, environment included'),
    sampledTokens: price.describe('price of a token that the policy wrote'),
    turns: price.describe('price of an assistant turn; parallel tool calls are one turn'),
    toolSeconds: price.describe('price of a second that tools ran'),
    lookups: price.describe('price of a look-up'),
  })
  .refine((weights) => Object.values(weights).some((weight) => weight > 0), {
    message: 'has no weight above 0: nothing would cost anything',
  });
export type CostWeights = z.output<typeof costWeightsSchema>;

/**
 * Sum of weight x count. Throws `invalid-rollout` on a count that is negative or not finite, naming it.
 * Source: the weighted cost of SWE-1.7 (tokens, turns, tool time), with sampled tokens and look-ups beside them.
 */
export function weightedCost(counts: CostCounts, weights: CostWeights): number {
  let cost = 0;
  // In one fixed order, so that the same rollout always costs the same to the last bit.
  for (const key of COST_COUNTS) {
    const count = counts[key];
    if (!(count >= 0 && Number.isFinite(count))) {
      throw new HoneError('invalid-rollout', `A rollout's cost counts ${count} ${key}.`, {
        cure: 'Counts are finite and at least 0; look at the recorder that counted.',
      });
    }
    cost += weights[key] * count;
  }
  return cost;
}

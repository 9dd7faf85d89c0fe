/** The weighted cost: exact sums, one order, never negative, and weights that would price nothing. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { readVectors } from '../../test/read-vectors.fixture.ts';
import { costWeightsSchema, weightedCost } from './cost.ts';
import type { CostCounts } from './cost.ts';

const COUNTS = ['tokens', 'sampledTokens', 'turns', 'toolSeconds', 'lookups'] as const;
const none: CostCounts = { tokens: 0, sampledTokens: 0, turns: 0, toolSeconds: 0, lookups: 0 };

describe('the weighted cost', () => {
  type Input = { weights: [number, number, number]; tokens: number; turns: number; toolSeconds: number };
  it.each(readVectors<Input, { cost: number }>('toggle'))(
    'meets the vector $in.tokens $in.turns',
    ({ in: input, out }) => {
      const [tokens, turns, toolSeconds] = input.weights;
      const weights = costWeightsSchema.parse({ tokens, turns, toolSeconds });
      const counts = { ...none, tokens: input.tokens, turns: input.turns, toolSeconds: input.toolSeconds };
      expect(weightedCost(counts, weights)).toBe(out.cost);
    },
  );

  it.each(COUNTS)('prices %s by its own weight and nothing else', (key) => {
    const weights = costWeightsSchema.parse({ [key]: 0.25 });
    const counts = { tokens: 1, sampledTokens: 1, turns: 1, toolSeconds: 1, lookups: 1, [key]: 12 };
    expect(weightedCost(counts, weights)).toBe(3);
  });

  it('never falls when a count rises, and is 0 for a rollout that counted nothing', () => {
    const number = fc.double({ min: 0, max: 1e6, noNaN: true });
    const record = fc.record({
      tokens: number,
      sampledTokens: number,
      turns: number,
      toolSeconds: number,
      lookups: number,
    });
    fc.assert(
      fc.property(record, record, fc.constantFrom(...COUNTS), number, (weights, counts, key, more) => {
        const cost = weightedCost(counts, weights);
        expect(cost).toBeGreaterThanOrEqual(0);
        expect(weightedCost({ ...counts, [key]: counts[key] + more }, weights)).toBeGreaterThanOrEqual(cost);
        expect(weightedCost(none, weights)).toBe(0);
      }),
      { numRuns: 300, seed: 4 },
    );
  });

  it.each([-1, Number.NaN, Infinity])('refuses a count of %d, naming it', (count) => {
    const weights = costWeightsSchema.parse({ turns: 1 });
    expect(() => weightedCost({ ...none, toolSeconds: count }, weights)).toThrow(`counts ${count} toolSeconds`);
  });

  it('refuses weights that price nothing, negative ones and unknown counts', () => {
    expect(costWeightsSchema.safeParse({}).error?.issues[0]?.message).toMatch(/no weight above 0/);
    expect(costWeightsSchema.safeParse({ tokens: -1 }).success).toBe(false);
    expect(costWeightsSchema.safeParse({ seconds: 1 }).success).toBe(false);
  });
});

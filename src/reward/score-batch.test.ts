/** What a rollout earns: vectors, parts that add up, order, monotone in cost, and the void that is absolute. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import { createRewardState } from './reward-start.ts';
import type { RewardState } from './reward-state.ts';
import { scoreBatch } from './score-batch.ts';
import { drawRollouts, rolloutWith } from './scored-rollout.fixture.ts';
import type { ScoredRollout } from './scored-rollout.ts';
import { rewardSpecSchema } from './spec.ts';
import type { RewardSpec } from './spec.ts';

const baseline = drawRollouts({ seed: 1, efforts: { low: 2, high: 6 }, tasks: 60, rolloutsPerTask: 6 });

function startWith(written: unknown): { spec: RewardSpec; state: RewardState } {
  const spec = rewardSpecSchema.parse(written);
  return { spec, state: createRewardState(spec, { baseline, efforts: ['low', 'high'], seed: 3 }).state };
}

function rewardsOf(
  { spec, state }: { spec: RewardSpec; state: RewardState },
  rollouts: readonly ScoredRollout[],
): number[] {
  return scoreBatch(spec, state, rollouts).map(({ reward }) => reward);
}

const DROP_OFF = { edges: [0, 5, 10, 20, 40, 80], counts: [10, 20, 30, 25, 15] };

/** Every kind of term at once. */
const EVERYTHING = {
  terms: [
    {
      kind: 'latency',
      kappa: 0.3,
      dropOff: DROP_OFF,
      latency: { from: 'model', tokensPerSecond: 40, secondsPerTurn: 1 },
    },
    {
      kind: 'frontier',
      alpha: 0.5,
      costs: [
        { name: 'looks', weights: { lookups: 1 } },
        { name: 'words', weights: { sampledTokens: 0.01, toolSeconds: 0.1 } },
      ],
      startingPrice: { from: 'across-efforts' },
    },
    { kind: 'cost', weights: { turns: 0.01, tokens: 0.0001 } },
    { kind: 'overlong', limit: 300, buffer: 100, weight: 0.5 },
    { kind: 'budget', form: 'hard', scope: 'effort', weights: { turns: 1, lookups: 0.5, tokens: 0.001 } },
    { kind: 'budget', name: 'ramp', form: 'ramp', scope: 'effort', weights: { tokens: 1 }, rampWidth: 500, kappa: 0.2 },
  ],
};
const everything = startWith(EVERYTHING);

const outcomes = fc.record({
  precision: fc.double({ min: 0, max: 1, noNaN: true }),
  recall: fc.double({ min: 0, max: 1, noNaN: true }),
});
const costs = fc.record({
  tokens: fc.integer({ min: 0, max: 3000 }),
  sampledTokens: fc.integer({ min: 0, max: 800 }),
  turns: fc.integer({ min: 0, max: 40 }),
  toolSeconds: fc.double({ min: 0, max: 60, noNaN: true }),
  lookups: fc.integer({ min: 0, max: 40 }),
});
const rollouts = fc
  .record({
    outcome: fc.oneof(outcomes, fc.constant({ precision: 1, recall: 1 })),
    cost: costs,
    group: fc.constantFrom('a', 'b', 'c'),
    effort: fc.constantFrom('low', 'high'),
    cheated: fc.boolean(),
  })
  .map(({ outcome, cheated, ...rest }) => rolloutWith({ ...rest, outcome: { ...outcome, cheated } }));

describe('scoring a batch', () => {
  it('keeps the bits of a detection score with a price on look-ups', () => {
    const spec = rewardSpecSchema.parse({
      base: { kind: 'detection', precisionWeight: 3.7 },
      terms: [{ kind: 'cost', name: 'lookups', weights: { lookups: 0.02 } }],
    });
    const { state } = createRewardState(spec, { efforts: ['standard'], seed: 1 });
    const rollout = rolloutWith({ outcome: { precision: 0.5 }, cost: { tokens: 912, turns: 3, lookups: 7 } });
    const [evaluation] = scoreBatch(spec, state, [rollout]);
    expect(evaluation).toEqual({
      reward: (3.7 * 0.5 + 1) / 4.7 + (0 - 0.02 * 7),
      components: { precision: (3.7 * 0.5) / 4.7, recall: 1 / 4.7, lookups: 0 - 0.02 * 7, cheating: 0 },
      phase: 'all',
      prices: {},
      success: (3.7 * 0.5 + 1) / 4.7,
      outcome: rollout.outcome,
    });
  });

  type LatencyInput = {
    edges: number[];
    counts: number[];
    tokens: number;
    turns: number;
    tokensPerSecond: number;
    secondsPerTurn: number;
    overhead: number;
    P: number;
    R: number;
    kappa: number;
  };
  it.each(readVectors<LatencyInput, { reward: number }>('phase2Reward'))(
    'meets the two-phase vector $in.tokens $in.turns $in.kappa',
    ({ in: input, out }) => {
      // The vector's base is P / 2 + R; ours is scaled into [0, 1] by 1.5, and so is kappa.
      const { edges, counts, tokensPerSecond, secondsPerTurn, overhead: overheadSeconds } = input;
      const latency = { from: 'model', tokensPerSecond, secondsPerTurn, overheadSeconds };
      const dropOff = { edges, counts };
      const spec = rewardSpecSchema.parse({
        base: { kind: 'detection', precisionWeight: 0.5 },
        terms: input.kappa > 0 ? [{ kind: 'latency', kappa: input.kappa / 1.5, dropOff, latency }] : [],
      });
      const { state } = createRewardState(spec, { efforts: ['standard'], seed: 1 });
      const rollout = rolloutWith({
        outcome: { precision: input.P, recall: input.R },
        cost: { sampledTokens: input.tokens, turns: input.turns },
      });
      expect(vectorError(1.5 * (rewardsOf({ spec, state }, [rollout])[0] ?? Number.NaN), out.reward)).toBeLessThan(
        1e-12,
      );
    },
  );

  type BudgetInput = {
    weights: [number, number, number];
    budget: number;
    rampWidth: number;
    kappa: number;
    iter: number;
    m: number;
    accThreshold: number;
    meanAcc: number;
    r: number;
    tokens: number;
    turns: number;
    toolSeconds: number;
  };
  it.each(readVectors<BudgetInput, { hard: number; ramp: number }>('toggle'))(
    'meets the budget vector $in.iter $in.tokens $in.meanAcc',
    ({ in: input, out }) => {
      const [tokens, turns, toolSeconds] = input.weights;
      for (const form of ['hard', 'ramp'] as const) {
        const spec = rewardSpecSchema.parse({
          base: { kind: 'correct' },
          terms: [
            {
              kind: 'budget',
              form,
              scope: 'task',
              accuracyThreshold: input.accThreshold,
              alternateSteps: input.m,
              weights: { tokens, turns, toolSeconds },
              ...(form === 'ramp' ? { rampWidth: input.rampWidth, kappa: input.kappa } : {}),
            },
          ],
        });
        const state: RewardState = {
          steps: input.iter,
          phase: { index: 0, steps: input.iter, reached: 0 },
          calibration: null,
          frontier: null,
          budgets: { budget: { 'standard/t0': input.budget } },
          latencyModels: {},
          measuredUnder: {},
        };
        const rollout = rolloutWith({ outcome: { recall: input.r }, cost: input });
        // Others of the group make up its share of correct rollouts: of 100, to the hundredth that the vectors have.
        const correct = Math.round(100 * input.meanAcc) - input.r;
        const others = Array.from({ length: 99 }, (_, index) =>
          rolloutWith({ outcome: { recall: index < correct ? 1 : 0 } }),
        );
        expect(vectorError(rewardsOf({ spec, state }, [rollout, ...others])[0] ?? Number.NaN, out[form])).toBeLessThan(
          1e-12,
        );
      }
    },
  );

  it('adds up: components sum to the reward, one for each term, and success is the raw base', () => {
    fc.assert(
      fc.property(fc.array(rollouts, { minLength: 1, maxLength: 12 }), (batch) => {
        for (const [index, evaluation] of scoreBatch(everything.spec, everything.state, batch).entries()) {
          const { components, reward, success, outcome } = evaluation;
          const sum = Object.values(components).reduce((total, part) => total + part, 0);
          expect(Math.abs(sum - reward)).toBeLessThan(1e-12);
          expect(Object.keys(components)).toEqual([
            'precision',
            'recall',
            ...everything.spec.terms.map(({ name }) => name),
            'cheating',
          ]);
          expect(outcome).toBe(batch[index]?.outcome);
          const base = (components['precision'] ?? 0) + (components['recall'] ?? 0);
          expect(Math.abs(success - (outcome.cheated ? 0 : base))).toBeLessThan(1e-12);
        }
      }),
      { numRuns: 100, seed: 13 },
    );
  });

  it('voids a cheated rollout last: exactly 0 whatever it cost, its group or the terms', () => {
    fc.assert(
      fc.property(fc.array(rollouts, { minLength: 1, maxLength: 8 }), (batch) => {
        const evaluations = scoreBatch(everything.spec, everything.state, batch);
        for (const { reward, outcome, components } of evaluations) {
          if (outcome.cheated) expect(Object.is(reward, 0)).toBe(true);
          else expect(components['cheating']).toBe(0);
        }
      }),
      { numRuns: 100, seed: 14 },
    );
  });

  it('never rises with any count of cost: each term alone and all composed, rewards below 0 included', () => {
    const specs = [
      everything,
      ...EVERYTHING.terms.map((term) => startWith({ terms: [term] })),
      ...EVERYTHING.terms
        .slice(0, 4)
        .map((term) => startWith({ base: { kind: 'correct' }, terms: [term, EVERYTHING.terms[4]] })),
    ];
    const counts = ['tokens', 'sampledTokens', 'turns', 'toolSeconds', 'lookups'] as const;
    fc.assert(
      fc.property(
        fc.array(rollouts, { minLength: 1, maxLength: 6 }),
        fc.constantFrom(...counts),
        fc.double({ min: 0, max: 500, noNaN: true }),
        (batch, count, more) => {
          const [first, ...others] = batch;
          if (first === undefined) return;
          const dearer = { ...first, cost: { ...first.cost, [count]: first.cost[count] + more } };
          for (const start of specs) {
            const [cheap, dear] = [
              [first, ...others],
              [dearer, ...others],
            ].map((each) => rewardsOf(start, each)[0]);
            expect(dear).toBeLessThanOrEqual(cheap ?? Number.NaN);
          }
        },
      ),
    );
  });

  it('does not depend on the order of a batch, and changes no state', () => {
    const frozen = JSON.stringify(everything.state);
    fc.assert(
      fc.property(
        fc.array(rollouts, { minLength: 2, maxLength: 12 }).chain((batch) =>
          fc.record({
            batch: fc.constant(batch),
            order: fc.shuffledSubarray([...batch.keys()], { minLength: batch.length }),
          }),
        ),
        ({ batch, order }) => {
          const straight = scoreBatch(everything.spec, everything.state, batch);
          const shuffled = scoreBatch(
            everything.spec,
            everything.state,
            order.flatMap((index) => batch[index] ?? []),
          );
          expect(shuffled).toEqual(order.map((index) => straight[index]));
        },
      ),
    );
    expect(JSON.stringify(everything.state)).toBe(frozen);
  });

  it('charges the price of the effort, and nothing in a phase without the term', () => {
    const start = startWith({
      base: { kind: 'correct' },
      terms: [
        {
          kind: 'frontier',
          alpha: 0.5,
          costs: [{ weights: { lookups: 1 } }],
          startingPrice: { from: 'given', prices: { low: 0.25, high: 1 } },
        },
      ],
      phases: [
        { name: 'priced', terms: ['frontier'], until: { steps: 1 } },
        { name: 'free', terms: [] },
      ],
    });
    const batch = (['low', 'high'] as const).map((effort) => rolloutWith({ effort, cost: { lookups: 2 } }));
    const [low, high] = scoreBatch(start.spec, start.state, batch);
    expect([low?.reward, high?.reward]).toEqual([0.5, -1]);
    expect([low?.prices, high?.prices]).toEqual([{ cost: 0.25 }, { cost: 1 }]);
    expect(low?.components).toEqual({ correct: 1, frontier: -0.5, cheating: 0 });
    const free = { ...start.state, phase: { index: 1, steps: 0, reached: 0 } };
    expect(scoreBatch(start.spec, free, batch)[0]).toMatchObject({
      reward: 1,
      components: { correct: 1, frontier: 0, cheating: 0 },
      phase: 'free',
      prices: {},
    });
  });

  it('gates the base before any price, in whatever order the spec names the terms', () => {
    const { spec, state } = startWith({
      base: { kind: 'correct' },
      terms: [
        { kind: 'latency', kappa: 1, dropOff: DROP_OFF, latency: { from: 'recorded' } },
        { kind: 'cost', weights: { turns: 0.25 } },
        { kind: 'overlong', limit: 10, buffer: 5 },
        { kind: 'budget', form: 'hard', scope: 'effort', weights: { lookups: 1 } },
      ],
    });
    // Over budget the base is gone, and every price is still charged: a gate after the prices would take less.
    const cost = { lookups: 1e6, turns: 2, sampledTokens: 20 };
    const [evaluation] = scoreBatch(spec, state, [rolloutWith({ effort: 'low', cost, latencySeconds: 1e3 })]);
    expect(evaluation?.components).toEqual({
      correct: 1,
      latency: -1,
      cost: -0.5,
      overlong: -1,
      budget: -1,
      cheating: 0,
    });
    expect(evaluation?.reward).toBe(-2.5);
  });

  it('begins an alternating budget with its phase, not with the run', () => {
    const { spec, state } = startWith({
      base: { kind: 'correct' },
      terms: [{ kind: 'budget', form: 'hard', scope: 'effort', weights: { lookups: 1 }, alternateSteps: 2 }],
      phases: [
        { name: 'capability', terms: [], until: { steps: 3 } },
        { name: 'product', terms: ['budget'] },
      ],
    });
    const dear = rolloutWith({ effort: 'low', cost: { lookups: 1e6 } });
    const rewardAt = (steps: number): number | undefined =>
      rewardsOf({ spec, state: { ...state, steps: 3 + steps, phase: { index: 1, steps, reached: 0 } } }, [dear])[0];
    expect([0, 1, 2, 3, 4].map(rewardAt)).toEqual([0, 0, 1, 1, 0]);
  });

  it('refuses what it has no input for, never a silent 0', () => {
    const other = rolloutWith({ effort: 'middle' });
    expect(() => rewardsOf(everything, [other])).toThrow(/effort middle|middle has no budget/);
    const recorded = rewardSpecSchema.parse({
      base: { kind: 'correct' },
      terms: [{ kind: 'latency', kappa: 1, dropOff: DROP_OFF, latency: { from: 'recorded' } }],
    });
    const seen = [rolloutWith({ latencySeconds: 1 })];
    const { state } = createRewardState(recorded, { baseline: seen, efforts: ['standard'], seed: 1 });
    expect(() => rewardsOf({ spec: recorded, state }, [rolloutWith()])).toThrow(
      /has no latency, which the term latency reads/,
    );
    expect(rewardsOf({ spec: recorded, state }, [rolloutWith({ latencySeconds: 100 })])).toEqual([0]);
  });

  it.each([{ precision: Number.NaN }, { recall: Number.NaN }, { precision: 1.5 }, { recall: -0.1 }])(
    'refuses a rollout that the verifier gave %j, cheated or not',
    (broken) => {
      for (const cheated of [false, true]) {
        const rollout = rolloutWith({ task: 't9', effort: 'low', outcome: { ...broken, cheated } });
        expect(() => rewardsOf(everything, [rolloutWith({ effort: 'low' }), rollout])).toThrow(
          expect.objectContaining({
            code: 'invalid-rollout',
            message: expect.stringMatching(/^A rollout of task t9 has the precision \S+ and the recall \S+, each/),
          }),
        );
      }
    },
  );
});

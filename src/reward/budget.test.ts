/** Length budgets: vectors, phases, what is measured, and that cost never pays. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import {
  applyBudget,
  budgetFields,
  budgetPhase,
  budgetProblem,
  budgetWarning,
  isSilencedByBudget,
  measureBudgets,
} from './budget.ts';
import type { BudgetGate } from './budget.ts';
import { costWeightsSchema, weightedCost } from './cost.ts';

type Input = {
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
type Output = { phase: number; cost: number; hard: number; ramp: number };

const hard: BudgetGate = { form: 'hard', budget: 6, meanAccuracy: 0.75, accuracyThreshold: 0.5, phase: 'budget' };

describe('the budget', () => {
  it('lets a cost pass that equals it but for the rounding of its interpolation', () => {
    const price = 0.2424807846645581;
    const { a: budget = null } = measureBudgets(
      [2, 6, 8].map((lookups) => ({ key: 'a', cost: price * lookups, correct: true })),
      25,
    );
    const cost = price * 4;
    expect(budget).not.toBe(cost);
    expect(applyBudget(1, { ...hard, budget, cost })).toBe(1);
    expect(applyBudget(1, { ...hard, budget, cost: cost * (1 + 1e-9) })).toBe(0);
  });

  it.each(readVectors<Input, Output>('toggle'))(
    'meets the vector $in.iter $in.tokens $in.meanAcc',
    ({ in: input, out }) => {
      const [tokens, turns, toolSeconds] = input.weights;
      const cost = weightedCost(
        { tokens: input.tokens, sampledTokens: 0, turns: input.turns, toolSeconds: input.toolSeconds, lookups: 0 },
        costWeightsSchema.parse({ tokens, turns, toolSeconds }),
      );
      const phase = budgetPhase(input.iter, input.m);
      const gate = {
        cost,
        budget: input.budget,
        meanAccuracy: input.meanAcc,
        accuracyThreshold: input.accThreshold,
        phase,
      };
      const { rampWidth, kappa } = input;
      expect(phase).toBe(out.phase === 0 ? 'budget' : 'free');
      expect(cost).toBe(out.cost);
      expect(applyBudget(input.r, { ...gate, form: 'hard' })).toBe(out.hard);
      expect(vectorError(applyBudget(input.r, { ...gate, form: 'ramp', rampWidth, kappa }), out.ramp)).toBeLessThan(
        1e-12,
      );
    },
  );

  it('binds at exactly the threshold, and lets a cost equal to the budget pass', () => {
    expect(applyBudget(1, { ...hard, meanAccuracy: 0.5, cost: 7 })).toBe(0);
    expect(applyBudget(1, { ...hard, meanAccuracy: 0.499, cost: 7 })).toBe(1);
    expect(applyBudget(1, { ...hard, cost: 6 })).toBe(1);
    expect(applyBudget(1, { ...hard, budget: null, cost: 1e9 })).toBe(1);
  });

  it('never lifts a negative base', () => {
    expect(applyBudget(-0.3, { ...hard, cost: 7 })).toBe(-0.3);
  });

  it('never rises with cost, in any form, phase and group, for any base', () => {
    const gates = fc.record({
      form: fc.constantFrom('hard' as const, 'ramp' as const),
      rampWidth: fc.double({ min: 1e-3, max: 100, noNaN: true }),
      kappa: fc.double({ min: 1e-3, max: 5, noNaN: true }),
      budget: fc.option(fc.double({ min: 0, max: 100, noNaN: true }), { nil: null }),
      meanAccuracy: fc.double({ min: 0, max: 1, noNaN: true }),
      accuracyThreshold: fc.double({ min: 0, max: 1, noNaN: true }),
      phase: fc.constantFrom('budget' as const, 'free' as const),
    });
    const base = fc.double({ min: -3, max: 3, noNaN: true });
    const costs = fc.array(fc.double({ min: 0, max: 300, noNaN: true }), { minLength: 2, maxLength: 20 });
    fc.assert(
      fc.property(gates, base, costs, (gate, baseReward, list) => {
        const rewards = list.sort((a, b) => a - b).map((cost) => applyBudget(baseReward, { ...gate, cost }));
        for (const [index, reward] of rewards.entries()) {
          expect(reward).toBeLessThanOrEqual(baseReward);
          expect(reward).toBeLessThanOrEqual(rewards[index - 1] ?? Infinity);
        }
      }),
      { numRuns: 500, seed: 3 },
    );
  });

  it('refuses figures that no rollout has', () => {
    expect(() => applyBudget(1, { ...hard, cost: -1 })).toThrow(/costs -1/);
    expect(() => applyBudget(1, { ...hard, cost: Infinity })).toThrow(/costs Infinity/);
    expect(() => applyBudget(Number.NaN, { ...hard, cost: 1 })).toThrow(/is NaN/);
    expect(() => applyBudget(1, { ...hard, meanAccuracy: Number.NaN, cost: 1 })).toThrow(/mean accuracy is NaN/);
    expect(() => applyBudget(1, { ...hard, form: 'ramp', cost: 7 })).toThrow(/width undefined/);
  });
});

describe('phases', () => {
  it('alternate from the first step, budget first', () => {
    const phases = Array.from({ length: 7 }, (_, step) => budgetPhase(step, 2));
    expect(phases).toEqual(['budget', 'budget', 'free', 'free', 'budget', 'budget', 'free']);
    expect(budgetPhase(1_000_003, null)).toBe('budget');
  });

  it.each([
    [-1, 2],
    [0.5, 2],
    [Number.NaN, null],
    [3, 0],
    [3, 1.5],
  ])('refuses step %d and alternateSteps %d', (step, alternateSteps) => {
    expect(() => budgetPhase(step, alternateSteps)).toThrow(/integer|asked for step/);
  });
});

describe('measuring budgets', () => {
  it.each(readVectors<{ xs: number[]; rho: number }, { value: number }>('percentile'))(
    'meets the percentile $in.rho of $in.xs',
    ({ in: { xs, rho }, out }) => {
      const samples = xs.map((cost) => ({ key: 'task', cost, correct: true }));
      expect(vectorError(measureBudgets(samples, rho)['task'] ?? Number.NaN, out.value)).toBeLessThanOrEqual(1e-12);
    },
  );

  it('reads correct rollouts only; none correct is no limit, and survives JSON', () => {
    const samples = [
      { key: 'b', cost: 100, correct: false },
      { key: 'b', cost: 4, correct: true },
      { key: 'a', cost: 1, correct: false },
      { key: 'b', cost: 10, correct: true },
      { key: 'a', cost: 2, correct: false },
    ];
    const budgets = measureBudgets(samples, 50);
    expect(budgets).toEqual({ a: null, b: 7 });
    expect(JSON.stringify(budgets)).toBe(JSON.stringify(measureBudgets(samples.toReversed(), 50)));
    expect(JSON.parse(JSON.stringify(budgets))).toEqual(budgets);
  });

  it('takes any key as a plain key', () => {
    expect(Object.keys(measureBudgets([{ key: '__proto__', cost: 1, correct: true }], 50))).toEqual(['__proto__']);
  });

  it('refuses no rollouts, a percentile out of range and a negative cost', () => {
    expect(() => measureBudgets([], 50)).toThrow(/no rollouts/);
    expect(() => measureBudgets([{ key: 'a', cost: 1, correct: true }], 101)).toThrow(/percentile is 101/);
    expect(() => measureBudgets([{ key: 'a', cost: 1, correct: true }], Number.NaN)).toThrow(/percentile is NaN/);
    expect(() => measureBudgets([{ key: 'a', cost: -1, correct: true }], 50)).toThrow(/costs -1/);
  });
});

describe('a group without signal', () => {
  const correctAreOver = [
    { baseReward: 1, cost: 9 },
    { baseReward: 1, cost: 8 },
    { baseReward: 0, cost: 3 },
  ];

  it('is seen under hard, and has one under ramp', () => {
    expect(isSilencedByBudget(correctAreOver, hard)).toBe(true);
    expect(isSilencedByBudget(correctAreOver, { ...hard, form: 'ramp', rampWidth: 10, kappa: 0.5 })).toBe(false);
    expect(isSilencedByBudget(correctAreOver, { ...hard, phase: 'free' })).toBe(false);
    expect(isSilencedByBudget([...correctAreOver, { baseReward: 1, cost: 6 }], hard)).toBe(false);
  });

  it('is not blamed on the budget when there was none before it', () => {
    expect(isSilencedByBudget([{ baseReward: 0, cost: 9 }, { baseReward: 0, cost: 1 }], hard)).toBe(false); // prettier-ignore
  });

  it('is told in one sentence', () => {
    expect(budgetWarning({ silenced: 0, groups: 16 })).toBeUndefined();
    expect(budgetWarning({ silenced: 3, groups: 16 })).toMatch(/3 of 16 groups.*form ramp/);
  });
});

describe('the fields', () => {
  it('have defaults, and nothing that is not read', () => {
    const schema = z.strictObject(budgetFields);
    expect(schema.parse({ form: 'hard' })).toEqual({
      form: 'hard',
      percentile: 50,
      accuracyThreshold: 0.5,
      alternateSteps: null,
    });
    expect(budgetProblem({ form: 'hard' })).toBeUndefined();
    expect(budgetProblem({ form: 'ramp', rampWidth: 1, kappa: 1 })).toBeUndefined();
    expect(budgetProblem({ form: 'ramp', rampWidth: 1 })).toMatch(/needs rampWidth and kappa/);
    expect(budgetProblem({ form: 'hard', kappa: 1 })).toMatch(/reads neither/);
  });
});

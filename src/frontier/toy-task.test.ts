/** The closed form against the vectors, central differences, and Monte Carlo with three baselines. */
import { describe, expect, it } from 'vitest';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import { createRandom } from '../domain/ids.ts';
import type { Random } from '../domain/ids.ts';
import { rolloutScore } from './rollout-score.fixture.ts';
import {
  expectedGradient,
  goodActionChance,
  sigmoid,
  successCurvature,
  successRate,
  successSlope,
  toyProblem,
  toyStart,
  TOY_PROBLEM_COUNT,
} from './toy-task.ts';
import type { Candidates, ToyParameters } from './toy-task.ts';

describe('vectors', () => {
  it.each(readVectors<Candidates & { q: number; c: number }, { s: number; ds: number; d2s: number }>('pareto'))(
    'gives the success curve and its derivatives for $in',
    ({ in: { q, pGood, pBad, c }, out }) => {
      const point = { q, pGood, pBad, cost: c };
      expect(vectorError(successRate(point), out.s)).toBeLessThanOrEqual(1e-12);
      expect(vectorError(successSlope(point), out.ds)).toBeLessThanOrEqual(1e-12);
      expect(vectorError(successCurvature(point), out.d2s)).toBeLessThanOrEqual(1e-12);
    },
  );

  it.each(
    readVectors<{ zx: number; a: 0 | 1; ue: number; K: number }, { logProb: number; dz: number; du: number }>('score'),
  )('gives the score of $in', ({ in: { zx, a, ue, K }, out }) => {
    const score = rolloutScore({ logit: zx, action: a, logCost: ue, candidates: K });
    expect(vectorError(score.logProbability, out.logProb)).toBeLessThanOrEqual(1e-12);
    expect(vectorError(score.logit, out.dz)).toBeLessThanOrEqual(1e-12);
    expect(vectorError(score.logCost, out.du)).toBeLessThanOrEqual(1e-12);
  });

  it.each(
    readVectors<
      Candidates & { z0: number; z1: number; u: number[]; lambda_: number[] },
      { q: number; J: number; dz0: number; dz1: number; du: number[] }
    >('expectedGradient'),
  )('gives the exact gradient at $in', ({ in: { pGood, pBad, z0, z1, u, lambda_ }, out }) => {
    const gradient = expectedGradient(
      { pGood, pBad },
      { parameters: { logits: [z0, z1], logCosts: u }, prices: lambda_ },
    );
    const pairs: [number, number][] = [
      [gradient.q, out.q],
      [gradient.objective, out.J],
      [gradient.logits[0], out.dz0],
      [gradient.logits[1], out.dz1],
      ...gradient.logCosts.map((value, effort): [number, number] => [value, out.du[effort] ?? Number.NaN]),
    ];
    for (const [actual, expected] of pairs) expect(vectorError(actual, expected)).toBeLessThanOrEqual(1e-12);
  });
});

describe('toyProblem', () => {
  it('reproduces the published base success of the grid', () => {
    const sums = [0, 0, 0];
    for (let index = 0; index < TOY_PROBLEM_COUNT; index++) {
      for (const [effort, success] of toyStart(toyProblem(index)).successes.entries()) {
        sums[effort] = (sums[effort] ?? 0) + success;
      }
    }
    for (const [effort, expected] of [24.76776, 44.439982, 62.042487].entries()) {
      expect(Math.abs((sums[effort] ?? 0) - expected)).toBeLessThanOrEqual(1e-5);
    }
  });

  it('has the corners that the grid is defined by', () => {
    expect(toyProblem(0)).toEqual({ index: 0, pGood: 0.05, pBad: 0.05 * 0.05 });
    expect(toyProblem(99).pGood).toBe(0.8);
    expect(toyProblem(99).pBad).toBeCloseTo(0.72, 15);
    expect(toyProblem(9).pBad / toyProblem(9).pGood).toBeCloseTo(0.9, 15);
  });

  it.each([-1, 100, 0.5, Number.NaN])('refuses problem %s', (index) => {
    expect(() => toyProblem(index)).toThrow(`no problem ${index}`);
  });
});

it.each([
  { pGood: 0, pBad: 0, q: 0.5, cost: 1 },
  { pGood: 0.5, pBad: 0.1, q: 1.1, cost: 1 },
  { pGood: 0.5, pBad: 0.1, q: 0.5, cost: -1 },
  { pGood: 0.5, pBad: 0.1, q: 0.5, cost: Number.NaN },
])('refuses the point %o', (point) => {
  expect(() => successRate(point)).toThrow(/no point of the toy task/u);
});

it('gives logistic values that keep their digits in both tails, without overflow', () => {
  for (const logit of [0, 0.3, 5, 30]) expect(sigmoid(logit) + sigmoid(-logit)).toBeCloseTo(1, 15);
  expect(sigmoid(-40) / Math.exp(-40)).toBeCloseTo(1, 15);
  expect(sigmoid(800)).toBe(1);
  expect(sigmoid(-800)).toBe(0);
  expect(goodActionChance([0, 0])).toBe(0.5);
});

describe('expectedGradient', () => {
  it('is the derivative of its own objective', () => {
    const random = createRandom(5);
    for (let point = 0; point < 20; point++) {
      const { problem, parameters, prices } = randomPoint(random);
      const { logits, logCosts } = expectedGradient(problem, { parameters, prices });
      const flat = [...parameters.logits, ...parameters.logCosts];
      for (const [index, expected] of [...logits, ...logCosts].entries()) {
        const objectiveAt = (shift: number): number => {
          const [z0 = 0, z1 = 0, ...rest] = flat.map((value, at) => (at === index ? value + shift : value));
          return expectedGradient(problem, { parameters: { logits: [z0, z1], logCosts: rest }, prices }).objective;
        };
        const step = 1e-5;
        expect((objectiveAt(step) - objectiveAt(-step)) / (2 * step)).toBeCloseTo(expected, 8);
      }
    }
  });

  // 20 points x 5 parameters x 3 baselines: a z-score above 5 has the chance 2e-4 over all of them.
  it('is met by sampled rollouts within 5 standard errors, with every unbiased baseline', () => {
    const random = createRandom(20);
    for (let point = 0; point < 20; point++) {
      const { problem, parameters, prices } = randomPoint(random);
      const expected = expectedGradient(problem, { parameters, prices });
      const exact = [...expected.logits, ...expected.logCosts];
      for (const baseline of ['none', 'effort', 'leave-one-out'] as const) {
        const { means, errors } = sampledGradient({ problem, parameters, prices, baseline, random });
        for (const [index, value] of exact.entries()) {
          expect(Math.abs((means[index] ?? Number.NaN) - value)).toBeLessThan(5 * (errors[index] ?? 0) + 1e-12);
        }
      }
    }
  });
});

function randomPoint(random: Random): { problem: Candidates; parameters: ToyParameters; prices: number[] } {
  const problem = toyProblem(random.below(TOY_PROBLEM_COUNT));
  const logits: [number, number] = [4 * random.next() - 2, 4 * random.next() - 2];
  const logCosts = [2, 6, 15].map((cost) => Math.log(cost) + random.next() - 0.5);
  return {
    problem,
    parameters: { logits, logCosts },
    prices: toyStart(problem).prices.map((p) => p * (0.5 + random.next())),
  };
}

/** Means and standard errors over 400 batches of 96 rollouts, drawn candidate by candidate. */
function sampledGradient(task: {
  problem: Candidates;
  parameters: ToyParameters;
  prices: number[];
  baseline: 'none' | 'effort' | 'leave-one-out';
  random: Random;
}): { means: number[]; errors: number[] } {
  const { problem, parameters, prices, baseline, random } = task;
  const batches = 400;
  const size = 96;
  const sums = Array.from({ length: 5 }, () => 0);
  const squares = sums.slice();
  for (let batch = 0; batch < batches; batch++) {
    const rollouts = Array.from({ length: size }, () => {
      const input = random.below(2) as 0 | 1; // below(2) is 0 or 1.
      const effort = random.below(3);
      const logit = parameters.logits[input];
      const action: 0 | 1 = random.next() < sigmoid(logit) ? 1 : 0;
      const logCost = parameters.logCosts[effort] ?? 0;
      const goOn = sigmoid(logCost);
      const chance = action === input ? problem.pGood : problem.pBad;
      let candidates = 0;
      let success = 0;
      while (random.next() < goOn) {
        candidates++;
        if (random.next() < chance) success = 1;
      }
      const reward = success - (prices[effort] ?? 0) * candidates;
      return { input, effort, reward, score: rolloutScore({ logit, action, logCost, candidates }) };
    });
    const gradient = [0, 0, 0, 0, 0];
    for (const { input, effort, reward, score } of rollouts) {
      const peers = rollouts.filter((rollout) => rollout.effort === effort);
      const total = peers.reduce((sum, peer) => sum + peer.reward, 0);
      const references = {
        none: 0,
        // The mean that includes the rollout itself shrinks the gradient by exactly (n - 1) / n; undone here.
        effort: total / peers.length,
        'leave-one-out': (total - reward) / Math.max(1, peers.length - 1),
      };
      const scale = baseline === 'effort' ? peers.length / Math.max(1, peers.length - 1) : 1;
      const advantage = (scale * (reward - references[baseline])) / size;
      gradient[input] = (gradient[input] ?? 0) + advantage * score.logit;
      gradient[2 + effort] = (gradient[2 + effort] ?? 0) + advantage * score.logCost;
    }
    for (const [index, value] of gradient.entries()) {
      sums[index] = (sums[index] ?? 0) + value;
      squares[index] = (squares[index] ?? 0) + value ** 2;
    }
  }
  const means = sums.map((sum) => sum / batches);
  const errors = squares.map((square, index) =>
    Math.sqrt((square / batches - (means[index] ?? 0) ** 2) / (batches - 1)),
  );
  return { means, errors };
}

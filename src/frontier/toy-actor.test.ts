/**
 * The gradient from sums against a loop over rollouts for every baseline, and against the exact gradient in the mean;
 * the optimizer against its first step and its bounds.
 */
import { describe, expect, it } from 'vitest';

import { createRandom } from '../domain/ids.ts';
import {
  CELL_COUNT,
  createDraws,
  createGenerator,
  createSuccessTable,
  createTally,
  drawBatch,
  TALLY,
  TALLY_COLUMNS,
  tallyBatch,
} from './rollout-sampler.ts';
import type { Draws } from './rollout-sampler.ts';
import { RECOVERED_PLAN } from './recovered-plan.ts';
import { STARTING_COSTS } from './study-record.ts';
import type { StudyPlan } from './study-record.ts';
import { batchGradient, createToyActor, createToyOptimizer, readPolicy } from './toy-actor.ts';
import type { ToyActor } from './toy-actor.ts';
import { rolloutScore } from './rollout-score.fixture.ts';
import { expectedGradient, toyProblem } from './toy-task.ts';

const BASELINES: readonly StudyPlan['baseline'][] = [
  'none',
  'batch',
  'effort',
  'leave-one-out',
  'length-weighted',
  'deviation',
];

interface Rollout {
  readonly effort: number;
  readonly input: number;
  readonly action: 0 | 1;
  readonly candidates: number;
  readonly reward: number;
}

function actorAt(logits: readonly [number, number], logCosts: readonly number[]): ToyActor {
  const actor = createToyActor();
  actor.parameters.set([...logits, ...logCosts.map((logCost, effort) => logCost - Math.log(STARTING_COSTS[effort]!))]);
  readPolicy(actor);
  return actor;
}

/** The rollouts that a batch of one cell at a time sums up. */
function rolloutsOf(draws: Draws, actor: ToyActor, prices: Float64Array, table: ReturnType<typeof createSuccessTable>) {
  const single = createDraws(1);
  const tally = createTally();
  const rollouts: Rollout[] = [];
  for (let cell = 0; cell < CELL_COUNT; cell++) {
    for (let place = cell * draws.capacity; place < cell * draws.capacity + draws.counts[cell]!; place++) {
      single.counts.fill(0);
      single.counts[cell] = 1;
      single.actions[cell] = draws.actions[place]!;
      single.exponentials[cell] = draws.exponentials[place]!;
      single.successes[cell] = draws.successes[place]!;
      tallyBatch(single, actor, { table, tally });
      const row = cell * TALLY_COLUMNS;
      const candidates = tally[row + TALLY.candidates]!;
      rollouts.push({
        effort: cell >> 1,
        input: cell & 1,
        action: tally[row + TALLY.actions] === 1 ? 1 : 0,
        candidates,
        reward: tally[row + TALLY.successes]! - prices[cell >> 1]! * candidates,
      });
    }
  }
  return rollouts;
}

function advantageOf(rollout: Rollout, rollouts: readonly Rollout[], baseline: StudyPlan['baseline']): number {
  const peers = baseline === 'batch' ? rollouts : rollouts.filter(({ effort }) => effort === rollout.effort);
  const rewards = peers.map(({ reward }) => reward);
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const { reward } = rollout;
  switch (baseline) {
    case 'none':
      return reward;
    case 'batch':
    case 'effort':
      return reward - mean;
    case 'leave-one-out':
      return rewards.length < 2 ? 0 : reward - (mean * rewards.length - reward) / (rewards.length - 1);
    case 'length-weighted': {
      const lengths = peers.reduce((sum, { candidates }) => sum + candidates, 0);
      const weighted = peers.reduce((sum, peer) => sum + peer.reward * peer.candidates, 0);
      return lengths === 0 ? reward : reward - weighted / lengths;
    }
    case 'deviation': {
      const variance = rewards.reduce((sum, value) => sum + (value - mean) ** 2, 0) / rewards.length;
      return variance < 1e-12 ? 0 : (reward - mean) / Math.sqrt(variance);
    }
    default:
      return baseline satisfies never;
  }
}

function gradientOf(rollouts: readonly Rollout[], actor: ToyActor, baseline: StudyPlan['baseline']): number[] {
  const gradient = [0, 0, 0, 0, 0];
  for (const rollout of rollouts) {
    const advantage = advantageOf(rollout, rollouts, baseline) / rollouts.length;
    const score = rolloutScore({
      logit: actor.parameters[rollout.input]!,
      action: rollout.action,
      logCost: Math.log(actor.costs[rollout.effort]!),
      candidates: rollout.candidates,
    });
    gradient[rollout.input]! += advantage * score.logit;
    gradient[2 + rollout.effort]! += advantage * score.logCost;
  }
  return gradient;
}

describe('batchGradient', () => {
  it.each(BASELINES)('from sums is the sum over rollouts, baseline %s', (baseline) => {
    const random = createRandom(1);
    for (const count of [1, 4, 12, 500]) {
      const table = createSuccessTable(toyProblem(random.below(100)));
      const actor = actorAt(
        [random.next() - 0.5, 2 * random.next()],
        STARTING_COSTS.map((cost) => Math.log(cost) + random.next() - 0.5),
      );
      const prices = Float64Array.of(0.07 * random.next(), 0.03, 0.01);
      const draws = createDraws(count);
      const tally = createTally();
      drawBatch(createGenerator(count, 'gradient'), draws, { count });
      tallyBatch(draws, actor, { table, tally });
      batchGradient(actor, tally, { prices, baseline });
      const rollouts = rolloutsOf(draws, actor, prices, table);
      expect(rollouts).toHaveLength(count);
      for (const [index, expected] of gradientOf(rollouts, actor, baseline).entries()) {
        expect(Math.abs(actor.gradient[index]! - expected)).toBeLessThan(1e-12);
      }
      for (const effort of [0, 1, 2]) {
        const peers = rollouts.filter((rollout) => rollout.effort === effort);
        const candidates = peers.reduce((sum, peer) => sum + peer.candidates, 0) / peers.length;
        expect(actor.candidates[effort]).toBe(candidates);
      }
    }
  });

  it.each(['none', 'leave-one-out', 'length-weighted'] as const)(
    'is the exact gradient in the mean at 20 random points, baseline %s',
    (baseline) => {
      const random = createRandom(2);
      const tally = createTally();
      const draws = createDraws(1024);
      for (let point = 0; point < 20; point++) {
        const problem = toyProblem(random.below(100));
        const table = createSuccessTable(problem);
        const logits = [2 * random.next() - 1, 2 * random.next() - 1] as const;
        const logCosts = STARTING_COSTS.map((cost) => Math.log(cost) + random.next() - 0.5);
        const actor = actorAt(logits, logCosts);
        const prices = Float64Array.from(STARTING_COSTS, (cost) => random.next() / (3 + cost));
        const exact = expectedGradient(problem, { parameters: { logits, logCosts }, prices: [...prices] });
        const generator = createGenerator(point, 'oracle');
        const batches = 150;
        const sums = new Float64Array(5);
        const squares = new Float64Array(5);
        for (let batch = 0; batch < batches; batch++) {
          drawBatch(generator, draws, { count: 1024 });
          tallyBatch(draws, actor, { table, tally });
          batchGradient(actor, tally, { prices, baseline });
          for (const [index, value] of actor.gradient.entries()) {
            sums[index]! += value;
            squares[index]! += value ** 2;
          }
        }
        for (const [index, expected] of [...exact.logits, ...exact.logCosts].entries()) {
          const mean = sums[index]! / batches;
          const error = Math.sqrt((squares[index]! / batches - mean ** 2) / (batches - 1));
          expect(Math.abs(mean - expected)).toBeLessThan(5 * error);
        }
      }
    },
  );
});

describe('createToyOptimizer', () => {
  const gradient = [0.2, -0.1, 1e-4, 0, 3];

  it('takes a first step of the size of the rate with Adam, and of rate times gradient without', () => {
    const adam = createToyActor();
    adam.gradient.set(gradient);
    createToyOptimizer(RECOVERED_PLAN).step(adam, 1);
    const moved = [0.015, -0.015, 0.015, 0, 0.015];
    for (const [index, expected] of moved.entries()) expect(adam.parameters[index]).toBeCloseTo(expected, 5);
    expect(adam.actionChances[0]).toBeCloseTo(1 / (1 + Math.exp(-0.015)), 8);

    const plain = createToyActor();
    plain.gradient.set(gradient);
    const actor = { ...RECOVERED_PLAN.actor, optimizer: 'sgd' as const, rate: 0.5, decay: null };
    createToyOptimizer({ ...RECOVERED_PLAN, actor }).step(plain, 1);
    expect([...plain.parameters]).toEqual(gradient.map((slope) => 0.5 * slope));
    expect(plain.costs[2]).toBeCloseTo(15 * Math.exp(1.5), 10);
  });

  it('keeps a frozen skill and the bounds of cost', () => {
    const actor = createToyActor();
    const optimizer = createToyOptimizer({ ...RECOVERED_PLAN, isSkillFrozen: true, costFloor: 0.9, costCeiling: 1.2 });
    for (let step = 1; step <= 100; step++) {
      actor.gradient.set([1, 1, -1, 0, 1]);
      optimizer.step(actor, step);
    }
    expect([...actor.actionChances]).toEqual([0.5, 0.5]);
    expect(actor.costs[0]).toBeCloseTo(0.9 * 2, 12);
    expect(actor.costs[1]).toBe(6);
    expect(actor.costs[2]).toBeCloseTo(1.2 * 15, 12);
  });
});

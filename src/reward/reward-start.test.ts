/** What is measured at start, and every input that is missing or says nothing. */
import { describe, expect, it } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { percentile } from '../domain/statistics.ts';
import { linearise } from './f-beta.ts';
import { referenceOf } from './frontier-state.ts';
import { createRewardState } from './reward-start.ts';
import type { RewardStart, RewardStartInput } from './reward-start.ts';
import { drawRollouts, rolloutWith } from './scored-rollout.fixture.ts';
import type { ScoredRollout } from './scored-rollout.ts';
import { rewardSpecSchema } from './spec.ts';
import { priceOf } from './steering.ts';

const EFFORTS = ['low', 'high'];
const baseline = drawRollouts({ seed: 1, efforts: { low: 2, high: 6 }, tasks: 80, rolloutsPerTask: 6 });
const lookups = { lookups: 1 };
const frontier = { kind: 'frontier', alpha: 0.5, costs: [{ weights: lookups }] };
const base = { kind: 'correct' };

function start(written: unknown, input: Partial<RewardStartInput> = {}): RewardStart {
  return createRewardState(rewardSpecSchema.parse(written), { baseline, efforts: EFFORTS, seed: 7, ...input });
}

/** Message and cure in one line. */
function refusal(written: unknown, input: Partial<RewardStartInput> = {}): string {
  try {
    start(written, input);
  } catch (error) {
    if (error instanceof HoneError) return `${error.code}: ${error.message} ${error.cure}`;
    throw error;
  }
  return 'was not refused';
}

const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;

describe('starting a reward', () => {
  it('needs nothing for a reward without measurements', () => {
    const spec = rewardSpecSchema.parse({ base, terms: [{ kind: 'cost', weights: lookups }] });
    expect(createRewardState(spec, { efforts: EFFORTS, seed: 7 })).toEqual({
      state: {
        steps: 0,
        phase: { index: 0, steps: 0, reached: 0 },
        calibration: null,
        frontier: null,
        budgets: {},
        latencyModels: {},
        measuredUnder: { base: { kind: 'correct' } },
      },
      report: [],
    });
  });

  it('computes the weight of precision from the baseline, without what was cheated', () => {
    const cheated = rolloutWith({ effort: 'low', outcome: { cheated: true } });
    const rollouts = [...baseline, cheated];
    const { state, report } = start({}, { baseline: rollouts });
    const honest = (value: (rollout: ScoredRollout) => number): number =>
      mean(rollouts.map((rollout) => (rollout.outcome.cheated ? 0 : value(rollout))));
    const precision = honest(({ outcome }) => outcome.precision);
    const recall = honest(({ outcome }) => outcome.recall);
    expect(state.calibration?.precisionWeight).toBe(linearise({ precision, recall, beta: 0.5 }).precisionWeight);
    expect(report.join('\n')).toMatch(/precision weighs [\d.]+ against a recall of 1 \(beta 0\.5\)/);
  });

  it('starts a price at the slope within tasks, and says where from', () => {
    const { state, report } = start({ base, terms: [frontier] });
    const low = state.frontier?.['low'];
    const reference = referenceOf(low?.reference ?? { tasks: 0, rollouts: 0, means: [], covariances: [] }, {
      base: { kind: 'correct' },
      precisionWeight: 0,
      cost: 0,
    });
    const own = baseline.filter(({ effort }) => effort === 'low');
    expect(reference.cost).toBeCloseTo(mean(own.map(({ cost }) => cost.lookups)), 12);
    expect(reference).toMatchObject({ tasks: 80, rollouts: 480 });
    // The regression slope within tasks, written out.
    let products = 0;
    let squares = 0;
    for (let task = 0; task < 80; task++) {
      const rollouts = own.filter(({ taskId }) => taskId === `t${task}`);
      const cost = mean(rollouts.map((rollout) => rollout.cost.lookups));
      for (const rollout of rollouts) {
        products += (rollout.cost.lookups - cost) * (rollout.outcome.precision === 1 ? 1 : 0);
        squares += (rollout.cost.lookups - cost) ** 2;
      }
    }
    expect(low === undefined ? 0 : priceOf(low.prices['cost'] ?? { ...EMPTY })).toBeCloseTo(products / squares, 12);
    expect(report).toHaveLength(4);
    expect(report[0]).toMatch(
      /^Effort low: success 0\.\d+ ± 0\.\d+ at a mean cost of \d\S* ± \S+ \(cost; standard errors, .* from the slope within tasks \(band /,
    );
    expect(report[1]).toMatch(/noise of .*the price rests while the gap is within .*about \d+ rollouts would bring/);
  });

  it('starts several costs at their shares of the slope, so that together they price a move as one would', () => {
    const costs = [
      { name: 'looks', weights: lookups, share: 0.75 },
      { name: 'pairs', weights: { lookups: 0.5 }, share: 0.25 },
    ];
    for (const startingPrice of [{ from: 'within-task' }, { from: 'across-efforts' }]) {
      const one = start({ base, terms: [{ ...frontier, startingPrice }] }).state.frontier;
      const two = start({ base, terms: [{ ...frontier, costs, startingPrice }] }).state.frontier;
      for (const effort of EFFORTS) {
        const price = priceOf(one?.[effort]?.prices['cost'] ?? EMPTY);
        const [looks, pairs] = ['looks', 'pairs'].map((name) => priceOf(two?.[effort]?.prices[name] ?? EMPTY));
        expect((looks ?? 0) + 0.5 * (pairs ?? 0)).toBeCloseTo(price, 9);
        expect(looks).toBeCloseTo(0.75 * price, 9);
      }
    }
  });

  it('takes given prices as they are', () => {
    const prices = { low: 0.25, high: { cost: 0.5 } };
    const { state } = start({ base, terms: [{ ...frontier, startingPrice: { from: 'given', prices } }] });
    expect(EFFORTS.map((effort) => state.frontier?.[effort]?.prices['cost']?.logPrice)).toEqual([
      Math.log(0.25),
      Math.log(0.5),
    ]);
  });

  it('freezes budgets: a percentile of the cost of correct rollouts, for each effort or each task at each effort', () => {
    const budget = { kind: 'budget', form: 'hard', percentile: 75, weights: lookups };
    const byEffort = start({ base, terms: [{ ...budget, scope: 'effort' }] }).state.budgets['budget'];
    const costs = baseline
      .filter(({ effort, outcome }) => effort === 'high' && outcome.precision === 1)
      .map(({ cost }) => cost.lookups)
      .sort((a, b) => a - b);
    expect(byEffort?.['high']).toBe(percentile(costs, 0.75));
    const taskIds = Array.from({ length: 80 }, (_, task) => `t${task}`);
    const byTask = start({ base, terms: [{ ...budget, scope: 'task' }] }, { taskIds }).state.budgets['budget'];
    expect(Object.keys(byTask ?? {})).toHaveLength(160);
    expect(Object.values(byTask ?? {})).toContain(null);
  });

  it('fits the latency model on the recorded baseline', () => {
    const term = {
      kind: 'latency',
      kappa: 1,
      dropOff: { edges: [0, 5, 10], counts: [1, 1] },
      latency: { from: 'measured' },
    };
    const { state, report } = start({ base, terms: [term] });
    const model = state.latencyModels['latency'];
    expect(model?.tokensPerSecond).toBeCloseTo(200, 6);
    expect(model?.secondsPerTurn).toBeCloseTo(0.25, 9);
    expect(model?.overheadSeconds).toBeCloseTo(0.5, 9);
    expect(report[0]).toMatch(
      /^Latency of the term latency: 0\.5 s, and 0\.25 s a turn, at 200 sampled tokens a second/,
    );
  });

  it('says of a product of one turn that its time is in the overhead', () => {
    const dropOff = { edges: [0, 5, 10], counts: [1, 1] };
    const term = { kind: 'latency', kappa: 1, dropOff, latency: { from: 'measured' } };
    const oneTurn = baseline.map((rollout) => ({
      ...rollout,
      cost: { ...rollout.cost, turns: 1 },
      latencySeconds: 0.75 + rollout.cost.sampledTokens / 200,
    }));
    const { state, report } = start({ base, terms: [term] }, { baseline: oneTurn });
    expect(state.latencyModels['latency']?.secondsPerTurn).toBe(0);
    expect(report[0]).toMatch(/^Latency of the term latency: 0\.75 s with its 1 turn, which every rollout has, at 200/);
  });

  it('warns of a price that comes in a later phase, as its gains count from the start', () => {
    const written = (alpha: number, first: string[]): unknown => ({
      base,
      terms: [{ ...frontier, alpha, startingPrice: { from: 'given', prices: { low: 0.1, high: 0.1 } } }],
      phases: [
        { name: 'capability', terms: first, until: { steps: 5 } },
        { name: 'product', terms: ['frontier'] },
      ],
    });
    const warnings = (alpha: number, first: string[]): string[] =>
      start(written(alpha, first)).report.filter((sentence) => sentence.startsWith('Warning'));
    expect(warnings(0, [])).toEqual([
      expect.stringMatching(
        /frontier is not in force in the first phase \(capability\).*spent again on saving cost.*, all of it\. Set alpha to 1, or name the term in every phase/,
      ),
    ]);
    expect(warnings(0.5, [])).toEqual([expect.stringMatching(/at alpha 0\.5 part of it/)]);
    expect(warnings(1, [])).toEqual([]);
    expect(warnings(0, ['frontier'])).toEqual([]);
  });

  it('gives the same state for the same rollouts and seed', () => {
    const written = { terms: [{ ...frontier, startingPrice: { from: 'across-efforts' } }] };
    expect(JSON.stringify(start(written))).toBe(JSON.stringify(start(written)));
  });

  const silent = baseline.map(({ latencySeconds: _, ...rollout }) => rollout);
  const once = baseline.filter(
    (rollout, index) => baseline.findIndex(({ groupId }) => groupId === rollout.groupId) === index,
  );
  const failed = baseline.map((rollout) => ({ ...rollout, outcome: { ...rollout.outcome, precision: 0, recall: 0 } }));
  const latency = { kind: 'latency', kappa: 1, dropOff: { edges: [0, 5], counts: [1] }, latency: { from: 'measured' } };
  const budget = { kind: 'budget', form: 'hard', scope: 'task', weights: lookups };
  it.each<[string, unknown, Partial<RewardStartInput>, RegExp]>([
    ['no effort', {}, { efforts: [] }, /efforts of the run are \[\]/],
    ['an effort twice', {}, { efforts: ['low', 'low'] }, /efforts of the run are \[low, low\]/],
    [
      'no baseline',
      { terms: [frontier] },
      { baseline: [] },
      /invalid-config: Measured at start: the weight of precision, the term frontier\. But there is no baseline\. Roll out/,
    ],
    [
      'an effort without rollouts',
      { base, terms: [frontier] },
      { efforts: ['low', 'high', 'max'] },
      /no rollouts at effort max, and the term frontier needs them/,
    ],
    [
      'rollouts at another effort',
      { base, terms: [frontier] },
      { efforts: ['low'] },
      /rollouts at effort high, which is none/,
    ],
    ['a policy that finds nothing', {}, { baseline: failed }, /cannot be linearised at precision 0, recall 0/],
    [
      'a reference that cannot be reached',
      { base, terms: [{ ...frontier, startingPrice: { from: 'given', prices: { low: 1, high: 1 } } }] },
      { baseline: failed },
      /mean success of the initial policy at effort low is 0 over 480 rollouts/,
    ],
    [
      'a reference that cannot be reached, before it looks for a slope',
      { base, terms: [frontier] },
      { baseline: failed },
      /mean success of the initial policy at effort low is 0 over 480 rollouts/,
    ],
    [
      'a cost that nothing spends, before it looks for a slope',
      { base, terms: [{ ...frontier, startingPrice: { from: 'across-efforts' } }] },
      { baseline: baseline.map((rollout) => ({ ...rollout, cost: { ...rollout.cost, lookups: 0 } })) },
      /mean cost of the initial policy at effort low is 0/,
    ],
    [
      'a cost that nothing spends',
      { base, terms: [{ ...frontier, startingPrice: { from: 'given', prices: { low: 1, high: 1 } } }] },
      { baseline: baseline.map((rollout) => ({ ...rollout, cost: { ...rollout.cost, lookups: 0 } })) },
      /mean cost of the initial policy at effort low is 0/,
    ],
    [
      'one rollout of each task',
      { base, terms: [frontier] },
      { baseline: once },
      /slope of success on cost at effort low cannot be measured/,
    ],
    [
      'a slope that may be 0',
      { base, terms: [frontier] },
      { baseline: baseline.filter(({ taskId }) => Number(taskId.slice(1)) < 14).map(shuffled) },
      /slope of success on cost at effort low is/,
    ],
    [
      'the slope of three tasks',
      { base, terms: [frontier] },
      { baseline: baseline.filter(({ taskId }) => ['t0', 't1', 't2'].includes(taskId)) },
      /of 3 tasks, 3 have rollouts whose costs differ, needs at least 10\. Record several rollouts of each task/,
    ],
    [
      'prices of other efforts',
      { base, terms: [{ ...frontier, startingPrice: { from: 'given', prices: { low: 1, middle: 1 } } }] },
      {},
      /starting prices of the term frontier are for low, middle, and the run has the efforts low, high/,
    ],
    ['no latency recorded', { base, terms: [latency] }, { baseline: silent }, /task t0 in the baseline has no latency/],
    [
      'no latency recorded where each rollout is charged its own',
      { base, terms: [{ ...latency, latency: { from: 'recorded' } }] },
      { baseline: silent },
      /task t0 in the baseline has no latency, and a latency term reads it/,
    ],
    [
      'recorded latency that nobody has seen',
      { base, terms: [{ ...latency, latency: { from: 'recorded' } }] },
      { baseline: [] },
      /Measured at start: the term latency\. But there is no baseline/,
    ],
    ['budgets of an endless stream', { base, terms: [budget] }, {}, /no fixed pool of tasks/],
    [
      'a task of the pool without rollouts',
      { base, terms: [budget] },
      { taskIds: ['t0', 'new'] },
      /no rollout of 2 of 4 tasks and efforts, the first low\/new/,
    ],
  ])('refuses %s', (_, written, input, message) => {
    expect(refusal(written, input)).toMatch(message);
  });
});

/** Success turned round against cost within the task, so that no slope is left. */
function shuffled(rollout: ScoredRollout): ScoredRollout {
  const found = rollout.cost.lookups % 2;
  return { ...rollout, outcome: { ...rollout.outcome, precision: found, recall: found } };
}

const EMPTY = { logPrice: Number.NaN, startLogPrice: 0, updates: 0, previousGap: null, pinned: null, reported: null };

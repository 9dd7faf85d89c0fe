/** What a step teaches the reward: prices that land, tangents that follow, phases, and states that resume bit for bit. */
import { describe, expect, it } from 'vitest';

import { fBeta, fBetaGradient } from './f-beta.ts';
import { advanceRewardState } from './reward-advance.ts';
import type { RewardAdvance } from './reward-advance.ts';
import { createRewardState } from './reward-start.ts';
import { restoreRewardState } from './reward-state.ts';
import type { RewardState } from './reward-state.ts';
import { scoreBatch } from './score-batch.ts';
import { drawRollouts, rolloutWith } from './scored-rollout.fixture.ts';
import type { ScoredRollout } from './scored-rollout.ts';
import { rewardSpecSchema } from './spec.ts';
import type { RewardSpec } from './spec.ts';
import { priceOf } from './steering.ts';

const EFFORTS = ['low', 'high'];
const baseline = drawRollouts({ seed: 1, efforts: { low: 2, high: 6 }, tasks: 60, rolloutsPerTask: 6 });
const frontier = {
  kind: 'frontier',
  alpha: 0.5,
  costs: [{ weights: { lookups: 1 } }],
  startingPrice: { from: 'given', prices: { low: 0.1, high: 0.03 } },
};

function startWith(written: unknown): { spec: RewardSpec; state: RewardState } {
  const spec = rewardSpecSchema.parse(written);
  return { spec, state: createRewardState(spec, { baseline, efforts: EFFORTS, seed: 3 }).state };
}

/** A policy that gets better and cheaper from step to step, at both efforts. */
function batchAt(step: number): ScoredRollout[] {
  const efforts = { low: 2 - step / 60, high: 6 - step / 20 };
  return drawRollouts({
    seed: 100 + step,
    efforts,
    tasks: 6,
    rolloutsPerTask: 4,
    skill: 0.3 + step / 300,
    cheatShare: 0.05,
  });
}

describe('advancing the reward', () => {
  it('measures each effort on raw outcomes, the cheated without success but with their cost', () => {
    const { spec, state } = startWith({ base: { kind: 'correct' }, terms: [frontier] });
    const batch = [
      rolloutWith({ effort: 'low', cost: { lookups: 1 } }),
      rolloutWith({ effort: 'low', cost: { lookups: 4 }, outcome: { cheated: true } }),
      rolloutWith({ effort: 'low', cost: { lookups: 4 }, outcome: { recall: 0.5 } }),
    ];
    const { measured } = advanceRewardState(spec, state, batch);
    expect(Object.keys(measured)).toEqual(['low']);
    const at = measured['low'];
    const means = state.frontier?.['low']?.reference.means ?? [];
    expect(at).toMatchObject({ rollouts: 3, success: 1 / 3, cost: { cost: 3 } });
    expect(at?.successGain).toBeCloseTo(1 / 3 / (means[0] ?? 0) - 1, 12);
    expect(at?.costSaving['cost']).toBeCloseTo(1 - 3 / (means[1] ?? 0), 12);
    expect(at?.price['cost']).toBeCloseTo(0.1, 12);
  });

  it('measures success without a frontier too', () => {
    const { spec, state } = startWith({});
    const { measured, events } = advanceRewardState(spec, state, [
      rolloutWith({ effort: 'low', outcome: { recall: 0 } }),
    ]);
    const weight = state.calibration?.precisionWeight ?? 0;
    expect(measured).toEqual({
      low: { rollouts: 1, success: weight / (1 + weight), cost: {}, costSaving: {}, gap: {}, gapError: {}, price: {} },
    });
    expect(events).toEqual([]);
  });

  it('leaves the prices of an effort without rollouts bit for bit', () => {
    const { spec, state } = startWith({ terms: [frontier] });
    const low = batchAt(3).filter(({ effort }) => effort === 'low');
    const next = advanceRewardState(spec, state, low).state;
    expect(next.frontier?.['high']).toBe(state.frontier?.['high']);
    expect(next.frontier?.['low']?.prices['cost']?.updates).toBe(1);
    const none = advanceRewardState(spec, next, []);
    expect(none.state).toEqual({ ...next, steps: 2, phase: { index: 0, steps: 2, reached: 0 } });
    expect(none.measured).toEqual({});
  });

  it('moves no price in a phase without the term, and starts the proportional term anew when it comes back', () => {
    const { spec, state } = startWith({
      terms: [frontier],
      phases: [
        { name: 'steered', terms: ['frontier'], until: { steps: 2 } },
        { name: 'free', terms: [], until: { steps: 2 } },
      ],
      repeatPhases: true,
    });
    const states = [state];
    const phases: string[] = [];
    for (let step = 0; step < 5; step++) {
      const { state: next, events } = advanceRewardState(spec, states.at(-1) ?? state, batchAt(40 * (step % 2)));
      states.push(next);
      for (const event of events) if (event.event === 'reward-phase') phases.push(`${event.from} to ${event.to}`);
    }
    const prices = states.map(({ frontier: at }) => at?.['high']?.prices['cost']?.logPrice);
    expect(prices[1]).not.toBe(prices[0]);
    expect(prices[3]).toBe(prices[2]);
    expect(prices[4]).toBe(prices[2]);
    expect(phases).toEqual(['steered to free', 'free to steered']);
    expect(states[4]?.frontier?.['high']?.prices['cost']?.previousGap).toBeNull();
    expect(states[4]?.frontier?.['high']?.prices['cost']?.updates).toBe(2);
    expect(prices[5]).not.toBe(prices[4]);
  });

  it('follows a lasting drift of the ratio of recall to precision: the reference is expressed anew, prices go on', () => {
    const { spec, state } = startWith({
      base: { kind: 'detection', recalibrationPatience: 2 },
      terms: [{ ...frontier, controller: { deadZone: 0 } }],
    });
    const drifted = baseline.map((rollout) => ({
      ...rollout,
      outcome: { ...rollout.outcome, recall: rollout.outcome.recall / 2 },
    }));
    const first = advanceRewardState(spec, state, drifted);
    const second = advanceRewardState(spec, first.state, drifted);
    expect(first.events).toEqual([]);
    expect(first.state.frontier?.['low']?.prices['cost']?.previousGap).not.toBeNull();
    expect(second.events.map(({ event }) => event)).toEqual(['reward-recalibrated']);
    const weight = state.calibration?.precisionWeight ?? 0;
    expect(second.state.calibration?.precisionWeight).toBeCloseTo(weight / 4, 12);
    const before = first.state.frontier?.['low'];
    const after = second.state.frontier?.['low'];
    expect(after?.reference).toBe(before?.reference);
    expect(after?.prices['cost']?.previousGap).toBeNull();
    // The gain of the starting policy itself is 0 under either weight.
    const again = advanceRewardState(spec, second.state, baseline).measured['low'];
    expect(Math.abs(again?.successGain ?? 1)).toBeLessThan(1e-12);
    expect(Math.abs(again?.gap['cost'] ?? 1)).toBeLessThan(1e-12);
  });

  it('never moves a weight that is a number', () => {
    const { spec, state } = startWith({ base: { kind: 'detection', precisionWeight: 2 } });
    const { state: next, events } = advanceRewardState(spec, state, [rolloutWith({ outcome: { recall: 0.01 } })]);
    expect(next).toEqual({ ...state, steps: 1, phase: { index: 0, steps: 1, reached: 0 } });
    expect(events).toEqual([]);
  });

  it('reports F-beta of the batch, and how far it is below the tangent that the reward climbs', () => {
    const { spec, state } = startWith({});
    const batch = batchAt(40);
    const { detection } = advanceRewardState(spec, state, batch);
    if (detection === undefined || state.calibration === null) throw new Error('measured');
    const honest = batch.map(({ outcome }) => (outcome.cheated ? { precision: 0, recall: 0 } : outcome));
    const precision = honest.reduce((sum, outcome) => sum + outcome.precision, 0) / batch.length;
    expect(detection.precision).toBeCloseTo(precision, 12);
    expect(detection.fBeta).toBe(fBeta(detection, 0.5));
    const gradient = fBetaGradient(state.calibration.reference, 0.5);
    const tangent = gradient.precision * detection.precision + gradient.recall * detection.recall;
    expect(detection.tangentError).toBeLessThan(0);
    expect(detection.tangentError).toBeCloseTo(detection.fBeta - tangent, 12);
    const stated = startWith({ base: { kind: 'detection', precisionWeight: 2 } });
    expect(advanceRewardState(stated.spec, stated.state, batch).detection).not.toHaveProperty('tangentError');
    const correct = startWith({ base: { kind: 'correct' } });
    expect(advanceRewardState(correct.spec, correct.state, batch)).not.toHaveProperty('detection');
  });

  it('tells of groups that a hard budget left without signal, and of none in its free steps', () => {
    const { spec, state } = startWith({
      base: { kind: 'correct' },
      terms: [{ kind: 'budget', form: 'hard', scope: 'effort', weights: { lookups: 1 }, alternateSteps: 1 }],
    });
    const lookups = (state.budgets['budget']?.['low'] ?? 0) + 1;
    const batch = [
      rolloutWith({ effort: 'low', group: 'a', cost: { lookups } }),
      rolloutWith({ effort: 'low', group: 'a', outcome: { recall: 0 } }),
      rolloutWith({ effort: 'low', group: 'b' }),
      rolloutWith({ effort: 'low', group: 'b', outcome: { recall: 0 } }),
    ];
    const { state: next, events } = advanceRewardState(spec, state, batch);
    expect(events).toMatchObject([{ event: 'reward-budget-silenced', term: 'budget', silenced: 1, groups: 2 }]);
    expect(advanceRewardState(spec, next, batch).events).toEqual([]);
  });

  it('ends a phase by what the batch measured, raw', () => {
    const written = (metric: string, atLeast: number): unknown => ({
      base: { kind: 'detection', beta: 1, precisionWeight: 1 },
      terms: [{ kind: 'cost', weights: { lookups: 1 } }],
      phases: [
        { name: 'capability', terms: [], until: { metric, atLeast, patience: 1 } },
        { name: 'product', terms: ['cost'] },
      ],
    });
    const batch = [
      rolloutWith({ outcome: { precision: 0.5, recall: 1 }, cost: { lookups: 30 } }),
      rolloutWith({ outcome: { precision: 0.5, recall: 0.5 } }),
      rolloutWith({ outcome: { cheated: true } }),
    ];
    const figures = { precision: 1 / 3, recall: 1 / 2, f_beta: 0.4, success: 1.25 / 3 };
    for (const [metric, value] of Object.entries(figures)) {
      const reached = startWith(written(metric, value - 1e-9));
      expect(advanceRewardState(reached.spec, reached.state, batch).state.phase.index, metric).toBe(1);
      const missed = startWith(written(metric, value + 1e-9));
      expect(advanceRewardState(missed.spec, missed.state, batch).state.phase.index, metric).toBe(0);
    }
  });

  it('tells once when a price comes to the end of its clip', () => {
    const { spec, state } = startWith({
      base: { kind: 'correct' },
      terms: [{ ...frontier, controller: { rate: 0.5, decay: null, clip: 1.1, slewLimit: null, proportional: 0 } }],
    });
    const good = [rolloutWith({ effort: 'low', cost: { lookups: 3 } })];
    let at = state;
    const events: RewardAdvance['events'][number][] = [];
    for (let step = 0; step < 5; step++) {
      const advanced = advanceRewardState(spec, at, good);
      at = advanced.state;
      events.push(...advanced.events);
    }
    expect(events).toHaveLength(1);
    expect(events[0]).toMatchObject({
      event: 'frontier-constraint-not-binding',
      effort: 'low',
      cost: 'cost',
      bound: 'high',
    });
  });

  it('resumes bit for bit: half way through JSON, then 50 more steps give the same states and rewards', () => {
    const { spec, state } = startWith({
      terms: [
        {
          ...frontier,
          costs: [
            { name: 'looks', weights: { lookups: 1 } },
            { name: 'words', weights: { tokens: 0.01 } },
          ],
          startingPrice: { from: 'across-efforts' },
        },
        { kind: 'budget', form: 'hard', scope: 'effort', weights: { lookups: 1 }, alternateSteps: 3 },
        { kind: 'latency', kappa: 0.2, dropOff: { edges: [0, 1, 2], counts: [1, 1] }, latency: { from: 'measured' } },
      ],
      phases: [
        { name: 'capability', terms: ['latency'], until: { steps: 7 } },
        { name: 'product', terms: ['frontier', 'budget', 'latency'], until: { steps: 11 } },
      ],
      repeatPhases: true,
    });
    const walk = (from: RewardState, first: number, last: number): { states: string[]; end: RewardState } => {
      let at = from;
      const states: string[] = [];
      for (let step = first; step < last; step++) {
        const batch = batchAt(step % 50);
        const rewards = scoreBatch(spec, at, batch);
        const advanced = advanceRewardState(spec, at, batch);
        at = advanced.state;
        states.push(JSON.stringify([rewards, advanced]));
      }
      return { states, end: at };
    };
    const half = walk(state, 0, 10);
    const stored: unknown = JSON.parse(JSON.stringify(half.end));
    const restored = restoreRewardState(spec, { state: stored, efforts: EFFORTS });
    expect(restored).toEqual(half.end);
    expect(walk(restored, 10, 60)).toEqual(walk(half.end, 10, 60));
  });
});

describe('a steered policy', () => {
  const START = 6;
  const skillAt = (step: number): number => 0.1 * (1 + 0.6 * Math.min(step / 300, 1));
  const successAt = (cost: number, skill: number): number => (skill * cost) / (1 + skill * cost);
  const slopeAt = (cost: number, skill: number): number => skill / (1 + skill * cost) ** 2;

  /** Follows the reward's own gradient on log cost while the frontier gets better; what it earns is what scoreBatch says. */
  function land(alpha: number, priceError: number): { gain: number; saving: number; logPrice: number } {
    const at = (cost: number, skill: number, task = 't0'): ScoredRollout => {
      const success = successAt(cost, skill);
      return rolloutWith({
        task,
        effort: 'low',
        outcome: { precision: success, recall: success },
        cost: { turns: cost },
      });
    };
    const price = priceError * slopeAt(START, skillAt(0));
    const spec = rewardSpecSchema.parse({
      base: { kind: 'detection', precisionWeight: 1 },
      terms: [
        {
          kind: 'frontier',
          alpha,
          costs: [{ weights: { turns: 1 } }],
          startingPrice: { from: 'given', prices: { low: price } },
        },
      ],
    });
    const started = createRewardState(spec, {
      baseline: ['t0', 't1'].map((task) => at(START, skillAt(0), task)),
      efforts: ['low'],
      seed: 1,
    });
    let { state } = started;
    let cost = START;
    let measured: RewardAdvance['measured'] = {};
    for (let step = 0; step < 3000; step++) {
      const skill = skillAt(step);
      const batch = [at(cost, skill)];
      const [evaluation] = scoreBatch(spec, state, batch);
      const slope = slopeAt(cost, skill) - (evaluation?.prices['cost'] ?? Number.NaN);
      ({ state, measured } = advanceRewardState(spec, state, batch));
      cost *= Math.exp(Math.max(-0.015, Math.min(0.015, 4 * cost * slope)));
    }
    const low = measured['low'];
    const steering = state.frontier?.['low']?.prices['cost'];
    return {
      gain: low?.successGain ?? Number.NaN,
      saving: low?.costSaving['cost'] ?? Number.NaN,
      logPrice: steering === undefined ? Number.NaN : Math.log(priceOf(steering)),
    };
  }

  it.each([0, 0.25, 0.5, 0.75, 1])(
    'lands along the direction of alpha %d, from a price that is right or off by 3',
    (alpha) => {
      for (const priceError of [1, 3, 1 / 3]) {
        const { gain, saving, logPrice } = land(alpha, priceError);
        expect(Math.abs((1 - alpha) * gain - alpha * saving)).toBeLessThan(0.01);
        expect(gain + saving).toBeGreaterThan(0.15);
        // At rest the price is the slope of the frontier there.
        const cost = START * (1 - saving);
        expect(logPrice).toBeCloseTo(Math.log(slopeAt(cost, skillAt(3000))), 1);
      }
    },
  );
});

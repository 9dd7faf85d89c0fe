/** The controller: vectors, limits one by one, state through JSON, and the mixture that it is derived from. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import { createRandom } from '../domain/ids.ts';
import { gapOf } from './relative-gain.ts';
import {
  PLAIN_STEERING,
  priceOf,
  priceOfMixture,
  proximalStep,
  scheduledRate,
  startSteering,
  steer,
} from './steering.ts';
import type { SteeringEvent, SteeringOptions, SteeringState } from './steering.ts';

const gapValue = fc.double({ min: -2, max: 2, noNaN: true });

function follow(
  gaps: readonly (number | undefined)[],
  options: Partial<SteeringOptions>,
  start = startSteering(0.1),
): { states: SteeringState[]; events: (SteeringEvent | undefined)[] } {
  const states: SteeringState[] = [];
  const events: (SteeringEvent | undefined)[] = [];
  let state = start;
  for (const gap of gaps) {
    const step = steer(state, gap, options, { gapError: 0.01 });
    expect(step.change).toBeCloseTo(step.state.logPrice - state.logPrice, 14);
    state = step.state;
    states.push(state);
    events.push(step.event);
  }
  return { states, events };
}

/** Changes of log price in units of a constant rate of 1. */
function changes(gaps: readonly number[], options: Partial<SteeringOptions>): number[] {
  let last = startSteering(1).logPrice;
  return follow(gaps, { rate: 1, decay: null, ...options }, startSteering(1)).states.map(({ logPrice }) => {
    const change = logPrice - last;
    last = logPrice;
    return change;
  });
}

describe('steer', () => {
  it.each(
    readVectors<
      { lambda_: number; eta: number; alpha: number; u: number; v: number },
      { d: number; logLambda: number; lambda_: number }
    >('lambdaUpdate'),
  )('meets the vector $in', ({ in: { lambda_, eta, alpha, u, v }, out }) => {
    const gap = gapOf({ successGain: u, costSaving: v }, alpha);
    const { state } = steer(startSteering(lambda_), gap, { rate: eta });
    expect(vectorError(gap, out.d)).toBeLessThanOrEqual(1e-12);
    expect(vectorError(state.logPrice, out.logLambda)).toBeLessThanOrEqual(1e-12);
    expect(vectorError(priceOf(state), out.lambda_)).toBeLessThanOrEqual(1e-12);
  });

  it('keeps the state of an effort without rollouts, the very same object, through any run of such batches', () => {
    const state = steer(startSteering(0.3), 0.2, { proportional: 0.5 }).state;
    expect(steer(state, undefined)).toEqual({ state, change: 0 });
    expect(steer(state, undefined).state).toBe(state);
  });

  it('slows down with the updates that were heard, not with the batches', () => {
    const { states } = follow([1, undefined, undefined, 1], { decay: { steps: 1, power: 1 } }, startSteering(1));
    expect(states[3]?.updates).toBe(2);
    expect(states[3]?.logPrice).toBeCloseTo(0.02 + 0.01, 15);
  });

  it('adds up to rate x sum of gaps + kp x (last gap - first gap)', () => {
    fc.assert(
      fc.property(fc.array(gapValue, { minLength: 1, maxLength: 30 }), (gaps) => {
        const { states } = follow(gaps, { rate: 0.05, decay: null, proportional: 0.4 }, startSteering(1));
        const sum = gaps.reduce((total, gap) => total + gap, 0);
        const expected = 0.05 * sum + 0.4 * ((gaps.at(-1) ?? 0) - (gaps[0] ?? 0));
        expect(Math.abs((states.at(-1)?.logPrice ?? Number.NaN) - expected)).toBeLessThan(1e-13);
      }),
      { numRuns: 200, seed: 6 },
    );
  });

  it('limits the sum of both terms, in both directions', () => {
    const moved = changes([0.1, 0.6, -0.6], { proportional: 1, slewLimit: 0.5 });
    expect(moved[0]).toBeCloseTo(0.1, 14);
    expect(moved[1]).toBeCloseTo(0.5, 14);
    expect(moved[2]).toBeCloseTo(-0.5, 14);
  });

  it('does not move inside the dead zone, and takes the proportional term up again from the last gap it acted on', () => {
    const options = { rate: 1, decay: null, proportional: 1, deadZone: 2 };
    const { states } = follow([0.5, 0.019, -0.019, 0.02], options, startSteering(1));
    expect(states.map(({ logPrice }) => logPrice)).toEqual([0.5, 0.5, 0.5, 0.5 + (0.02 + (0.02 - 0.5))]);
    expect(states.map(({ updates }) => updates)).toEqual([1, 2, 3, 4]);
  });

  it('never leaves the clip, says so once, and comes back at once when the gap turns', () => {
    for (const sign of [1, -1]) {
      const options = { rate: 1, decay: null, clip: 2 };
      const gaps = [0.5, 0.5, 0.5, 0.5, 0.5, -0.1, 0.04, 0.04].map((gap) => sign * gap);
      const { states, events } = follow(gaps, options, startSteering(1));
      const bound = sign > 0 ? 'high' : 'low';
      const limit = Math.log(2);
      const positions = states.map(({ logPrice }) => sign * logPrice);
      expect(positions.slice(0, 5)).toEqual([0.5, limit, limit, limit, limit]);
      expect(positions[5]).toBeCloseTo(limit - 0.1, 14);
      expect(states.map(({ pinned }) => pinned)).toEqual([null, bound, bound, bound, bound, null, null, null]);
      expect(events.map((event) => event?.kind)).toEqual([
        undefined,
        'constraint-not-binding',
        ...Array.from({ length: 6 }),
      ]);
      expect(events[1]).toEqual({ kind: 'constraint-not-binding', bound, logPrice: sign * limit });
    }
  });

  it('gives the event anew when it was off the bound in between', () => {
    const { events } = follow([1, 1, -0.2, 1, 1], { rate: 1, decay: null, clip: 2 }, startSteering(1));
    expect(events.map((event) => event !== undefined)).toEqual([true, false, false, true, false]);
  });

  it('tells of a noisy gap that leans on the clip once, and anew when the price has really left it', () => {
    const random = createRandom(2);
    const noisy = (mean: number, count: number): number[] =>
      Array.from({ length: count }, () => mean + 0.3 * (random.next() + random.next() + random.next() - 1.5));
    const options = { proportional: 0.2, slewLimit: 0.05, clip: 3 };
    const { states, events } = follow([...noisy(0.1, 2000), ...noisy(-0.6, 150), ...noisy(0.1, 2000)], options);
    // It lets go of the end and comes back all the time.
    const returns = states.filter(({ pinned }, step) => pinned === 'high' && states[step - 1]?.pinned === null).length;
    expect(returns).toBeGreaterThan(100);
    const told = [...events.entries()].flatMap(([step, event]) => (event === undefined ? [] : step));
    expect(told).toHaveLength(2);
    expect(told[0]).toBeLessThan(2000);
    expect(told[1]).toBeGreaterThan(2150);
  });

  it('moves on when a run is resumed with a wider clip', () => {
    const { state } = steer(startSteering(1), 1, { rate: 1, decay: null, clip: 2 });
    expect(state.pinned).toBe('high');
    const wider = steer(state, 0.5, { rate: 1, decay: null, clip: 4 });
    expect(wider.state.logPrice).toBeCloseTo(Math.log(2) + 0.5, 14);
    expect(wider.state.pinned).toBeNull();
  });

  it('holds still at the bound while noise in the gap would let the proportional term dance', () => {
    const { states, events } = follow([1, 0.5, 0.9, 0.2, 0.8], { rate: 1, decay: null, clip: 2, proportional: 5 });
    expect(new Set(states.map(({ logPrice }) => logPrice)).size).toBe(1);
    expect(events.filter((event) => event !== undefined)).toHaveLength(1);
  });

  it('does not call a constraint out of reach when only the proportional term touched the bound', () => {
    const { states, events } = follow([0.6, 0.1, 0.1], { rate: 0.1, decay: null, clip: 1.2, proportional: 5 });
    expect(states[1]?.logPrice).toBe(Math.log(0.1) - Math.log(1.2));
    expect(events).toEqual([undefined, undefined, undefined]);
    expect(states[2]?.logPrice).toBeCloseTo(Math.log(0.1) - Math.log(1.2) + 0.01, 14);
  });

  it('stays within the clip for any gaps, and its state goes through JSON bit for bit', () => {
    const options = { rate: 0.3, proportional: 0.7, slewLimit: 0.4, clip: 3, deadZone: 5 };
    const gaps = fc.array(fc.option(gapValue, { nil: undefined }), { maxLength: 30 });
    fc.assert(
      fc.property(gaps, (list) => {
        const { states } = follow(list, options);
        let resumed = startSteering(0.1);
        for (const [index, gap] of list.entries()) {
          // The cast states what the line before wrote.
          const restored = JSON.parse(JSON.stringify(resumed)) as SteeringState;
          resumed = steer(restored, gap, options, { gapError: 0.01 }).state;
          expect(resumed).toStrictEqual(states[index]);
          expect(Math.abs(resumed.logPrice - resumed.startLogPrice)).toBeLessThanOrEqual(Math.log(3) + 1e-15);
        }
      }),
      { numRuns: 100, seed: 7 },
    );
  });

  it.each([Number.NaN, Infinity, -Infinity])('refuses the gap %d', (gap) => {
    expect(() => steer(startSteering(1), gap)).toThrow(`The gap to steer by is ${gap}, must be finite.`);
  });

  it.each([
    [{ rate: -1 }, 'option rate is -1, must be finite and at least 0'],
    [{ rate: Infinity }, 'option rate is Infinity'],
    [{ decay: { steps: 0, power: 1 } }, 'option decay.steps is 0, must be above 0'],
    [{ decay: { steps: 1, power: -1 } }, 'option decay.power is -1, must be at least 0'],
    [{ proportional: Number.NaN }, 'option proportional is NaN, must be at least 0'],
    [{ slewLimit: 0 }, 'option slewLimit is 0, must be above 0, or null'],
    [{ clip: 1 }, 'option clip is 1, must be above 1, or null'],
    [{ deadZone: -1 }, 'option deadZone is -1, must be at least 0'],
  ])('refuses %j', (options, sentence) => {
    expect(() => steer(startSteering(1), 0.1, options)).toThrow(sentence);
  });

  it('refuses a dead zone without a measured error', () => {
    expect(() => steer(startSteering(1), 0.1, { deadZone: 1 })).toThrow('The dead zone needs the error of the gap');
  });

  it.each([0, -1, Number.NaN, Infinity])('does not start from the price %d', (price) => {
    expect(() => startSteering(price)).toThrow(`The starting price of cost is ${price}, must be finite and above 0.`);
  });
});

describe('scheduledRate', () => {
  it.each(readVectors<{ eta0: number; T: number; pow: number; t: number }, { eta: number }>('etaSchedule'))(
    'meets the vector at $in.t',
    ({ in: { eta0, T, pow, t }, out }) => {
      const rate = scheduledRate({ rate: eta0, decay: { steps: T, power: pow } }, t);
      expect(vectorError(rate, out.eta)).toBeLessThanOrEqual(1e-12);
    },
  );

  it('is constant without decay, and has no update 0', () => {
    expect(scheduledRate({ rate: 0.02, decay: null }, 1e6)).toBe(0.02);
    expect(scheduledRate({ rate: 0.02, decay: { steps: Infinity, power: 0.6 } }, 1e6)).toBe(0.02);
    expect(() => scheduledRate(PLAIN_STEERING, 0)).toThrow('The rate was asked for at update 0');
  });
});

describe('the mixture behind the price', () => {
  interface Case {
    readonly beta: number;
    readonly alpha: number;
    readonly s0: number;
    readonly c0: number;
    readonly eta: number;
    readonly u: number;
    readonly v: number;
  }

  it.each(readVectors<Case, { lambda_: number; betaNext: number; lambdaNext: number }>('betaLambda'))(
    'meets the vector $in',
    ({ in: { beta, alpha, s0, c0, eta, u, v }, out }) => {
      const reference = { success: s0, cost: c0 };
      const gains = { successGain: u, costSaving: v };
      const price = priceOfMixture({ beta, alpha, reference });
      const next = proximalStep({ beta, alpha, gains, rate: eta });
      expect(vectorError(price, out.lambda_)).toBeLessThanOrEqual(1e-12);
      expect(vectorError(next, out.betaNext)).toBeLessThanOrEqual(1e-12);
      expect(vectorError(priceOfMixture({ beta: next, alpha, reference }), out.lambdaNext)).toBeLessThanOrEqual(1e-12);
      // The controller, which knows no beta, gives the same price.
      const steered = steer(startSteering(price), gapOf(gains, alpha), { rate: eta }).state;
      expect(vectorError(priceOf(steered), out.lambdaNext)).toBeLessThanOrEqual(1e-12);

      const objective = (b: number): number =>
        b * (1 - alpha) * u +
        (1 - b) * alpha * v +
        (b * Math.log(b / beta) + (1 - b) * Math.log((1 - b) / (1 - beta))) / eta;
      const reach = 1e-4 * Math.min(next, 1 - next);
      const slope = (objective(next + reach) - objective(next - reach)) / (2 * reach);
      // Central differences of a smooth function: the error is of the order reach^2 / (eta next^2).
      expect(Math.abs(slope)).toBeLessThan(1e-6 / eta);
      expect(objective(next)).toBeLessThan(objective(next + reach));
      expect(objective(next)).toBeLessThan(objective(next - reach));
    },
  );

  it('does not exist at the ends of alpha, nor at the ends of beta', () => {
    const reference = { success: 0.5, cost: 1 };
    const gains = { successGain: 0, costSaving: 0 };
    for (const alpha of [0, 1]) {
      const sentence = `No mixture stands for the price at alpha ${alpha}.`;
      expect(() => priceOfMixture({ beta: 0.5, alpha, reference })).toThrow(sentence);
      expect(() => proximalStep({ beta: 0.5, alpha, gains, rate: 0.1 })).toThrow(sentence);
    }
    expect(() => priceOfMixture({ beta: 0.5, alpha: 2, reference })).toThrow('alpha is 2');
    for (const beta of [0, 1, Number.NaN]) {
      expect(() => priceOfMixture({ beta, alpha: 0.5, reference })).toThrow(`beta is ${beta}, must lie strictly`);
    }
  });
});

/** The numeric rule against the library's `steer`, bit for bit, and its schedules. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { gapError } from '../reward/reference.ts';
import { gapOf } from '../reward/relative-gain.ts';
import { startSteering, steer } from '../reward/steering.ts';
import { studyPlan } from './study-plan.fixture.ts';
import { createToyController, resetController, scheduleRates, updatePrices } from './toy-controller.ts';
import { toyProblem, toyStart } from './toy-task.ts';

const gain = fc.double({ min: -1, max: 4, noNaN: true });
const saving = fc.double({ min: -4, max: 1, noNaN: true });

describe('updatePrices', () => {
  it('moves exactly as steer does, under every safeguard', () => {
    fc.assert(
      fc.property(
        fc.record({
          alpha: fc.oneof(fc.constantFrom(0, 1), fc.double({ min: 0, max: 1, noNaN: true })),
          rate: fc.constantFrom(0, 0.02, 0.5),
          decay: fc.constantFrom(null, { steps: 5, power: 0.6 }),
          proportional: fc.constantFrom(0, 0.2, 1),
          slewLimit: fc.constantFrom(null, 0.015, 0.3),
          clip: fc.constantFrom(null, 1.1, 3),
        }),
        // An undefined gain is an effort without rollouts.
        fc.array(fc.tuple(fc.option(gain, { nil: undefined, freq: 6 }), saving), { minLength: 1, maxLength: 40 }),
        ({ alpha, ...options }, gains) => {
          const plan = studyPlan({ steps: gains.length });
          const controller = createToyController(
            { ...plan, controller: { ...options, deadZone: 0 } },
            { rule: { kind: 'steered', alpha } },
          );
          let state = startSteering(1);
          for (const [index, [successGain, costSaving]] of gains.entries()) {
            controller.successGains.fill(Number.NaN);
            controller.successGains[1] = successGain ?? Number.NaN;
            controller.costSavings[1] = costSaving;
            updatePrices(controller, index + 1);
            const gap = successGain === undefined ? undefined : gapOf({ successGain, costSaving }, alpha);
            ({ state } = steer(state, gap, { ...options, deadZone: 0 }));
            expect(controller.logPrices[1]).toBe(state.logPrice);
            expect(controller.updates[1]).toBe(state.updates);
          }
          expect(controller.logPrices[0]).toBe(0);
          expect(controller.logPrices[2]).toBe(0);
        },
      ),
      { numRuns: 500, seed: 1 },
    );
  });

  it('keeps still within the band of the reference, as steer does', () => {
    const start = toyStart(toyProblem(37));
    const rollouts = 300;
    const plan = studyPlan({ steps: 200 });
    for (const alpha of [0, 0.3, 1]) {
      const controller = createToyController(
        { ...plan, controller: { ...plan.controller, deadZone: 2 } },
        { rule: { kind: 'steered', alpha } },
      );
      resetController(controller, start, rollouts);
      const [success = 0, cost = 0, slope = 0] = [start.successes[1], start.costs[1], start.prices[1]];
      const reference = {
        success,
        cost,
        successError: Math.sqrt((success * (1 - success)) / rollouts),
        costError: Math.sqrt((cost * (1 + cost)) / rollouts),
        covariance: (slope * cost * (1 + cost)) / rollouts,
        tasks: rollouts,
        rollouts,
      };
      let state = startSteering(1);
      let still = 0;
      for (let step = 1; step <= 200; step++) {
        const gains = { successGain: 0.6 * Math.sin(step), costSaving: 0.6 * Math.cos(3 * step) };
        controller.successGains[1] = gains.successGain;
        controller.costSavings[1] = gains.costSaving;
        updatePrices(controller, step);
        const moved = steer(
          state,
          gapOf(gains, alpha),
          { ...plan.controller, slewLimit: null, deadZone: 2 },
          { gapError: gapError(reference, gains, alpha) },
        );
        if (moved.state.logPrice === state.logPrice) still++;
        state = moved.state;
        expect(controller.logPrices[1]).toBe(state.logPrice);
      }
      expect(still).toBeGreaterThan(10);
      expect(still).toBeLessThan(190);
    }
  });

  it('leaves fixed prices alone', () => {
    const controller = createToyController(studyPlan(), { rule: { kind: 'fixed' } });
    controller.successGains.fill(0.5);
    updatePrices(controller, 1);
    expect([...controller.logPrices]).toEqual([0, 0, 0]);
  });

  it("limits each change to the actor's rate at that step", () => {
    const plan = studyPlan();
    const controller = createToyController(
      { ...plan, controller: { ...plan.controller, rate: 10, slewLimit: 'actor' } },
      { rule: { kind: 'steered', alpha: 0 } },
    );
    controller.successGains.fill(0.5);
    updatePrices(controller, 1);
    expect(controller.logPrices[0]).toBe(0.015);
    updatePrices(controller, 2);
    expect(controller.logPrices[0]).toBe(0.015 + 0.015 * (1 + 1 / 500) ** -0.6);
  });
});

it('refuses what cannot steer', () => {
  const plan = studyPlan();
  expect(() => createToyController(plan, { rule: { kind: 'steered', alpha: 1.5 } })).toThrow('alpha 1.5');
  const clipped = { ...plan, controller: { ...plan.controller, clip: 1 } };
  expect(() => createToyController(clipped, { rule: { kind: 'fixed' } })).toThrow('clipped at 1 times');
  expect(() => scheduleRates({ rate: -1, decay: null }, 3)).toThrow('the rate -1');
});

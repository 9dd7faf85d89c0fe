/** Adam against its recursion written out by hand, plain steps, rates that decay, parameters that stay. */
import { expect, it } from 'vitest';

import { createAscent, createAscentState } from './ascent.ts';

const ADAM = { optimizer: 'adam', beta1: 0.9, beta2: 0.999, epsilon: 1e-8 } as const;

it("takes Adam's steps, the first of the size of the rate whatever the gradient", () => {
  const state = createAscentState(2);
  const ascend = createAscent({ ...ADAM, rate: 0.015, decay: { steps: 500, power: 0.6 } }, { steps: 3 });
  state.gradient.set([4, -1e-3]);
  ascend(state, 1);
  expect(state.parameters[0]).toBeCloseTo(0.015, 9);
  expect(state.parameters[1]).toBeCloseTo(-0.015, 6);
  state.gradient.set([1, -1e-3]);
  ascend(state, 2);
  const rate = 0.015 * (1 + 1 / 500) ** -0.6;
  const first = (0.9 * 0.1 * 4 + 0.1 * 1) / (1 - 0.9 ** 2);
  const second = (0.999 * 0.001 * 16 + 0.001 * 1) / (1 - 0.999 ** 2);
  expect(state.parameters[0]).toBeCloseTo(0.015 + (rate * first) / Math.sqrt(second), 9);
  expect(state.parameters[1]).toBeCloseTo(-0.015 - rate, 6);
});

it('takes plain steps, and leaves parameters before the first moved one', () => {
  const state = createAscentState(3);
  const ascend = createAscent({ ...ADAM, optimizer: 'sgd', rate: 2, decay: null }, { steps: 2, firstMoved: 1 });
  state.gradient.set([1, 0.25, -3]);
  ascend(state, 1);
  ascend(state, 2);
  expect([...state.parameters]).toEqual([0, 1, -12]);
  expect([...state.firstMoments]).toEqual([0, 0, 0]);
});

/**
 * Steps uphill along a gradient: plain ones, or Adam's with its bias corrections, by a schedule of rates. The one place that
 * has Adam's formula; nothing is allocated in a step. Source: Kingma and Ba, algorithm 1, with the sign of ascent.
 */
import type { DecaySchedule } from './study-record.ts';
import { scheduleRates } from './toy-controller.ts';

export interface AscentOptions extends DecaySchedule {
  readonly optimizer: 'adam' | 'sgd';
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
}

/** Arrays of one length; moments are 0 before the first step. */
export interface AscentState {
  readonly parameters: Float64Array;
  readonly gradient: Float64Array;
  readonly firstMoments: Float64Array;
  readonly secondMoments: Float64Array;
}

/** Moves the parameters; `update` counts from 1 to the number of steps that the ascent was made for. */
export type Ascent = (state: AscentState, update: number) => void;

/** All zero. */
export function createAscentState(parameters: number): AscentState {
  return {
    parameters: new Float64Array(parameters),
    gradient: new Float64Array(parameters),
    firstMoments: new Float64Array(parameters),
    secondMoments: new Float64Array(parameters),
  };
}

/** `firstMoved` is the position from which on parameters move. Throws `invalid-config` as scheduleRates. */
export function createAscent(
  options: AscentOptions,
  { steps, firstMoved = 0 }: { readonly steps: number; readonly firstMoved?: number },
): Ascent {
  const { optimizer, beta1, beta2, epsilon } = options;
  const rates = scheduleRates(options, steps);
  if (optimizer === 'sgd') {
    return ({ parameters, gradient }, update) => {
      const rate = rates[update - 1]!;
      for (let index = firstMoved; index < parameters.length; index++) parameters[index]! += rate * gradient[index]!;
    };
  }
  const corrections1 = Float64Array.from(rates, (_, index) => 1 - beta1 ** (index + 1));
  const corrections2 = Float64Array.from(rates, (_, index) => 1 - beta2 ** (index + 1));
  return ({ parameters, gradient, firstMoments, secondMoments }, update) => {
    const rate = rates[update - 1]!;
    const correction1 = corrections1[update - 1]!;
    const correction2 = corrections2[update - 1]!;
    for (let index = firstMoved; index < parameters.length; index++) {
      const slope = gradient[index]!;
      const first = beta1 * firstMoments[index]! + (1 - beta1) * slope;
      const second = beta2 * secondMoments[index]! + (1 - beta2) * slope * slope;
      firstMoments[index] = first;
      secondMoments[index] = second;
      parameters[index]! += (rate * (first / correction1)) / (Math.sqrt(second / correction2) + epsilon);
    }
  };
}

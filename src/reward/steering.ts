/**
 * The controller: the price of cost at one effort, moved on its logarithm so that gains run along the owner's direction.
 * The rule integrates the gap d: log price += rate d. Two things are left out on purpose. Gaps are not smoothed: the rule
 * is an integrator already, and an average only adds lag, which makes it ring. Gains are not clipped: that moves the
 * point at which it rests. State is plain values; an effort without rollouts keeps its state bit for bit.
 */
import { HoneError } from '../domain/errors.ts';
import { gapOf, requireAlpha } from './relative-gain.ts';
import type { Gains, Operating } from './relative-gain.ts';

export interface RateSchedule {
  /** Change of log price per unit of gap at the first update; at least 0. */
  readonly rate: number;
  /** rate x (1 + (update - 1) / steps)^-power; null = constant. */
  readonly decay: { readonly steps: number; readonly power: number } | null;
}

export interface SteeringOptions extends RateSchedule {
  /** kp: weight of the change of the gap since the last update; damps the loop. 0 = none. */
  readonly proportional: number;
  /** Largest |change of log price| of one update; the actor's rate is the natural one. Null = none. */
  readonly slewLimit: number | null;
  /** The price stays within [start / clip, start x clip], clip above 1. Null = free. */
  readonly clip: number | null;
  /** No move while |gap| is below this many standard deviations of the reference's noise. 0 = none. */
  readonly deadZone: number;
}

/** The published rule, without safeguards. */
export const PLAIN_STEERING: SteeringOptions = {
  rate: 0.02,
  decay: { steps: 500, power: 0.6 },
  proportional: 0,
  slewLimit: null,
  clip: null,
  deadZone: 0,
};

export interface SteeringState {
  /** Natural logarithm of the price, success per unit of cost. */
  readonly logPrice: number;
  readonly startLogPrice: number;
  /** Gaps heard so far, those in the dead zone included. */
  readonly updates: number;
  /** The gap of the last update outside the dead zone, so that the proportional term adds up to kp x gap. */
  readonly previousGap: number | null;
  /** The end of the clip that the gap holds the price at. */
  readonly pinned: 'low' | 'high' | null;
  /** The end that the event was given for, until the price has left it for good. */
  readonly reported: 'low' | 'high' | null;
}

/**
 * Given once, when the price reaches the end of its clip and the gap still pushes outwards; again only after the price has
 * been a quarter of the log clip off that end. A noisy gap lets go of the end and comes back to it all the time.
 */
export interface SteeringEvent {
  readonly kind: 'constraint-not-binding';
  readonly bound: 'low' | 'high';
  readonly logPrice: number;
}

export interface SteeringStep {
  readonly state: SteeringState;
  /** Of log price, after all limits. */
  readonly change: number;
  readonly event?: SteeringEvent;
}

/** Of the log clip: how far off the end of its clip the price has to have been before that end is told of again. */
const REARM_SHARE = 0.25;

/** Throws `invalid-config` unless the price is finite and above 0. */
export function startSteering(price: number): SteeringState {
  if (!(price > 0 && Number.isFinite(price))) {
    throw new HoneError('invalid-config', `The starting price of cost is ${price}, must be finite and above 0.`, {
      cure: 'Start from the slope of success against cost, measured or fitted, or from a rough positive guess.',
    });
  }
  const logPrice = Math.log(price);
  return { logPrice, startLogPrice: logPrice, updates: 0, previousGap: null, pinned: null, reported: null };
}

/** The price of one unit of cost in units of success. */
export function priceOf(state: SteeringState): number {
  return Math.exp(state.logPrice);
}

/**
 * One update by the gap of the last batch: log price += rate d + kp (d - previous d), then the slew limit on the sum, then
 * the clip. An undefined gap (no rollouts at this effort) returns the same state. While the price is at the end of its
 * clip and the gap pushes outwards nothing moves; it leaves at the first gap of the other sign. The dead zone needs
 * `gapError`, the sd of d. Throws `invalid-config` for a gap that is not finite or options out of range.
 * Source: the steered slope penalty (multiplicative dual ascent); kp, slew, clip: PI control in velocity form.
 */
export function steer(
  state: SteeringState,
  gap: number | undefined,
  options: Partial<SteeringOptions> = PLAIN_STEERING,
  context: { readonly gapError?: number } = {},
): SteeringStep {
  const settings = { ...PLAIN_STEERING, ...options };
  requireSteering(settings);
  if (gap === undefined) return { state, change: 0 };
  if (!Number.isFinite(gap)) {
    throw new HoneError('invalid-config', `The gap to steer by is ${gap}, must be finite.`, {
      cure: 'Leave the gap undefined at an effort without rollouts in the batch; check the reference of this effort.',
    });
  }
  const updates = state.updates + 1;
  if (settings.deadZone > 0 && Math.abs(gap) < settings.deadZone * requireGapError(context.gapError)) {
    return { state: { ...state, updates }, change: 0 };
  }
  const reach = settings.clip === null ? Infinity : Math.log(settings.clip);
  const lowest = state.startLogPrice - reach;
  const highest = state.startLogPrice + reach;
  const isAtBound = state.logPrice <= lowest || state.logPrice >= highest;
  if (isAtBound && pushes(gap, state.pinned)) {
    return { state: { ...state, updates, previousGap: gap }, change: 0 };
  }

  let change = scheduledRate(settings, updates) * gap;
  if (settings.proportional > 0 && state.previousGap !== null) {
    change += settings.proportional * (gap - state.previousGap);
  }
  if (settings.slewLimit !== null) change = Math.min(Math.max(change, -settings.slewLimit), settings.slewLimit);
  const isRearmed = distanceFrom(state.reported, { logPrice: state.logPrice, lowest, highest }) > REARM_SHARE * reach;
  const reported = isRearmed ? null : state.reported;
  const moved = { ...state, updates, previousGap: gap, pinned: null, reported };
  const wanted = state.logPrice + change;
  const logPrice = Math.min(Math.max(wanted, lowest), highest);
  if (logPrice === wanted) return { state: { ...moved, logPrice: wanted }, change };

  const bound = wanted > logPrice ? 'high' : 'low';
  const clipped = { state: { ...moved, logPrice }, change: logPrice - state.logPrice };
  // The proportional term alone can touch the bound against the gap: that is no sign of a constraint out of reach.
  if (!pushes(gap, bound)) return clipped;
  const pinned = { state: { ...clipped.state, pinned: bound, reported: bound }, change: clipped.change } as const;
  return reported === bound ? pinned : { ...pinned, event: { kind: 'constraint-not-binding', bound, logPrice } };
}

/** rate x (1 + (update - 1) / steps)^-power at update 1, 2, ...; throws `invalid-config` below 1. */
export function scheduledRate({ rate, decay }: RateSchedule, update: number): number {
  if (!(update >= 1)) {
    throw new HoneError('invalid-config', `The rate was asked for at update ${update}; updates count from 1.`, {
      cure: 'Pass the number of updates done, plus 1.',
    });
  }
  return decay === null ? rate : rate * (1 + (update - 1) / decay.steps) ** -decay.power;
}

/**
 * The price that a mixture beta of the two targets stands for: (s0 / c0) (alpha / (1 - alpha)) ((1 - beta) / beta), beta
 * in (0, 1). Only for alpha strictly between 0 and 1: at the ends it is 0 or infinite, while `steer` needs no beta. Throws
 * `invalid-config` otherwise. Source: min(a, b) = min over beta of beta a + (1 - beta) b.
 */
export function priceOfMixture(options: {
  readonly beta: number;
  readonly alpha: number;
  readonly reference: Operating;
}): number {
  const { beta, alpha, reference } = options;
  requireMixture(beta, alpha);
  return (reference.success / reference.cost) * (alpha / (1 - alpha)) * ((1 - beta) / beta);
}

/**
 * The next beta: the minimum of beta (1 - alpha) u + (1 - beta) alpha v + KL(beta || previous beta) / rate, which is
 * logit(beta) -= rate d. The price of that beta is the one that `steer` gives. Throws as `priceOfMixture`.
 */
export function proximalStep(options: {
  readonly beta: number;
  readonly alpha: number;
  readonly gains: Gains;
  readonly rate: number;
}): number {
  const { beta, alpha, gains, rate } = options;
  requireMixture(beta, alpha);
  const odds = (beta / (1 - beta)) * Math.exp(-rate * gapOf(gains, alpha));
  return odds / (1 + odds);
}

function pushes(gap: number, bound: 'low' | 'high' | null): boolean {
  return bound === 'high' ? gap > 0 : bound === 'low' && gap < 0;
}

/** Of log price, at least 0; 0 where there is no end to be away from. */
function distanceFrom(
  bound: 'low' | 'high' | null,
  { logPrice, lowest, highest }: { readonly logPrice: number; readonly lowest: number; readonly highest: number },
): number {
  if (bound === null) return 0;
  return bound === 'high' ? highest - logPrice : logPrice - lowest;
}

/** Throws `invalid-config` for the first option out of range, by name. */
function requireSteering({ rate, decay, proportional, slewLimit, clip, deadZone }: SteeringOptions): void {
  requireOption(rate >= 0 && rate < Infinity, { option: 'rate', value: rate, range: 'finite and at least 0' });
  if (decay !== null) {
    requireOption(decay.steps > 0, { option: 'decay.steps', value: decay.steps, range: 'above 0' });
    requireOption(decay.power >= 0, { option: 'decay.power', value: decay.power, range: 'at least 0' });
  }
  requireOption(proportional >= 0, { option: 'proportional', value: proportional, range: 'at least 0' });
  requireOption(slewLimit === null || slewLimit > 0, {
    option: 'slewLimit',
    value: slewLimit,
    range: 'above 0, or null',
  });
  requireOption(clip === null || clip > 1, { option: 'clip', value: clip, range: 'above 1, or null' });
  requireOption(deadZone >= 0, { option: 'deadZone', value: deadZone, range: 'at least 0' });
}

function requireOption(
  isSound: boolean,
  { option, value, range }: { readonly option: string; readonly value: number | null; readonly range: string },
): void {
  if (isSound) return;
  throw new HoneError('invalid-config', `The steering option ${option} is ${value}, must be ${range}.`, {
    cure: 'The defaults are rate 0.02, decaying over 500 updates with the power 0.6, and no limits.',
  });
}

function requireGapError(gapError: number | undefined): number {
  if (gapError !== undefined && gapError >= 0) return gapError;
  throw new HoneError('invalid-config', `The dead zone needs the error of the gap, got ${gapError}.`, {
    cure: 'Measure the reference with its standard errors, or set deadZone to 0.',
  });
}

function requireMixture(beta: number, alpha: number): void {
  requireAlpha(alpha);
  if (alpha === 0 || alpha === 1) {
    throw new HoneError('invalid-config', `No mixture stands for the price at alpha ${alpha}.`, {
      cure: 'Steer the price itself: its rule holds at both ends.',
    });
  }
  if (!(beta > 0 && beta < 1)) {
    throw new HoneError('invalid-config', `beta is ${beta}, must lie strictly between 0 and 1.`, {
      cure: 'Start from 0.5, which weighs the two targets alike.',
    });
  }
}

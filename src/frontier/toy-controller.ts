/**
 * The steering rule in the form that a study of a billion rollouts can afford: log prices and last gaps in typed arrays,
 * nothing allocated in a step. It is the same arithmetic in the same order as `steer` of the reward library, which the
 * tests hold it to bit for bit. An effort without rollouts in the step keeps its price.
 */
import { HoneError } from '../domain/errors.ts';
import { STUDY_EFFORTS } from './study-record.ts';
import type { DecaySchedule, StudyArm, StudyPlan } from './study-record.ts';
import type { ToyStart } from './toy-task.ts';

export interface ToyController {
  /** By effort: log of price over the run's starting price, so that an unmoved price is exactly the starting one. */
  readonly logPrices: Float64Array;
  /** The gap of the effort's last update outside the dead zone; NaN before the first. */
  readonly previousGaps: Float64Array;
  /** Gaps heard so far, those in the dead zone included: an effort without rollouts does not age its rate. */
  readonly updates: Int32Array;
  /** 1 or -1 while the gap holds the price at the upper or lower end of its clip, else 0. */
  readonly pinned: Int8Array;
  /** Inputs of `updatePrices`: u and v of the step's rollouts. A NaN in u says that the effort had none. */
  readonly successGains: Float64Array;
  readonly costSavings: Float64Array;
  /** Variances and covariance of the relative errors of s0 and c0, for the dead zone; 0 = exact references. */
  readonly successVariances: Float64Array;
  readonly costVariances: Float64Array;
  readonly covariances: Float64Array;
  /** eta at an effort's update t = index + 1. */
  readonly rates: Float64Array;
  /** Largest |change| of log price at step t = index + 1; infinite = no limit. */
  readonly slewLimits: Float64Array;
  /** NaN keeps the prices fixed. */
  readonly alpha: number;
  readonly proportional: number;
  /** Bound on |log price over start|; infinite = none. */
  readonly logClip: number;
  /** Standard deviations of the gap's reference noise within which nothing moves. */
  readonly deadZone: number;
}

/** rate x (1 + (t - 1) / steps)^-power for t = 1 .. count. Throws `invalid-config` on a rate that is negative or not finite. */
export function scheduleRates({ rate, decay }: DecaySchedule, count: number): Float64Array {
  if (!(rate >= 0 && rate < Infinity)) {
    throw new HoneError('invalid-config', `A schedule starts from the rate ${rate}.`, {
      cure: 'Rates are finite and at least 0.',
    });
  }
  const rates = new Float64Array(count).fill(rate);
  if (decay === null) return rates;
  for (let index = 0; index < count; index++) rates[index] = rate * (1 + index / decay.steps) ** -decay.power;
  return rates;
}

/** A controller for runs of `arm` under `plan`, at the starting prices. Throws `invalid-config` on options out of range. */
export function createToyController(
  plan: Pick<StudyPlan, 'controller' | 'actor' | 'steps'>,
  { rule }: Pick<StudyArm, 'rule'>,
): ToyController {
  const { controller, actor, steps } = plan;
  const { proportional, slewLimit, clip, deadZone } = controller;
  const alpha = rule.kind === 'steered' ? rule.alpha : Number.NaN;
  if (rule.kind === 'steered' && !(alpha >= 0 && alpha <= 1)) {
    throw new HoneError('invalid-config', `An arm steers with alpha ${alpha}.`, { cure: 'Alpha lies in [0, 1].' });
  }
  if (clip !== null && !(clip > 1)) {
    throw new HoneError('invalid-config', `The price is clipped at ${clip} times its start.`, {
      cure: 'Give a factor above 1, or null for no clip.',
    });
  }
  const efforts = STUDY_EFFORTS.length;
  const fixedLimit = slewLimit === null || slewLimit === 'actor' ? Infinity : slewLimit;
  return {
    logPrices: new Float64Array(efforts),
    previousGaps: new Float64Array(efforts).fill(Number.NaN),
    updates: new Int32Array(efforts),
    pinned: new Int8Array(efforts),
    successGains: new Float64Array(efforts),
    costSavings: new Float64Array(efforts),
    successVariances: new Float64Array(efforts),
    costVariances: new Float64Array(efforts),
    covariances: new Float64Array(efforts),
    rates: scheduleRates(controller, steps),
    slewLimits: slewLimit === 'actor' ? scheduleRates(actor, steps) : new Float64Array(steps).fill(fixedLimit),
    alpha,
    proportional,
    logClip: clip === null ? Infinity : Math.log(clip),
    deadZone,
  };
}

/**
 * Back to the start of a run. For a dead zone the noise of references from M rollouts an effort is filled in, relative to
 * s0 and c0: var (1 - s0) / (s0 M) and (1 + c0) / (c0 M), covariance s' (1 + c0) / (s0 M), as Cov(S, K) = s' Var(K).
 */
export function resetController(controller: ToyController, start: ToyStart, referenceRollouts: number | null): void {
  controller.logPrices.fill(0);
  controller.previousGaps.fill(Number.NaN);
  controller.updates.fill(0);
  controller.pinned.fill(0);
  const rollouts = referenceRollouts ?? Infinity;
  for (let effort = 0; effort < controller.logPrices.length; effort++) {
    const success = start.successes[effort]!;
    const cost = start.costs[effort]!;
    controller.successVariances[effort] = (1 - success) / (success * rollouts);
    controller.costVariances[effort] = (1 + cost) / (cost * rollouts);
    controller.covariances[effort] = (start.prices[effort]! * (1 + cost)) / (success * rollouts);
  }
}

/**
 * One step t = 1, 2, ... of all efforts from `successGains` and `costSavings`: gap d = (1 - alpha) u - alpha v;
 * log price += eta d + proportional (d - previous d), within the slew limit, then within the clip. Nothing moves in the
 * dead zone, nor while the price is pinned at its clip and the gap pushes outwards.
 */
export function updatePrices(controller: ToyController, step: number): void {
  const { alpha, proportional, logClip, deadZone } = controller;
  const { logPrices, previousGaps, updates, pinned, successGains, costSavings } = controller;
  if (alpha !== alpha) return;
  const slewLimit = controller.slewLimits[step - 1]!;
  for (let effort = 0; effort < logPrices.length; effort++) {
    const successGain = successGains[effort]!;
    if (successGain !== successGain) continue;
    const gap = (1 - alpha) * successGain - alpha * costSavings[effort]!;
    const update = updates[effort]!;
    updates[effort] = update + 1;
    if (deadZone > 0 && Math.abs(gap) < deadZone * gapDeviation(controller, effort)) continue;
    const previousGap = previousGaps[effort]!;
    previousGaps[effort] = gap;
    if (gap * pinned[effort]! > 0) continue;

    let change = controller.rates[update]! * gap;
    if (proportional > 0 && previousGap === previousGap) change += proportional * (gap - previousGap);
    if (change > slewLimit) change = slewLimit;
    else if (change < -slewLimit) change = -slewLimit;
    const logPrice = logPrices[effort]! + change;
    pinned[effort] = 0;
    if (logPrice > logClip) {
      logPrices[effort] = logClip;
      if (gap > 0) pinned[effort] = 1;
    } else if (logPrice < -logClip) {
      logPrices[effort] = -logClip;
      if (gap < 0) pinned[effort] = -1;
    } else {
      logPrices[effort] = logPrice;
    }
  }
}

/** sd(d) from the reference's noise alone: d moves by (1 - alpha)(1 + u) e_s + alpha (1 - v) e_c. */
function gapDeviation(controller: ToyController, effort: number): number {
  const successWeight = (1 - controller.alpha) * (1 + controller.successGains[effort]!);
  const costWeight = controller.alpha * (1 - controller.costSavings[effort]!);
  return Math.sqrt(
    successWeight * successWeight * controller.successVariances[effort]! +
      costWeight * costWeight * controller.costVariances[effort]! +
      2 * successWeight * costWeight * controller.covariances[effort]!,
  );
}

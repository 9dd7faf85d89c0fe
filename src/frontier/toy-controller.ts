/**
 * The steering rule in the form that a study of a billion rollouts can afford: log prices and last gaps in typed arrays,
 * nothing allocated in a step. It is the same arithmetic in the same order as `steer` of the reward library, which the
 * tests hold it to bit for bit. An effort without rollouts in the step keeps its price.
 */
import { HoneError } from '../domain/errors.ts';
import { STUDY_EFFORTS } from './study-record.ts';
import type { DecaySchedule, StudyArm, StudyPlan } from './study-record.ts';

export interface ToyController {
  /** By effort: log of price over the run's starting price, so that an unmoved price is exactly the starting one. */
  readonly logPrices: Float64Array;
  /** The gap of the effort's last update; NaN before the first. */
  readonly gaps: Float64Array;
  /** Inputs of `updatePrices`: u and v of the step's rollouts. A NaN in u says that the effort had none. */
  readonly successGains: Float64Array;
  readonly costSavings: Float64Array;
  /** Variances of the relative errors of s0 and c0, for the dead zone; 0 = exact references. */
  readonly successVariances: Float64Array;
  readonly costVariances: Float64Array;
  /** eta at update t = index + 1. */
  readonly rates: Float64Array;
  /** Largest |change| of log price at update t = index + 1; infinite = no limit. */
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

/**
 * A controller for one run of `arm` under `plan`, at the starting prices. `referenceRollouts` of the plan (null = exact)
 * sets the dead zone's band: var = (1 - s0) / (s0 M) and (1 + c0) / (c0 M), filled in by `resetController`.
 */
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
    gaps: new Float64Array(efforts).fill(Number.NaN),
    successGains: new Float64Array(efforts),
    costSavings: new Float64Array(efforts),
    successVariances: new Float64Array(efforts),
    costVariances: new Float64Array(efforts),
    rates: scheduleRates(controller, steps),
    slewLimits: slewLimit === 'actor' ? scheduleRates(actor, steps) : new Float64Array(steps).fill(fixedLimit),
    alpha,
    proportional,
    logClip: clip === null ? Infinity : Math.log(clip),
    deadZone,
  };
}

/** Back to the start of a run. `references` are the s0 and c0 of each effort, measured from `referenceRollouts` (null = exact). */
export function resetController(
  controller: ToyController,
  {
    references,
    referenceRollouts,
  }: {
    readonly references: readonly { readonly success: number; readonly cost: number }[];
    readonly referenceRollouts: number | null;
  },
): void {
  controller.logPrices.fill(0);
  controller.gaps.fill(Number.NaN);
  for (const [effort, { success, cost }] of references.entries()) {
    const known = referenceRollouts === null;
    controller.successVariances[effort] = known ? 0 : (1 - success) / (success * referenceRollouts);
    controller.costVariances[effort] = known ? 0 : (1 + cost) / (cost * referenceRollouts);
  }
}

/**
 * One update t = `step` (1, 2, ...) of all efforts from `successGains` and `costSavings`:
 * gap d = (1 - alpha) u - alpha v; log price += eta d + proportional (d - last d), within the slew limit, then the clip.
 */
export function updatePrices(controller: ToyController, step: number): void {
  const { alpha, proportional, logClip, deadZone } = controller;
  const { logPrices, gaps, successGains, costSavings } = controller;
  if (alpha !== alpha) return;
  const rate = controller.rates[step - 1]!;
  const slewLimit = controller.slewLimits[step - 1]!;
  for (let effort = 0; effort < logPrices.length; effort++) {
    const successGain = successGains[effort]!;
    if (successGain !== successGain) continue;
    const costSaving = costSavings[effort]!;
    const gap = (1 - alpha) * successGain - alpha * costSaving;
    const lastGap = gaps[effort]!;
    gaps[effort] = gap;
    if (deadZone > 0) {
      const successPart = (1 - alpha) * (1 + successGain);
      const costPart = alpha * (1 - costSaving);
      const variance =
        successPart * successPart * controller.successVariances[effort]! +
        costPart * costPart * controller.costVariances[effort]!;
      if (Math.abs(gap) < deadZone * Math.sqrt(variance)) continue;
    }
    let change = rate * gap;
    if (proportional !== 0 && lastGap === lastGap) change += proportional * (gap - lastGap);
    if (change > slewLimit) change = slewLimit;
    else if (change < -slewLimit) change = -slewLimit;
    let logPrice = logPrices[effort]! + change;
    if (logPrice > logClip) logPrice = logClip;
    else if (logPrice < -logClip) logPrice = -logClip;
    logPrices[effort] = logPrice;
  }
}

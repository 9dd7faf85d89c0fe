/**
 * When the linearised reward is due a new tangent. The weight of precision depends on R/P squared, so its drift is
 * |2 ln((R/P) / (R0/P0))|. It moves only after `patience` measurements in a row outside the dead band, and the reference
 * then moves to the measured point: a ratio that wanders inside the band changes nothing. Pure: state in, state out.
 */
import { linearise } from './f-beta.ts';
import type { PrecisionRecall } from './f-beta.ts';

export interface Calibration {
  readonly beta: number;
  readonly reference: PrecisionRecall;
  readonly precisionWeight: number;
  /** Measurements in a row that were outside the dead band. */
  readonly outside: number;
}

/** Recorded in the run's events each time the reward changes its weight. */
export interface RecalibrationEvent {
  readonly event: 'reward-recalibrated';
  readonly from: PrecisionRecall & { readonly precisionWeight: number };
  readonly to: PrecisionRecall & { readonly precisionWeight: number };
  /** Signed: above 0 when recall has grown against precision. */
  readonly drift: number;
}

/** Their defaults are those of the reward's base. */
export interface RecalibrationOptions {
  /** The dead band as a factor of the weight, above 1; 1.25 lets it be off by a quarter. */
  readonly band: number;
  /** Measurements in a row outside the band before the weight moves, at least 1. */
  readonly patience: number;
}

/**
 * The tangent at mean precision and recall, each in (0, 1], with no measurement outside its band yet. Throws
 * `invalid-config` as `linearise`: for a mean of 0 or a beta that is not above 0.
 */
export function calibrate(options: PrecisionRecall & { readonly beta: number }): Calibration {
  const { beta, reference, precisionWeight } = linearise(options);
  return { beta, reference, precisionWeight, outside: 0 };
}

/**
 * One measurement later: means of a step's precision and recall, each in [0, 1]. One with no precision or no recall says
 * nothing about the ratio and changes nothing.
 */
export function recalibrate(
  state: Calibration,
  measured: PrecisionRecall,
  { band, patience }: RecalibrationOptions,
): { readonly state: Calibration; readonly event?: RecalibrationEvent } {
  const { reference, precisionWeight } = state;
  if (!(measured.precision > 0 && measured.recall > 0)) return { state };
  const drift = 2 * Math.log((measured.recall * reference.precision) / (measured.precision * reference.recall));
  if (Math.abs(drift) <= Math.log(band)) return { state: state.outside === 0 ? state : { ...state, outside: 0 } };
  const outside = state.outside + 1;
  if (outside < patience) return { state: { ...state, outside } };
  const { precision, recall } = measured;
  const next = calibrate({ precision, recall, beta: state.beta });
  const event: RecalibrationEvent = {
    event: 'reward-recalibrated',
    from: { ...reference, precisionWeight },
    to: { precision, recall, precisionWeight: next.precisionWeight },
    drift,
  };
  return { state: next, event };
}

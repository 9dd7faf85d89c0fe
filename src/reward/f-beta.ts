/**
 * F-beta of mean precision and mean recall, and its linearisation into a reward that a single sample can earn.
 * With k = beta^2: F = (1+k) P R / (k P + R). F is homogeneous of degree 1, so the tangent at (P0, R0) has no constant
 * and depends only on R0/P0; scaled to a recall coefficient of 1 the weight of precision is (R0/P0)^2 / k.
 * The tangent never underestimates F, and is exact along the ray through (P0, R0). The weight is always measured.
 */
import { HoneError } from '../domain/errors.ts';

export interface PrecisionRecall {
  readonly precision: number;
  readonly recall: number;
}

/** 0 where precision and recall are both 0. */
export function fBeta({ precision, recall }: PrecisionRecall, beta: number): number {
  checkBeta(beta);
  const k = beta * beta;
  const denominator = k * precision + recall;
  return denominator === 0 ? 0 : ((1 + k) * precision * recall) / denominator;
}

/** Partial derivatives of F-beta; undefined at the origin, where it throws. */
export function fBetaGradient({ precision, recall }: PrecisionRecall, beta: number): PrecisionRecall {
  checkBeta(beta);
  const k = beta * beta;
  const denominator = k * precision + recall;
  if (!(denominator > 0)) {
    throw new HoneError('invalid-config', `F-beta has no gradient at precision ${precision}, recall ${recall}.`, {
      cure: 'Measure both on tasks of which the policy finds at least one bug.',
    });
  }
  const scale = (1 + k) / (denominator * denominator);
  return { precision: scale * recall * recall, recall: scale * k * precision * precision };
}

export interface Linearisation {
  readonly beta: number;
  /** The point of tangency. */
  readonly reference: PrecisionRecall;
  /** w_P = (R0/P0)^2 / beta^2, for a recall coefficient of 1. */
  readonly precisionWeight: number;
  /** The tangent in units of F-beta. */
  value(point: PrecisionRecall): number;
  /** F-beta minus the tangent, at most 0, in closed form. */
  exactError(point: PrecisionRecall): number;
}

/** Throws `invalid-config` unless precision and recall are both above 0. */
export function linearise(options: PrecisionRecall & { readonly beta: number }): Linearisation {
  const { precision, recall, beta } = options;
  checkBeta(beta);
  if (!(precision > 0 && precision <= 1 && recall > 0 && recall <= 1)) {
    throw new HoneError(
      'invalid-config',
      `The reward cannot be linearised at precision ${precision}, recall ${recall}: both must lie in (0, 1].`,
      {
        cure: 'Start from a model that finds some bugs, measure it on more tasks, or give the precision weight as a number.',
      },
    );
  }
  const k = beta * beta;
  const reference = { precision, recall };
  const gradient = fBetaGradient(reference, beta);
  return {
    beta,
    reference,
    precisionWeight: (recall / precision) ** 2 / k,
    value: (point) => gradient.precision * point.precision + gradient.recall * point.recall,
    exactError: (point) => {
      const here = k * point.precision + point.recall;
      if (here === 0) return 0;
      const cross = point.precision * recall - point.recall * precision;
      return (-k * (1 + k) * cross * cross) / (here * (k * precision + recall) ** 2);
    },
  };
}

/** w_P P + R of one sample, divided by 1 + w_P: in [0, 1], so a step size keeps its meaning when the weight moves. */
export function normalisedReward({ precision, recall }: PrecisionRecall, precisionWeight: number): number {
  return (precisionWeight * precision + recall) / (1 + precisionWeight);
}

function checkBeta(beta: number): void {
  if (beta > 0 && Number.isFinite(beta)) return;
  throw new HoneError('invalid-config', `beta is ${beta}, must be a finite number above 0.`, {
    cure: 'Use 0.5 to weigh precision above recall, 1 for balance.',
  });
}

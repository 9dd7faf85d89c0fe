/**
 * How far a policy has come from where it started: relative gain of success, relative saving of cost, and the gap that
 * steering drives to 0. References belong to the initial policy at the same effort and never move. Gains are never
 * clipped: a clip would move the point at which the gap is 0, and so where the policy lands.
 */
import { HoneError } from '../domain/errors.ts';

/** Mean success and mean cost of a policy at one effort: success in [0, 1], cost at least 0 in the owner's unit. */
export interface Operating {
  readonly success: number;
  readonly cost: number;
}

export interface Gains {
  /** u = s / s0 - 1: 0.1 is ten per cent more success. */
  readonly successGain: number;
  /** v = 1 - c / c0: 0.1 is ten per cent less cost. */
  readonly costSaving: number;
}

/**
 * u = s / s0 - 1 and v = 1 - c / c0, both without unit. Throws `invalid-config` unless both references are above 0 and
 * all four figures are finite. Source: the steered slope penalty, relative gains per effort.
 */
export function relativeGains(point: Operating, reference: Operating): Gains {
  return {
    successGain: relativeGain(point.success, { name: 'success', value: reference.success }),
    // `0 -` and not a negation: no saving is 0, never -0.
    costSaving: 0 - relativeGain(point.cost, { name: 'cost', value: reference.cost }),
  };
}

/**
 * value / reference - 1 of any measure, without unit; negate it where less is better. Throws `invalid-config` unless the
 * reference is above 0 and both are finite.
 */
function relativeGain(value: number, reference: { readonly name: string; readonly value: number }): number {
  if (!(reference.value > 0 && Number.isFinite(reference.value))) {
    throw new HoneError(
      'invalid-config',
      `The reference ${reference.name} is ${reference.value}, must be finite and above 0: gains are relative to it.`,
      { cure: 'Measure the initial policy on more tasks, or on easier ones of which it solves some.' },
    );
  }
  if (!Number.isFinite(value)) {
    throw new HoneError('invalid-config', `The mean ${reference.name} is ${value}, must be finite.`, {
      cure: 'Leave an effort without rollouts out, and look at the rollout whose figure is not a number.',
    });
  }
  // The difference of close figures is exact; s / s0 - 1 would lose digits just where steering is about to settle.
  return (value - reference.value) / reference.value;
}

/**
 * d = (1 - alpha) u - alpha v: above 0 when success is ahead of its target, below 0 when the saving is. Exactly u at
 * alpha 0 and exactly -v at alpha 1, where the other gain is not read. Throws `invalid-config` for alpha outside [0, 1], and
 * `invalid-rollout` for a gain that is read and not finite.
 */
export function gapOf(gains: Gains, alpha: number): number {
  requireAlpha(alpha);
  const gap = plainGap(gains, alpha);
  if (Number.isFinite(gap)) return gap;
  throw new HoneError(
    'invalid-rollout',
    `The success gain is ${gains.successGain} and the cost saving ${gains.costSaving}: there is no gap between them.`,
    { cure: 'Both must be finite; look at the success and the cost of the rollouts that they were measured on.' },
  );
}

function plainGap(gains: Gains, alpha: number): number {
  if (alpha === 0) return gains.successGain;
  if (alpha === 1) return 0 - gains.costSaving;
  return (1 - alpha) * gains.successGain - alpha * gains.costSaving;
}

/** Throws `invalid-config` unless alpha, the share of the improvement that is to be success, lies in [0, 1]. */
export function requireAlpha(alpha: number): void {
  if (alpha >= 0 && alpha <= 1) return;
  throw new HoneError('invalid-config', `alpha is ${alpha}, must lie in [0, 1].`, {
    cure: 'Use 0 to save cost at the same success, 1 to raise success at the same cost, 0.5 for both alike.',
  });
}

/**
 * Steering among any number of objectives. Each has a signed relative gain and a share of the improvement that the owner
 * wants it to have; one of them is the reference, with reward weight 1, and the others have prices. Invariant: with two
 * objectives this is the gap of success and cost bit for bit.
 */
import { HoneError } from '../domain/errors.ts';
import { gapOf } from './relative-gain.ts';

/**
 * The gap of each objective, by which `steer` moves its log price: d_i = a_i u_r - a_r u_i, with gains u (no unit, above 0
 * is better), direction a (at least 0, sum 1 within 1e-9) and the index r of the reference, whose own gap is 0. Above 0
 * means that the reference is ahead. A reference without share is allowed beside one other objective only. Throws
 * `invalid-config` otherwise. Source: the two-objective rule, objective by objective against the reference.
 */
export function gapsOf(options: {
  readonly gains: readonly number[];
  readonly direction: readonly number[];
  readonly reference: number;
}): number[] {
  const { gains, direction, reference } = options;
  requireDirection(options);
  const referenceGain = gains[reference] ?? Number.NaN;
  const referenceShare = direction[reference] ?? Number.NaN;
  return gains.map((gain, index) => {
    if (index === reference) return 0;
    if (gains.length === 2) return gapOf({ successGain: referenceGain, costSaving: gain }, referenceShare);
    return (direction[index] ?? Number.NaN) * referenceGain - referenceShare * gain;
  });
}

function requireDirection(options: {
  readonly gains: readonly number[];
  readonly direction: readonly number[];
  readonly reference: number;
}): void {
  const { gains, direction, reference } = options;
  if (gains.length < 2 || direction.length !== gains.length) {
    throw new HoneError(
      'invalid-config',
      `Steering got ${gains.length} gains and ${direction.length} shares, needs one share for each of at least 2 gains.`,
      { cure: 'Give each objective its share of the improvement; one that is only held has the share 0.' },
    );
  }
  for (const [index, share] of direction.entries()) {
    if (share >= 0) continue;
    throw new HoneError('invalid-config', `The share of objective ${index} is ${share}, must be at least 0.`, {
      cure: 'Turn the sign of its gain instead, so that more of it is better.',
    });
  }
  for (const [index, gain] of gains.entries()) {
    if (Number.isFinite(gain)) continue;
    throw new HoneError('invalid-config', `The gain of objective ${index} is ${gain}, must be finite.`, {
      cure: 'Leave an effort without rollouts out, and check the reference of this objective.',
    });
  }
  const sum = direction.reduce((total, share) => total + share, 0);
  if (!(Math.abs(sum - 1) <= 1e-9)) {
    throw new HoneError('invalid-config', `The shares [${direction.join(', ')}] sum to ${sum}, must sum to 1.`, {
      cure: 'Divide each of them by their sum.',
    });
  }
  const referenceShare = direction[reference];
  if (referenceShare === undefined) {
    throw new HoneError('invalid-config', `The reference objective is ${reference}, of ${gains.length} objectives.`, {
      cure: 'Give the position of an objective, counted from 0.',
    });
  }
  if (referenceShare === 0 && gains.length > 2) {
    throw new HoneError(
      'invalid-config',
      `The reference objective ${reference} has the share 0 beside ${gains.length - 1} others, which leaves the ratios among these undetermined.`,
      { cure: 'Take an objective with a share above 0 as the reference.' },
    );
  }
}

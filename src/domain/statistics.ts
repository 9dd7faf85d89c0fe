/**
 * Statistics that several rooms share: means, percentiles, and the bootstrap over tasks.
 * The bootstrap resamples whole tasks, so that samples, lines and policies of one task stay together, and hands out
 * multiplicities instead of copies: any ratio of sums is one pass over columns. Same seed, same interval.
 */
import { HoneError } from './errors.ts';
import { createRandom } from './ids.ts';

export interface Interval {
  readonly estimate: number;
  readonly low: number;
  readonly high: number;
}

export interface BootstrapOptions {
  readonly seed: number;
  readonly resamples?: number;
  /** Of the two-sided percentile interval. */
  readonly level?: number;
}

/** Undefined for an empty list: there is no mean of nothing. */
export function mean(values: ArrayLike<number>): number | undefined {
  if (values.length === 0) return undefined;
  let sum = 0;
  for (let index = 0; index < values.length; index++) sum += values[index] ?? 0;
  return sum / values.length;
}

/** Linear interpolation between order statistics (type 7); `share` in [0, 1]. */
export function percentile(sorted: ArrayLike<number>, share: number): number {
  if (sorted.length === 0) throw new RangeError('percentile of an empty list');
  const position = share * (sorted.length - 1);
  const below = Math.floor(position);
  const low = sorted[below] ?? 0;
  const high = sorted[Math.min(below + 1, sorted.length - 1)] ?? low;
  return low + (high - low) * (position - below);
}

/**
 * Percentile intervals of several statistics over the same resamples of `count` tasks. `evaluate` gets how often each
 * task was drawn (all 1 for the estimate) and returns one number a statistic. Resamples in which a statistic is not
 * finite (a ratio over nothing) are left out of its interval.
 */
export function bootstrapIntervals(
  task: { readonly count: number; readonly evaluate: (multiplicities: Int32Array) => readonly number[] },
  options: BootstrapOptions,
): Interval[] {
  const { seed, resamples = 2000, level = 0.95 } = options;
  const { count, evaluate } = task;
  if (count < 2) {
    throw new HoneError('invalid-config', `An interval needs at least 2 tasks, got ${count}.`, {
      cure: 'Evaluate on more tasks.',
    });
  }
  const multiplicities = new Int32Array(count).fill(1);
  const estimates = evaluate(multiplicities).slice();
  const draws = estimates.map(() => new Float64Array(resamples));
  const finite = estimates.map(() => 0);
  const random = createRandom(seed);
  for (let resample = 0; resample < resamples; resample++) {
    multiplicities.fill(0);
    for (let draw = 0; draw < count; draw++) {
      const drawn = random.below(count);
      multiplicities[drawn] = (multiplicities[drawn] ?? 0) + 1;
    }
    const values = evaluate(multiplicities);
    for (let statistic = 0; statistic < draws.length; statistic++) {
      const value = values[statistic] ?? Number.NaN;
      if (!Number.isFinite(value)) continue;
      const row = draws[statistic];
      if (row !== undefined) row[finite[statistic] ?? 0] = value;
      finite[statistic] = (finite[statistic] ?? 0) + 1;
    }
  }
  const tail = (1 - level) / 2;
  return estimates.map((estimate, statistic) => {
    const sorted = (draws[statistic] ?? new Float64Array(0)).subarray(0, finite[statistic] ?? 0).sort();
    if (sorted.length === 0) return { estimate, low: Number.NaN, high: Number.NaN };
    return { estimate, low: percentile(sorted, tail), high: percentile(sorted, 1 - tail) };
  });
}

/** Sum of `column` over tasks, each as often as it was drawn. */
export function weightedSum(column: Float64Array, multiplicities: Int32Array): number {
  let sum = 0;
  for (let index = 0; index < column.length; index++) sum += (column[index] ?? 0) * (multiplicities[index] ?? 0);
  return sum;
}

export function excludesZero(interval: Interval): boolean {
  return interval.low > 0 || interval.high < 0;
}

/**
 * Statistics that only evaluations need: paired differences of means, and the area under the ROC curve.
 */
import { bootstrapIntervals, weightedSum } from '../domain/statistics.ts';
import type { BootstrapOptions, Interval } from '../domain/statistics.ts';

/** The interval of mean(after) - mean(before) for values paired by task. */
export function pairedDifference(
  pair: { readonly before: Float64Array; readonly after: Float64Array },
  options: BootstrapOptions,
): Interval {
  const { before, after } = pair;
  const count = before.length;
  if (after.length !== count) throw new RangeError(`${count} values before and ${after.length} after are not pairs`);
  const difference = after.map((value, index) => value - (before[index] ?? Number.NaN));
  const evaluate = (multiplicities: Int32Array): readonly number[] => [weightedSum(difference, multiplicities) / count];
  const [interval] = bootstrapIntervals({ count, evaluate }, options);
  return interval ?? { estimate: Number.NaN, low: Number.NaN, high: Number.NaN };
}

export interface ScoredLabel {
  readonly score: number;
  readonly positive: boolean;
  /** How often it counts; 1 unless given. */
  readonly weight?: number;
}

/** Chance that a positive outranks a negative, ties counting half; undefined without both. */
export function areaUnderCurve(items: readonly ScoredLabel[]): number | undefined {
  return areaUnderSortedCurve(items.toSorted((one, other) => one.score - other.score));
}

/** The same for items already ascending by score, so that a bootstrap sorts once. */
export function areaUnderSortedCurve(sorted: readonly ScoredLabel[]): number | undefined {
  let negativesBelow = 0;
  let positives = 0;
  let wins = 0;
  for (let start = 0; start < sorted.length;) {
    let end = start;
    let tiedPositives = 0;
    let tiedNegatives = 0;
    while (end < sorted.length && sorted[end]?.score === sorted[start]?.score) {
      const item = sorted[end++];
      if (item?.positive === true) tiedPositives += item.weight ?? 1;
      else tiedNegatives += item?.weight ?? 1;
    }
    wins += tiedPositives * (negativesBelow + tiedNegatives / 2);
    negativesBelow += tiedNegatives;
    positives += tiedPositives;
    // A NaN equals nothing, itself included: step over it all the same.
    start = Math.max(end, start + 1);
  }
  return positives > 0 && negativesBelow > 0 ? wins / (positives * negativesBelow) : undefined;
}

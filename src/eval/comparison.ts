/**
 * Scores with their uncertainty: 95 % bootstrap intervals over tasks, of one policy and of the difference of two on the
 * same tasks. Every measure is a function of sums over tasks, so one resample serves all measures of both policies.
 * Pairing is by task id; two policies that were not evaluated on the same tasks cannot be compared, and that is an error.
 */
import { HoneError } from '../domain/errors.ts';
import { fBeta } from '../reward/f-beta.ts';
import { isElsewhereKind, lookupRate } from './scores.ts';
import type { TaskResult } from './scores.ts';
import { bootstrapIntervals, weightedSum } from '../domain/statistics.ts';
import type { BootstrapOptions, Interval } from '../domain/statistics.ts';

export const MEASURES = [
  'samplePrecision',
  'sampleRecall',
  'sampleFBeta',
  'pooledPrecision',
  'pooledRecall',
  'pooledFBeta',
  'lookupRateElsewhere',
  'lookupRateOther',
  /** Look-up rate on lines whose evidence lies elsewhere minus the rate on the others. */
  'lookupGap',
] as const;
export type Measure = (typeof MEASURES)[number];
export type MeasureIntervals = Readonly<Record<Measure, Interval>>;

export type ComparisonOptions = BootstrapOptions & { readonly beta?: number };

/** Sums over the rollouts of each task, one entry a task. */
interface TaskColumns {
  readonly ids: readonly string[];
  readonly columns: readonly Float64Array[];
}

export function intervalsOf(results: readonly TaskResult[], options: ComparisonOptions): MeasureIntervals {
  const { ids, columns } = sumByTask(results);
  const { beta = 0.5 } = options;
  const evaluate = (multiplicities: Int32Array): readonly number[] => measure(columns, multiplicities, beta);
  return named(bootstrapIntervals({ count: ids.length, evaluate }, options));
}

/** Intervals of after minus before. Throws `invalid-task` unless both cover the same tasks. */
export function compareResults(
  pair: { readonly before: readonly TaskResult[]; readonly after: readonly TaskResult[] },
  options: ComparisonOptions,
): MeasureIntervals {
  const before = sumByTask(pair.before);
  const after = sumByTask(pair.after);
  const { beta = 0.5 } = options;
  if (before.ids.length !== after.ids.length || before.ids.some((id, index) => id !== after.ids[index])) {
    throw new HoneError(
      'invalid-task',
      `Two evaluations of ${before.ids.length} and ${after.ids.length} tasks do not cover the same tasks.`,
      { cure: 'Evaluate both policies on one task file with one seed.' },
    );
  }
  const evaluate = (multiplicities: Int32Array): readonly number[] => {
    const from = measure(before.columns, multiplicities, beta);
    return measure(after.columns, multiplicities, beta).map((value, index) => value - (from[index] ?? Number.NaN));
  };
  return named(bootstrapIntervals({ count: before.ids.length, evaluate }, options));
}

function sumByTask(results: readonly TaskResult[]): TaskColumns {
  const ids = [...new Set(results.map(({ task }) => String(task.id)))].toSorted();
  const position = new Map(ids.map((id, index) => [id, index]));
  const columns = Array.from({ length: 10 }, () => new Float64Array(ids.length));
  for (const result of results) {
    const { outcome } = result;
    const elsewhere = lookupRate([result], isElsewhereKind);
    const other = lookupRate([result], (kind) => !isElsewhereKind(kind));
    const row = [1, outcome.precision, outcome.recall, outcome.truePositives, outcome.predicted, outcome.actual];
    row.push(elsewhere.lines, elsewhere.lookedUp, other.lines, other.lookedUp);
    const index = position.get(String(result.task.id)) ?? 0;
    for (const [column, value] of row.entries()) {
      const sums = columns[column];
      if (sums !== undefined) sums[index] = (sums[index] ?? 0) + value;
    }
  }
  return { ids, columns };
}

/** In the order of MEASURES. A score over nothing is 0; a look-up rate over no lines is not a number. */
function measure(columns: readonly Float64Array[], multiplicities: Int32Array, beta: number): number[] {
  const [rollouts = 0, precisionSum = 0, recallSum = 0, truePositives = 0, predicted = 0, actual = 0, ...lookups] =
    columns.map((column) => weightedSum(column, multiplicities));
  const [elsewhereLines = 0, elsewhereLookedUp = 0, otherLines = 0, otherLookedUp = 0] = lookups;
  const sample = { precision: precisionSum / rollouts, recall: recallSum / rollouts };
  const pooled = {
    precision: predicted === 0 ? 0 : truePositives / predicted,
    recall: actual === 0 ? 0 : truePositives / actual,
  };
  const elsewhereRate = elsewhereLookedUp / elsewhereLines;
  const otherRate = otherLookedUp / otherLines;
  return [
    sample.precision,
    sample.recall,
    fBeta(sample, beta),
    pooled.precision,
    pooled.recall,
    fBeta(pooled, beta),
    elsewhereRate,
    otherRate,
    elsewhereRate - otherRate,
  ];
}

function named(intervals: readonly Interval[]): MeasureIntervals {
  // The cast holds because `measure` returns one value for each name, in this order.
  return Object.fromEntries(MEASURES.map((name, index) => [name, intervals[index]])) as MeasureIntervals;
}

/**
 * The frontier of a real policy from its evaluations at one or more efforts: success and cost with intervals, slopes three ways,
 * the concave curve across efforts with its band, and the price that steering should start from. Every band comes from a
 * bootstrap over whole tasks, and those across efforts draw a task for all efforts at once. Pure; same seed, same numbers.
 */
import { bootstrapIntervals, weightedSum } from '../domain/statistics.ts';
import type { Interval } from '../domain/statistics.ts';
import { slopesAcrossEfforts } from '../reward/concave-fit.ts';
import { measureReference, rolloutsForError } from '../reward/reference.ts';
import { LEAST_TASKS } from '../reward/slope-band.ts';
import { measureSlope } from '../reward/slope.ts';
import { frontierTermSchema } from '../reward/terms.ts';
import type { CostOption, EvaluationRecord } from './evaluation-records.ts';
import { fitWarnings } from './fit-warnings.ts';
import { dominatorsOf, fitCurve } from './fitted-curve.ts';
import type { EffortFit, FrontierFile } from './frontier-file.ts';

export interface FitOptions {
  /** Where the evaluations came from, for the record. */
  readonly source: string;
  readonly cost: CostOption;
  readonly seed: number;
  /** Of the bootstrap; 95 % bands. */
  readonly resamples: number;
}

/** Alphas that the number of rollouts of a reference is told for. */
const ALPHAS = [0, 0.25, 0.5, 0.75, 1];
/** One point of gap. */
const GAP_ERROR = 0.01;
const GRID = 60;

/**
 * Efforts come out ascending by mean cost. With one effort there is no curve and no slope across efforts. An effort whose
 * rollouts all cost 0 beside others is a point of the curve and no more: it has no reference and no starting price. Throws
 * `invalid-config` with fewer than 2 tasks at an effort, where mean success is 0 and where nothing costs anything; an effort
 * whose slope cannot be told from 0 has no starting price, which is for the caller to refuse.
 */
export function fitFrontier(records: readonly EvaluationRecord[], options: FitOptions): FrontierFile {
  const { source, cost, seed, resamples } = options;
  const isFree = (members: readonly EvaluationRecord[]): boolean => members.every(({ cost: spent }) => spent === 0);
  const groups = groupByEffort(records).map(({ effort, records: members }) => ({
    effort,
    records: members,
    point: meansOf(members),
    reference: isFree(members) && !isFree(records) ? null : measureReference(members, { effort }),
  }));
  groups.sort((left, right) => left.point.cost - right.point.cost);
  const hasCurve = new Set(groups.map(({ point }) => point.cost)).size > 1;
  const across = hasCurve
    ? slopesAcrossEfforts(Object.fromEntries(groups.map((group) => [group.effort, group.records])), { seed, resamples })
    : {};
  const resampled = resampleEfforts(groups, { seed, resamples, hasCurve });
  const slopes = groups.map((group) => measureSlope(group.records, { seed, resamples }));
  const efforts = groups.map(({ effort, records: members, reference }, index): EffortFit => {
    const slope = slopes[index];
    const withinTask = bandOrNull(slope?.withinTask, slope?.usableTasks);
    const acrossEfforts = bandOrNull(across[effort], slope?.tasks);
    const dominators = resampled.dominators[index] ?? [];
    return {
      effort,
      tasks: slope?.tasks ?? 0,
      rollouts: members.length,
      cheated: members.filter(({ cheated }) => cheated).length,
      success: resampled.success[index] ?? NOTHING,
      cost: resampled.cost[index] ?? NOTHING,
      reference,
      rolloutsNeeded:
        reference === null
          ? []
          : ALPHAS.map((alpha) => ({
              alpha,
              rollouts: rolloutsForError(reference, { alpha, gapError: GAP_ERROR }),
            })),
      slopes: { withinTask, pooled: bandOrNull(slope?.pooled, slope?.tasks), acrossEfforts },
      dominated:
        dominators.length === 0
          ? null
          : {
              by: dominators.map((other) => groups[other]?.effort ?? ''),
              share: resampled.dominatedShares[index] ?? 0,
            },
      startingPrice: reference === null ? null : startingPrice({ acrossEfforts, withinTask }),
    };
  });
  return {
    format: 'hone-frontier-1',
    source,
    seed,
    resamples,
    cost: { unit: cost.unit, weights: cost.weights },
    efforts,
    curve: hasCurve ? [...fitCurve(groups.map(({ point }) => point)).points] : [],
    band: resampled.band,
    warnings: fitWarnings({ efforts, slopes, records }),
    rewardTerm: rewardTerm(efforts, cost),
  };
}

/** The across-efforts estimate where its band lies above 0, else the within-task one; the pooled one is never a price. */
function startingPrice(slopes: {
  acrossEfforts: Interval | null;
  withinTask: Interval | null;
}): EffortFit['startingPrice'] {
  const { acrossEfforts, withinTask } = slopes;
  const usable = (slope: Interval | null): slope is Interval => slope !== null && slope.low > 0;
  // Turning effort up shows what cost buys, traps included: agents that stop early, hard tasks that cost more.
  if (usable(acrossEfforts)) return priceFrom(acrossEfforts, 'across-efforts');
  if (usable(withinTask)) return priceFrom(withinTask, 'within-task');
  return null;
}

function priceFrom(
  { estimate, low, high }: Interval,
  from: 'across-efforts' | 'within-task',
): EffortFit['startingPrice'] {
  return { price: estimate, low, high, from };
}

/** What a run's reward.terms takes; null while an effort with a reference has no price, or where costs are plain numbers. */
function rewardTerm(efforts: readonly EffortFit[], { weights }: CostOption): FrontierFile['rewardTerm'] {
  const prices = efforts.flatMap(({ effort, startingPrice: found }) =>
    found === null ? [] : [[effort, found.price] as const],
  );
  const steerable = efforts.filter(({ reference }) => reference !== null);
  if (weights === null || prices.length < steerable.length) return null;
  const term = {
    kind: 'frontier',
    alpha: 0.5,
    costs: [{ weights: Object.fromEntries(Object.entries(weights).filter(([, weight]) => weight > 0)) }],
    startingPrice: { from: 'given', prices: Object.fromEntries(prices) },
  };
  frontierTermSchema.parse(term);
  return term;
}

interface EffortGroup {
  readonly effort: string;
  readonly records: readonly EvaluationRecord[];
}

function groupByEffort(records: readonly EvaluationRecord[]): EffortGroup[] {
  return [...Map.groupBy(records, ({ effort }) => effort)].map(([effort, members]) => ({ effort, records: members }));
}

function meansOf(records: readonly EvaluationRecord[]): { success: number; cost: number; weight: number } {
  const mean = (key: 'success' | 'cost'): number =>
    records.reduce((sum, record) => sum + record[key], 0) / records.length;
  return { success: mean('success'), cost: mean('cost'), weight: records.length };
}

/** Means, curve and dominance over the same resamples of tasks. */
function resampleEfforts(
  groups: readonly EffortGroup[],
  options: { seed: number; resamples: number; hasCurve: boolean },
): {
  success: Interval[];
  cost: Interval[];
  band: FrontierFile['band'];
  dominators: number[][];
  dominatedShares: number[];
} {
  const { seed, resamples, hasCurve } = options;
  const taskNumbers = new Map<string, number>();
  for (const { records } of groups)
    for (const { taskId } of records) if (!taskNumbers.has(taskId)) taskNumbers.set(taskId, taskNumbers.size);
  const sums = groups.map(({ records }) => {
    const columns = [0, 1, 2].map(() => new Float64Array(taskNumbers.size));
    const [rollouts, success, cost] = columns;
    for (const record of records) {
      const task = taskNumbers.get(record.taskId) ?? 0;
      if (rollouts === undefined || success === undefined || cost === undefined) continue;
      rollouts[task] = (rollouts[task] ?? 0) + 1;
      success[task] = (success[task] ?? 0) + record.success;
      cost[task] = (cost[task] ?? 0) + record.cost;
    }
    return columns;
  });
  const pointsAt = (multiplicities: Int32Array): { weight: number; success: number; cost: number }[] =>
    sums.map((columns) => {
      const [weight = 0, success = 0, cost = 0] = columns.map((column) => weightedSum(column, multiplicities));
      return { weight, success: success / weight, cost: cost / weight };
    });
  const estimate = pointsAt(new Int32Array(taskNumbers.size).fill(1));
  const mostCost = Math.max(...estimate.map(({ cost }) => cost));
  const grid = hasCurve ? Array.from({ length: GRID }, (_, index) => (1.1 * mostCost * (index + 1)) / GRID) : [];
  const dominators = estimate.map((_, index) => dominatorsOf(estimate, index));
  const dominatedTimes = estimate.map(() => 0);
  let isEstimate = true;
  const evaluate = (multiplicities: Int32Array): number[] => {
    const points = pointsAt(multiplicities);
    if (!isEstimate)
      for (const index of points.keys())
        if (dominatorsOf(points, index).length > 0) dominatedTimes[index] = (dominatedTimes[index] ?? 0) + 1;
    isEstimate = false;
    return [
      ...points.map(({ success }) => success),
      ...points.map(({ cost }) => cost),
      ...(hasCurve ? curveValues(points, grid) : []),
    ];
  };
  const intervals = bootstrapIntervals({ count: taskNumbers.size, evaluate }, { seed, resamples });
  const count = groups.length;
  return {
    success: intervals.slice(0, count),
    cost: intervals.slice(count, 2 * count),
    band: grid.map((cost, index) => {
      const { estimate: success, low, high } = intervals[2 * count + index] ?? NOTHING;
      return { cost, success, low, high };
    }),
    dominators,
    dominatedShares: dominatedTimes.map((times) => times / resamples),
  };
}

/** NaN for a resample that holds no curve: an effort that lost all its tasks, or one mean cost for all. */
function curveValues(
  points: readonly { weight: number; success: number; cost: number }[],
  grid: readonly number[],
): number[] {
  const isWhole = points.every(({ weight }) => weight > 0);
  if (!isWhole || new Set(points.map(({ cost }) => cost)).size < 2) return grid.map(() => Number.NaN);
  const { curve } = fitCurve(points);
  return grid.map((cost) => curve.value(cost));
}

const NOTHING: Interval = { estimate: Number.NaN, low: Number.NaN, high: Number.NaN };

/** Null where there is no finite band, and where fewer tasks than a price may start from stand behind it. */
function bandOrNull(interval: Interval | undefined, tasks = 0): Interval | null {
  if (interval === undefined || tasks < LEAST_TASKS) return null;
  const { estimate, low, high } = interval;
  return [estimate, low, high].every((value) => Number.isFinite(value)) ? { estimate, low, high } : null;
}

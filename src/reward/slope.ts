/**
 * The slope of success on cost at one effort, read off recorded rollouts where no closed form exists: it is the price of
 * cost at which a policy has no reason to move. Tasks are compared with themselves, because hard tasks cost more and fail
 * more; the slope without that centring is reported beside it, to show how much it matters. Bands resample whole tasks, and
 * are as wide as few tasks make them.
 */
import { HoneError } from '../domain/errors.ts';
import { bootstrapIntervals } from '../domain/statistics.ts';
import type { Interval } from '../domain/statistics.ts';
import { figure } from './figure.ts';
import { requireSample } from './reference.ts';
import type { OperatingSample } from './reference.ts';
import type { Operating } from './relative-gain.ts';
import { LEAST_TASKS, tasksForSlope, widenBand } from './slope-band.ts';

/** Sums of squares and products about the means of a list of points; `weight` is their number. */
export interface CostMoments {
  readonly weight: number;
  readonly success: number;
  readonly cost: number;
  /** Sum of (K - mean K)^2; exactly 0 when all costs are equal. */
  readonly costSquares: number;
  /** Sum of (S - mean S)(K - mean K). */
  readonly products: number;
}

export interface SlopeEstimate {
  /**
   * Success per unit of cost, tasks centred on their own means. NaN when no task has rollouts whose costs differ; with one
   * such task its band is infinite.
   */
  readonly withinTask: Interval;
  /** The same without centring by task. */
  readonly pooled: Interval;
  readonly tasks: number;
  /** Tasks whose rollouts differ in cost: only they say anything about the slope. */
  readonly usableTasks: number;
  readonly rollouts: number;
}

/**
 * Moments of success and cost; a point stands for `weight` rollouts (default 1, above 0). products / costSquares is the
 * regression slope, which for a natural exponential family in cost is exactly d E[S] / d E[K].
 */
export function momentsOf(points: readonly (Operating & { readonly weight?: number })[]): CostMoments {
  let weight = 0;
  let success = 0;
  let cost = 0;
  for (const point of points) {
    const share = point.weight ?? 1;
    weight += share;
    success += share * point.success;
    cost += share * point.cost;
  }
  success /= weight;
  cost /= weight;
  // A rounded mean would leave dust, which the slope would divide by.
  if (points.every((point) => point.cost === points[0]?.cost)) {
    return { weight, success, cost, costSquares: 0, products: 0 };
  }
  let costSquares = 0;
  let products = 0;
  for (const point of points) {
    const deviation = point.cost - cost;
    costSquares += (point.weight ?? 1) * deviation * deviation;
    products += (point.weight ?? 1) * deviation * (point.success - success);
  }
  return { weight, success, cost, costSquares, products };
}

/**
 * sum_t sum_i (S - mean S_t)(K - mean K_t) / sum (K - mean K_t)^2 with a percentile band from a bootstrap over tasks
 * (default 2,000 resamples, 95 %), widened for the number of tasks that say anything (`widenBand`). Throws `invalid-config` with fewer than 2 tasks, `invalid-rollout` for a sample that
 * is not finite or costs less than 0. Source: slope = Cov(S, K) / Var(K) within tasks.
 */
export function measureSlope(
  samples: readonly OperatingSample[],
  options: { readonly seed: number; readonly resamples?: number },
): SlopeEstimate {
  const samplesByTask = new Map<string, OperatingSample[]>();
  for (const sample of samples) {
    requireSample(sample);
    const list = samplesByTask.get(sample.taskId);
    if (list === undefined) samplesByTask.set(sample.taskId, [sample]);
    else list.push(sample);
  }
  const moments = [...samplesByTask.values()].map((list) => momentsOf(list));
  const [withinTask, pooled] = bootstrapIntervals(
    { count: moments.length, evaluate: (multiplicities) => slopesOf(moments, multiplicities) },
    options,
  );
  if (withinTask === undefined || pooled === undefined) throw new RangeError('two statistics give two intervals');
  const usableTasks = moments.filter(({ costSquares }) => costSquares > 0).length;
  return {
    withinTask: widenBand(withinTask, usableTasks),
    pooled: widenBand(pooled, moments.length),
    tasks: moments.length,
    usableTasks,
    rollouts: samples.length,
  };
}

/**
 * The estimate, when at least 10 tasks say something and its band lies above 0. Throws `invalid-config` otherwise: names
 * the effort, the estimate, the band and the tasks, and says what to record and about how many tasks it would take.
 */
export function requireSlope(estimate: SlopeEstimate, { effort }: { readonly effort: string }): number {
  const { withinTask, tasks, usableTasks } = estimate;
  if (usableTasks < LEAST_TASKS) {
    throw new HoneError(
      'invalid-config',
      `The slope of success on cost at effort ${effort} cannot be measured: of ${tasks} tasks, ${usableTasks} ${usableTasks === 1 ? 'has' : 'have'} rollouts whose costs differ, needs at least ${LEAST_TASKS}.`,
      {
        cure: 'Record several rollouts of each task, four or more, and of more tasks; or give the starting price as a number.',
      },
    );
  }
  const { estimate: slope, low, high } = withinTask;
  if (low > 0) return slope;
  const measured = `The slope of success on cost at effort ${effort} is ${figure(slope)} with a band of [${figure(low)}, ${figure(high)}] over ${tasks} tasks`;
  if (!(slope > 0)) {
    throw new HoneError('invalid-config', `${measured}: more cost did not come with more success.`, {
      cure: 'Agents that stop when they succeed, and hard tasks that cost more, hide the slope: fit it across efforts instead, or give the starting price as a number.',
    });
  }
  const needed = tasksForSlope(withinTask, tasks) ?? 2 * tasks;
  throw new HoneError('invalid-config', `${measured}: it may be 0.`, {
    cure: `About ${needed} tasks would be needed to tell; or give the starting price as a number.`,
  });
}

/** Within tasks and pooled; the pooled moments are put together from those of the tasks and the spread of their means. */
function slopesOf(moments: readonly CostMoments[], multiplicities: Int32Array): [number, number] {
  let weight = 0;
  let success = 0;
  let cost = 0;
  let costSquares = 0;
  let products = 0;
  for (const [task, moment] of moments.entries()) {
    const times = multiplicities[task] ?? 0;
    weight += times * moment.weight;
    success += times * moment.weight * moment.success;
    cost += times * moment.weight * moment.cost;
    costSquares += times * moment.costSquares;
    products += times * moment.products;
  }
  const within = products / costSquares;
  success /= weight;
  cost /= weight;
  for (const [task, moment] of moments.entries()) {
    const scale = (multiplicities[task] ?? 0) * moment.weight;
    costSquares += scale * (moment.cost - cost) ** 2;
    products += scale * (moment.cost - cost) * (moment.success - success);
  }
  return [within, products / costSquares];
}

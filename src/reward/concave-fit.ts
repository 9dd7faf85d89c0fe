/**
 * The frontier from points at several efforts: the least-squares curve of success against cost that never falls and never
 * gets steeper. Such a curve through sorted costs is a constant plus non-negative multiples of min(cost, knot), so the fit
 * is non-negative least squares, solved exactly by an active set whose systems are tridiagonal in the values at the knots.
 * Outside the data the curve goes to (0, 0) on the left where that keeps it concave, and is flat on the right.
 */
import { HoneError } from '../domain/errors.ts';
import { bootstrapIntervals, weightedSum } from '../domain/statistics.ts';
import type { Interval } from '../domain/statistics.ts';
import { figure } from './figure.ts';
import { requireSample } from './reference.ts';
import type { OperatingSample } from './reference.ts';
import type { Operating } from './relative-gain.ts';
import { LEAST_TASKS, tasksForSlope } from './slope-band.ts';

export interface FrontierPoint extends Operating {
  /** How much the point counts, above 0: its number of rollouts, say. Default 1. */
  readonly weight?: number;
}

export interface ConcaveFit {
  /** Ends of the straight pieces, ascending in cost: the first and the last measured cost are always among them. */
  readonly knots: readonly Operating[];
  /**
   * Success at a cost of at least 0. Left of the first knot a straight line from (0, 0), as nothing spent achieves nothing;
   * where that would not be concave, the first piece continued, which may fall below 0. Right of the last knot flat: the
   * data promise no more.
   */
  value(cost: number): number;
  /** Slopes of the pieces that meet at a cost; the same number twice inside a piece. */
  slopeAt(cost: number): { readonly left: number; readonly right: number };
  /**
   * Slope of the smooth curve behind the pieces: the geometric mean of the two that meet. At the last knot the last piece
   * is continued by the rule that it is the geometric mean of the slopes at its ends, exact for s = a c / (1 + b c).
   */
  tangentAt(cost: number): number;
}

/**
 * Weighted least squares over all curves that are concave and do not fall; values and slopes are free, and points at equal
 * costs are merged. Throws `invalid-config` unless there are 2 different costs, all finite and at least 0, finite success
 * and weights above 0.
 */
export function fitConcave(points: readonly FrontierPoint[]): ConcaveFit {
  for (const point of points) requirePoint(point);
  const columns = mergeCosts(points);
  if (columns.costs.length < 2) {
    throw new HoneError(
      'invalid-config',
      `A frontier needs points at 2 different costs, got ${columns.costs.length} from ${points.length} points.`,
      { cure: 'Evaluate the policy at another effort.' },
    );
  }
  return curveThrough(fitKnots(columns));
}

/**
 * The slope of the frontier at the mean cost of each effort, success per unit of cost, with a percentile band (default
 * 2,000 resamples, 95 %) from a bootstrap over tasks, the same tasks at all efforts. Points count by their rollouts. The
 * band is of sampling noise alone; that of joining few points by a curve comes on top, a tenth for three efforts of the toy.
 * Throws `invalid-config` with fewer than 2 tasks or 2 different mean costs, or for an effort without samples.
 */
export function slopesAcrossEfforts(
  samplesByEffort: Readonly<Record<string, readonly OperatingSample[]>>,
  options: { readonly seed: number; readonly resamples?: number },
): Record<string, Interval> {
  const efforts = Object.keys(samplesByEffort);
  const tasks = new Map<string, number>();
  for (const [effort, samples] of Object.entries(samplesByEffort)) {
    if (samples.length === 0) {
      throw new HoneError('invalid-config', `Effort ${effort} has no rollouts to fit the frontier to.`, {
        cure: 'Evaluate the policy at this effort, or leave it out.',
      });
    }
    for (const sample of samples) {
      requireSample(sample);
      if (!tasks.has(sample.taskId)) tasks.set(sample.taskId, tasks.size);
    }
  }
  const sums = Object.values(samplesByEffort).map((samples) => sumByTask(samples, tasks));
  const pointsOf = (multiplicities: Int32Array): Required<FrontierPoint>[] =>
    sums.map(({ rollouts, success, cost }) => {
      const weight = weightedSum(rollouts, multiplicities);
      return {
        weight,
        success: weightedSum(success, multiplicities) / weight,
        cost: weightedSum(cost, multiplicities) / weight,
      };
    });
  // Says in whole sentences what is wrong with the data; a resample that degenerates is only left out of the band.
  fitConcave(pointsOf(new Int32Array(tasks.size).fill(1)));
  const evaluate = (multiplicities: Int32Array): number[] => {
    const points = pointsOf(multiplicities);
    if (points.some(({ weight }) => weight === 0) || new Set(points.map(({ cost }) => cost)).size < 2) {
      return points.map(() => Number.NaN);
    }
    const fit = fitConcave(points);
    return points.map(({ cost }) => fit.tangentAt(cost));
  };
  const intervals = bootstrapIntervals({ count: tasks.size, evaluate }, options);
  return Object.fromEntries(efforts.map((effort, index) => [effort, intervals[index] ?? unmeasured]));
}

/**
 * The slope of one effort as a starting price, when there are 10 tasks or more and its band lies above 0. Throws `invalid-config` otherwise: names the
 * effort, the estimate, the band and the number of tasks, and what would help. A fitted slope is never below 0, so a band
 * that ends there says that resamples were flat; by how many tasks it is too wide is a lower bound.
 */
export function requireEffortSlope(
  slope: Interval,
  { effort, tasks }: { readonly effort: string; readonly tasks: number },
): number {
  if (tasks < LEAST_TASKS) {
    throw new HoneError(
      'invalid-config',
      `The slope of the frontier at effort ${effort} cannot be told from ${tasks} tasks, needs at least ${LEAST_TASKS}.`,
      { cure: 'Evaluate on more tasks, or give the starting price as a number.' },
    );
  }
  const { estimate, low, high } = slope;
  if (low > 0) return estimate;
  throw new HoneError(
    'invalid-config',
    `The slope of the frontier at effort ${effort} is ${figure(estimate)} with a band of [${figure(low)}, ${figure(high)}] over ${tasks} tasks: it may be flat there.`,
    {
      cure: `Evaluate on more tasks, at least ${tasksForSlope(slope, tasks) ?? 2 * tasks}, or at efforts further apart; or give the starting price as a number.`,
    },
  );
}

const unmeasured: Interval = { estimate: Number.NaN, low: Number.NaN, high: Number.NaN };

/** Points of strictly ascending cost. */
interface Columns {
  readonly costs: readonly number[];
  readonly successes: readonly number[];
  readonly weights: readonly number[];
}

function mergeCosts(points: readonly FrontierPoint[]): Columns {
  const costs: number[] = [];
  const successes: number[] = [];
  const weights: number[] = [];
  for (const { cost, success, weight = 1 } of points.toSorted((left, right) => left.cost - right.cost)) {
    const last = costs.length - 1;
    if (cost === costs[last]) {
      const total = (weights[last] ?? 0) + weight;
      successes[last] = (successes[last] ?? 0) + ((success - (successes[last] ?? 0)) * weight) / total;
      weights[last] = total;
    } else {
      costs.push(cost);
      successes.push(success);
      weights.push(weight);
    }
  }
  return { costs, successes, weights };
}

/**
 * Lawson and Hanson's active set over the places at which the slope falls. Each round lets the slope fall where that lowers
 * the error fastest, solves, and walks back to the last curve that is still concave while some fall is negative.
 */
function fitKnots(columns: Columns): Operating[] {
  const { costs, successes, weights } = columns;
  const count = costs.length;
  let kinks: number[] = [];
  let falls = new Float64Array(count);
  let curve = solveKnots(columns, kinks);
  // Relative to the spread of the data, so that no unit matters.
  const mean = curve[0]?.success ?? 0;
  const spread = Math.sqrt(successes.reduce((sum, value, i) => sum + (weights[i] ?? 0) * (value - mean) ** 2, 0));
  const tolerance = 1e-13 * spread;
  // Each round ends at the optimum of its own set of kinks, and no set returns; the bound is for rounding alone.
  for (let round = 0; round < 10 * count; round++) {
    const candidate = steepestKink(columns, { curve, kinks, tolerance });
    if (candidate === undefined) break;
    let trial = [...kinks, candidate].sort((left, right) => left - right);
    let trialCurve = solveKnots(columns, trial);
    let trialFalls = fallsOf(trialCurve, { kinks: trial, count });
    // A gain that is rounding only: the curve is optimal already.
    if (!((trialFalls[candidate] ?? 0) > 0)) break;
    while (trial.some((kink) => !((trialFalls[kink] ?? 0) > 0))) {
      let step = 1;
      for (const kink of trial) {
        const before = falls[kink] ?? 0;
        const after = trialFalls[kink] ?? 0;
        if (!(after > 0)) step = Math.min(step, before / (before - after));
      }
      const walked = falls.map((before, kink) => before + step * ((trialFalls[kink] ?? 0) - before));
      // The kink that stopped the walk is at 0 but for rounding, so it is told by its step and not by its value.
      trial = trial.filter((kink) => {
        const before = falls[kink] ?? 0;
        const after = trialFalls[kink] ?? 0;
        return after > 0 || before / (before - after) > step;
      });
      falls = walked.map((fall, kink) => (trial.includes(kink) ? fall : 0));
      trialCurve = solveKnots(columns, trial);
      trialFalls = fallsOf(trialCurve, { kinks: trial, count });
    }
    kinks = trial;
    falls = trialFalls;
    curve = trialCurve;
  }
  const last = curve.at(-1);
  const end = costs[count - 1] ?? 0;
  return last === undefined || last.cost === end ? curve : [...curve, { cost: end, success: last.success }];
}

/** The place at which a fall of the slope would lower the error fastest, per length of its column; undefined at the optimum. */
function steepestKink(
  { costs, successes, weights }: Columns,
  state: { readonly curve: readonly Operating[]; readonly kinks: readonly number[]; readonly tolerance: number },
): number | undefined {
  const count = costs.length;
  const start = costs[0] ?? 0;
  const residuals = costs.map(
    (cost, index) => (weights[index] ?? 0) * ((successes[index] ?? 0) - interpolate(state.curve, cost)),
  );
  // Sums over the points right of the kink, where its column is constant, and over those up to it, where it is linear.
  let right = residuals.reduce((sum, value) => sum + value, 0) - (residuals[0] ?? 0);
  let rightWeight = weights.reduce((sum, value) => sum + value, 0) - (weights[0] ?? 0);
  let linear = 0;
  let linearSquares = 0;
  let best: number | undefined;
  let bestGain = state.tolerance;
  for (let kink = 1; kink < count; kink++) {
    const reach = (costs[kink] ?? 0) - start;
    const weight = weights[kink] ?? 0;
    linear += (residuals[kink] ?? 0) * reach;
    linearSquares += weight * reach * reach;
    right -= residuals[kink] ?? 0;
    rightWeight -= weight;
    const gain = (linear + right * reach) / Math.sqrt(linearSquares + Math.max(rightWeight, 0) * reach * reach);
    if (gain > bestGain && !state.kinks.includes(kink)) {
      best = kink;
      bestGain = gain;
    }
  }
  return best;
}

/** Least squares over the curves with kinks at these points, flat after the last: values at the first point and the kinks. */
function solveKnots({ costs, successes, weights }: Columns, kinks: readonly number[]): Operating[] {
  const knots = [0, ...kinks];
  const size = knots.length;
  const diagonal = new Float64Array(size);
  const beside = new Float64Array(size);
  const values = new Float64Array(size);
  let piece = 0;
  for (let index = 0; index < costs.length; index++) {
    while (piece + 1 < size && index >= (knots[piece + 1] ?? 0)) piece++;
    const weight = weights[index] ?? 0;
    const success = successes[index] ?? 0;
    const from = costs[knots[piece] ?? 0] ?? 0;
    const to = piece + 1 < size ? (costs[knots[piece + 1] ?? 0] ?? 0) : Infinity;
    const share = ((costs[index] ?? 0) - from) / (to - from);
    diagonal[piece] = (diagonal[piece] ?? 0) + weight * (1 - share) ** 2;
    values[piece] = (values[piece] ?? 0) + weight * (1 - share) * success;
    if (piece + 1 === size) continue;
    beside[piece] = (beside[piece] ?? 0) + weight * share * (1 - share);
    diagonal[piece + 1] = (diagonal[piece + 1] ?? 0) + weight * share * share;
    values[piece + 1] = (values[piece + 1] ?? 0) + weight * share * success;
  }
  for (let row = 1; row < size; row++) {
    const factor = (beside[row - 1] ?? 0) / (diagonal[row - 1] ?? 1);
    diagonal[row] = (diagonal[row] ?? 0) - factor * (beside[row - 1] ?? 0);
    values[row] = (values[row] ?? 0) - factor * (values[row - 1] ?? 0);
  }
  for (let row = size - 1; row >= 0; row--) {
    const next = row + 1 < size ? (beside[row] ?? 0) * (values[row + 1] ?? 0) : 0;
    values[row] = ((values[row] ?? 0) - next) / (diagonal[row] ?? 1);
  }
  return knots.map((knot, row) => ({ cost: costs[knot] ?? 0, success: values[row] ?? 0 }));
}

/** By how much the slope falls at each point; 0 where there is no kink. */
function fallsOf(
  curve: readonly Operating[],
  { kinks, count }: { readonly kinks: readonly number[]; readonly count: number },
): Float64Array<ArrayBuffer> {
  const falls = new Float64Array(count);
  for (const [position, kink] of kinks.entries()) {
    falls[kink] = slopeOfPiece(curve, position) - slopeOfPiece(curve, position + 1);
  }
  return falls;
}

/** Of the piece that starts at this knot; 0 after the last. */
function slopeOfPiece(knots: readonly Operating[], piece: number): number {
  const from = knots[piece];
  const to = knots[piece + 1];
  return from === undefined || to === undefined ? 0 : (to.success - from.success) / (to.cost - from.cost);
}

/** Within or right of the knots. */
function interpolate(knots: readonly Operating[], cost: number): number {
  const piece = Math.max(
    knots.findLastIndex((knot) => knot.cost <= cost),
    0,
  );
  const from = knots[piece];
  return from === undefined ? Number.NaN : from.success + slopeOfPiece(knots, piece) * (cost - from.cost);
}

function curveThrough(knots: readonly Operating[]): ConcaveFit {
  const first = knots[0] ?? { cost: 0, success: 0 };
  const last = knots.at(-1) ?? first;
  // Of a cost of 0 the chord is NaN or infinite with a sign; there is nothing left of it.
  const firstSlope = slopeOfPiece(knots, 0);
  const fromOrigin = first.cost > 0 ? first.success / first.cost : firstSlope;
  const before = Math.max(fromOrigin, firstSlope);
  const slopeAt = (cost: number): { left: number; right: number } => {
    requireCost(cost);
    const piece = knots.findLastIndex((knot) => knot.cost <= cost);
    if (piece < 0) return { left: before, right: before };
    const right = slopeOfPiece(knots, piece);
    if (knots[piece]?.cost !== cost) return { left: right, right };
    return { left: piece === 0 ? before : slopeOfPiece(knots, piece - 1), right };
  };
  const tangentAt = (cost: number): number => {
    const { left, right } = slopeAt(cost);
    if (cost !== last.cost) return left === right ? left : Math.sqrt(left * right);
    if (left === 0) return 0;
    return (left * left) / tangentAt(knots.at(-2)?.cost ?? 0);
  };
  return {
    knots,
    value: (cost) => {
      requireCost(cost);
      return cost < first.cost ? first.success - before * (first.cost - cost) : interpolate(knots, cost);
    },
    slopeAt,
    tangentAt,
  };
}

function sumByTask(
  samples: readonly OperatingSample[],
  tasks: ReadonlyMap<string, number>,
): { rollouts: Float64Array; success: Float64Array; cost: Float64Array } {
  const rollouts = new Float64Array(tasks.size);
  const success = new Float64Array(tasks.size);
  const cost = new Float64Array(tasks.size);
  for (const sample of samples) {
    const task = tasks.get(sample.taskId) ?? 0;
    rollouts[task] = (rollouts[task] ?? 0) + 1;
    success[task] = (success[task] ?? 0) + sample.success;
    cost[task] = (cost[task] ?? 0) + sample.cost;
  }
  return { rollouts, success, cost };
}

function requirePoint({ cost, success, weight = 1 }: FrontierPoint): void {
  if (cost >= 0 && Number.isFinite(cost) && Number.isFinite(success) && weight > 0 && Number.isFinite(weight)) return;
  throw new HoneError(
    'invalid-config',
    `A frontier cannot have the point of cost ${cost}, success ${success} and weight ${weight}.`,
    { cure: 'Costs are finite and at least 0, success is finite, and weights are finite and above 0.' },
  );
}

function requireCost(cost: number): void {
  if (cost >= 0) return;
  throw new HoneError('invalid-config', `The frontier was asked for at a cost of ${cost}, must be at least 0.`, {
    cure: 'Ask within the measured costs, where the fit is supported by data.',
  });
}

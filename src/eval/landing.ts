/**
 * Where a steered run landed at one effort: success gained and cost saved on held-out tasks against the starting policy,
 * and the angle between them beside the one that alpha asks for. Success is weighed before and after as the starting policy
 * was: a weight that moved in between would pass for a gain. Training's own figures stand beside it, never in it.
 */
import type { StepEvent } from './events.ts';
import type { TaskResult } from './scores.ts';
import type { Effort } from '../domain/effort.ts';
import { HoneError } from '../domain/errors.ts';
import { bootstrapIntervals, weightedSum } from '../domain/statistics.ts';
import type { BootstrapOptions, Interval } from '../domain/statistics.ts';
import { weightedCost } from '../reward/cost.ts';
import type { CostWeights } from '../reward/cost.ts';
import { successOf } from '../reward/scored-rollout.ts';
import type { RewardBase } from '../reward/terms.ts';

export interface LandingCost {
  readonly name: string;
  readonly weights: CostWeights;
}

/** Sums over the rollouts of each task, in one order of tasks for all columns. */
export interface PairedColumns {
  readonly success: Record<'before' | 'after', Float64Array>;
  /** In the order of the costs. */
  readonly costs: readonly Record<'before' | 'after', Float64Array>[];
}

export interface PairOptions {
  readonly base: RewardBase;
  /** Of precision against a recall weight of 1, as step 1 was scored with; a base of kind correct reads none. */
  readonly precisionWeight: number;
  readonly costs: readonly LandingCost[];
}

export interface CostLanding {
  readonly name: string;
  /** 1 minus cost over that of the starting policy; not finite where that spent nothing. */
  readonly saving: Interval;
  /** Degrees from the axis of saving to that of success. An interval may pass 180, where it is the shorter way round. */
  readonly angle: Interval;
}

export interface TrainingLanding {
  /** The last fifth of the run's steps, at least one. */
  readonly steps: number;
  readonly successGain: number;
  /** Means of the steps that had rollouts at this effort; of prices the geometric mean, success per unit of cost. */
  readonly costs: readonly {
    readonly name: string;
    readonly saving: number;
    readonly angle: number;
    readonly price: number;
  }[];
}

export interface Landing {
  readonly effort: Effort;
  readonly alpha: number;
  /** Degrees: atan2(alpha, 1 - alpha). */
  readonly targetAngle: number;
  /** Success over that of the starting policy, minus 1; not finite where that had none. */
  readonly successGain: Interval;
  readonly costs: readonly CostLanding[];
  /** Null where the last steps had no rollout at this effort. */
  readonly training: TrainingLanding | null;
}

/** Degrees in (-180, 180]; not a number unless both are finite. */
function angleDegrees(gain: number, saving: number): number {
  return Number.isFinite(gain) && Number.isFinite(saving) ? (Math.atan2(gain, saving) * 180) / Math.PI : Number.NaN;
}

/** Relative to before, on the tasks as often as each was drawn. */
export function gainOf({ success }: PairedColumns, drawn: Int32Array): number {
  return ratio(success, drawn) - 1;
}

/** Of the cost at that place of the costs. */
export function savingOf({ costs }: PairedColumns, drawn: Int32Array, cost = 0): number {
  const column = costs[cost];
  if (column === undefined) throw new RangeError(`there is no cost ${cost} of ${costs.length}`);
  return 1 - ratio(column, drawn);
}

/** Throws `invalid-task` unless both cover the same tasks, each as often as the other. */
export function pairResults(
  { before, after }: { readonly before: readonly TaskResult[]; readonly after: readonly TaskResult[] },
  { base, precisionWeight, costs }: PairOptions,
): PairedColumns {
  const places = new Map<string, number>();
  for (const { task } of before) if (!places.has(task.id)) places.set(task.id, places.size);
  const rollouts = new Int32Array(places.size);
  const count = (place: number | undefined, change: 1 | -1): void => {
    if (place !== undefined) rollouts[place] = (rollouts[place] ?? 0) + change;
  };
  for (const { task } of before) count(places.get(task.id), 1);
  for (const { task } of after) count(places.get(task.id), -1);
  if (before.length !== after.length || rollouts.some((left) => left !== 0))
    throw new HoneError(
      'invalid-task',
      `Two evaluations of ${before.length} and ${after.length} rollouts do not cover the same tasks.`,
      { cure: 'Evaluate both policies on one task file with one seed.' },
    );
  const sums = (results: readonly TaskResult[], value: (result: TaskResult) => number): Float64Array => {
    const column = new Float64Array(places.size);
    for (const result of results) {
      const place = places.get(result.task.id) ?? 0;
      column[place] = (column[place] ?? 0) + value(result);
    }
    return column;
  };
  const pair = (value: (result: TaskResult) => number): Record<'before' | 'after', Float64Array> => ({
    before: sums(before, value),
    after: sums(after, value),
  });
  return {
    success: pair(({ outcome }) => successOf(base, outcome, precisionWeight)),
    costs: costs.map(({ weights }) =>
      pair(({ cost, submission }) => weightedCost({ ...cost, lookups: submission.lookups.length }, weights)),
    ),
  };
}

export interface LandingInput {
  readonly effort: Effort;
  readonly alpha: number;
  readonly columns: PairedColumns;
  /** Of the costs, in the order of the columns. */
  readonly costNames: readonly string[];
  readonly steps: readonly StepEvent[];
}

/** Paired bootstrap intervals over tasks. Throws `invalid-config` with fewer than two tasks. */
export function measureLanding(
  { effort, alpha, columns, costNames, steps }: LandingInput,
  options: BootstrapOptions,
): Landing {
  const count = columns.success.before.length;
  const all = new Int32Array(count).fill(1);
  const gain = gainOf(columns, all);
  const around = costNames.map((_, cost) => angleDegrees(gain, savingOf(columns, all, cost)));
  const [successGain = NOTHING, ...byCost] = bootstrapIntervals(
    {
      count,
      evaluate: (drawn) => {
        const drawnGain = gainOf(columns, drawn);
        return [
          drawnGain,
          ...costNames.flatMap((_, cost) => {
            const saving = savingOf(columns, drawn, cost);
            return [saving, nearest(angleDegrees(drawnGain, saving), around[cost] ?? 0)];
          }),
        ];
      },
    },
    options,
  );
  return {
    effort,
    alpha,
    targetAngle: angleDegrees(alpha, 1 - alpha),
    successGain,
    costs: costNames.map((name, cost) => ({
      name,
      saving: byCost[2 * cost] ?? NOTHING,
      angle: byCost[2 * cost + 1] ?? NOTHING,
    })),
    training: trainingLanding({ effort, costNames, steps }),
  };
}

const NOTHING: Interval = { estimate: Number.NaN, low: Number.NaN, high: Number.NaN };

/** The same direction, within half a turn of the estimate: 179 and -179 degrees are 2 apart. */
function nearest(angle: number, estimate: number): number {
  return angle - 360 * Math.round((angle - estimate) / 360);
}

function ratio({ before, after }: Record<'before' | 'after', Float64Array>, drawn: Int32Array): number {
  return weightedSum(after, drawn) / weightedSum(before, drawn);
}

function trainingLanding({
  effort,
  costNames,
  steps,
}: Pick<LandingInput, 'effort' | 'costNames' | 'steps'>): TrainingLanding | null {
  const last = steps.slice(-Math.max(1, Math.floor(steps.length / 5)));
  const heard = last.filter(({ metrics }) => metrics['frontier/success_gain']?.[effort] !== undefined);
  if (heard.length === 0) return null;
  const average = (key: 'success_gain' | 'cost_saving' | 'log_price', name: string): number =>
    heard.reduce((sum, { metrics }) => sum + (metrics[`frontier/${key}`]?.[name] ?? Number.NaN), 0) / heard.length;
  const successGain = average('success_gain', effort);
  return {
    steps: last.length,
    successGain,
    costs: costNames.map((name) => {
      const saving = average('cost_saving', `${effort}/${name}`);
      return {
        name,
        saving,
        angle: angleDegrees(successGain, saving),
        price: Math.exp(average('log_price', `${effort}/${name}`)),
      };
    }),
  };
}

/** One sentence, for the terminal and the report. */
export function describeLanding({ effort, alpha, targetAngle, successGain, costs, training }: Landing): string {
  const gained = isFigure(successGain)
    ? percentInterval(successGain, signed)
    : 'not measured (the starting policy had none)';
  const saved = costs.map(({ name, saving, angle }) =>
    isFigure(saving)
      ? `${name} saved ${percentInterval(saving)}: ${isFigure(angle) ? interval(angle, 'degrees', rounded) : 'no angle'}`
      : `${name} saved not measured (the starting policy spent none)`,
  );
  const heldOut = `Landing, ${effort} effort: success ${gained}, ${saved.join(', ')} where alpha ${alpha} asks for ${rounded(targetAngle)}`;
  if (training === null) return `${heldOut}.`;
  const isOne = training.costs.length === 1;
  const trained = training.costs.map(
    ({ name, saving, angle }) =>
      `${isOne ? '' : `${name} `}${shown(saving, percent)} %, ${shown(angle, rounded)} degrees`,
  );
  const prices = training.costs.map(
    ({ name, price }) => `price ${isOne ? '' : `of ${name} `}${shown(price, (value) => value.toPrecision(2))}`,
  );
  const span = training.steps === 1 ? 'last step' : `last ${training.steps} steps`;
  return `${heldOut}; on training tasks, ${span}: ${shown(training.successGain, signed)} %, ${trained.join(', ')}; ${prices.join(', ')}.`;
}

const rounded = (value: number): string => value.toFixed(0);
const percent = (share: number): string => (100 * share).toFixed(1);
const signed = (share: number): string => `${share < 0 ? '' : '+'}${percent(share)}`;

/** A figure that was not finite is null once it has been in a file. */
function shown(value: number | null, format: (value: number) => string): string {
  return value === null || !Number.isFinite(value) ? '-' : format(value);
}

function percentInterval(of: Interval, format = percent): string {
  return interval(of, '%', format, percent);
}

/** False where the starting policy had nothing to compare with. */
function isFigure({ estimate }: Interval): boolean {
  return Number.isFinite(estimate);
}

function interval(
  { estimate, low, high }: Interval,
  unit: string,
  format: (value: number) => string,
  ends = format,
): string {
  return `${format(estimate)} ${unit} [${shown(low, ends)}, ${shown(high, ends)}]`;
}

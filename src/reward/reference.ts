/**
 * The reference that gains are relative to: mean success and mean cost of the initial policy at one effort, measured once,
 * with the noise of that measurement. Rollouts of one task are not independent, so all errors are clustered by task.
 * The reference must come from the task distribution and the filters that training batches come from.
 */
import { HoneError } from '../domain/errors.ts';
import { requireAlpha } from './relative-gain.ts';
import type { Gains, Operating } from './relative-gain.ts';

/** One rollout as steering sees it: raw success in [0, 1], never a shaped reward; cost at least 0. */
export interface OperatingSample extends Operating {
  readonly taskId: string;
}

/** Plain values: written into a run's state and read back as it is. */
export interface Reference extends Operating {
  /** Standard errors of the two means, in their own units. */
  readonly successError: number;
  readonly costError: number;
  /** Covariance of the two means. */
  readonly covariance: number;
  readonly tasks: number;
  readonly rollouts: number;
}

/** Means of columns of figures over rollouts, and the covariances of these means, clustered by task. Plain JSON. */
export interface ReferenceMoments {
  readonly tasks: number;
  readonly rollouts: number;
  readonly means: readonly number[];
  readonly covariances: readonly (readonly number[])[];
}

/**
 * Means of the columns, and the cluster-robust covariances of the means:
 * G / (G - 1) sum_t r_t r_t' / N^2, r_t the sum of a task's residuals, over G tasks and N rollouts. All rows have `values`
 * of one length. With fewer than 2 tasks the covariances are not finite: `requireReference` refuses these.
 */
export function clusteredMoments(
  rows: readonly { readonly taskId: string; readonly values: readonly number[] }[],
): ReferenceMoments {
  const columns = [...(rows[0]?.values.keys() ?? [])];
  const means = columns.map((column) => rows.reduce((sum, { values }) => sum + (values[column] ?? 0), 0) / rows.length);
  const residuals = new Map<string, number[]>();
  for (const { taskId, values } of rows) {
    const sums = residuals.get(taskId) ?? columns.map(() => 0);
    residuals.set(taskId, sums);
    for (const column of columns) sums[column] = (sums[column] ?? 0) + (values[column] ?? 0) - (means[column] ?? 0);
  }
  const tasks = residuals.size;
  const factor = tasks / (tasks - 1) / (rows.length * rows.length);
  const covariances = columns.map((row) =>
    columns.map((column) => {
      let sum = 0;
      for (const task of residuals.values()) sum += (task[row] ?? 0) * (task[column] ?? 0);
      return factor * sum;
    }),
  );
  return { tasks, rollouts: rows.length, means, covariances };
}

/**
 * Means over rollouts and their standard errors, clustered by task (`clusteredMoments`). Throws `invalid-config` with fewer
 * than 2 tasks or a mean of 0 or less, `invalid-rollout` for a sample that is not finite or costs less than 0.
 */
export function measureReference(
  samples: readonly OperatingSample[],
  context: { readonly effort?: string } = {},
): Reference {
  for (const sample of samples) requireSample(sample);
  const { tasks, rollouts, means, covariances } = clusteredMoments(
    samples.map(({ taskId, success, cost }) => ({ taskId, values: [success, cost] })),
  );
  const [success = Number.NaN, cost = Number.NaN] = means;
  const [[successVariance = 0, covariance = 0] = [], [, costVariance = 0] = []] = covariances;
  const reference = {
    success,
    cost,
    successError: Math.sqrt(successVariance),
    costError: Math.sqrt(costVariance),
    covariance,
    tasks,
    rollouts,
  };
  requireReference(reference, context);
  return reference;
}

/** Throws `invalid-config` unless a measured reference has at least 2 tasks and gains can be relative to it: both means above 0. */
export function requireReference(
  { success, cost, tasks, rollouts }: Reference,
  context: { readonly effort?: string } = {},
): void {
  const where = context.effort === undefined ? '' : ` at effort ${context.effort}`;
  if (tasks < 2) {
    throw new HoneError(
      'invalid-config',
      `The reference${where} was measured on ${tasks} ${tasks === 1 ? 'task' : 'tasks'}, needs at least 2.`,
      { cure: 'Measure the initial policy on more tasks: the noise of a reference is between tasks.' },
    );
  }
  requirePositive(success, { measure: 'success', where, rollouts });
  requirePositive(cost, { measure: 'cost', where, rollouts });
}

/**
 * A reference that the owner states: taken as exact, so it adds no noise to the gap. Throws `invalid-config` unless
 * success lies in (0, 1] and cost is finite and above 0: more success than 1 is out of reach of every policy.
 */
export function statedReference({ success, cost }: Operating, context: { readonly effort?: string } = {}): Reference {
  const where = context.effort === undefined ? '' : ` at effort ${context.effort}`;
  if (!(success > 0 && success <= 1)) {
    throw new HoneError('invalid-config', `The reference success${where} is ${success}, must lie in (0, 1].`, {
      cure: 'State the share of tasks that the initial policy solves, or have it measured.',
    });
  }
  if (!(cost > 0 && Number.isFinite(cost))) {
    throw new HoneError('invalid-config', `The reference cost${where} is ${cost}, must be finite and above 0.`, {
      cure: 'State the mean cost of a rollout of the initial policy, or have it measured.',
    });
  }
  return { success, cost, successError: 0, costError: 0, covariance: 0, tasks: 0, rollouts: 0 };
}

/**
 * Standard deviation of d = (1 - alpha) u - alpha v from the reference's noise alone, without unit, to first order:
 * d moves by (1 - alpha)(1 + u) e_s + alpha (1 - v) e_c with e = relative error of the reference. Throws
 * `invalid-config` for alpha outside [0, 1].
 */
export function gapError(reference: Reference, gains: Gains, alpha: number): number {
  requireAlpha(alpha);
  // Per unit of absolute error; the end that has no weight is not read.
  const successWeight = alpha === 1 ? 0 : ((1 - alpha) * (1 + gains.successGain)) / reference.success;
  const costWeight = alpha === 0 ? 0 : (alpha * (1 - gains.costSaving)) / reference.cost;
  const variance =
    (successWeight * reference.successError) ** 2 +
    (costWeight * reference.costError) ** 2 +
    2 * successWeight * costWeight * reference.covariance;
  // Rounding can leave a perfectly correlated pair just below 0.
  return Math.sqrt(Math.max(variance, 0));
}

/**
 * Rollouts that the reference would need so that sd(d) at the starting point falls to `gapError` (0.01 = one point), with
 * as many rollouts a task as it was measured with: sd falls as 1 / sqrt(rollouts). At least 1. For independent rollouts
 * and alpha 0 this is (1 - s0) / (s0 gapError^2). Throws `invalid-config` unless `gapError` is above 0.
 */
export function rolloutsForError(
  reference: Reference,
  { alpha, gapError: target }: { readonly alpha: number; readonly gapError: number },
): number {
  if (!(target > 0)) {
    throw new HoneError('invalid-config', `The error of the gap is to be ${target}, must be above 0.`, {
      cure: 'Use 0.01 for one point; no number of rollouts leaves no noise.',
    });
  }
  const present = gapError(reference, { successGain: 0, costSaving: 0 }, alpha);
  return rolloutsForNoise(reference.rollouts, { present, target });
}

/** Rollouts that bring a noise of `present`, measured with so many, to `target`, above 0: noise falls as 1 / sqrt(rollouts). At least 1. */
export function rolloutsForNoise(
  rollouts: number,
  { present, target }: { readonly present: number; readonly target: number },
): number {
  return Math.max(1, Math.ceil(rollouts * (present / target) ** 2));
}

/** Throws `invalid-rollout` unless success is finite, and cost finite and at least 0. */
export function requireSample({ taskId, success, cost }: OperatingSample): void {
  if (!(success >= 0 && success <= 1)) {
    throw new HoneError('invalid-rollout', `A rollout of task ${taskId} has the success ${success}, not in [0, 1].`, {
      cure: 'Leave out rollouts that infrastructure lost; score every other one before it is measured.',
    });
  }
  if (!(cost >= 0 && Number.isFinite(cost))) {
    throw new HoneError('invalid-rollout', `A rollout of task ${taskId} has the cost ${cost}.`, {
      cure: 'A cost is finite and at least 0; look at the recorder that counted and at the weights.',
    });
  }
}

function requirePositive(
  value: number,
  { measure, where, rollouts }: { readonly measure: string; readonly where: string; readonly rollouts: number },
): void {
  if (value > 0) return;
  throw new HoneError(
    'invalid-config',
    `The mean ${measure} of the initial policy${where} is ${value} over ${rollouts} rollouts, must be above 0: gains are relative to it.`,
    {
      cure:
        measure === 'success'
          ? 'Measure more rollouts or use an easier task set, so that the initial policy solves some tasks.'
          : 'Give a cost weight above 0 to something that rollouts of this effort use.',
    },
  );
}

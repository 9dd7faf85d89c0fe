/**
 * What a reward remembers: the tangent of F-beta, references and prices, budgets, latency models, the phase. Plain JSON that
 * comes back bit for bit; a state that belongs to another spec is refused with the difference, never bent to fit.
 */
import { z } from 'zod';

import type { Effort } from '../domain/effort.ts';
import { HoneError } from '../domain/errors.ts';
import { frontierStateSchema } from './frontier-state.ts';
import type { FrontierState } from './frontier-state.ts';
import { latencyModelSchema } from './latency-model.ts';
import type { LatencyModel } from './latency-model.ts';
import type { Calibration } from './recalibration.ts';
import { measuredDifferences, measuredUnder } from './measured-under.ts';
import type { MeasuredUnder } from './measured-under.ts';
import type { PhaseState } from './reward-phase.ts';
import { partWeights } from './scored-rollout.ts';
import { frontierTermOf } from './spec.ts';
import type { RewardSpec } from './spec.ts';

export interface RewardState {
  /** Optimizer steps advanced. */
  readonly steps: number;
  readonly phase: PhaseState;
  /** Null unless the weight of precision is measured. */
  readonly calibration: Calibration | null;
  /** Null without a frontier term. */
  readonly frontier: FrontierState | null;
  /** By the name of the term, then by `budgetKey`; null = no limit. */
  readonly budgets: Readonly<Record<string, Readonly<Record<string, number | null>>>>;
  /** By the name of the term; only those that were fitted at start. */
  readonly latencyModels: Readonly<Record<string, LatencyModel>>;
  /** What of the spec all this was measured under; never moves. */
  readonly measuredUnder: MeasuredUnder;
}

const count = z.int().nonnegative();

export const rewardStateSchema = z.strictObject({
  steps: count,
  phase: z.strictObject({ index: count, steps: count, reached: count }),
  calibration: z
    .strictObject({
      beta: z.number().positive(),
      reference: z.strictObject({ precision: z.number().positive(), recall: z.number().positive() }),
      precisionWeight: z.number().nonnegative(),
      outside: count,
    })
    .nullable(),
  frontier: frontierStateSchema.nullable(),
  budgets: z.record(z.string(), z.record(z.string(), z.number().nonnegative().nullable())),
  latencyModels: z.record(z.string(), latencyModelSchema),
  measuredUnder: z.record(z.string(), z.record(z.string(), z.union([z.number(), z.string()]))),
}) satisfies z.ZodType<RewardState>;

/** The weight of precision in force, against a recall weight of 1; undefined where the base has none. */
export function precisionWeightOf(state: RewardState, { base }: Pick<RewardSpec, 'base'>): number | undefined {
  if (base.kind !== 'detection') return undefined;
  if (base.precisionWeight !== 'measured') return base.precisionWeight;
  if (state.calibration === null) throw new RangeError('a measured weight of precision has a calibration');
  return state.calibration.precisionWeight;
}

/** What a budget is kept under: efforts have no slash in them. */
export function budgetKey(
  scope: 'task' | 'effort',
  rollout: { readonly effort: Effort; readonly taskId: string },
): string {
  return scope === 'task' ? `${rollout.effort}/${rollout.taskId}` : rollout.effort;
}

/**
 * A stored state, checked: throws `invalid-config` when it is not one, and `run-config-changed`, naming every difference,
 * when it belongs to another spec, to other efforts, or was measured under other weights of the same terms. `taskIds` are the fixed pool, where there is one.
 */
export function restoreRewardState(
  spec: RewardSpec,
  stored: {
    readonly state: unknown;
    readonly efforts: readonly Effort[];
    readonly taskIds?: readonly string[];
  },
): RewardState {
  const parsed = rewardStateSchema.safeParse(stored.state);
  if (!parsed.success) {
    const problems = parsed.error.issues.map(({ path, message }) => `${path.join('.')}: ${message}`);
    throw new HoneError('invalid-config', `The stored reward state cannot be read: ${problems.join('; ')}.`, {
      cure: 'Resume from an older checkpoint, or begin a new run.',
    });
  }
  const differences = [
    ...baseDifferences(spec, parsed.data),
    ...frontierDifferences(spec, parsed.data, stored.efforts),
    ...budgetDifferences(spec, parsed.data, stored),
    ...latencyDifferences(spec, parsed.data),
    ...measuredDifferences(parsed.data.measuredUnder, measuredUnder(spec)),
  ];
  if (differences.length > 0) {
    throw new HoneError(
      'run-config-changed',
      `The stored reward state does not fit the reward of this run: ${differences.join('; ')}.`,
      { cure: 'Resume with the reward and the efforts that the run began with, or begin a new run.' },
    );
  }
  return parsed.data;
}

function baseDifferences({ base, phases }: RewardSpec, { calibration, phase }: RewardState): string[] {
  const differences: string[] = [];
  const isMeasured = base.kind === 'detection' && base.precisionWeight === 'measured';
  if (isMeasured && calibration === null) differences.push('the weight of precision is measured, and it has none');
  if (!isMeasured && calibration !== null)
    differences.push('it has a measured weight of precision, and the spec does not measure one');
  if (phase.index > 0 && phase.index >= phases.length)
    differences.push(`it is in phase number ${phase.index + 1}, and the spec has ${phases.length}`);
  return differences;
}

function frontierDifferences(spec: RewardSpec, { frontier }: RewardState, efforts: readonly Effort[]): string[] {
  const term = frontierTermOf(spec);
  if (term === undefined) return frontier === null ? [] : ['it has prices, and the spec has no frontier term'];
  if (frontier === null) return [`it has no prices for the term ${term.name}`];
  const differences = namedDifferences(
    { stored: Object.keys(frontier), wanted: efforts },
    (effort) => `prices at effort ${effort}`,
  );
  const width = partWeights(spec.base, 1).length + term.costs.length;
  for (const [effort, { reference, prices }] of Object.entries(frontier)) {
    differences.push(
      ...namedDifferences(
        { stored: Object.keys(prices), wanted: term.costs.map(({ name }) => name) },
        (cost) => `a price of ${cost} at effort ${effort}`,
      ),
    );
    const { means, covariances } = reference;
    if (means.length !== width || covariances.length !== width || covariances.some((row) => row.length !== width))
      differences.push(`its reference at effort ${effort} has ${means.length} means, and the spec needs ${width}`);
  }
  return differences;
}

function budgetDifferences(
  { terms }: RewardSpec,
  { budgets }: RewardState,
  { efforts, taskIds }: { readonly efforts: readonly Effort[]; readonly taskIds?: readonly string[] },
): string[] {
  const wanted = terms.filter((term) => term.kind === 'budget');
  const differences = namedDifferences(
    { stored: Object.keys(budgets), wanted: wanted.map(({ name }) => name) },
    (name) => `budgets for the term ${name}`,
  );
  for (const { name, scope } of wanted) {
    const measured = budgets[name];
    if (measured === undefined || (scope === 'task' && taskIds === undefined)) continue;
    const ids = scope === 'task' ? (taskIds ?? []) : [''];
    const keys = efforts.flatMap((effort) => ids.map((taskId) => budgetKey(scope, { effort, taskId })));
    const missing = keys.filter((key) => measured[key] === undefined);
    if (missing.length > 0)
      differences.push(
        `its term ${name} has no budget for ${missing.length} of ${keys.length} keys, the first ${missing[0]}`,
      );
  }
  return differences;
}

function latencyDifferences({ terms }: RewardSpec, { latencyModels }: RewardState): string[] {
  const fitted = terms.filter((term) => term.kind === 'latency').filter(({ latency }) => latency.from === 'measured');
  return namedDifferences(
    { stored: Object.keys(latencyModels), wanted: fitted.map(({ name }) => name) },
    (name) => `a latency model for the term ${name}`,
  );
}

function namedDifferences(
  { stored, wanted }: { readonly stored: readonly string[]; readonly wanted: readonly string[] },
  what: (name: string) => string,
): string[] {
  return [
    ...wanted.filter((name) => !stored.includes(name)).map((name) => `it lacks ${what(name)}`),
    ...stored.filter((name) => !wanted.includes(name)).map((name) => `it has ${what(name)}, and the spec does not`),
  ];
}

/**
 * The state that a reward starts from: everything that is measured, measured once, on the initial policy. A term whose
 * input is missing or says nothing is an error here, with the cure, never a silent zero later. Pure: same rollouts and seed,
 * same state. What was measured is told in plain sentences, with its errors.
 */
import type { Effort } from '../domain/effort.ts';
import { HoneError } from '../domain/errors.ts';
import { measureBudgets } from './budget.ts';
import { weightedCost } from './cost.ts';
import { figure } from './figure.ts';
import { startFrontier } from './frontier-start.ts';
import type { FrontierState } from './frontier-state.ts';
import { fitLatencyModel } from './latency-model.ts';
import { measuredUnder } from './measured-under.ts';
import { calibrate } from './recalibration.ts';
import { phaseInForce, startPhase } from './reward-phase.ts';
import { budgetKey } from './reward-state.ts';
import type { RewardState } from './reward-state.ts';
import { isCorrect, requireOutcome } from './scored-rollout.ts';
import type { ScoredRollout } from './scored-rollout.ts';
import { frontierTermOf, requiredMeasurements } from './spec.ts';
import type { RewardSpec } from './spec.ts';
import type { RewardBase, RewardTerm } from './terms.ts';

export interface RewardStartInput {
  /**
   * Rollouts of the initial policy on the tasks that training draws from, under the same filters, at every effort. For a
   * recorded latency alone one of each effort will do: it shows that the latency is recorded.
   */
  readonly baseline?: readonly ScoredRollout[];
  /** All that the run will roll out at; at least one, none twice. */
  readonly efforts: readonly Effort[];
  /** The fixed pool of tasks, when there is one. */
  readonly taskIds?: readonly string[];
  /** Of the bootstraps. */
  readonly seed: number;
}

export interface RewardStart {
  readonly state: RewardState;
  /** One sentence a measurement, for the user, and warnings after them. */
  readonly report: string[];
}

/**
 * Measures what the spec needs. Throws `invalid-config` without a baseline where one is needed, for an effort without
 * rollouts, a reference that is 0, a slope whose band includes 0, prices of other efforts, a task of the pool without a
 * rollout, a latency that was not recorded; `invalid-rollout` for a precision or recall outside [0, 1].
 */
export function createRewardState(spec: RewardSpec, input: RewardStartInput): RewardStart {
  checkEfforts(input.efforts);
  const baseline = requireBaseline(spec, input);
  for (const rollout of baseline) requireOutcome(rollout);
  const report: string[] = [];
  const calibration = startCalibration(spec.base, baseline, report);
  const budgets: Record<string, Record<string, number | null>> = {};
  const latencyModels: Record<string, RewardState['latencyModels'][string]> = {};
  let frontier: FrontierState | null = null;
  for (const term of spec.terms) {
    switch (term.kind) {
      case 'budget':
        budgets[term.name] = startBudgets(term, { ...input, baseline }, report);
        break;
      case 'latency':
        if (term.latency.from === 'measured') latencyModels[term.name] = startLatencyModel(term.name, baseline, report);
        break;
      case 'frontier': {
        const precisionWeight = calibration?.precisionWeight ?? statedWeight(spec.base);
        frontier = startFrontier(term, { ...input, baseline, base: spec.base, precisionWeight }, report);
        break;
      }
      case 'cost':
      case 'overlong':
        break;
      default:
        term satisfies never;
    }
  }
  report.push(...lateFrontierWarning(spec));
  return {
    state: {
      steps: 0,
      phase: startPhase(),
      calibration,
      frontier,
      budgets,
      latencyModels,
      measuredUnder: measuredUnder(spec),
    },
    report,
  };
}

/** At most one sentence. At alpha 1 saving is held at 0 whatever success does, so nothing is given back. */
function lateFrontierWarning(spec: RewardSpec): string[] {
  const term = frontierTermOf(spec);
  const first = phaseInForce(spec, startPhase());
  if (term === undefined || term.alpha === 1 || first.terms.some(({ name }) => name === term.name)) return [];
  const givenBack = term.alpha === 0 ? 'all of it' : `at alpha ${term.alpha} part of it`;
  return [
    `Warning: the term ${term.name} is not in force in the first phase (${first.name}), and its gains count from the starting policy, not from the phase's begin: success that earlier phases win is spent again on saving cost until gains run along alpha, ${givenBack}. Set alpha to 1, or name the term in every phase.`,
  ];
}

function checkEfforts(efforts: readonly Effort[]): void {
  if (efforts.length > 0 && new Set(efforts).size === efforts.length) return;
  throw new HoneError('invalid-config', `The efforts of the run are [${efforts.join(', ')}].`, {
    cure: 'Name at least one effort, and none of them twice.',
  });
}

function requireBaseline(spec: RewardSpec, { baseline = [], efforts }: RewardStartInput): readonly ScoredRollout[] {
  const required = requiredMeasurements(spec);
  if (!required.baseline) return baseline;
  const refuse = (message: string, cure: string): never => {
    throw new HoneError('invalid-config', message, { cure });
  };
  const readers = [
    ...(spec.base.kind === 'detection' && spec.base.precisionWeight === 'measured' ? ['the weight of precision'] : []),
    ...spec.terms
      .filter((term) => requiredMeasurements({ ...spec, base: { kind: 'correct' }, terms: [term] }).baseline)
      .map(({ name }) => `the term ${name}`),
  ].join(', ');
  if (baseline.length === 0)
    refuse(
      `Measured at start: ${readers}. But there is no baseline.`,
      'Roll out the starting policy first, or give the weights, prices and models as numbers.',
    );
  for (const effort of efforts)
    if (!baseline.some((rollout) => rollout.effort === effort))
      refuse(
        `The baseline has no rollouts at effort ${effort}, and ${readers} needs them at every effort.`,
        'Roll out the starting policy at this effort too, or take it out of the run.',
      );
  const other = baseline.find(({ effort }) => !efforts.includes(effort));
  if (other !== undefined)
    refuse(
      `The baseline has rollouts at effort ${other.effort}, which is none of the run's (${efforts.join(', ')}).`,
      'Leave them out, or name the effort.',
    );
  const silent = baseline.find(({ latencySeconds }) => latencySeconds === undefined);
  if (silent !== undefined && (required.recordedLatency || required.measuredLatency))
    refuse(
      `A rollout of task ${silent.taskId} in the baseline has no latency, and a latency term reads it.`,
      "Record latencySeconds, or set the term's latency to { from: 'model' } with numbers.",
    );
  return baseline;
}

/** The tangent of F-beta at the baseline's mean precision and recall, the cheated as 0; null unless its weight is measured. */
function startCalibration(
  base: RewardBase,
  baseline: readonly ScoredRollout[],
  report: string[],
): RewardState['calibration'] {
  if (base.kind !== 'detection' || base.precisionWeight !== 'measured') return null;
  const mean = (value: (rollout: ScoredRollout) => number): number =>
    baseline.reduce((sum, rollout) => sum + (rollout.outcome.cheated ? 0 : value(rollout)), 0) / baseline.length;
  const precision = mean(({ outcome }) => outcome.precision);
  const recall = mean(({ outcome }) => outcome.recall);
  const calibration = calibrate({ precision, recall, beta: base.beta });
  report.push(
    `The starting policy has precision ${figure(precision)} and recall ${figure(recall)} over ${baseline.length} rollouts, so precision weighs ${figure(calibration.precisionWeight)} against a recall of 1 (beta ${base.beta}).`,
  );
  return calibration;
}

function statedWeight(base: RewardBase): number {
  return base.kind === 'detection' && typeof base.precisionWeight === 'number' ? base.precisionWeight : 0;
}

function startLatencyModel(
  name: string,
  baseline: readonly ScoredRollout[],
  report: string[],
): RewardState['latencyModels'][string] {
  // requireBaseline saw to it that each has one.
  const samples = baseline.map(({ cost, latencySeconds = Number.NaN }) => ({ ...cost, latencySeconds }));
  const { model, rSquared, meanAbsoluteErrorSeconds, constantTurns } = fitLatencyModel(samples);
  const turns =
    constantTurns === null
      ? `, and ${figure(model.secondsPerTurn)} s a turn,`
      : ` with its ${constantTurns} ${constantTurns === 1 ? 'turn' : 'turns'}, which every rollout has,`;
  report.push(
    `Latency of the term ${name}: ${figure(model.overheadSeconds)} s${turns} at ${figure(model.tokensPerSecond)} sampled tokens a second; fitted on ${samples.length} rollouts, off by ${figure(meanAbsoluteErrorSeconds)} s in the mean (R squared ${figure(rSquared)}).`,
  );
  return model;
}

function startBudgets(
  term: Extract<RewardTerm, { kind: 'budget' }>,
  { baseline, efforts, taskIds }: RewardStartInput & { readonly baseline: readonly ScoredRollout[] },
  report: string[],
): Record<string, number | null> {
  const samples = baseline.map((rollout) => ({
    key: budgetKey(term.scope, rollout),
    cost: weightedCost(rollout.cost, term.weights),
    correct: isCorrect(rollout.outcome),
  }));
  const budgets = measureBudgets(samples, term.percentile);
  if (term.scope === 'task') {
    if (taskIds === undefined) {
      throw new HoneError(
        'invalid-config',
        `The term ${term.name} has a budget for each task, but the run has no fixed pool of tasks.`,
        { cure: 'Give the run a pool of tasks, or set the scope to effort.' },
      );
    }
    const keys = efforts.flatMap((effort) => taskIds.map((taskId) => budgetKey('task', { effort, taskId })));
    const missing = keys.filter((key) => budgets[key] === undefined);
    if (missing.length > 0) {
      throw new HoneError(
        'invalid-config',
        `The term ${term.name} has a budget for each task, but the baseline has no rollout of ${missing.length} of ${keys.length} tasks and efforts, the first ${missing[0]}.`,
        { cure: 'Put every task of the pool into the baseline, at every effort, or set the scope to effort.' },
      );
    }
  }
  const limits = Object.values(budgets).flatMap((budget) => budget ?? []);
  const all = Object.keys(budgets).length;
  const range = limits.length === 0 ? '' : `, from ${figure(Math.min(...limits))} to ${figure(Math.max(...limits))}`;
  report.push(
    `Budgets of the term ${term.name}: ${limits.length} of ${all} ${term.scope === 'task' ? 'tasks' : 'efforts'} have one${range}, percentile ${term.percentile} of the cost of correct rollouts; where none was correct there is no limit.`,
  );
  return budgets;
}

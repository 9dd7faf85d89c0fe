/**
 * What a study showed, in numbers: for each arm and effort how much cost was saved and success gained, with intervals,
 * the closed form beside it, the order over alpha and the direction of each problem's move. Success is never counted
 * from samples here: it is the closed form at the recorded (q, cost). Everything is relative to the exact start, problem
 * by problem; seeds are averaged within a problem first, then problems (a mean of ratios).
 */
import { HoneError } from '../domain/errors.ts';
import { fixedLanding, steeredLanding } from './equilibrium.ts';
import { RECORD_COLUMNS, recordedSteps, STARTING_COSTS, STUDY_EFFORTS } from './study-record.ts';
import type { StudyArm, StudyPlan, StudyRecord, StudyRun } from './study-record.ts';
import { studentQuantile } from './student-quantile.ts';
import { STARTING_Q, successRate, toyProblem, toyStart } from './toy-task.ts';

export interface Estimate {
  readonly mean: number;
  /**
   * Half of the 95 % interval from seeds, problems fixed: Student's t on the spread of seeds within problems, whose
   * random numbers are independent, pooled over problems. Null with fewer than 2 seeds.
   */
  readonly seedHalfWidth: number | null;
  /** Half of the 95 % interval for problems drawn anew from such a grid. Null with fewer than 2 problems. */
  readonly problemHalfWidth: number | null;
}

export interface Outcome {
  /** v = 1 - c / c0, in per cent. */
  readonly savingPercent: Estimate;
  /** u = s / s0 - 1, in per cent. */
  readonly gainPercent: Estimate;
}

/** Angles of problems' moves (saving, gain): 0 = saving alone, 90 = gain alone, above 90 = success bought with cost. */
export interface DirectionSummary {
  /** Problems that moved by more than 5 % (length of the move); the others have no direction to speak of. */
  readonly problems: number;
  readonly meanDegrees: number;
  readonly deviationDegrees: number;
  readonly lowestDegrees: number;
  readonly highestDegrees: number;
  /** Where alpha points, and the largest distance from it; null for a fixed price, which aims nowhere. */
  readonly targetDegrees: number | null;
  readonly worstErrorDegrees: number | null;
}

export interface EffortSummary {
  readonly effort: (typeof STUDY_EFFORTS)[number];
  /** At the last step. */
  readonly last: Outcome;
  /** From log cost and q averaged over the last 20 % of the steps (Polyak): low effort rings. */
  readonly averaged: Outcome;
  /** Where training would end, from the closed form (q = 1, or 1/2 with a frozen skill), mean over problems. */
  readonly closedForm: { readonly savingPercent: number; readonly gainPercent: number };
  /** ln(price / the arm's starting price) at the last step. */
  readonly logPriceChange: Estimate;
  /** The largest |ln(price / starting price)| at any recorded step of any run. */
  readonly largestLogPriceChange: number;
  /** Share of problems that cost more at the last step than at the start, in [0, 1]. */
  readonly costlierShare: number;
  /** Null when no problem moved by more than 5 %. */
  readonly direction: DirectionSummary | null;
}

export interface ArmSummary {
  readonly arm: StudyArm;
  /** Chance of the good action at the last step, in [0, 1]. */
  readonly q: Estimate;
  /** Rollouts whose number of candidates was cut at the cap, over all runs. */
  readonly cappedRollouts: number;
  readonly efforts: readonly EffortSummary[];
}

/** How the steered arms that started from the true slope are ordered, problem by problem. */
export interface OrderSummary {
  readonly effort: (typeof STUDY_EFFORTS)[number];
  /** Share of problems with gain strictly rising and saving strictly falling over all alphas. */
  readonly strictShare: number;
  /** Share of problems where the largest alpha has more gain and less saving than the smallest. */
  readonly endsShare: number;
}

export interface StudySummary {
  /** In the order of the plan's arms. */
  readonly arms: readonly ArmSummary[];
  /** By effort; empty with fewer than 2 such arms. */
  readonly order: readonly OrderSummary[];
}

/** u and v of one effort, as shares. */
export interface Move {
  readonly saving: number;
  readonly gain: number;
}

const AVERAGED_SHARE = 0.2;
const SMALLEST_MOVE = 0.05;

/** Throws `invalid-config` for a record in which an arm has no runs, or unequal seeds between problems. */
export function summariseStudy(record: StudyRecord): StudySummary {
  const { plan } = record;
  const arms = plan.arms.map((arm, position) => summariseArm(record, { arm, position }));
  const steered = steeredArms(plan);
  if (steered.length < 2) return { arms, order: [] };
  const order = STUDY_EFFORTS.map((effort, index) => {
    const moves = steered.map((position) => problemMoves(record, { arm: position, effort: index }));
    return {
      effort,
      strictShare: shareOf(moves[0] ?? [], (_, problem) =>
        moves.every((move, at) => at === 0 || isFurther(moves[at - 1]?.[problem], move[problem])),
      ),
      endsShare: shareOf(moves[0] ?? [], (first, problem) => isFurther(first, moves.at(-1)?.[problem])),
    };
  });
  return { arms, order };
}

/** Positions of the steered arms that start from the true slope, by rising alpha. */
export function steeredArms(plan: Pick<StudyPlan, 'arms'>): number[] {
  return plan.arms
    .flatMap(({ rule, slopeFactor }, position) =>
      rule.kind === 'steered' && slopeFactor === 1 ? [{ position, alpha: rule.alpha }] : [],
    )
    .toSorted((left, right) => left.alpha - right.alpha)
    .map(({ position }) => position);
}

/** The mean move of each problem over its seeds at the last step, in the order of the record. */
export function problemMoves(record: StudyRecord, { arm, effort }: { arm: number; effort: number }): Move[] {
  return byProblem(record, arm).map((runs) => {
    const moves = runs.map((run) => lastMove(run, effort));
    return { saving: average(moves.map(({ saving }) => saving)), gain: average(moves.map(({ gain }) => gain)) };
  });
}

function summariseArm(record: StudyRecord, { arm, position }: { arm: StudyArm; position: number }): ArmSummary {
  const problems = byProblem(record, position);
  const averagedRows = lateRows(record.plan);
  const efforts = STUDY_EFFORTS.map((name, effort): EffortSummary => {
    const moves = problemMoves(record, { arm: position, effort });
    const priceColumn = 1 + STUDY_EFFORTS.length + effort;
    return {
      effort: name,
      last: outcome(problems, (run) => lastMove(run, effort)),
      averaged: outcome(problems, (run) => averagedMove(run, { effort, rows: averagedRows })),
      closedForm: closedForm(record.plan, { arm, effort, problems: problems.map((runs) => runs[0]?.problem ?? -1) }),
      logPriceChange: estimate(problems, (run) => logChange(run, priceColumn, rowCount(run) - 1)),
      largestLogPriceChange: largestChange(problems, priceColumn),
      costlierShare: shareOf(moves, ({ saving }) => saving < 0),
      direction: summariseDirection(arm, moves),
    };
  });
  return {
    arm,
    q: estimate(problems, (run) => valueAt(run, rowCount(run) - 1, 0)),
    cappedRollouts: problems.flat().reduce((sum, { capped }) => sum + capped, 0),
    efforts,
  };
}

function outcome(problems: readonly StudyRun[][], measure: (run: StudyRun) => Move): Outcome {
  return {
    savingPercent: estimate(problems, (run) => 100 * measure(run).saving),
    gainPercent: estimate(problems, (run) => 100 * measure(run).gain),
  };
}

function estimate(problems: readonly StudyRun[][], measure: (run: StudyRun) => number): Estimate {
  const seeds = problems[0]?.length ?? 0;
  const count = problems.length;
  const means: number[] = [];
  let withinSquares = 0;
  for (const runs of problems) {
    const values = runs.map((run) => measure(run));
    const mean = average(values);
    means.push(mean);
    for (const value of values) withinSquares += (value - mean) ** 2;
  }
  const mean = average(means);
  const seedFreedom = count * (seeds - 1);
  const betweenSquares = means.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return {
    mean,
    seedHalfWidth:
      seedFreedom > 0
        ? studentQuantile(0.975, seedFreedom) * Math.sqrt(withinSquares / seedFreedom / (seeds * count))
        : null,
    problemHalfWidth:
      count > 1 ? studentQuantile(0.975, count - 1) * Math.sqrt(betweenSquares / (count - 1) / count) : null,
  };
}

function closedForm(
  plan: StudyPlan,
  { arm, effort, problems }: { arm: StudyArm; effort: number; problems: readonly number[] },
): EffortSummary['closedForm'] {
  const { rule, slopeFactor } = arm;
  const q = plan.isSkillFrozen ? STARTING_Q : 1;
  const moves = problems.map((index) => {
    const problem = toyProblem(index);
    const startingCost = STARTING_COSTS[effort] ?? Number.NaN;
    const landing =
      rule.kind === 'fixed'
        ? fixedLanding({ ...problem, startingCost, slopeFactor, q })
        : steeredLanding({ ...problem, startingCost, alpha: rule.alpha, q });
    const lowest = (plan.costFloor ?? 0) * startingCost;
    const highest = (plan.costCeiling ?? Infinity) * startingCost;
    return moveAt({ problem: index, effort, q, cost: Math.min(Math.max(landing.cost, lowest), highest) });
  });
  return {
    savingPercent: 100 * average(moves.map(({ saving }) => saving)),
    gainPercent: 100 * average(moves.map(({ gain }) => gain)),
  };
}

function summariseDirection({ rule }: StudyArm, moves: readonly Move[]): DirectionSummary | null {
  const angles = moves
    .filter(({ saving, gain }) => Math.hypot(saving, gain) > SMALLEST_MOVE)
    .map(({ saving, gain }) => degrees(gain, saving));
  if (angles.length === 0) return null;
  const meanDegrees = average(angles);
  const squares = angles.reduce((sum, angle) => sum + (angle - meanDegrees) ** 2, 0);
  const targetDegrees = rule.kind === 'steered' ? degrees(rule.alpha, 1 - rule.alpha) : null;
  return {
    problems: angles.length,
    meanDegrees,
    deviationDegrees: Math.sqrt(squares / Math.max(1, angles.length - 1)),
    lowestDegrees: Math.min(...angles),
    highestDegrees: Math.max(...angles),
    targetDegrees,
    worstErrorDegrees:
      targetDegrees === null ? null : Math.max(...angles.map((angle) => Math.abs(angle - targetDegrees))),
  };
}

/** In (-90, 270]: moves that lose both are cut there, far from every target, so that angles can be averaged. */
function degrees(gain: number, saving: number): number {
  const angle = (Math.atan2(gain, saving) * 180) / Math.PI;
  return angle > -90 ? angle : angle + 360;
}

function lastMove(run: StudyRun, effort: number): Move {
  const row = rowCount(run) - 1;
  return moveAt({ problem: run.problem, effort, q: valueAt(run, row, 0), cost: valueAt(run, row, 1 + effort) });
}

function averagedMove(run: StudyRun, { effort, rows }: { effort: number; rows: readonly number[] }): Move {
  const q = average(rows.map((row) => valueAt(run, row, 0)));
  const cost = Math.exp(average(rows.map((row) => Math.log(valueAt(run, row, 1 + effort)))));
  return moveAt({ problem: run.problem, effort, q, cost });
}

function moveAt(point: { problem: number; effort: number; q: number; cost: number }): Move {
  const { problem: index, effort, q, cost } = point;
  const problem = toyProblem(index);
  const { successes, costs } = toyStart(problem);
  const startSuccess = successes[effort] ?? Number.NaN;
  const startCost = costs[effort] ?? Number.NaN;
  const success = successRate({ ...problem, q, cost });
  return { saving: (startCost - cost) / startCost, gain: (success - startSuccess) / startSuccess };
}

/** Rows of the recorded points in the last 20 % of the steps; the last one is always among them. */
function lateRows(plan: StudyPlan): number[] {
  return recordedSteps(plan).flatMap((step, row) => (step >= plan.steps * (1 - AVERAGED_SHARE) ? [row] : []));
}

function largestChange(problems: readonly StudyRun[][], column: number): number {
  let largest = 0;
  for (const run of problems.flat()) {
    for (let row = 1; row < rowCount(run); row++) largest = Math.max(largest, Math.abs(logChange(run, column, row)));
  }
  return largest;
}

function byProblem({ runs }: StudyRecord, arm: number): StudyRun[][] {
  const problems = new Map<number, StudyRun[]>();
  for (const run of runs) {
    if (run.arm !== arm) continue;
    const peers = problems.get(run.problem);
    if (peers === undefined) problems.set(run.problem, [run]);
    else peers.push(run);
  }
  const grouped = [...problems.values()];
  if (grouped.length === 0 || grouped.some(({ length }) => length !== grouped[0]?.length)) {
    const counts = grouped.map(({ length }) => length).join(', ') || 'none';
    throw new HoneError('invalid-config', `Arm ${arm} of the study has these seeds by problem: ${counts}.`, {
      cure: 'Every problem needs the same seeds; finish the study with --resume.',
    });
  }
  return grouped;
}

/** More success for more cost: what a larger alpha is to bring. */
function isFurther(from: Move | undefined, to: Move | undefined): boolean {
  return from !== undefined && to !== undefined && to.gain > from.gain && to.saving < from.saving;
}

function shareOf<T>(list: readonly T[], holds: (item: T, index: number) => boolean): number {
  return list.filter((item, index) => holds(item, index)).length / list.length;
}

function logChange(run: StudyRun, column: number, row: number): number {
  return Math.log(valueAt(run, row, column) / valueAt(run, 0, column));
}

function rowCount({ values }: StudyRun): number {
  return values.length / RECORD_COLUMNS.length;
}

function valueAt({ values }: StudyRun, row: number, column: number): number {
  return values[row * RECORD_COLUMNS.length + column] ?? Number.NaN;
}

function average(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

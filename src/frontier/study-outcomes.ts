/**
 * What the pictures of a study draw, taken from its runs: each problem's gain and saving under an arm, prices and costs over
 * training, single trajectories. Success is the closed form at the recorded (q, c), and everything is relative to the exact
 * start, problem by problem; seeds are averaged within a problem first.
 */
import { percentile } from '../domain/statistics.ts';
import { RECORD_COLUMNS, STARTING_COSTS, STUDY_EFFORTS, recordedSteps } from './study-record.ts';
import type { StudyRecord, StudyRun } from './study-record.ts';
import { successRate, toyProblem, toyStart } from './toy-task.ts';

/** Mean over the seeds of one problem at the last step. */
export interface ProblemOutcome {
  readonly problem: number;
  /** v = 1 - c / c0, a share. */
  readonly saving: number;
  /** u = s / s0 - 1, a share. */
  readonly gain: number;
}

/** Over problems and seeds of one arm at each recorded step. */
export interface CourseBand {
  readonly step: number;
  readonly mean: number;
  /** 10th and 90th percentiles. */
  readonly low: number;
  readonly high: number;
}

const EFFORT_COUNT = STUDY_EFFORTS.length;
const LOW_SHARE = 0.1;

/** One outcome a problem, in the order of the record; empty for an arm without runs. */
export function problemOutcomes(
  record: StudyRecord,
  { arm, effort }: { arm: number; effort: number },
): ProblemOutcome[] {
  const sums = new Map<number, { saving: number; gain: number; seeds: number }>();
  for (const run of runsOf(record, arm)) {
    const last = run.values.length / RECORD_COLUMNS.length - 1;
    const { cost, success } = pointOf(run, { row: last, effort });
    const { successes, costs } = toyStart(toyProblem(run.problem));
    const sum = sums.get(run.problem) ?? { saving: 0, gain: 0, seeds: 0 };
    sum.saving += 1 - cost / (costs[effort] ?? Number.NaN);
    sum.gain += success / (successes[effort] ?? Number.NaN) - 1;
    sum.seeds++;
    sums.set(run.problem, sum);
  }
  return [...sums].map(([problem, { saving, gain, seeds }]) => ({
    problem,
    saving: saving / seeds,
    gain: gain / seeds,
  }));
}

/** ln(price / starting price of the arm) over training. */
export function priceCourse(record: StudyRecord, options: { arm: number; effort: number }): CourseBand[] {
  const column = 1 + EFFORT_COUNT + options.effort;
  return course(record, options.arm, (run, row) => Math.log(valueAt(run, row, column) / valueAt(run, 0, column)));
}

/** ln(c / c0) over training. */
export function costCourse(record: StudyRecord, options: { arm: number; effort: number }): CourseBand[] {
  const start = STARTING_COSTS[options.effort] ?? Number.NaN;
  return course(record, options.arm, (run, row) => Math.log(valueAt(run, row, 1 + options.effort) / start));
}

/** The path of one problem under an arm: (cost, success) at each recorded step, costs and q averaged over its seeds. */
export function meanTrajectory(
  record: StudyRecord,
  { arm, effort, problem }: { arm: number; effort: number; problem: number },
): { readonly cost: number; readonly success: number }[] {
  const runs = runsOf(record, arm).filter((run) => run.problem === problem);
  const candidates = toyProblem(problem);
  return recordedSteps(record.plan).map((_, row) => {
    let q = 0;
    let cost = 0;
    for (const run of runs) {
      q += valueAt(run, row, 0) / runs.length;
      cost += valueAt(run, row, 1 + effort) / runs.length;
    }
    return { cost, success: runs.length === 0 ? Number.NaN : successRate({ ...candidates, q, cost }) };
  });
}

/** An easy, a middle and a hard problem of the plan, by their success at medium effort before training; fewer if it has fewer. */
export function exampleProblems({ plan }: StudyRecord): number[] {
  const medium = Math.floor(EFFORT_COUNT / 2);
  const ranked = plan.problems
    .map((problem) => ({ problem, success: toyStart(toyProblem(problem)).successes[medium] ?? 0 }))
    .toSorted((a, b) => b.success - a.success);
  const places = [0.1, 0.5, 0.9].map((share) => ranked[Math.round(share * (ranked.length - 1))]?.problem);
  return [...new Set(places.filter((problem) => problem !== undefined))];
}

function course(record: StudyRecord, arm: number, measure: (run: StudyRun, row: number) => number): CourseBand[] {
  const runs = runsOf(record, arm);
  if (runs.length === 0) return [];
  return recordedSteps(record.plan).map((step, row) => {
    const sorted = Float64Array.from(runs, (run) => measure(run, row)).sort();
    const mean = sorted.reduce((sum, value) => sum + value, 0) / sorted.length;
    return { step, mean, low: percentile(sorted, LOW_SHARE), high: percentile(sorted, 1 - LOW_SHARE) };
  });
}

function runsOf({ runs }: StudyRecord, arm: number): StudyRun[] {
  return runs.filter((run) => run.arm === arm);
}

function pointOf(run: StudyRun, { row, effort }: { row: number; effort: number }): { cost: number; success: number } {
  const q = valueAt(run, row, 0);
  const cost = valueAt(run, row, 1 + effort);
  return { cost, success: successRate({ ...toyProblem(run.problem), q, cost }) };
}

function valueAt({ values }: StudyRun, row: number, column: number): number {
  return values[row * RECORD_COLUMNS.length + column] ?? Number.NaN;
}

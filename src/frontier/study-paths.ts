/**
 * What the pictures of training draw, taken from a study's runs: prices and costs over the steps, the paths of single
 * problems. Success is the closed form at the recorded (q, c); prices and costs are averaged as logarithms.
 */
import { percentile } from '../domain/statistics.ts';
import { RECORD_COLUMNS, STARTING_COSTS, STUDY_EFFORTS, recordedSteps } from './study-record.ts';
import type { StudyRecord, StudyRun } from './study-record.ts';
import { successRate, toyProblem, toyStart } from './toy-task.ts';

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

function valueAt({ values }: StudyRun, row: number, column: number): number {
  return values[row * RECORD_COLUMNS.length + column] ?? Number.NaN;
}

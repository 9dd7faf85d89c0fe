/**
 * What a finished study leaves in its folder beside its journal: results as JSON, the runs and their trajectories as
 * Parquet, and the report. Everything but report.html and timing.json depends on the plan alone, byte for byte; what a
 * clock measured stands in those two and nowhere else.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

import { z } from 'zod';

import { writeStudyFile } from './study-journal.ts';
import type { StudyKind } from './study-journal.ts';
import { RECORD_COLUMNS, recordedSteps, STARTING_COSTS, STUDY_EFFORTS } from './study-record.ts';
import type { StudyArm, StudyPlan, StudyRecord, StudyRun } from './study-record.ts';
import { renderStudyReport } from './study-report.ts';
import type { StudySummary } from './study-summary.ts';
import { counted } from './study-table.ts';
import { studyUnits, unitRollouts } from './toy-run.ts';
import { successRate, toyProblem, toyStart } from './toy-task.ts';

const RESULTS_FORMAT = 'hone-frontier-results-1';
const RESULTS_FILE = 'results.json';
const RUNS_FILE = 'runs.parquet';
const TRAJECTORIES_FILE = 'trajectories.parquet';
export const REPORT_FILE = 'report.html';
export const TIMING_FILE = 'timing.json';

const EFFORTS = STUDY_EFFORTS.length;

/** Rollouts that a sampled study draws, of training and of the references that it is measured against. */
function countRollouts(plan: StudyPlan): { training: number; reference: number } {
  const counts = { training: 0, reference: 0 };
  for (const unit of studyUnits(plan)) {
    const { training, reference } = unitRollouts(plan, unit);
    counts.training += training;
    counts.reference += reference;
  }
  return counts;
}

/** Of the units that one process ran; `rollouts` of training and references, `threadSeconds` summed over the workers. */
const timingSchema = z.strictObject({
  workers: z.int(),
  units: z.int(),
  rollouts: z.number(),
  wallSeconds: z.number(),
  threadSeconds: z.number(),
});
export type StudyTiming = Readonly<z.infer<typeof timingSchema>>;

/** What was measured when the units of a folder were run; undefined where that is not known. */
export function readTiming(folder: string): StudyTiming | undefined {
  const path = join(folder, TIMING_FILE);
  if (!existsSync(path)) return undefined;
  try {
    const parsed = timingSchema.safeParse(JSON.parse(readFileSync(path, 'utf8')));
    return parsed.success ? parsed.data : undefined;
  } catch {
    return undefined;
  }
}

/** Time of one thread a rollout, everything included; NaN where nothing was run. */
export function nanosecondsPerRollout({ threadSeconds, rollouts }: StudyTiming): number {
  return (threadSeconds * 1e9) / rollouts;
}

/** The figures of the study as they stand in results.json. */
export function studyResults(study: {
  readonly kind: StudyKind;
  readonly record: StudyRecord;
  readonly summary: StudySummary;
}): Record<string, unknown> {
  const { kind, record, summary } = study;
  const { plan, runs } = record;
  return {
    format: RESULTS_FORMAT,
    kind,
    plan,
    runs: runs.length,
    rollouts: kind === 'sampled' ? countRollouts(plan) : { training: 0, reference: 0 },
    cappedRollouts: runs.reduce((sum, { capped }) => sum + capped, 0),
    ...summary,
  };
}

export interface StudyFilesInput {
  readonly kind: StudyKind;
  readonly record: StudyRecord;
  readonly summary: StudySummary;
  /** Undefined where nothing was run and nothing was measured before. */
  readonly timing: StudyTiming | undefined;
}

/** Writes every file, each whole or as before, and returns their names. Throws `store-failed`. */
export async function writeStudyFiles(folder: string, input: StudyFilesInput): Promise<string[]> {
  const { kind, record, summary, timing } = input;
  // Loaded here: only a study that has ended needs it.
  const { parquetWriteBuffer } = await import('hyparquet-writer');
  const parquet = (columnData: ParquetColumn[]): Uint8Array => new Uint8Array(parquetWriteBuffer({ columnData }));
  const results = `${JSON.stringify(studyResults(input), null, 2)}\n`;
  const contents: Record<string, string | Uint8Array> = {
    [RESULTS_FILE]: results,
    [RUNS_FILE]: parquet(runColumns(record)),
    [TRAJECTORIES_FILE]: parquet(trajectoryColumns(record)),
  };
  if (timing !== undefined) contents[TIMING_FILE] = `${JSON.stringify(timing, null, 2)}\n`;
  const files = [...Object.keys(contents), REPORT_FILE].map((name) => ({ name, path: join(folder, name) }));
  contents[REPORT_FILE] = renderStudyReport({ record, summary, form: kind, facts: timingFacts(timing), files });
  for (const { name, path } of files) writeStudyFile(path, contents[name] ?? '');
  return files.map(({ name }) => name);
}

function timingFacts(timing: StudyTiming | undefined): { name: string; value: string }[] {
  if (timing === undefined || timing.rollouts === 0) return [];
  return [
    { name: 'time', value: `${timing.wallSeconds.toFixed(1)} s on ${counted(timing.workers, 'worker')}` },
    { name: 'time a rollout', value: `${nanosecondsPerRollout(timing).toFixed(1)} ns of one thread` },
  ];
}

interface ParquetColumn {
  readonly name: string;
  readonly data: (number | string | null)[];
  readonly type: 'INT32' | 'DOUBLE' | 'STRING';
  readonly nullable: boolean;
}

interface RunKey {
  readonly run: StudyRun;
  readonly arm: StudyArm;
}

/** Columns that name a run; alpha is null under a fixed price. */
function keyColumns(rows: readonly RunKey[]): ParquetColumn[] {
  const problems = rows.map(({ run }) => toyProblem(run.problem));
  return [
    column(
      'problem',
      'INT32',
      rows.map(({ run }) => run.problem),
    ),
    column(
      'pGood',
      'DOUBLE',
      problems.map(({ pGood }) => pGood),
    ),
    column(
      'pBad',
      'DOUBLE',
      problems.map(({ pBad }) => pBad),
    ),
    column(
      'seed',
      'INT32',
      rows.map(({ run }) => run.seed),
    ),
    column(
      'arm',
      'INT32',
      rows.map(({ run }) => run.arm),
    ),
    column(
      'rule',
      'STRING',
      rows.map(({ arm }) => arm.rule.kind),
    ),
    column(
      'alpha',
      'DOUBLE',
      rows.map(({ arm }) => (arm.rule.kind === 'steered' ? arm.rule.alpha : null)),
    ),
    column(
      'slopeFactor',
      'DOUBLE',
      rows.map(({ arm }) => arm.slopeFactor),
    ),
  ];
}

/**
 * One row a run and effort, at the last step: cost in candidates, success as the closed form there, saving and gain as
 * shares of the exact start, prices in success a candidate, and the references that the controller measured.
 */
function runColumns(record: StudyRecord): ParquetColumn[] {
  const rows = keysOf(record).flatMap(({ run, arm }) =>
    STUDY_EFFORTS.map((effort, index) => ({ run, arm, effort, index })),
  );
  const ends = rows.map(({ run, index }) => {
    const problem = toyProblem(run.problem);
    const start = toyStart(problem);
    const last = run.values.length - RECORD_COLUMNS.length;
    const q = run.values[last] ?? Number.NaN;
    const cost = run.values[last + 1 + index] ?? Number.NaN;
    const success = successRate({ ...problem, q, cost });
    return {
      cost,
      success,
      q,
      saving: 1 - cost / (STARTING_COSTS[index] ?? Number.NaN),
      gain: success / (start.successes[index] ?? Number.NaN) - 1,
      price: run.values[last + 1 + EFFORTS + index] ?? Number.NaN,
      startPrice: run.values[1 + EFFORTS + index] ?? Number.NaN,
    };
  });
  return [
    ...keyColumns(rows),
    column(
      'effort',
      'STRING',
      rows.map(({ effort }) => effort),
    ),
    column(
      'cost',
      'DOUBLE',
      ends.map(({ cost }) => cost),
    ),
    column(
      'success',
      'DOUBLE',
      ends.map(({ success }) => success),
    ),
    column(
      'saving',
      'DOUBLE',
      ends.map(({ saving }) => saving),
    ),
    column(
      'gain',
      'DOUBLE',
      ends.map(({ gain }) => gain),
    ),
    column(
      'price',
      'DOUBLE',
      ends.map(({ price }) => price),
    ),
    column(
      'startPrice',
      'DOUBLE',
      ends.map(({ startPrice }) => startPrice),
    ),
    column(
      'q',
      'DOUBLE',
      ends.map(({ q }) => q),
    ),
    column(
      'capped',
      'INT32',
      rows.map(({ run }) => run.capped),
    ),
    column(
      'referenceSuccess',
      'DOUBLE',
      rows.map(({ run, index }) => run.references[index]?.success ?? Number.NaN),
    ),
    column(
      'referenceCost',
      'DOUBLE',
      rows.map(({ run, index }) => run.references[index]?.cost ?? Number.NaN),
    ),
  ];
}

/** One row a run and recorded step; the columns of the record beside the run's key. */
function trajectoryColumns(record: StudyRecord): ParquetColumn[] {
  const steps = recordedSteps(record.plan);
  const rows = keysOf(record).flatMap(({ run, arm }) => steps.map((step, point) => ({ run, arm, step, point })));
  return [
    ...keyColumns(rows),
    column(
      'step',
      'INT32',
      rows.map(({ step }) => step),
    ),
    ...RECORD_COLUMNS.map((name, position) =>
      column(
        name,
        'DOUBLE',
        rows.map(({ run, point }) => run.values[point * RECORD_COLUMNS.length + position] ?? Number.NaN),
      ),
    ),
  ];
}

function keysOf({ plan, runs }: StudyRecord): RunKey[] {
  return runs.flatMap((run) => {
    const arm = plan.arms[run.arm];
    return arm === undefined ? [] : [{ run, arm }];
  });
}

function column(name: string, type: ParquetColumn['type'], data: (number | string | null)[]): ParquetColumn {
  return { name, type, data, nullable: data.includes(null) };
}

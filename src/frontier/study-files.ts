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
import type { StudyArm, StudyRecord, StudyRun } from './study-record.ts';
import { renderStudyReport } from './study-report.ts';
import type { StudySummary } from './study-summary.ts';
import { counted } from './study-table.ts';
import { countRollouts } from './toy-run.ts';
import { successRate, toyProblem, toyStart } from './toy-task.ts';

const RESULTS_FORMAT = 'hone-frontier-results-1';
const RESULTS_FILE = 'results.json';
const RUNS_FILE = 'runs.parquet';
const TRAJECTORIES_FILE = 'trajectories.parquet';
export const REPORT_FILE = 'report.html';
export const TIMING_FILE = 'timing.json';

const EFFORTS = STUDY_EFFORTS.length;

/**
 * Of the units that one process ran; `rollouts` of training and references, `references` of them where that was counted,
 * `threadSeconds` summed over the workers.
 */
const timingSchema = z.strictObject({
  workers: z.int(),
  units: z.int(),
  rollouts: z.number(),
  references: z.number().optional(),
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
  /** Numbers lie in typed arrays: a large study has more rows than plain arrays have room for. */
  readonly data: Float64Array | Int32Array | (number | string | null)[];
  readonly type: 'INT32' | 'DOUBLE' | 'STRING';
  readonly nullable: boolean;
}

interface RunKey {
  readonly run: StudyRun;
  readonly arm: StudyArm;
}

/** Columns that name a run, each value so many times in a row; alpha is null under a fixed price. */
function keyColumns(keys: readonly RunKey[], times: number): ParquetColumn[] {
  const rows = keys.length * times;
  const double = (name: string, valueOf: (key: RunKey) => number): ParquetColumn =>
    doubles(name, rows, (row) => valueOf(keyAt(keys, row, times)));
  const integer = (name: string, valueOf: (key: RunKey) => number): ParquetColumn =>
    integers(name, rows, (row) => valueOf(keyAt(keys, row, times)));
  return [
    integer('problem', ({ run }) => run.problem),
    double('pGood', ({ run }) => toyProblem(run.problem).pGood),
    double('pBad', ({ run }) => toyProblem(run.problem).pBad),
    integer('seed', ({ run }) => run.seed),
    integer('arm', ({ run }) => run.arm),
    texts('rule', rows, (row) => keyAt(keys, row, times).arm.rule.kind),
    alphas(keys, times),
    double('slopeFactor', ({ arm }) => arm.slopeFactor),
  ];
}

function keyAt(keys: readonly RunKey[], row: number, times: number): RunKey {
  const key = keys[Math.floor(row / times)];
  if (key === undefined) throw new RangeError(`row ${row} has no run`);
  return key;
}

function alphas(keys: readonly RunKey[], times: number): ParquetColumn {
  const data = Array.from({ length: keys.length * times }, (_, row) => {
    const { rule } = keyAt(keys, row, times).arm;
    return rule.kind === 'steered' ? rule.alpha : null;
  });
  return { name: 'alpha', type: 'DOUBLE', data, nullable: data.includes(null) };
}

function doubles(name: string, rows: number, valueAt: (row: number) => number): ParquetColumn {
  return { name, type: 'DOUBLE', data: fillColumn(new Float64Array(rows), valueAt), nullable: false };
}

function integers(name: string, rows: number, valueAt: (row: number) => number): ParquetColumn {
  return { name, type: 'INT32', data: fillColumn(new Int32Array(rows), valueAt), nullable: false };
}

function texts(name: string, rows: number, valueAt: (row: number) => string): ParquetColumn {
  return { name, type: 'STRING', data: Array.from({ length: rows }, (_, row) => valueAt(row)), nullable: false };
}

function fillColumn<T extends Float64Array | Int32Array>(data: T, valueAt: (row: number) => number): T {
  for (let row = 0; row < data.length; row++) data[row] = valueAt(row);
  return data;
}

/**
 * One row a run and effort, at the last step: cost in candidates, success as the closed form there, saving and gain as
 * shares of the exact start, prices in success a candidate, and the references that the controller measured.
 */
function runColumns(record: StudyRecord): ParquetColumn[] {
  const keys = keysOf(record);
  const rows = keys.length * EFFORTS;
  const lastRow = (recordedSteps(record.plan).length - 1) * RECORD_COLUMNS.length;
  const double = (name: string, valueOf: (run: StudyRun, effort: number) => number): ParquetColumn =>
    doubles(name, rows, (row) => valueOf(keyAt(keys, row, EFFORTS).run, row % EFFORTS));
  const value = ({ values }: StudyRun, position: number): number => values[position] ?? Number.NaN;
  const costAt = (run: StudyRun, effort: number): number => value(run, lastRow + 1 + effort);
  const successAt = (run: StudyRun, effort: number): number =>
    successRate({ ...toyProblem(run.problem), q: value(run, lastRow), cost: costAt(run, effort) });
  const startSuccess = new Map(
    record.plan.problems.map((problem) => [problem, toyStart(toyProblem(problem)).successes] as const),
  );
  return [
    ...keyColumns(keys, EFFORTS),
    texts('effort', rows, (row) => STUDY_EFFORTS[row % EFFORTS] ?? ''),
    double('cost', costAt),
    double('success', successAt),
    double('saving', (run, effort) => 1 - costAt(run, effort) / (STARTING_COSTS[effort] ?? Number.NaN)),
    double(
      'gain',
      (run, effort) => successAt(run, effort) / (startSuccess.get(run.problem)?.[effort] ?? Number.NaN) - 1,
    ),
    double('price', (run, effort) => value(run, lastRow + 1 + EFFORTS + effort)),
    double('startPrice', (run, effort) => value(run, 1 + EFFORTS + effort)),
    double('q', (run) => value(run, lastRow)),
    integers('capped', rows, (row) => keyAt(keys, row, EFFORTS).run.capped),
    double('referenceSuccess', (run, effort) => run.references[effort]?.success ?? Number.NaN),
    double('referenceCost', (run, effort) => run.references[effort]?.cost ?? Number.NaN),
  ];
}

/** One row a run and recorded step; the columns of the record beside the run's key. */
function trajectoryColumns(record: StudyRecord): ParquetColumn[] {
  const keys = keysOf(record);
  const steps = recordedSteps(record.plan);
  const rows = keys.length * steps.length;
  return [
    ...keyColumns(keys, steps.length),
    integers('step', rows, (row) => steps[row % steps.length] ?? 0),
    ...RECORD_COLUMNS.map((name, position) =>
      doubles(
        name,
        rows,
        (row) =>
          keyAt(keys, row, steps.length).run.values[(row % steps.length) * RECORD_COLUMNS.length + position] ??
          Number.NaN,
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

/**
 * The folder of a study while it runs: the plan that it was begun under, and one line a finished unit, appended as the
 * unit ends. A killed study loses the units that were running and nothing else: a line that is not whole is left out,
 * and its unit runs again with the same result. Values are stored bit for bit.
 */
import {
  appendFileSync,
  closeSync,
  existsSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { dirname, join } from 'node:path';

import { z } from 'zod';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { jsonDifferences } from '../domain/json-differences.ts';
import { makeFolder } from './make-folder.ts';
import { checkStudyPlan } from './study-plan.ts';
import { RECORD_COLUMNS, recordedSteps } from './study-record.ts';
import type { StudyPlan, StudyRun } from './study-record.ts';
import type { UnitRuns } from './study-worker.ts';

/** `mean-field` follows expectations and has no units. */
export type StudyKind = 'sampled' | 'mean-field';

const PLAN_FORMAT = 'hone-frontier-study-1';
const PLAN_FILE = 'plan.json';
const UNITS_FILE = 'units.jsonl';
const SHOWN_DIFFERENCES = 4;
const CHUNK_BYTES = 1 << 20;
const LINE_END = 0x0a;

const planFileSchema = z.strictObject({
  format: z.literal(PLAN_FORMAT),
  kind: z.enum(['sampled', 'mean-field']),
  plan: z.unknown(),
});

const unitSchema = z.strictObject({
  problem: z.int(),
  seed: z.int(),
  references: z.array(z.strictObject({ success: z.number(), cost: z.number() })),
  runs: z.array(
    z.strictObject({
      arm: z.int(),
      capped: z.int(),
      values: z.base64().describe('64-bit floats, little-endian: recorded points x columns'),
    }),
  ),
});

/**
 * Makes the folder and writes the plan. A mean-field study takes the place of another one, as it takes but a moment; any other
 * study is kept. Throws `run-config-changed` where there is one, and `store-failed` where it can't write.
 */
export function createStudyFolder(folder: string, study: { kind: StudyKind; plan: StudyPlan }): void {
  checkStudyFolderFree(folder, study.kind);
  const plan = `${JSON.stringify({ format: PLAN_FORMAT, ...study }, null, 2)}\n`;
  try {
    replaceFile(join(folder, PLAN_FILE), plan);
  } catch (cause) {
    throw new HoneError('store-failed', `A study could not be begun in ${folder}: ${reasonOf(cause)}.`, {
      cure: 'Name a folder that you can write to with --out.',
      cause,
    });
  }
}

/** Throws as `createStudyFolder` where a study of this kind may not begin; writes nothing. */
export function checkStudyFolderFree(folder: string, kind: StudyKind): void {
  if (!existsSync(join(folder, PLAN_FILE))) return;
  const stored = readStudyPlan(folder).kind;
  if (kind === 'mean-field' && stored === 'mean-field') return;
  const isResumable = kind === stored;
  throw new HoneError('run-config-changed', `${folder} already holds a ${stored} study.`, {
    cure: `${isResumable ? 'Go on with --resume, choose' : 'Choose'} another --out, or remove the folder.`,
  });
}

/**
 * The units that a study has finished under this plan; a half line at the end is cut off. Throws `invalid-config` where
 * there is no study, and `run-config-changed`, naming every difference, where it was begun under another plan.
 */
export function resumeStudyFolder(
  folder: string,
  { kind, plan }: { readonly kind: StudyKind; readonly plan: StudyPlan },
): UnitRuns[] {
  const stored = readStudyPlan(folder);
  const changes = describeDifferences({ kind: stored.kind, ...stored.plan }, { kind, ...plan });
  if (changes !== '') {
    throw new HoneError('run-config-changed', `${folder} was begun under another plan: ${changes}.`, {
      cure: 'Put these values back to resume, or choose another --out.',
    });
  }
  return readUnits(folder, plan);
}

/** The plan of a study's folder. Throws `invalid-config` where there is none or it can't be read. */
function readStudyPlan(folder: string): { readonly kind: StudyKind; readonly plan: StudyPlan } {
  const path = join(folder, PLAN_FILE);
  if (!existsSync(path)) {
    throw new HoneError('invalid-config', `${folder} holds no study to resume.`, {
      cure: 'Start it without --resume, or name the right folder with --out.',
    });
  }
  try {
    const { kind, plan } = planFileSchema.parse(JSON.parse(readFileSync(path, 'utf8')));
    return { kind, plan: checkStudyPlan(plan, path) };
  } catch (cause) {
    if (cause instanceof HoneError) throw cause;
    throw new HoneError('invalid-config', `${path} is no plan of a study.`, {
      cure: 'Remove the folder, or choose another --out.',
      cause,
    });
  }
}

/** Appends one finished unit. Throws `store-failed`. */
export function appendUnit(folder: string, unit: UnitRuns): void {
  const path = join(folder, UNITS_FILE);
  writing(path, () => appendFileSync(path, unitLine(unit)));
}

/**
 * Writes the units anew in the order given, so that the finished folder doesn't tell which unit ended first. One by one: all
 * lines together may be longer than a string can be. Whole or as before. Throws `store-failed`.
 */
export function rewriteUnits(folder: string, units: Iterable<UnitRuns>): void {
  const path = join(folder, UNITS_FILE);
  writing(path, () => {
    const file = openSync(`${path}.tmp`, 'w');
    try {
      for (const unit of units) writeSync(file, unitLine(unit));
    } finally {
      closeSync(file);
    }
    renameSync(`${path}.tmp`, path);
  });
}

/** Whole or as before. Makes missing folders. Throws `store-failed`. */
export function writeStudyFile(path: string, content: string | Uint8Array): void {
  writing(path, () => replaceFile(path, content));
}

function replaceFile(path: string, content: string | Uint8Array): void {
  makeFolder(dirname(path));
  writeFileSync(`${path}.tmp`, content);
  renameSync(`${path}.tmp`, path);
}

function readUnits(folder: string, plan: StudyPlan): UnitRuns[] {
  const path = join(folder, UNITS_FILE);
  if (!existsSync(path)) return [];
  const units: UnitRuns[] = [];
  const { wholeBytes, bytes } = readLines(path, (line) => {
    const unit = parseUnit(line, plan);
    if (unit !== undefined) units.push(unit);
  });
  // The next line must not be glued to half of one.
  if (wholeBytes < bytes) writing(path, () => truncateSync(path, wholeBytes));
  return units;
}

/** Hands out the lines that have an end, one by one; tells how many bytes they are, and how many the file has. */
function readLines(path: string, onLine: (line: string) => void): { wholeBytes: number; bytes: number } {
  const file = openSync(path, 'r');
  try {
    const chunk = Buffer.alloc(CHUNK_BYTES);
    let parts: Buffer[] = [];
    let bytes = 0;
    let wholeBytes = 0;
    for (;;) {
      const count = readSync(file, chunk, 0, CHUNK_BYTES, null);
      if (count === 0) return { wholeBytes, bytes };
      let from = 0;
      for (;;) {
        const end = chunk.subarray(0, count).indexOf(LINE_END, from);
        if (end < 0) break;
        parts.push(chunk.subarray(from, end));
        onLine(Buffer.concat(parts).toString('utf8'));
        parts = [];
        from = end + 1;
        wholeBytes = bytes + from;
      }
      // A copy, as the chunk is filled anew.
      parts.push(Buffer.from(chunk.subarray(from, count)));
      bytes += count;
    }
  } finally {
    closeSync(file);
  }
}

function unitLine({ unit, runs }: UnitRuns): string {
  const line: z.infer<typeof unitSchema> = {
    ...unit,
    references: [...(runs[0]?.references ?? [])],
    runs: runs.map(({ arm, capped, values }) => ({
      arm,
      capped,
      values: Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString('base64'),
    })),
  };
  return `${JSON.stringify(line)}\n`;
}

/** Undefined for a line that is not a whole unit of this plan. */
function parseUnit(line: string, plan: StudyPlan): UnitRuns | undefined {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return undefined;
  }
  const parsed = unitSchema.safeParse(value);
  if (!parsed.success) return undefined;
  const { problem, seed, references, runs: stored } = parsed.data;
  const arms = plan.arms.flatMap(({ seeds }, arm) => (seed < seeds ? [arm] : []));
  const length = recordedSteps(plan).length * RECORD_COLUMNS.length;
  const runs = stored.map(({ arm, capped, values }): StudyRun => {
    // A copy: a Buffer may lie anywhere in its pool, floats only on multiples of 8.
    const bytes = Uint8Array.from(Buffer.from(values, 'base64'));
    const floats = Math.floor(bytes.length / Float64Array.BYTES_PER_ELEMENT);
    return { problem, seed, arm, capped, references, values: new Float64Array(bytes.buffer, 0, floats) };
  });
  const isComplete =
    runs.length === arms.length && runs.every(({ arm, values }, at) => arm === arms[at] && values.length === length);
  return isComplete ? { unit: { problem, seed }, runs } : undefined;
}

function writing(path: string, body: () => void): void {
  try {
    body();
  } catch (cause) {
    throw new HoneError('store-failed', `Could not write ${path}: ${reasonOf(cause)}.`, {
      cure: 'Make room there, or choose another place; what was finished before is whole, and --resume goes on.',
      cause,
    });
  }
}

/** What changed, key by key; at most the first few, as one changed option may move many arms. */
function describeDifferences(before: unknown, after: unknown): string {
  const all = jsonDifferences(before, after);
  const shown = all.slice(0, SHOWN_DIFFERENCES);
  return [...shown, ...(all.length > shown.length ? [`and ${all.length - shown.length} more`] : [])].join('; ');
}

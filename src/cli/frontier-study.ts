/**
 * `hone frontier study`: runs the toy study on all cores, or follows its mean field, or checks the statements about it.
 * Ends with the table beside the published one, where everything lies, and what a rollout took. Ctrl-C keeps the units
 * that are finished; --resume goes on.
 */
import { availableParallelism } from 'node:os';
import { join } from 'node:path';

import { checkPicturePlace, writePicture } from './frontier-files.ts';
import { integerOption, numberListOption, pathOption, refuseUnread } from './options.ts';
import { createProgress, formatDuration } from './progress.ts';
import type { Progress } from './progress.ts';
import { HoneError } from '../domain/errors.ts';
import { meanFieldStudy } from '../frontier/mean-field.ts';
import { MAX_BATCH } from '../frontier/rollout-sampler.ts';
import {
  nanosecondsPerRollout,
  readTiming,
  REPORT_FILE,
  studyResults,
  TIMING_FILE,
  writeStudyFiles,
} from '../frontier/study-files.ts';
import type { StudyTiming } from '../frontier/study-files.ts';
import {
  appendUnit,
  checkStudyFolderFree,
  createStudyFolder,
  resumeStudyFolder,
  rewriteUnits,
} from '../frontier/study-journal.ts';
import type { StudyKind } from '../frontier/study-journal.ts';
import { createStudyPlan } from '../frontier/study-plan.ts';
import type { StudyPlan, StudyRecord } from '../frontier/study-record.ts';
import { renderStudySvg } from '../frontier/study-report.ts';
import { MAX_WORKERS, runStudy } from '../frontier/study-runner.ts';
import type { StudyRunOutcome } from '../frontier/study-runner.ts';
import { summariseStudy } from '../frontier/study-summary.ts';
import { counted, renderStudyTable } from '../frontier/study-table.ts';
import { studyUnits, unitRollouts } from '../frontier/toy-run.ts';
import { TOY_PROBLEM_COUNT } from '../frontier/toy-task.ts';
import { renderVerification, verifyStudy } from '../frontier/verification.ts';

/** As a shell reports a process that ended by SIGINT. */
const INTERRUPTED = 130;
const DEFAULT_FOLDERS = { sampled: 'runs/frontier-study', 'mean-field': 'runs/frontier-mean-field' } as const;
/** The longest study: a year of one core. */
const MAX_STEPS = 1_000_000;

export async function study(options: Record<string, unknown>): Promise<void> {
  const progress = createProgress({ stream: process.stderr, now: () => performance.now() });
  const workers =
    options['workers'] === undefined
      ? availableParallelism()
      : integerOption('--workers', options['workers'], { min: 1, max: MAX_WORKERS });
  if (options['verify'] === true) await verify(options, { workers, progress });
  else if (options['meanField'] === true) await followMeanField(options, progress);
  else await sample(options, { workers, progress });
}

async function sample(
  options: Record<string, unknown>,
  { workers, progress }: { readonly workers: number; readonly progress: Progress },
): Promise<void> {
  const plan = planOf(options);
  const folder = folderOf(options);
  const svg = pictureOf(options);
  if (svg !== undefined) checkPicturePlace(svg);
  const study = { kind: 'sampled', plan } as const;
  const finished = options['resume'] === true ? resumeStudyFolder(folder, study) : [];
  if (options['resume'] !== true) createStudyFolder(folder, study);

  const units = studyUnits(plan);
  progress.phase(
    `${describePlan(plan)}: ${counted(units.length, 'unit')} on ${counted(workers, 'worker')}${finished.length > 0 ? `, ${finished.length} of them finished before` : ''}`,
  );
  const measured = { units: 0, rollouts: 0, references: 0, threadSeconds: 0 };
  const started = performance.now();
  const outcome = await untilStopped(progress, resumeHint(options), (signal) =>
    runStudy(plan, {
      workers,
      finished,
      signal,
      onUnit(result, { done, total }) {
        appendUnit(folder, result);
        const { training, reference } = unitRollouts(plan, result.unit);
        measured.units++;
        measured.rollouts += training + reference;
        measured.references += reference;
        measured.threadSeconds += result.milliseconds / 1000;
        progress.update(done, total, 'units');
      },
    }),
  );
  progress.end();
  if (outcome.kind === 'stopped') {
    process.stderr.write(
      `hone: stopped; ${outcome.units.length} of ${counted(units.length, 'unit')} are finished. Go on with: ${resumeHint(options)}\n`,
    );
    process.exitCode = INTERRUPTED;
    return;
  }
  rewriteUnits(folder, outcome.units);
  const wallSeconds = (performance.now() - started) / 1000;
  const timing = measured.units > 0 ? { workers, wallSeconds, ...measured } : readTiming(folder);
  await finish(options, { kind: 'sampled', record: outcome.record, timing });
}

/** Too quick to be resumed: it takes the place of another one in its folder. */
async function followMeanField(options: Record<string, unknown>, progress: Progress): Promise<void> {
  refuseUnread(
    givenOf(options, { seed: '--seed', seeds: '--seeds', batch: '--batch', workers: '--workers', resume: '--resume' }),
    '--mean-field draws nothing, and runs in a moment on one thread',
  );
  const plan = { ...planOf(options), referenceRollouts: null };
  const folder = folderOf(options);
  const svg = pictureOf(options);
  if (svg !== undefined) checkPicturePlace(svg);
  checkStudyFolderFree(folder, 'mean-field');
  progress.phase(`${describePlan(plan)}: mean field`);
  const record = meanFieldStudy(plan);
  createStudyFolder(folder, { kind: 'mean-field', plan: record.plan });
  await finish(options, { kind: 'mean-field', record, timing: undefined });
}

async function finish(
  options: Record<string, unknown>,
  done: { readonly kind: StudyKind; readonly record: StudyRecord; readonly timing: StudyTiming | undefined },
): Promise<void> {
  const { record, timing } = done;
  const folder = folderOf(options);
  const summary = summariseStudy(record);
  const files = await writeStudyFiles(folder, { ...done, summary });
  const svg = pictureOf(options);
  if (svg !== undefined) writePicture(svg, renderStudySvg({ record }));
  if (options['json'] === true) {
    process.stdout.write(
      `${JSON.stringify({ folder, timing: timing ?? null, ...studyResults({ ...done, summary }) })}\n`,
    );
    return;
  }
  const others = files.filter((name) => name !== REPORT_FILE && name !== TIMING_FILE).join(', ');
  const picture = svg === undefined ? '' : ` Picture: ${svg}.`;
  process.stdout.write(
    `\n${renderStudyTable(summary, record.plan)}\n${timing === undefined ? '' : `${timingSentence(timing)}\n`}Written to ${folder}: ${REPORT_FILE} (open it in a browser), ${others}.${picture}\n`,
  );
}

function timingSentence(timing: StudyTiming): string {
  const { rollouts, references, wallSeconds, workers } = timing;
  const parts =
    references === undefined
      ? ''
      : ` (${millions(rollouts - references)} million of training, ${millions(references)} million of references)`;
  return `${millions(rollouts)} million rollouts${parts} in ${formatDuration(wallSeconds * 1000)} on ${counted(workers, 'worker')}: ${nanosecondsPerRollout(timing).toFixed(1)} ns of one thread a rollout.`;
}

function millions(count: number): string {
  return (count / 1e6).toLocaleString('en-US', { minimumFractionDigits: 1, maximumFractionDigits: 1 });
}

async function verify(
  options: Record<string, unknown>,
  { workers, progress }: { readonly workers: number; readonly progress: Progress },
): Promise<void> {
  const unread = {
    out: '--out',
    problems: '--problems',
    seeds: '--seeds',
    steps: '--steps',
    batch: '--batch',
    alphas: '--alphas',
    resume: '--resume',
    meanField: '--mean-field',
    svg: '--svg',
  };
  const given = [...givenOf(options, unread), ...(options['wrongSlope'] === false ? ['--no-wrong-slope'] : [])];
  refuseUnread(given, '--verify runs studies of its own and writes nothing');
  const seed = seedOf(options) ?? 1;
  const report = await untilStopped(progress, undefined, (signal) =>
    verifyStudy({
      seed,
      signal,
      async simulate(plan) {
        const onUnit = (_: unknown, { done, total }: { done: number; total: number }): void =>
          progress.update(done, total, 'units');
        return recordOf(await runStudy(plan, { workers, signal, onUnit }));
      },
      onProgress: ({ study: name, done, total }) => progress.phase(`study ${done + 1} of ${total}: ${name}`),
    }),
  );
  progress.end();
  process.stdout.write(options['json'] === true ? `${JSON.stringify(report)}\n` : `\n${renderVerification(report)}`);
  if (!report.passed) process.exitCode = 1;
}

function recordOf(outcome: StudyRunOutcome): StudyRecord {
  if (outcome.kind === 'finished') return outcome.record;
  throw new HoneError('aborted', 'The verification was stopped.', { cure: 'Start it again; it keeps nothing.' });
}

/** Runs until done or Ctrl-C; a second one ends the process. `resume` is the command to go on with, if anything is kept. */
async function untilStopped<T>(
  progress: Progress,
  resume: string | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const stop = new AbortController();
  const onSignal = (): void => {
    if (stop.signal.aborted) {
      const hint = resume === undefined ? '' : `; what is finished is kept. Go on with: ${resume}`;
      process.stderr.write(`\nhone: stopped at once${hint}\n`);
      process.exit(INTERRUPTED);
    }
    progress.note('stopping after the units at hand; press Ctrl-C again to stop at once');
    stop.abort();
  };
  process.on('SIGINT', onSignal);
  process.on('SIGTERM', onSignal);
  try {
    return await work(stop.signal);
  } finally {
    process.removeListener('SIGINT', onSignal);
    process.removeListener('SIGTERM', onSignal);
  }
}

function planOf(options: Record<string, unknown>): StudyPlan {
  const { problems, seeds, steps, batch, alphas } = options;
  const seed = seedOf(options);
  return createStudyPlan({
    ...(seed === undefined ? {} : { seed }),
    ...(problems === undefined
      ? {}
      : { problems: integerOption('--problems', problems, { min: 1, max: TOY_PROBLEM_COUNT }) }),
    ...(seeds === undefined ? {} : { seeds: integerOption('--seeds', seeds, { min: 1, max: 1000 }) }),
    ...(steps === undefined ? {} : { steps: integerOption('--steps', steps, { min: 1, max: MAX_STEPS }) }),
    ...(batch === undefined ? {} : { batch: integerOption('--batch', batch, { min: 1, max: MAX_BATCH }) }),
    ...(alphas === undefined
      ? {}
      : { alphas: numberListOption('--alphas', alphas, { min: 0, max: 1, example: '0,0.5,1' }) }),
    hasWrongSlopes: options['wrongSlope'] !== false,
  });
}

function seedOf({ seed }: Record<string, unknown>): number | undefined {
  return seed === undefined ? undefined : integerOption('--seed', seed, { min: 0, max: 0xffffffff });
}

function folderOf({ out, meanField }: Record<string, unknown>): string {
  return join(pathOption('--out', out) ?? DEFAULT_FOLDERS[meanField === true ? 'mean-field' : 'sampled']);
}

function pictureOf({ svg }: Record<string, unknown>): string | undefined {
  return pathOption('--svg', svg);
}

function describePlan({ problems, arms, steps }: StudyPlan): string {
  return [counted(problems.length, 'problem'), counted(arms.length, 'arm'), counted(steps, 'step')].join(', ');
}

function givenOf(options: Record<string, unknown>, names: Readonly<Record<string, string>>): string[] {
  return Object.entries(names).flatMap(([key, name]) => (options[key] === undefined ? [] : [name]));
}

/** The command that goes on: the same options again, and --resume. */
function resumeHint(options: Record<string, unknown>): string {
  const names = { out: '--out', seed: '--seed', problems: '--problems', seeds: '--seeds', steps: '--steps' };
  const rest = { batch: '--batch', alphas: '--alphas', workers: '--workers', svg: '--svg' };
  const values = Object.entries({ ...names, ...rest }).flatMap(([key, name]) => {
    const value = options[key];
    return typeof value === 'string' ? [`${name} ${quoted(value)}`] : [];
  });
  const flags = [
    ...(options['wrongSlope'] === false ? ['--no-wrong-slope'] : []),
    ...(options['json'] === true ? ['--json'] : []),
  ];
  return ['hone frontier study', ...values, ...flags, '--resume'].join(' ');
}

/** As a shell takes it for one word. */
function quoted(value: string): string {
  return /^[\w%+,./:=@-]+$/u.test(value) ? value : `'${value.replaceAll("'", String.raw`'\''`)}'`;
}

/**
 * Runs the units of a sampled study on worker threads. A unit's result depends on the plan and the unit alone, and the
 * record is put in order at the end: any number of workers, in any order of finishing, gives the same bits.
 */
import { availableParallelism } from 'node:os';
import { Worker } from 'node:worker_threads';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { checkStudyPlan } from './study-plan.ts';
import type { StudyPlan, StudyRecord } from './study-record.ts';
import type { UnitResult, UnitRuns } from './study-worker.ts';
import { studyUnits } from './toy-run.ts';
import type { StudyUnit } from './toy-run.ts';

export const MAX_WORKERS = 256;

export interface StudyRunOptions {
  /** Threads, 1 .. MAX_WORKERS; one a core if left out. */
  readonly workers?: number;
  /** Units that were run before; they are not run again. */
  readonly finished?: readonly UnitRuns[];
  /** Told of each unit as it ends, in the order of ending, before the next one starts on its thread. */
  readonly onUnit?: (result: UnitResult, progress: { readonly done: number; readonly total: number }) => void;
  /** Stops handing out units; those that run are finished. */
  readonly signal?: AbortSignal;
}

/** `stopped`: the signal fired before every unit was run; `units` are those that were. */
export type StudyRunOutcome =
  | { readonly kind: 'finished'; readonly record: StudyRecord; readonly units: readonly UnitRuns[] }
  | { readonly kind: 'stopped'; readonly units: readonly UnitRuns[] };

/**
 * Runs what is not finished yet. Throws `invalid-config` on a plan or a number of workers out of range, `engine-failed`
 * with its cause when a worker dies; what `onUnit` throws ends the study too.
 */
export async function runStudy(plan: StudyPlan, options: StudyRunOptions = {}): Promise<StudyRunOutcome> {
  const { workers = availableParallelism(), finished = [], onUnit, signal } = options;
  checkStudyPlan(plan);
  if (!Number.isInteger(workers) || workers < 1 || workers > MAX_WORKERS) {
    throw new HoneError('invalid-config', `The study is to run on ${workers} workers.`, {
      cure: `Give a whole number from 1 to ${MAX_WORKERS}.`,
    });
  }
  const units = studyUnits(plan);
  const results = new Map<string, UnitRuns>(finished.map((runs) => [unitKey(runs.unit), runs]));
  const waiting = units.filter((unit) => !results.has(unitKey(unit)));
  const threads = Array.from({ length: Math.min(workers, waiting.length) }, () => startWorker(plan));
  try {
    const serve = async (thread: Worker): Promise<void> => {
      for (;;) {
        const unit = signal?.aborted === true ? undefined : waiting.shift();
        if (unit === undefined) return;
        const result = await runOn(thread, unit);
        results.set(unitKey(unit), result);
        onUnit?.(result, { done: results.size, total: units.length });
      }
    };
    await Promise.all(threads.map(serve));
  } finally {
    await Promise.all(threads.map((thread) => thread.terminate()));
  }
  const ordered = units.flatMap((unit) => results.get(unitKey(unit)) ?? []);
  if (ordered.length < units.length) return { kind: 'stopped', units: ordered };
  return { kind: 'finished', record: { plan, runs: ordered.flatMap(({ runs }) => runs) }, units: ordered };
}

function startWorker(plan: StudyPlan): Worker {
  const extension = import.meta.url.endsWith('.ts') ? 'ts' : 'js';
  return new Worker(new URL(`./study-worker.${extension}`, import.meta.url), { workerData: plan });
}

/** One unit on one thread; rejects when the thread dies instead of answering. */
function runOn(thread: Worker, unit: StudyUnit): Promise<UnitResult> {
  return new Promise((resolve, reject) => {
    const settle = (action: () => void): void => {
      thread.off('message', onMessage);
      thread.off('error', onError);
      thread.off('exit', onExit);
      action();
    };
    const fail = (what: string, cause?: unknown): HoneError =>
      new HoneError(
        'engine-failed',
        `A worker of the study died in problem ${unit.problem}, seed ${unit.seed}: ${what}.`,
        { cure: 'What was finished before is kept; look at the cause, then go on with --resume.', cause },
      );
    // study-worker.ts sends nothing else.
    const onMessage = (result: UnitResult): void => settle(() => resolve(result));
    const onError = (error: unknown): void => settle(() => reject(fail(reasonOf(error), error)));
    const onExit = (code: number): void => settle(() => reject(fail(`it exited with code ${code}`)));
    thread.on('message', onMessage);
    thread.on('error', onError);
    thread.on('exit', onExit);
    thread.postMessage(unit);
  });
}

function unitKey({ problem, seed }: StudyUnit): string {
  return `${problem} ${seed}`;
}

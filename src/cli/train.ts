/** `hone train`: runs or resumes a run, and ends with the before/after table and where everything lies. */
import { randomUUID } from 'node:crypto';
import { join, relative } from 'node:path';

import { loadConfig } from './load-config.ts';
import { createProgress, formatDuration } from './progress.ts';
import { HoneError } from '../domain/errors.ts';
import { renderTable } from '../eval/result-table.ts';
import { describeRunFolder, writeReport } from '../run/report-page.ts';
import { RunFolder } from '../run/run-folder.ts';
import { loadRunInputs } from '../run/run-inputs.ts';
import { trainRun } from '../run/train-run.ts';
import { openWeightStore } from '../sync/store/open-weight-store.ts';

/** As a shell reports a process that ended by SIGINT. */
const INTERRUPTED = 130;

export async function train(configPath: string, options: Record<string, unknown>): Promise<void> {
  const config = await loadConfig(configPath, options);
  if (options['dryRun'] === true) {
    await checkStoreLocation(config.weights.store);
    process.stdout.write(`${JSON.stringify(config, null, 2)}\n`);
    return;
  }
  const path = join(String(options['runs']), config.name);
  let folder = options['resume'] === true ? RunFolder.resume(path, config) : undefined;
  if (folder === undefined) RunFolder.checkFree(path);
  const progress = createProgress({ stream: process.stderr, now: () => performance.now() });
  const stop = new AbortController();
  const resumeCommand = `hone train ${configPath} --resume${options['name'] === undefined ? '' : ` --name ${config.name}`}${options['seed'] === undefined ? '' : ` --seed ${config.seed}`}${options['steps'] === undefined ? '' : ` --steps ${config.algorithm.steps}`}${options['runs'] === 'runs' ? '' : ` --runs ${String(options['runs'])}`}`;
  const onSignal = (): void => {
    if (stop.signal.aborted) {
      folder?.release();
      process.stderr.write(`\nhone: stopped at once; nothing finished was lost. Go on with: ${resumeCommand}\n`);
      process.exit(INTERRUPTED);
    }
    progress.note('stopping after the step at hand; press Ctrl-C again to stop at once');
    stop.abort();
  };
  process.on('SIGINT', onSignal);
  process.on('SIGTERM', onSignal);
  const started = performance.now();
  try {
    progress.note(`hone: run ${config.name}, seed ${config.seed}, in ${relative(process.cwd(), path) || '.'}`);
    const observer = {
      phase: (name: string, done?: number) => progress.phase(name, done),
      progress: (done: number, total: number, text: string) => progress.update(done, total, text),
      note: (text: string) => progress.note(text),
    };
    const inputs = await loadRunInputs(config, observer);
    folder ??= RunFolder.create(path, config);
    const outcome = await trainRun({
      folder,
      inputs,
      stop: stop.signal,
      now: () => performance.now(),
      wallClock: Date.now,
      random: Math.random,
      newRequestId: randomUUID,
      environment: process.env,
      observer,
    });
    progress.end();
    if (outcome.kind === 'stopped') {
      process.stderr.write(`hone: stopped after step ${outcome.step}. Go on with: ${resumeCommand}\n`);
      process.exitCode = INTERRUPTED;
      return;
    }
    const page = writeReport(folder.path);
    if (options['json'] === true)
      process.stdout.write(`${JSON.stringify({ run: folder.path, results: outcome.results?.table ?? null })}\n`);
    else {
      if (outcome.results !== undefined)
        process.stdout.write(`\n${renderTable(outcome.results.table)}\n${describeRunFolder(folder.path).join('\n')}\n`);
      const compared = outcome.results === undefined ? '' : 'results.json, eval/ (every answer), ';
      process.stdout.write(
        `\nDone in ${formatDuration(performance.now() - started)}. Written to ${path}: events.jsonl (every step), ${compared}${config.weights.store === undefined ? 'weights/ (every version), ' : ''}${relative(folder.path, page)} (curves; open it in a browser).${config.weights.store === undefined ? '' : ` Every version is in ${config.weights.store}.`}\n`,
      );
    }
  } catch (error) {
    progress.end();
    if (!stop.signal.aborted || !isAbort(error)) throw error;
    process.stderr.write(`hone: stopped before the first step. Go on with: ${resumeCommand}\n`);
    process.exitCode = INTERRUPTED;
  } finally {
    process.removeListener('SIGINT', onSignal);
    process.removeListener('SIGTERM', onSignal);
    folder?.release();
  }
}

/** A store with an address, such as a bucket's, is read now; nothing of it is asked for. */
async function checkStoreLocation(location: string | undefined): Promise<void> {
  if (location !== undefined && /^[a-z][a-z0-9+.-]+:/iu.test(location))
    await openWeightStore(location, { environment: process.env, isReader: true });
}

/** What a wait throws when the stop ended it. */
function isAbort(error: unknown): boolean {
  return error instanceof HoneError ? error.code === 'aborted' : error instanceof Error && error.name === 'AbortError';
}

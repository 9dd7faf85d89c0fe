/**
 * Reads a run folder for people: its HTML page, its table, and the sentences under the terminal's table. Owns no figure;
 * writes nothing but the page.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import type { RunConfig } from './config.ts';
import { effortsOf, tellsEffort } from './efforts.ts';
import { readEvents } from './run-folder.ts';
import { HoneError } from '../domain/errors.ts';
import { readStepEvents } from '../eval/events.ts';
import { renderCurvesSvg } from '../eval/curves.ts';
import { describeRun, renderReport } from '../eval/report.ts';
import type { ReportInput } from '../eval/report.ts';
import type { ResultTable } from '../eval/result-table.ts';

export interface RunRecord {
  readonly config: RunConfig;
  readonly table: ResultTable | undefined;
}

export function readResults(runPath: string): RunRecord {
  const config = join(runPath, 'config.json');
  if (!existsSync(config))
    throw new HoneError('invalid-config', `${runPath} is not a run folder: it has no config.json.`, {
      cure: 'Name a folder under runs/.',
    });
  // Both files were written by a run.
  const stored = JSON.parse(readFileSync(config, 'utf8')) as RunConfig;
  const results = join(runPath, 'results.json');
  return {
    config: stored,
    table: existsSync(results) ? (JSON.parse(readFileSync(results, 'utf8')) as ResultTable) : undefined,
  };
}

/** Returns the path of the page. */
export function writeReport(runPath: string, outPath = join(runPath, 'report.html')): string {
  writeFileSync(outPath, renderReport(reportInput(runPath)));
  return outPath;
}

/** The main curves as one picture that stands alone. */
export function writeCurves(runPath: string, outPath: string): void {
  const { steps, table } = reportInput(runPath);
  writeFileSync(outPath, renderCurvesSvg(steps, table === undefined ? {} : { beta: table.beta }));
}

/** What the table beside it does not say by itself, for the terminal: ranking and openness. */
export function describeRunFolder(runPath: string): string[] {
  const { steps, table } = reportInput(runPath);
  return describeRun({ steps, ...(table === undefined ? {} : { table: { ...table, differences: [] } }) });
}

/** Undefined also for runs of versions whose reward had no terms. */
function steeredTerm({ reward }: { readonly reward: Partial<RunConfig['reward']> }): { alpha: number } | undefined {
  return (reward.terms ?? []).find((term) => term.kind === 'frontier');
}

function reportInput(runPath: string): ReportInput {
  const { config, table } = readResults(runPath);
  const { algorithm, schedule } = config;
  const frontier = steeredTerm(config);
  return {
    title: config.name,
    subtitle: `${config.model} trained to find bugs in changes to real code`,
    facts: [
      { name: 'seed', value: String(config.seed) },
      {
        name: 'steps',
        value: `${algorithm.steps} of ${algorithm.groupsPerStep} groups of ${algorithm.groupSize} rollouts`,
      },
      { name: 'schedule', value: `${schedule.mode}, staleness at most ${schedule.maxStaleness}` },
      ...(tellsEffort({ efforts: config.efforts ?? {} })
        ? [{ name: 'efforts', value: effortsOf(config).join(', ') }]
        : []),
      ...(frontier === undefined
        ? []
        : [{ name: 'frontier', value: `alpha ${frontier.alpha}: the share of the improvement that is to be success` }]),
      { name: 'sampling', value: `temperature ${config.sampling.temperature}, top-p ${config.sampling.topP}` },
    ],
    steps: readStepEvents(readEvents(runPath)),
    ...(frontier === undefined ? {} : { alpha: frontier.alpha }),
    ...(table === undefined ? {} : { table }),
    files: [
      { name: 'every step', path: 'events.jsonl' },
      { name: 'this table', path: 'results.json' },
      { name: 'every answer', path: 'eval/' },
      { name: 'every version', path: 'weights/' },
      { name: 'every rollout', path: 'buffer.sqlite' },
    ],
  };
}

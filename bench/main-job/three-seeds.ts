/**
 * The main job's claims, on three seeds: trains with and without look-ups, and checks each claim on held-out packages.
 * Takes the better part of an hour on two cores; a run that is already there is not repeated. Exits 1 if a claim fails.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { compareResults, intervalsOf } from '../../src/eval/comparison.ts';
import { readStepEvents } from '../../src/eval/events.ts';
import { isElsewhereKind, restrictToKinds } from '../../src/eval/scores.ts';
import type { TaskResult } from '../../src/eval/scores.ts';
import type { Interval } from '../../src/domain/statistics.ts';
import { readEvents } from '../../src/run/run-folder.ts';

const SEEDS = [1, 2, 3];
const RUNS = 'runs/bench';
const BOOTSTRAP = { seed: 7, resamples: 2000 };

interface Claim {
  readonly name: string;
  readonly holds: boolean;
  readonly figure: string;
}

function run(config: string, name: string, seed: number): string {
  const path = join(RUNS, name);
  if (existsSync(join(path, 'results.json'))) return path;
  const resume = existsSync(join(path, 'config.json')) ? ['--resume'] : [];
  const { status } = spawnSync(
    process.execPath,
    ['bin/hone.js', 'train', config, '--name', name, '--seed', String(seed), '--runs', RUNS, ...resume],
    { stdio: ['ignore', 'ignore', 'inherit'] },
  );
  if (status !== 0) throw new Error(`${name} ended with status ${status}`);
  return path;
}

function passOf(path: string, pass: string): TaskResult[] {
  // Written by the run.
  return (JSON.parse(readFileSync(join(path, 'eval', `${pass}.json`), 'utf8')) as { results: TaskResult[] }).results;
}

const show = ({ estimate, low, high }: Interval): string =>
  `${estimate.toFixed(3)} [${low.toFixed(3)}, ${high.toFixed(3)}]`;

function claimsOf(seed: number): Claim[] {
  const withLookups = run('examples/nano-check/hone.config.ts', `nano-check-seed-${seed}`, seed);
  const without = run('bench/main-job/no-lookups.config.ts', `nano-check-no-lookups-seed-${seed}`, seed);
  const before = passOf(withLookups, 'before-sampled');
  const after = passOf(withLookups, 'after-sampled');
  const difference = compareResults({ before, after }, BOOTSTRAP);
  const elsewhere = (results: readonly TaskResult[]): TaskResult[] => restrictToKinds(results, isElsewhereKind);
  const againstRun = compareResults(
    { before: elsewhere(passOf(without, 'after-sampled')), after: elsewhere(after) },
    BOOTSTRAP,
  );
  const againstBlind = compareResults(
    { before: elsewhere(passOf(withLookups, 'after-sampled-no-lookups')), after: elsewhere(after) },
    BOOTSTRAP,
  );
  const lookups = intervalsOf(after, BOOTSTRAP).lookupGap;
  const steps = readStepEvents(readEvents(withLookups));
  const tenth = Math.max(1, Math.floor(steps.length / 10));
  const varied = (part: typeof steps): number =>
    part.reduce((sum, { metrics }) => sum + metrics['rollout/groups_with_variance'], 0) / part.length;
  const [first, last] = [varied(steps.slice(0, tenth)), varied(steps.slice(-tenth))];
  const exact = steps
    .flatMap(({ metrics }) => metrics['train/mismatch_by_staleness'])
    .filter(({ staleness }) => staleness === 0);
  return [
    { name: 'sample-averaged F0.5 rises', holds: difference.sampleFBeta.low > 0, figure: show(difference.sampleFBeta) },
    {
      name: 'pooled precision pays at most 5 points',
      holds: difference.pooledPrecision.estimate > -0.05,
      figure: show(difference.pooledPrecision),
    },
    { name: 'looks up elsewhere kinds more often', holds: lookups.low > 0, figure: show(lookups) },
    {
      name: 'elsewhere kinds: beats the run without look-ups',
      holds: againstRun.sampleFBeta.low > 0,
      figure: show(againstRun.sampleFBeta),
    },
    {
      name: 'elsewhere kinds: beats itself with look-ups taken away',
      holds: againstBlind.sampleFBeta.low > 0,
      figure: show(againstBlind.sampleFBeta),
    },
    {
      name: 'groups with variance stay above half',
      holds: last >= first / 2,
      figure: `${first.toFixed(3)} -> ${last.toFixed(3)}`,
    },
    {
      name: 'mismatch at staleness 0 is exactly 0',
      holds: exact.length > 0 && exact.every(({ k3, max_abs_delta }) => k3 === 0 && max_abs_delta === 0),
      figure: `${exact.reduce((sum, { tokens }) => sum + tokens, 0)} tokens`,
    },
  ];
}

mkdirSync(RUNS, { recursive: true });
const report = SEEDS.map((seed) => ({ seed, claims: claimsOf(seed) }));
for (const { seed, claims } of report) {
  process.stdout.write(`seed ${seed}\n`);
  for (const { name, holds, figure } of claims)
    process.stdout.write(`  ${holds ? 'holds ' : 'FAILS '} ${name.padEnd(56)} ${figure}\n`);
}
writeFileSync(join(RUNS, 'claims.json'), `${JSON.stringify(report, null, 2)}\n`);
process.exitCode = report.every(({ claims }) => claims.every(({ holds }) => holds)) ? 0 : 1;

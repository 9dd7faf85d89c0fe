/**
 * Does steering land where it was told to? Trains models/nano at three values of alpha from one seed, and measures each on
 * held-out tasks against the starting policy: success gained, look-ups saved, and the angle between them, with bootstrap
 * intervals over tasks. Exits 1 unless more alpha gives more success and less saving. A run that is there is not repeated.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { bootstrapIntervals, weightedSum } from '../../src/domain/statistics.ts';
import type { Interval } from '../../src/domain/statistics.ts';
import { readStepEvents } from '../../src/eval/events.ts';
import type { TaskResult } from '../../src/eval/scores.ts';
import { normalisedReward } from '../../src/reward/f-beta.ts';
import { resolveConfig } from '../../src/run/config.ts';
import type { RunConfig } from '../../src/run/config.ts';
import { readEvents } from '../../src/run/run-folder.ts';

const ALPHAS = [0, 0.5, 1];
const EXAMPLE = 'examples/nano-frontier/hone.config.ts';
const RUNS = 'runs/bench-steering';
const BOOTSTRAP = { seed: 7, resamples: 2000 };

interface Landing {
  readonly alpha: number;
  /** Per task, in one order for all runs. */
  readonly success: Record<'before' | 'after', Float64Array>;
  readonly lookups: Record<'before' | 'after', Float64Array>;
  /** Means over the last fifth of the steps, of training rollouts. */
  readonly training: { readonly gain: number; readonly saving: number; readonly price: number };
}

/** As the command line resolves it, so that the example's own import of the package needs no build. */
function exampleConfig(): RunConfig {
  const { status, stdout } = spawnSync(process.execPath, ['bin/hone.js', 'train', EXAMPLE, '--dry-run'], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  if (status !== 0) throw new Error(`${EXAMPLE} could not be resolved`);
  return resolveConfig(JSON.parse(stdout), EXAMPLE);
}

function run(example: RunConfig, alpha: number): string {
  const name = `alpha-${alpha}`;
  const path = join(RUNS, name);
  if (existsSync(join(path, 'results.json'))) return path;
  const terms = example.reward.terms.map((term) => (term.kind === 'frontier' ? { ...term, alpha } : term));
  const config = { ...example, name, reward: { ...example.reward, terms } };
  const file = join(RUNS, `${name}.json`);
  writeFileSync(file, JSON.stringify(config));
  const resume = existsSync(join(path, 'config.json')) ? ['--resume'] : [];
  const { status } = spawnSync(process.execPath, ['bin/hone.js', 'train', file, '--runs', RUNS, ...resume], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  if (status !== 0) throw new Error(`${name} ended with status ${status}`);
  return path;
}

function land(example: RunConfig, alpha: number): Landing {
  const path = run(example, alpha);
  const steps = readStepEvents(readEvents(path));
  // One weight of precision for before and after: that of the starting policy, which the first step was scored with.
  const weight = steps[0]?.metrics['reward/precision_weight'] ?? 0;
  const pass = (moment: 'before' | 'after'): TaskResult[] =>
    // Written by the run.
    (JSON.parse(readFileSync(join(path, 'eval', `${moment}-sampled.json`), 'utf8')) as { results: TaskResult[] })
      .results;
  const column = (value: (result: TaskResult) => number): Record<'before' | 'after', Float64Array> => ({
    before: Float64Array.from(pass('before'), value),
    after: Float64Array.from(pass('after'), value),
  });
  const last = steps.slice(-Math.max(1, Math.floor(steps.length / 5)));
  const lastMean = (key: 'success_gain' | 'cost_saving' | 'log_price'): number =>
    last.reduce((sum, { metrics }) => sum + (Object.values(metrics[`frontier/${key}`] ?? {})[0] ?? Number.NaN), 0) /
    last.length;
  return {
    alpha,
    success: column(({ outcome }) => (outcome.cheated ? 0 : normalisedReward(outcome, weight))),
    lookups: column(({ submission }) => submission.lookups.length),
    training: {
      gain: lastMean('success_gain'),
      saving: lastMean('cost_saving'),
      price: Math.exp(lastMean('log_price')),
    },
  };
}

interface LandingIntervals {
  readonly gain: Interval;
  readonly saving: Interval;
  /** Degrees from the axis of saving to that of success: the target is atan2(alpha, 1 - alpha). */
  readonly angle: Interval;
}

const gainOf = ({ success }: Landing, drawn: Int32Array): number =>
  weightedSum(success.after, drawn) / weightedSum(success.before, drawn) - 1;
const savingOf = ({ lookups }: Landing, drawn: Int32Array): number =>
  1 - weightedSum(lookups.after, drawn) / weightedSum(lookups.before, drawn);
const angleDegrees = (gain: number, saving: number): number => (Math.atan2(gain, saving) * 180) / Math.PI;

function intervalsOf(landing: Landing): LandingIntervals {
  const [gain, saving, angle] = bootstrapIntervals(
    {
      count: landing.success.before.length,
      evaluate: (drawn) => {
        const [u, v] = [gainOf(landing, drawn), savingOf(landing, drawn)];
        return [u, v, angleDegrees(u, v)];
      },
    },
    BOOTSTRAP,
  );
  if (gain === undefined || saving === undefined || angle === undefined)
    throw new Error('three statistics, three intervals');
  return { gain, saving, angle };
}

/** Of the larger alpha minus the smaller one, on the same tasks. */
function compare(smaller: Landing, larger: Landing): { gain: Interval; saving: Interval } {
  const [gain, saving] = bootstrapIntervals(
    {
      count: smaller.success.before.length,
      evaluate: (drawn) => [
        gainOf(larger, drawn) - gainOf(smaller, drawn),
        savingOf(larger, drawn) - savingOf(smaller, drawn),
      ],
    },
    BOOTSTRAP,
  );
  if (gain === undefined || saving === undefined) throw new Error('two statistics, two intervals');
  return { gain, saving };
}

const percent = ({ estimate, low, high }: Interval): string =>
  `${(100 * estimate).toFixed(1)} [${(100 * low).toFixed(1)}, ${(100 * high).toFixed(1)}]`.padStart(22);
const degrees = ({ estimate, low, high }: Interval): string =>
  `${estimate.toFixed(0)} [${low.toFixed(0)}, ${high.toFixed(0)}]`.padStart(16);

mkdirSync(RUNS, { recursive: true });
const example = exampleConfig();
const landings = ALPHAS.map((alpha) => land(example, alpha));
process.stdout.write(
  `models/nano, held-out tasks, against the starting policy; 95 % bootstrap intervals over ${landings[0]?.success.before.length} tasks\n` +
    `alpha   success gained (%)     look-ups saved (%)     angle (degrees)  target   on training tasks, last fifth: gain, saving (%), angle; price\n`,
);
const rows = landings.map((landing) => {
  const { alpha, training } = landing;
  const intervals = intervalsOf(landing);
  process.stdout.write(
    `${String(alpha).padEnd(5)}${percent(intervals.gain)}${percent(intervals.saving)}${degrees(intervals.angle)}${angleDegrees(
      alpha,
      1 - alpha,
    )
      .toFixed(0)
      .padStart(
        8,
      )}   ${(100 * training.gain).toFixed(1)}, ${(100 * training.saving).toFixed(1)}, ${angleDegrees(training.gain, training.saving).toFixed(0)}; ${training.price.toFixed(3)}\n`,
  );
  return { alpha, ...intervals, training };
});
let holds = true;
const comparisons = landings.slice(1).map((larger, index) => {
  const smaller = landings[index] ?? larger;
  const { gain, saving } = compare(smaller, larger);
  const isOrdered = gain.estimate > 0 && saving.estimate < 0;
  const isCertain = gain.low > 0 && saving.high < 0;
  holds &&= isOrdered;
  process.stdout.write(
    `${smaller.alpha} -> ${larger.alpha}: success${percent(gain)}, saving${percent(saving)}: ${isOrdered ? 'in order' : 'NOT in order'}${isCertain ? ', both intervals exclude 0' : ''}\n`,
  );
  return { from: smaller.alpha, to: larger.alpha, gain, saving };
});
writeFileSync(join(RUNS, 'landings.json'), `${JSON.stringify({ rows, comparisons }, null, 2)}\n`);
process.exitCode = holds ? 0 : 1;

/**
 * Does steering land where it was told to? Trains models/nano at three values of alpha from one seed, and measures each on
 * held-out tasks against the starting policy: success gained, look-ups saved, and the angle between them, with bootstrap
 * intervals over tasks. Exits 1 unless more alpha gives more success and less saving. A run that is there is not repeated.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { STANDARD_EFFORT } from '../../src/domain/effort.ts';
import { bootstrapIntervals } from '../../src/domain/statistics.ts';
import type { Interval } from '../../src/domain/statistics.ts';
import { readStepEvents } from '../../src/eval/events.ts';
import { gainOf, measureLanding, pairResults, savingOf } from '../../src/eval/landing.ts';
import type { Landing, PairedColumns } from '../../src/eval/landing.ts';
import type { TaskResult } from '../../src/eval/scores.ts';
import { resolveConfig } from '../../src/run/config.ts';
import type { RunConfig } from '../../src/run/config.ts';
import { readEvents } from '../../src/run/run-folder.ts';

const ALPHAS = [0, 0.5, 1];
const EXAMPLE = 'examples/nano-frontier/hone.config.ts';
const RUNS = 'runs/bench-steering';
const BOOTSTRAP = { seed: 7, resamples: 2000 };

/** A run with what it was measured from: runs are compared on the same draws. */
interface Landed {
  readonly landing: Landing;
  readonly columns: PairedColumns;
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

function land(example: RunConfig, alpha: number): Landed {
  const path = run(example, alpha);
  const term = example.reward.terms.find(({ kind }) => kind === 'frontier');
  if (term?.kind !== 'frontier') throw new Error(`${EXAMPLE} has no frontier term`);
  const steps = readStepEvents(readEvents(path));
  const pass = (moment: 'before' | 'after'): TaskResult[] =>
    // Written by the run.
    (JSON.parse(readFileSync(join(path, 'eval', `${moment}-sampled.json`), 'utf8')) as { results: TaskResult[] })
      .results;
  const columns = pairResults(
    { before: pass('before'), after: pass('after') },
    {
      base: example.reward.base,
      // One weight of precision for before and after: that of the starting policy, which the first step was scored with.
      precisionWeight: steps[0]?.metrics['reward/precision_weight'] ?? 0,
      costs: term.costs,
    },
  );
  const costNames = term.costs.map(({ name }) => name);
  return { landing: measureLanding({ effort: STANDARD_EFFORT, alpha, columns, costNames, steps }, BOOTSTRAP), columns };
}

/** Of the larger alpha minus the smaller one, on the same tasks. */
function compare(smaller: PairedColumns, larger: PairedColumns): { gain: Interval; saving: Interval } {
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
  `models/nano, held-out tasks, against the starting policy; 95 % bootstrap intervals over ${landings[0]?.columns.success.before.length} tasks\n` +
    `alpha   success gained (%)     look-ups saved (%)     angle (degrees)  target   on training tasks, last fifth: gain, saving (%), angle; price\n`,
);
const rows = landings.map(({ landing }) => {
  const { alpha, targetAngle, successGain: gain, training } = landing;
  const [cost] = landing.costs;
  const [trained] = training?.costs ?? [];
  if (cost === undefined || training === null || trained === undefined) throw new Error('one cost, trained to the end');
  const { saving, angle } = cost;
  process.stdout.write(
    `${String(alpha).padEnd(5)}${percent(gain)}${percent(saving)}${degrees(angle)}${targetAngle.toFixed(0).padStart(8)}   ${(100 * training.successGain).toFixed(1)}, ${(100 * trained.saving).toFixed(1)}, ${trained.angle.toFixed(0)}; ${trained.price.toFixed(3)}\n`,
  );
  return {
    alpha,
    gain,
    saving,
    angle,
    training: { gain: training.successGain, saving: trained.saving, price: trained.price },
  };
});
let holds = true;
const comparisons = landings.slice(1).map((larger, index) => {
  const smaller = landings[index] ?? larger;
  const { gain, saving } = compare(smaller.columns, larger.columns);
  const isOrdered = gain.estimate > 0 && saving.estimate < 0;
  const isCertain = gain.low > 0 && saving.high < 0;
  holds &&= isOrdered;
  process.stdout.write(
    `${smaller.landing.alpha} -> ${larger.landing.alpha}: success${percent(gain)}, saving${percent(saving)}: ${isOrdered ? 'in order' : 'NOT in order'}${isCertain ? ', both intervals exclude 0' : ''}\n`,
  );
  return { from: smaller.landing.alpha, to: larger.landing.alpha, gain, saving };
});
writeFileSync(join(RUNS, 'landings.json'), `${JSON.stringify({ rows, comparisons }, null, 2)}\n`);
process.exitCode = holds ? 0 : 1;

/**
 * `hone eval`: a model folder on fixed tasks, sampled and greedy; with `--efforts` at every level of effort that the config
 * names, one line a rollout, for `hone frontier fit`.
 */
import { loadConfig } from './load-config.ts';
import { choiceOption, integerOption, numberOption } from './options.ts';
import { createProgress } from './progress.ts';
import { HoneError } from '../domain/errors.ts';
import { policyVersion } from '../domain/ids.ts';
import type { Interval } from '../domain/statistics.ts';
import { intervalsOf } from '../eval/comparison.ts';
import { renderTable } from '../eval/result-table.ts';
import type { ResultRow } from '../eval/result-table.ts';
import { scoreResults } from '../eval/scores.ts';
import { resolveConfig } from '../run/config.ts';
import type { RunConfig, RunConfigInput } from '../run/config.ts';
import { evaluateEfforts, summariseEfforts } from '../run/effort-evaluation.ts';
import type { EffortSummary } from '../run/effort-evaluation.ts';
import { effortsOf, tellsEffort } from '../run/efforts.ts';
import { evaluateTasks } from '../run/evaluate.ts';
import { loadModel } from '../run/load-model.ts';
import { checkNewFile, writeNewFile } from '../run/new-file.ts';
import { checkModelFits, openPolicyStack } from '../run/policy-stack.ts';
import { EmbeddedSource } from '../run/sampling-source.ts';
import { evaluationPasses } from '../run/run-evaluation.ts';
import { openCorpus } from '../tasks/corpus.ts';
import { drawTasks } from '../tasks/draw.ts';

const SPLITS = ['pretrain', 'rl', 'heldout'] as const;
const RESAMPLES = 2000;

export async function evaluate(modelPath: string, options: Record<string, unknown>): Promise<void> {
  const split = choiceOption('--split', options['split'], SPLITS);
  const count = integerOption('--tasks', options['tasks'], { min: 1, max: 100_000 });
  const seed = integerOption('--seed', options['seed'], { min: 0 });
  const config = await evaluationConfig(modelPath, options);
  const { lookups } = config.harness;
  const efforts = effortOptions(config, options);
  if (options['dryRun'] === true) {
    process.stdout.write(
      `${JSON.stringify({ model: modelPath, split, tasks: count, size: config.tasks, seed, harness: config.harness, efforts: config.efforts, sampling: config.sampling, ...efforts }, null, 2)}\n`,
    );
    return;
  }
  const progress = createProgress({ stream: process.stderr, now: () => performance.now() });
  progress.phase(`loading ${modelPath}`);
  const model = await loadModel(modelPath);
  const corpus = await openCorpus({
    split,
    maxCharacters: config.tasks.maxCharacters,
    maxLines: config.tasks.maxLines,
  });
  const tasks = drawTasks(corpus, {
    seed,
    count,
    bugShare: config.tasks.bugShare,
    elsewhereShare: config.tasks.elsewhereShare,
  });
  checkModelFits(model, tasks, config);
  const stop = new AbortController();
  const source = await EmbeddedSource.start({
    configJson: model.folder.config,
    served: model.served,
    version: policyVersion(0),
    build: config.engine.build,
    threads: config.engine.threads,
    slots: config.engine.slots,
  });
  const stack = await openPolicyStack({
    model,
    source,
    config,
    corpora: [corpus],
    now: () => performance.now(),
  });
  try {
    if (efforts !== undefined) {
      const { rollouts, out } = efforts;
      const total = tasks.length * rollouts * effortsOf(config).length;
      progress.phase(
        `${tasks.length} ${split} tasks at ${effortsOf(config).length} efforts, ${rollouts} rollouts each`,
      );
      const lines = await evaluateEfforts(stack, config, {
        tasks,
        rolloutsPerTask: rollouts,
        label: 'eval',
        seed,
        concurrency: config.schedule.concurrency,
        signal: stop.signal,
        onProgress: (done) => progress.update(done, total, 'rollouts'),
      });
      progress.end();
      writeNewFile(out, lines.map((line) => `${JSON.stringify(line)}\n`).join(''));
      const summary = summariseEfforts(lines, { seed });
      process.stdout.write(
        options['json'] === true
          ? `${JSON.stringify({ out, rollouts: lines.length, efforts: summary })}\n`
          : `\n${effortTable(summary)}\n\nWritten to ${out}: ${lines.length} rollouts. Fit its frontier with your prices, such as: hone frontier fit ${out} --cost lookups=1,turns=0.1\n`,
      );
      return;
    }
    const rows: ResultRow[] = [];
    for (const { name, greedy, effort } of evaluationPasses(config)) {
      const label = `${greedy ? 'greedy' : 'sampled'}${tellsEffort(config) ? `, ${effort}` : ''}`;
      progress.phase(`${tasks.length} ${split} tasks, ${label}`);
      const results = await evaluateTasks(tasks, stack.setting({ greedy, lookups, effort }), {
        label: name,
        seed,
        concurrency: config.schedule.concurrency,
        signal: stop.signal,
        onProgress: (done) => progress.update(done, tasks.length, 'tasks'),
      });
      rows.push({
        label,
        role: 'policy',
        scores: scoreResults(results),
        intervals: intervalsOf(results, { seed, resamples: RESAMPLES }),
      });
    }
    progress.end();
    const table = {
      title: `${modelPath} on ${split}`,
      tasks: tasks.length,
      packages: new Set(tasks.map((task) => task.environment.package)).size,
      beta: 0.5,
      resamples: RESAMPLES,
      rows,
      differences: [],
      rankings: [],
      rankingDifferences: [],
    };
    process.stdout.write(options['json'] === true ? `${JSON.stringify(table)}\n` : `\n${renderTable(table)}`);
  } finally {
    await stack.close();
  }
}

/**
 * Undefined without `--efforts`. Throws `invalid-config` unless the config names levels of effort and there is a new file
 * that can be written, and on its options without it: nobody plays an hour of rollouts for a file that cannot be made.
 */
function effortOptions(
  config: RunConfig,
  options: Record<string, unknown>,
): { readonly rollouts: number; readonly out: string } | undefined {
  const { out, rollouts = '4' } = options;
  if (options['efforts'] !== true) {
    for (const name of ['out', 'rollouts'])
      if (options[name] !== undefined)
        throw new HoneError('invalid-config', `--${name} is given without --efforts, and nothing else reads it.`, {
          cure: `Add --efforts, or leave --${name} out.`,
        });
    return undefined;
  }
  if (!tellsEffort(config))
    throw new HoneError('invalid-config', '--efforts evaluates every level of effort, and the config names none.', {
      cure: 'Name a config that has efforts, such as { low: { maxLookups: 1 }, high: {} }, with --config.',
    });
  if (typeof out !== 'string')
    throw new HoneError('invalid-config', '--efforts writes one line a rollout, and no file is named.', {
      cure: 'Name it, such as --out evaluations.jsonl.',
    });
  const checked = { rollouts: integerOption('--rollouts', rollouts, { min: 1, max: 1000 }), out };
  checkNewFile(out);
  return checked;
}

function effortTable(summaries: readonly EffortSummary[]): string {
  const cell = ({ estimate, low, high }: Interval, digits: number): string =>
    `${estimate.toFixed(digits)} [${low.toFixed(digits)}, ${high.toFixed(digits)}]`.padStart(24);
  const width = Math.max('effort'.length, ...summaries.map(({ effort }) => effort.length));
  const [first] = summaries;
  return [
    `${first?.tasks ?? 0} tasks, the same at every effort; 95 % bootstrap intervals`,
    `${'effort'.padEnd(width)}${['success', 'look-ups', 'turns', 'tokens'].map((name) => name.padStart(24)).join('')}`,
    ...summaries.map(
      ({ effort, success, lookups, turns, tokens }) =>
        `${effort.padEnd(width)}${cell(success, 3)}${cell(lookups, 2)}${cell(turns, 2)}${cell(tokens, 0)}`,
    ),
  ].join('\n');
}

/** The config that `--config` names, or the defaults, under what the command line says. */
async function evaluationConfig(model: string, options: Record<string, unknown>): Promise<RunConfig> {
  const path = options['config'];
  const base: RunConfigInput = typeof path === 'string' ? await loadConfig(path, {}) : { name: 'eval', model };
  const { temperature, maxCharacters } = options;
  return resolveConfig(
    {
      ...base,
      model,
      tasks: {
        ...base.tasks,
        ...(maxCharacters === undefined
          ? {}
          : { maxCharacters: integerOption('--max-characters', maxCharacters, { min: 1 }) }),
      },
      sampling: {
        ...base.sampling,
        ...(temperature === undefined
          ? {}
          : { temperature: numberOption('--temperature', temperature, { above: 0, max: 5 }) }),
      },
      harness: { ...base.harness, ...(options['lookups'] === false ? { lookups: 'off' } : {}) },
    },
    'the command line',
  );
}

/** `hone eval`: a model folder on fixed tasks, sampled and greedy. */
import { loadConfig } from './load-config.ts';
import { choiceOption, integerOption, numberOption } from './options.ts';
import { createProgress } from './progress.ts';
import { policyVersion } from '../domain/ids.ts';
import { intervalsOf } from '../eval/comparison.ts';
import { renderTable } from '../eval/result-table.ts';
import type { ResultRow } from '../eval/result-table.ts';
import { scoreResults } from '../eval/scores.ts';
import { resolveConfig } from '../run/config.ts';
import type { RunConfig, RunConfigInput } from '../run/config.ts';
import { evaluateTasks } from '../run/evaluate.ts';
import { loadModel } from '../run/load-model.ts';
import { checkModelFits, openPolicyStack } from '../run/policy-stack.ts';
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
  if (options['dryRun'] === true) {
    process.stdout.write(
      `${JSON.stringify({ model: modelPath, split, tasks: count, size: config.tasks, seed, harness: config.harness, sampling: config.sampling }, null, 2)}\n`,
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
  const stack = await openPolicyStack({
    model,
    served: model.served,
    version: policyVersion(0),
    config,
    corpora: [corpus],
  });
  try {
    const rows: ResultRow[] = [];
    for (const greedy of [false, true]) {
      const label = greedy ? 'greedy' : 'sampled';
      progress.phase(`${tasks.length} ${split} tasks, ${label}`);
      const results = await evaluateTasks(tasks, stack.setting({ greedy, lookups }), {
        label,
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

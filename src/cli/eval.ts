/** `hone eval`: a model folder on fixed tasks, sampled and greedy. */
import { choiceOption, integerOption, numberOption } from './options.ts';
import { createProgress } from './progress.ts';
import { policyVersion } from '../domain/ids.ts';
import { intervalsOf } from '../eval/comparison.ts';
import { renderTable } from '../eval/result-table.ts';
import type { ResultRow } from '../eval/result-table.ts';
import { scoreResults } from '../eval/scores.ts';
import { resolveConfig } from '../run/config.ts';
import { evaluateTasks } from '../run/evaluate.ts';
import { loadModel } from '../run/load-model.ts';
import { checkContext, openPolicyStack } from '../run/policy-stack.ts';
import { openCorpus } from '../tasks/corpus.ts';
import { drawTasks } from '../tasks/draw.ts';

const SPLITS = ['pretrain', 'rl', 'heldout'] as const;
const RESAMPLES = 2000;

export async function evaluate(modelPath: string, options: Record<string, unknown>): Promise<void> {
  const split = choiceOption('--split', options['split'], SPLITS);
  const count = integerOption('--tasks', options['tasks'], { min: 1, max: 100_000 });
  const seed = integerOption('--seed', options['seed'], { min: 0 });
  const lookups = options['lookups'] === false ? 'off' : 'on';
  const maxCharacters = integerOption('--max-characters', options['maxCharacters'], { min: 1 });
  const config = resolveConfig({ name: 'eval', model: modelPath, tasks: { maxCharacters }, sampling: { temperature: numberOption('--temperature', options['temperature'], { above: 0, max: 5 }) }, harness: { lookups } }, 'the command line');
  if (options['dryRun'] === true) {
    process.stdout.write(`${JSON.stringify({ model: modelPath, split, tasks: count, maxCharacters, seed, harness: config.harness, sampling: config.sampling }, null, 2)}\n`);
    return;
  }
  const progress = createProgress({ stream: process.stderr, now: () => performance.now() });
  progress.phase(`loading ${modelPath}`);
  const model = await loadModel(modelPath);
  const corpus = await openCorpus({ split, maxCharacters: config.tasks.maxCharacters, maxLines: config.tasks.maxLines });
  const tasks = drawTasks(corpus, { seed, count, bugShare: config.tasks.bugShare, elsewhereShare: config.tasks.elsewhereShare });
  checkContext(model, tasks, config);
  const stop = new AbortController();
  const stack = await openPolicyStack({ model, served: model.served, version: policyVersion(0), config, corpora: [corpus] });
  try {
    const rows: ResultRow[] = [];
    for (const greedy of [false, true]) {
      const label = greedy ? 'greedy' : 'sampled';
      progress.phase(`${tasks.length} ${split} tasks, ${label}`);
      const results = await evaluateTasks(tasks, stack.setting({ greedy, lookups }), { label, seed, concurrency: config.schedule.concurrency, signal: stop.signal, onProgress: (done) => progress.update(done, tasks.length, 'tasks') });
      rows.push({ label, role: 'policy', scores: scoreResults(results), intervals: intervalsOf(results, { seed, resamples: RESAMPLES }) });
    }
    progress.end();
    const table = { title: `${modelPath} on ${split}`, tasks: tasks.length, packages: new Set(tasks.map((task) => task.environment.package)).size, beta: 0.5, resamples: RESAMPLES, rows, differences: [], rankings: [], rankingDifferences: [] };
    process.stdout.write(options['json'] === true ? `${JSON.stringify(table)}\n` : `\n${renderTable(table)}`);
  } finally {
    await stack.close();
  }
}

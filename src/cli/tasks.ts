/** `hone tasks make` and `hone tasks inspect`: tasks as JSON Lines, and as a reviewer would see them. */
import { choiceOption, integerOption } from './options.ts';
import { sweepListing } from '../agent/check/sweep-format.ts';
import { HoneError } from '../domain/errors.ts';
import { BUG_CATEGORIES } from '../domain/task.ts';
import type { Task } from '../domain/task.ts';
import { openCorpus } from '../tasks/corpus.ts';
import { drawTasks } from '../tasks/draw.ts';
import { readTasks, writeTasks } from '../tasks/jsonl.ts';

const SPLITS = ['pretrain', 'rl', 'heldout'] as const;

export async function makeTasks(options: Record<string, unknown>): Promise<void> {
  const split = choiceOption('--split', options['split'], SPLITS);
  const count = integerOption('--count', options['count'], { min: 1, max: 1_000_000 });
  const seed = integerOption('--seed', options['seed'], { min: 0 });
  const out = String(options['out']);
  const corpus = await openCorpus({ split });
  const tasks = drawTasks(corpus, { seed, count });
  writeTasks(out, tasks);
  const summary = summarise(tasks);
  if (options['json'] === true) process.stdout.write(`${JSON.stringify({ out, split, seed, ...summary })}\n`);
  else
    process.stdout.write(
      `${tasks.length} tasks from ${corpus.packages.length} packages written to ${out}: ${summary.withBugs} with bugs, ${summary.bugs} bugs, ${summary.changedLines} changed lines.\n`,
    );
}

export function inspectTasks(file: string, options: Record<string, unknown>): void {
  const tasks = readTasks(file);
  if (options['json'] === true) {
    process.stdout.write(`${JSON.stringify(summarise(tasks))}\n`);
    return;
  }
  const count = integerOption('--count', options['count'], { min: 1 });
  const id = options['id'];
  const shown = typeof id === 'string' ? tasks.filter((task) => task.id === id) : tasks.slice(0, count);
  if (shown.length === 0)
    throw new HoneError(
      'invalid-task',
      typeof id === 'string' ? `${file} has no task ${id}.` : `${file} has no tasks.`,
      {
        cure: 'Look at what it holds with: hone tasks inspect FILE --count 10.',
      },
    );
  for (const task of shown) process.stdout.write(`${showTask(task)}\n`);
}

function showTask({ id, environment, gold, metadata }: Task): string {
  const lines = [
    `${id}  ${environment.package}@${environment.version} ${environment.file}:${environment.startLine} ${environment.functionName}`,
    '',
  ];
  for (const line of sweepListing(environment).split('\n')) lines.push(`    ${line}`);
  lines.push('');
  for (const bug of gold.bugs)
    lines.push(
      `  bug at line ${bug.startLine}: ${bug.category} (${bug.severity}). ${bug.description}${bug.evidence === undefined ? '' : ` Evidence: ${bug.evidence.name} at ${bug.evidence.file}:${bug.evidence.line}.`}`,
    );
  if (gold.bugs.length === 0) lines.push('  no bug');
  for (const edit of metadata.edits)
    if (edit.role !== 'bug') lines.push(`  line ${edit.line}: ${edit.kind}, ${edit.role}`);
  return `${lines.join('\n')}\n`;
}

function summarise(tasks: readonly Task[]): {
  tasks: number;
  withBugs: number;
  bugs: number;
  changedLines: number;
  byCategory: Record<string, number>;
} {
  const byCategory: Record<string, number> = {};
  for (const category of BUG_CATEGORIES)
    byCategory[category] = tasks.reduce(
      (sum, task) => sum + task.gold.bugs.filter((bug) => bug.category === category).length,
      0,
    );
  return {
    tasks: tasks.length,
    withBugs: tasks.filter((task) => task.gold.bugs.length > 0).length,
    bugs: tasks.reduce((sum, task) => sum + task.gold.bugs.length, 0),
    changedLines: tasks.reduce((sum, task) => sum + task.environment.changes.length, 0),
    byCategory,
  };
}

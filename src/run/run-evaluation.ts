/**
 * What a run measures around its training: the passes over held-out tasks before and after, the probabilities that its
 * controls are made from, and the starting policy's precision and recall. Each is stored in the run folder as it ends, so
 * that a resumed run repeats none of them for the same version.
 */
import { evaluateTasks } from './evaluate.ts';
import { scoreLines } from './line-scoring.ts';
import type { RunParts } from './run-parts.ts';
import { deriveSeed } from '../domain/ids.ts';
import type { Task } from '../domain/task.ts';
import type { TaskResult } from '../eval/scores.ts';
import { drawTasks } from '../tasks/draw.ts';

const BASELINE_TASKS = 256;

/** The passes of one moment, each stored as it ends, so that a resumed run does not repeat them for the same version. */
export async function evaluateAt(
  parts: RunParts,
  moment: 'before' | 'after',
  tasks: readonly Task[],
  stop: AbortSignal,
): Promise<void> {
  const { folder, observer, stack, trainer, model } = parts;
  const { config } = folder;
  const { version } = stack.policy;
  // Written below; a run that trained on after it was stopped by the clock is measured again.
  const isMeasured = (file: string): boolean =>
    (folder.readJson(file) as { version: number } | undefined)?.version === (moment === 'before' ? 0 : version);
  await stack.policy.setThreads(config.engine.threads);
  const passes = [
    { name: 'sampled', greedy: false, lookups: config.harness.lookups },
    { name: 'greedy', greedy: true, lookups: config.harness.lookups },
    ...(config.eval.controls && moment === 'after' && config.harness.lookups === 'on'
      ? [{ name: 'sampled-no-lookups', greedy: false, lookups: 'off' as const }]
      : []),
  ];
  for (const pass of passes) {
    const file = `eval/${moment}-${pass.name}.json`;
    if (isMeasured(file)) continue;
    observer.phase(`evaluating ${moment} training, ${pass.name}, version ${version}, ${tasks.length} held-out tasks`);
    const results = await evaluateTasks(tasks, stack.setting({ greedy: pass.greedy, lookups: pass.lookups }), {
      label: `eval-${moment}-${pass.name}`,
      seed: config.eval.seed,
      concurrency: config.schedule.concurrency,
      signal: stop,
      onProgress: (done) => observer.progress(done, tasks.length, 'tasks'),
    });
    folder.writeJson(file, { version, results });
  }
  const lines = `eval/${moment}-lines.json`;
  if (!config.eval.controls || isMeasured(lines)) return;
  observer.phase(`scoring lines ${moment} training`);
  const options = { score: trainer.score.bind(trainer), listNames: config.harness.lookups === 'on' };
  const tuning = tuningTasks(parts);
  folder.writeJson(lines, {
    version,
    heldout: await scoreLines(model, tasks, { ...options, corpus: parts.heldout }),
    ...(moment === 'before'
      ? { tuning: await scoreLines(model, tuning, { ...options, corpus: parts.training }), tuningTasks: tuning }
      : {}),
  });
}

function tuningTasks({ folder: { config }, training }: RunParts): Task[] {
  return drawTasks(training, {
    seed: deriveSeed(config.eval.seed, 'tuning'),
    count: config.eval.controlTasks,
    bugShare: config.tasks.bugShare,
    elsewhereShare: config.tasks.elsewhereShare,
  });
}

/** Precision and recall of the starting policy on training tasks: the reward's weight is computed from them. */
export async function measureBaseline(
  parts: RunParts,
  stop: AbortSignal,
): Promise<{ precision: number; recall: number }> {
  const { folder, observer, stack, training } = parts;
  const { config } = folder;
  const stored = folder.readJson('baseline.json') as { precision: number; recall: number } | undefined;
  if (stored !== undefined) return stored;
  observer.phase(`measuring precision and recall of the starting policy on ${BASELINE_TASKS} training tasks`);
  const tasks = drawTasks(training, {
    seed: deriveSeed(config.seed, 'baseline'),
    count: BASELINE_TASKS,
    bugShare: config.tasks.bugShare,
    elsewhereShare: config.tasks.elsewhereShare,
  });
  const results: TaskResult[] = await evaluateTasks(
    tasks,
    stack.setting({ greedy: false, lookups: config.harness.lookups }),
    {
      label: 'baseline',
      seed: deriveSeed(config.seed, 'baseline'),
      concurrency: config.schedule.concurrency,
      signal: stop,
      onProgress: (done) => observer.progress(done, tasks.length, 'tasks'),
    },
  );
  const mean = (value: (result: TaskResult) => number): number =>
    results.reduce((sum, result) => sum + value(result), 0) / results.length;
  const baseline = {
    precision: mean(({ outcome }) => outcome.precision),
    recall: mean(({ outcome }) => outcome.recall),
  };
  folder.writeJson('baseline.json', baseline);
  return baseline;
}

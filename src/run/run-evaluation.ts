/**
 * What a run measures around its training: the passes over held-out tasks before and after, at every level of effort, and
 * the probabilities that its controls are made from. Each is stored in the run folder as it ends, so that a resumed run
 * repeats none of them for the same version.
 */
import type { RunConfig } from './config.ts';
import { effortsOf, tellsEffort } from './efforts.ts';
import { evaluateTasks } from './evaluate.ts';
import { scoreLines } from './line-scoring.ts';
import type { RunParts } from './run-parts.ts';
import { STANDARD_EFFORT } from '../domain/effort.ts';
import type { Effort } from '../domain/effort.ts';
import { deriveSeed } from '../domain/ids.ts';
import type { Task } from '../domain/task.ts';
import { drawTasks } from '../tasks/draw.ts';

/** The passes of one moment, each stored as it ends, so that a resumed run does not repeat them for the same version. */
export async function evaluateAt(
  parts: RunParts,
  moment: 'before' | 'after',
  tasks: readonly Task[],
  stop: AbortSignal,
): Promise<void> {
  const { folder, observer, stack, trainer, model } = parts;
  const { source } = stack;
  const { config } = folder;
  const { version } = source;
  // Written below; a run that trained on after it was stopped by the clock is measured again.
  const isMeasured = (file: string): boolean =>
    (folder.readJson(file) as { version: number } | undefined)?.version === (moment === 'before' ? 0 : version);
  source.allowLag(0);
  await source.setThreads(config.engine.threads);
  const passes = [
    ...evaluationPasses(config).map((pass) => ({ ...pass, lookups: config.harness.lookups })),
    ...(config.eval.controls && moment === 'after' && config.harness.lookups === 'on'
      ? [{ name: 'sampled-no-lookups', greedy: false, effort: STANDARD_EFFORT, lookups: 'off' as const }]
      : []),
  ];
  for (const pass of passes) {
    const file = `eval/${moment}-${pass.name}.json`;
    if (isMeasured(file)) continue;
    observer.phase(`evaluating ${moment} training, ${pass.name}, version ${version}, ${tasks.length} held-out tasks`);
    const results = await evaluateTasks(tasks, stack.setting(pass), {
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

export interface EvaluationPass {
  /** Of its file, after the moment: `sampled`, `greedy-low`. */
  readonly name: string;
  readonly greedy: boolean;
  readonly effort: Effort;
}

/** Sampled and greedy at every level of effort; a level is part of a name only where the config names levels. */
export function evaluationPasses(config: Pick<RunConfig, 'efforts'>): EvaluationPass[] {
  return effortsOf(config).flatMap((effort) =>
    [false, true].map((greedy) => ({
      name: `${greedy ? 'greedy' : 'sampled'}${tellsEffort(config) ? `-${effort}` : ''}`,
      greedy,
      effort,
    })),
  );
}

function tuningTasks({ folder: { config }, training }: RunParts): Task[] {
  return drawTasks(training, {
    seed: deriveSeed(config.eval.seed, 'tuning'),
    count: config.eval.controlTasks,
    bugShare: config.tasks.bugShare,
    elsewhereShare: config.tasks.elsewhereShare,
  });
}

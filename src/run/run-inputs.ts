/**
 * What a run starts from: the model, the corpora and the held-out tasks. Loaded and checked before the run folder is
 * made, so that bad input leaves nothing behind.
 */
import { loadModel } from './load-model.ts';
import type { LoadedModel } from './load-model.ts';
import { answerTokens } from './line-scoring.ts';
import { checkModelFits } from './policy-stack.ts';
import type { RunConfig } from './config.ts';
import { HoneError } from '../domain/errors.ts';
import { deriveSeed } from '../domain/ids.ts';
import type { Task } from '../domain/task.ts';
import { openCorpus } from '../tasks/corpus.ts';
import type { Corpus } from '../tasks/corpus.ts';
import { drawTask, drawTasks } from '../tasks/draw.ts';

export interface RunObserver {
  /** `done`: steps of it that an earlier start did. */
  phase(name: string, done?: number): void;
  progress(done: number, total: number, text: string): void;
  note(text: string): void;
}

export interface RunInputs {
  readonly model: LoadedModel;
  readonly training: Corpus;
  readonly heldout: Corpus;
  readonly evalTasks: readonly Task[];
  /** The fixed tasks that training goes through in turn; empty when its stream has no end. */
  readonly pool: readonly Task[];
}

/** Rejects with the first thing that keeps the run from working: model, corpus, or a context too small for its tasks. */
export async function loadRunInputs(config: RunConfig, observer: RunObserver): Promise<RunInputs> {
  observer.phase(`loading ${config.model} and the corpus`);
  const model = await loadModel(config.model);
  const size = functionSize(config);
  const training = await openCorpus({ split: 'rl', ...size });
  const heldout = await openCorpus({ split: 'heldout', ...size });
  observer.note(
    `  ${[...model.shapes.values()].reduce((sum, shape) => sum + shape.reduce((a, b) => a * b, 1), 0).toLocaleString('en')} parameters; ${training.functions.length} functions of ${training.packages.length} packages to train on, ${heldout.functions.length} of ${heldout.packages.length} held out`,
  );
  const evalTasks = drawTasks(heldout, {
    seed: config.eval.seed,
    count: config.eval.tasks,
    bugShare: config.tasks.bugShare,
    elsewhereShare: config.tasks.elsewhereShare,
  });
  const { pool: count, bugShare, elsewhereShare } = config.tasks;
  const pool = drawTasks(training, { seed: deriveSeed(config.seed, 'pool'), count, bugShare, elsewhereShare });
  const firstTasks = Array.from({ length: config.algorithm.groupsPerStep }, (_, ordinal) =>
    trainingTask({ training, pool }, ordinal, config),
  );
  // Found now, not after hours.
  if (config.eval.tasks > 0 && config.eval.controls) {
    const { strategy, instructions } = config.harness;
    if (strategy === 'report' || instructions === 'full')
      throw new HoneError(
        'invalid-config',
        `eval.controls is true, but the controls score the lines of a sweep without instructions, and this harness is ${strategy} with instructions ${instructions}.`,
        { cure: 'Set eval.controls to false.' },
      );
    answerTokens(model);
  }
  checkModelFits(model, [...evalTasks, ...pool, ...firstTasks], config);
  return { model, training, heldout, evalTasks, pool };
}

export function functionSize({ tasks }: RunConfig): { maxCharacters: number; maxLines: number } {
  return { maxCharacters: tasks.maxCharacters, maxLines: tasks.maxLines };
}

/** The task at a place of the run's stream. */
export function trainingTask(
  { training, pool }: Pick<RunInputs, 'training' | 'pool'>,
  ordinal: number,
  { seed, tasks }: RunConfig,
): Task {
  const pooled = pool[ordinal % pool.length];
  if (pooled !== undefined) return pooled;
  return drawTask(training, deriveSeed(seed, 'task', ordinal), {
    bugShare: tasks.bugShare,
    elsewhereShare: tasks.elsewhereShare,
  });
}

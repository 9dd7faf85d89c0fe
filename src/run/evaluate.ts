/**
 * Runs a policy over fixed tasks, one episode a task, and keeps everything that scores are made from. The same tasks and
 * seed give the same conversations whatever the concurrency, as each request's draws depend on its own seed alone.
 */
import { HoneError } from '../domain/errors.ts';
import { deriveSeed, groupId, policyVersion, rolloutId } from '../domain/ids.ts';
import type { Task } from '../domain/task.ts';
import type { TaskResult } from '../eval/scores.ts';
import { runEpisode } from '../rollout/episode.ts';
import type { EpisodeSetting } from '../rollout/episode.ts';

export interface EvaluateOptions {
  /** Names the pass in rollout ids. */
  readonly label: string;
  readonly seed: number;
  readonly concurrency: number;
  readonly signal: AbortSignal;
  readonly onProgress?: (done: number) => void;
}

const TRIES = 3;

export async function evaluateTasks(
  tasks: readonly Task[],
  setting: EpisodeSetting,
  options: EvaluateOptions,
): Promise<TaskResult[]> {
  const results: TaskResult[] = new Array<TaskResult>(tasks.length);
  let next = 0;
  let done = 0;
  const worker = async (): Promise<void> => {
    while (next < tasks.length) {
      const index = next++;
      const task = tasks[index];
      if (task === undefined) return;
      results[index] = await evaluateTask(task, index, setting, options);
      options.onProgress?.(++done);
    }
  };
  await Promise.all(Array.from({ length: Math.min(options.concurrency, tasks.length) }, worker));
  return results;
}

async function evaluateTask(
  task: Task,
  index: number,
  setting: EpisodeSetting,
  { label, seed, signal }: EvaluateOptions,
): Promise<TaskResult> {
  let failure: string | undefined;
  for (let attempt = 0; attempt < TRIES; attempt++) {
    signal.throwIfAborted();
    const { rollout, submission } = await runEpisode(
      task,
      {
        id: rolloutId(`${label}-${index}`),
        groupId: groupId(`${label}-${index}`),
        attempt,
        seed: deriveSeed(seed, 'eval', task.id),
        admittedVersion: policyVersion(0),
        signal,
      },
      setting,
    );
    if (rollout.outcome !== undefined && submission !== undefined)
      return { task, submission, outcome: rollout.outcome, cost: rollout.cost };
    failure = rollout.failure;
  }
  signal.throwIfAborted();
  throw new HoneError(
    'engine-failed',
    `Task ${task.id} could not be evaluated in ${TRIES} tries: ${failure ?? 'no cause was given'}.`,
    { cure: 'Check the engine and start again; nothing is scored 0 for a failure of infrastructure.' },
  );
}

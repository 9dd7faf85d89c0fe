/**
 * Runs a policy over fixed tasks and keeps everything that scores are made from. The same tasks and seed give the same
 * conversations whatever the concurrency, as each request's draws depend on its own seed alone; and the n-th rollout of a
 * task has the same seed at every level of effort, so that levels are compared on the same draws.
 */
import { HoneError } from '../domain/errors.ts';
import type { Submission } from '../domain/finding.ts';
import { deriveSeed, groupId, policyVersion, rolloutId } from '../domain/ids.ts';
import type { Outcome, Rollout } from '../domain/rollout.ts';
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

export interface EvaluatedRollout {
  readonly task: Task;
  readonly submission: Submission;
  readonly rollout: Rollout & { readonly outcome: Outcome };
}

const TRIES = 3;

/** One result a task, in their order. Rejects when a task's infrastructure fails in every try: nothing is scored 0 for it. */
export async function evaluateTasks(
  tasks: readonly Task[],
  setting: EpisodeSetting,
  options: EvaluateOptions,
): Promise<TaskResult[]> {
  const evaluated = await evaluateRollouts(tasks, setting, { ...options, rolloutsPerTask: 1 });
  return evaluated.map(({ task, submission, rollout: { outcome, cost } }) => ({ task, submission, outcome, cost }));
}

/** `rolloutsPerTask` (1 or more) rollouts a task: all of the first task, then of the second, and so on; each task is a group. */
export async function evaluateRollouts(
  tasks: readonly Task[],
  setting: EpisodeSetting,
  options: EvaluateOptions & { readonly rolloutsPerTask: number },
): Promise<EvaluatedRollout[]> {
  const { rolloutsPerTask, concurrency } = options;
  const count = tasks.length * rolloutsPerTask;
  const results: EvaluatedRollout[] = new Array<EvaluatedRollout>(count);
  let next = 0;
  let done = 0;
  const worker = async (): Promise<void> => {
    while (next < count) {
      const place = next++;
      const index = Math.floor(place / rolloutsPerTask);
      const task = tasks[index];
      if (task === undefined) return;
      results[place] = await evaluateRollout(
        { task, index, attempt: place % rolloutsPerTask },
        { ...options, setting },
      );
      options.onProgress?.(++done);
    }
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, count) }, worker));
  return results;
}

interface Place {
  readonly task: Task;
  readonly index: number;
  readonly attempt: number;
}

async function evaluateRollout(
  { task, index, attempt }: Place,
  { setting, label, seed, signal }: EvaluateOptions & { readonly setting: EpisodeSetting },
): Promise<EvaluatedRollout> {
  let failure: string | undefined;
  const id = attempt === 0 ? `${label}-${index}` : `${label}-${index}-${attempt}`;
  for (let attempts = 0; attempts < TRIES; attempts++) {
    signal.throwIfAborted();
    const { rollout, submission } = await runEpisode(
      task,
      {
        id: rolloutId(id),
        groupId: groupId(`${label}-${index}`),
        attempt,
        seed: attempt === 0 ? deriveSeed(seed, 'eval', task.id) : deriveSeed(seed, 'eval', task.id, attempt),
        admittedVersion: policyVersion(0),
        signal,
      },
      setting,
    );
    const { outcome } = rollout;
    if (outcome !== undefined && submission !== undefined)
      return { task, submission, rollout: { ...rollout, outcome } };
    failure = rollout.failure;
  }
  signal.throwIfAborted();
  throw new HoneError(
    'engine-failed',
    `Task ${task.id} could not be evaluated in ${TRIES} tries: ${failure ?? 'no cause was given'}.`,
    { cure: 'Check the engine and start again; nothing is scored 0 for a failure of infrastructure.' },
  );
}

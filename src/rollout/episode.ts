/**
 * One episode: a harness works on one task through a recording session, and the verifier scores what it submits: the raw
 * outcome and what it cost. What that is worth is decided later, for whole batches. Training and evaluation both go
 * through here, so what is measured is what is trained. A failure of infrastructure is a status with its cause, never a score.
 */
import type { Effort } from '../domain/effort.ts';
import { HoneError, reasonOf } from '../domain/errors.ts';
import type { Submission } from '../domain/finding.ts';
import type { Budget, Harness } from '../domain/harness.ts';
import type { GroupId, PolicyVersion, RolloutId } from '../domain/ids.ts';
import type { Sampling } from '../domain/policy.ts';
import type { Rollout, RolloutStatus } from '../domain/rollout.ts';
import type { Task } from '../domain/task.ts';
import { scoreFindings } from '../reward/detection.ts';
import type { Recorder } from '../serve/recorder.ts';

export interface EpisodeSetting {
  readonly recorder: Recorder;
  /** What must sample the tokens at least, asked as an episode begins; undefined = whatever is served. */
  readonly minVersion?: () => PolicyVersion | undefined;
  readonly harness: Harness;
  readonly budget: Budget;
  readonly sampling: Sampling;
  /** The model's name in requests. */
  readonly model: string;
  /** The level that the task is done at; its limits are the budget. */
  readonly effort: Effort;
  /** Whether the model is told the level. */
  readonly tellsEffort: boolean;
  /** Milliseconds of a clock that only goes forward. */
  readonly now: () => number;
}

export interface EpisodeIdentity {
  readonly id: RolloutId;
  readonly groupId: GroupId;
  readonly attempt: number;
  readonly seed: number;
  readonly admittedVersion: PolicyVersion;
  readonly signal: AbortSignal;
}

export interface Episode {
  readonly rollout: Rollout;
  /** Absent when the harness did not come to an end. */
  readonly submission?: Submission;
}

let sessionCounter = 0;

export async function runEpisode(task: Task, identity: EpisodeIdentity, setting: EpisodeSetting): Promise<Episode> {
  const { recorder, harness, sampling, effort, now } = setting;
  const { id, groupId, attempt, seed, admittedVersion, signal } = identity;
  // A retried rollout keeps its id; its session must be new.
  const sessionId = `${id}-${sessionCounter++}`;
  const minVersion = setting.minVersion?.();
  const { baseUrl, apiKey } = recorder.openSession({
    id: sessionId,
    sampling,
    seed,
    secret: crypto.randomUUID(),
    ...(minVersion === undefined ? {} : { minVersion }),
  });
  let submission: Submission | undefined;
  let failure: string | undefined;
  const startedMs = now();
  try {
    submission = await harness.run(task.environment, {
      baseUrl,
      apiKey,
      model: setting.model,
      budget: setting.budget,
      signal,
      ...(setting.tellsEffort ? { effort } : {}),
    });
  } catch (error) {
    failure = reasonOf(error);
  }
  const latencySeconds = (now() - startedMs) / 1000;
  const sealed = await recorder.seal(sessionId);
  const base = {
    id,
    taskId: task.id,
    groupId,
    attempt,
    effort,
    segments: sealed.segments,
    cost: sealed.cost,
    seed,
    admittedVersion,
  };
  if (submission === undefined || signal.aborted) {
    const status: RolloutStatus = signal.aborted ? 'aborted' : 'infra-failed';
    return {
      rollout: { ...base, status, lookups: 0, failure: sealed.failure ?? failure ?? 'the episode was aborted' },
    };
  }
  if (sealed.failure !== undefined)
    return {
      rollout: { ...base, status: 'infra-failed', lookups: submission.lookups.length, failure: sealed.failure },
      submission,
    };
  // A slow machine is not a bad answer: what ran out of seconds is tried again, never scored.
  if (submission.end === 'time-budget')
    return {
      rollout: {
        ...base,
        status: 'infra-failed',
        lookups: submission.lookups.length,
        failure: `the episode did not end within ${setting.budget.maxSeconds} seconds (harness.maxSeconds)`,
      },
      submission,
    };
  if (sealed.emptyReason !== undefined && submission.end === 'context-length')
    throw new HoneError('context-too-small', `Task ${task.id} does not fit into the model's context at all.`, {
      cure: 'Lower tasks.maxCharacters, or use a model with a longer context.',
    });
  if (sealed.emptyReason !== undefined && submission.end === 'finished')
    throw new HoneError('invalid-rollout', `Rollout ${id} finished without a sampled token: ${sealed.emptyReason}.`, {
      cure: 'Check that the harness talks to the session that was opened for it.',
    });
  const outcome = scoreFindings(submission, { bugs: task.gold.bugs, file: task.environment.file });
  const lookups = submission.lookups.length;
  const status: RolloutStatus =
    submission.end === 'finished' || submission.end === 'malformed' ? 'completed' : 'truncated';
  return { rollout: { ...base, status, outcome, lookups, latencySeconds }, submission };
}

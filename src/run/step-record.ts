/**
 * What a step measured and decided, beside its checkpoint and there before it. Killed between the checkpoint and the events,
 * a run writes the events from here when it goes on: each once, and the state of the reward comes back bit for bit.
 */
import { effortsOf } from './efforts.ts';
import { stepRecordFile } from './run-folder.ts';
import type { RunEvent, RunFolder } from './run-folder.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { Task } from '../domain/task.ts';
import { readStepEvents } from '../eval/events.ts';
import type { StepMetrics } from '../eval/events.ts';
import { restoreRewardState } from '../reward/reward-state.ts';
import type { RewardState } from '../reward/reward-state.ts';

export interface StepRecord {
  /** After the step. */
  readonly reward: RewardState;
  /** What the reward changed in the step; they stand before the step's own event. */
  readonly events: readonly RunEvent[];
  readonly metrics: StepMetrics;
}

export function writeStepRecord(folder: RunFolder, step: number, record: StepRecord): void {
  folder.writeJson(stepRecordFile(step), record);
}

/**
 * The record of the newest checkpoint, with its events appended where they are missing; undefined before the first step.
 * Throws `run-config-changed` when its reward state belongs to another reward.
 */
export function recoverStepRecord(
  folder: RunFolder,
  newest: { readonly step: number; readonly version: PolicyVersion; readonly pool: readonly Task[] },
): StepRecord | undefined {
  const { step, version, pool } = newest;
  // Written above; the state in it is checked below.
  const stored = folder.readJson(stepRecordFile(step)) as StepRecord | undefined;
  if (stored === undefined) return undefined;
  const reward = restoreRewardState(folder.config.reward, {
    state: stored.reward,
    efforts: effortsOf(folder.config),
    ...(pool.length === 0 ? {} : { taskIds: pool.map(({ id }) => id) }),
  });
  const record = { ...stored, reward };
  const events = folder.events();
  if (readStepEvents(events).some((event) => event.step === step)) return record;
  // They are appended in one order, so what is missing is the end of it.
  const kinds = new Set(record.events.map(({ event }) => event));
  const present = events.filter((event) => event['step'] === step && kinds.has(event.event)).length;
  for (const event of record.events.slice(present)) folder.append(event);
  folder.append({ event: 'step-end', step, version, metrics: record.metrics });
  return record;
}

/** Small tasks and finished rollouts for the tests of this room. */
import { STANDARD_EFFORT } from '../domain/effort.ts';
import { groupId, policyVersion, rolloutId } from '../domain/ids.ts';
import type { Rollout, Segment } from '../domain/rollout.ts';
import { taskSchema } from '../domain/task.ts';
import type { Task } from '../domain/task.ts';

export function sampleTask(ordinal: number): Task {
  return taskSchema.parse({
    id: ordinal.toString(16).padStart(16, '0'),
    kind: 'check',
    environment: {
      package: 'sample',
      version: '1.0.0',
      file: 'index.js',
      functionName: 'add',
      startLine: 1,
      lines: ['function add(a, b) {', '  return a - b;', '}'],
      changes: [{ line: 2, before: '  return a + b;', after: '  return a - b;' }],
    },
    gold: { bugs: [] },
    metadata: { split: 'rl', seed: ordinal, edits: [] },
  });
}

/** Three tokens: one of the prompt, two sampled by `version`. */
export function sampleSegment(version: number): Segment {
  return {
    tokens: Int32Array.of(5, 6, 7),
    trained: Uint8Array.of(0, 1, 1),
    logprobs: Float32Array.of(0, -0.5, 0),
    kept: { ids: Int32Array.of(6, 9, 7), offsets: Int32Array.of(0, 0, 2, 3) },
    versions: [{ version: policyVersion(version), start: 1, end: 3 }],
    temperature: 1,
  };
}

export function finishedRollout(
  ordinal: number,
  attempt: number,
  options: { recall?: number; version?: number; status?: Rollout['status'] } = {},
): Rollout {
  const { recall = attempt % 2, version = 0, status = 'completed' } = options;
  const scored = status === 'completed' || status === 'truncated';
  return {
    id: rolloutId(`g${String(ordinal).padStart(6, '0')}-a${String(attempt).padStart(2, '0')}`),
    taskId: sampleTask(ordinal).id,
    groupId: groupId(`g${ordinal}`),
    attempt,
    effort: STANDARD_EFFORT,
    segments: [sampleSegment(version)],
    cost: { tokens: 3, sampledTokens: 2, turns: 1, toolSeconds: 0 },
    status,
    seed: 1,
    admittedVersion: policyVersion(version),
    lookups: 0,
    ...(scored
      ? {
          outcome: {
            truePositives: recall,
            predicted: recall,
            actual: 1,
            precision: recall,
            recall,
            valid: true,
            cheated: false,
          },
        }
      : { failure: 'the engine went away' }),
  };
}

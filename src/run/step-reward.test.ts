import { expect, test } from 'vitest';

import { resolveConfig } from './config.ts';
import { evaluateStep, toSamples } from './step-reward.ts';
import { groupId, policyVersion } from '../domain/ids.ts';
import type { Rollout } from '../domain/rollout.ts';
import { createRewardState } from '../reward/reward-start.ts';
import type { StepBatch } from '../rollout/manager.ts';
import { finishedRollout, sampleTask } from '../rollout/rollout.fixture.ts';

const config = resolveConfig(
  {
    name: 'r',
    model: 'models/nano',
    reward: {
      base: { kind: 'detection', precisionWeight: 1 },
      terms: [{ kind: 'cost', weights: { lookups: 0.1 } }],
    },
  },
  'test',
);
const { state } = createRewardState(config.reward, { efforts: ['standard'], seed: 1 });

function batchOf(trained: readonly Rollout[], observed: readonly Rollout[]): StepBatch {
  const task = sampleTask(0);
  return {
    groups: [{ ordinal: 0, id: groupId('g0'), task, admittedVersion: policyVersion(0), rollouts: trained }],
    dropped: {},
    finished: 1,
    varied: 1,
    waitMs: 0,
    observed: observed.map((rollout) => ({ task, rollout })),
  };
}

test('what is trained and what was observed beside it is scored, each rollout once, and a lost one never', () => {
  const right = { ...finishedRollout(0, 1), lookups: 2 };
  const wrong = finishedRollout(0, 0);
  const lost = finishedRollout(0, 2, { status: 'infra-failed' });
  const other = finishedRollout(1, 1);
  const evaluations = evaluateStep(config, state, batchOf([wrong, right, lost], [right, other]));
  expect([...evaluations].map(([id, { reward }]) => [id, reward])).toEqual([
    [wrong.id, 0],
    [right.id, 0.8],
    [other.id, 1],
  ]);
  expect(evaluations.get(right.id)?.components).toMatchObject({ precision: 0.5, recall: 0.5, cost: -0.2 });
});

test('samples carry advantages of the rewards, and the options of the algorithm are heard', () => {
  const members = [finishedRollout(0, 0), { ...finishedRollout(0, 1), lookups: 2 }, finishedRollout(0, 3)];
  const batch = batchOf(members, members);
  const evaluations = evaluateStep(config, state, batch);
  const advantages = (algorithm: Partial<typeof config.algorithm>): number[] =>
    toSamples(batch, evaluations, { ...config, algorithm: { ...config.algorithm, ...algorithm } }).map(
      ({ advantage }) => advantage,
    );
  const mean = (0 + 0.8 + 1) / 3;
  for (const [index, reward] of [0, 0.8, 1].entries()) {
    expect(advantages({})[index]).toBeCloseTo(reward - mean, 12);
    expect(advantages({ advantage: 'leave-one-out' })[index]).toBeCloseTo(1.5 * (reward - mean), 12);
  }
  const spread = Math.sqrt([0, 0.8, 1].reduce((sum, reward) => sum + (reward - mean) ** 2, 0) / 3);
  expect(advantages({ deviation: 'group' })[0]).toBeCloseTo(-mean / spread, 12);
});

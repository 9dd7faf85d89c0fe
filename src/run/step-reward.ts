/**
 * One step's rewards: every rollout of the batch and every one observed beside it is scored under one state, and the batch
 * becomes training samples. Invariant: groups are chosen by raw outcomes and counts before anything here is computed.
 */
import type { RunConfig } from './config.ts';
import { isScored, scoredRollout } from './scored-rollout.ts';
import type { RolloutId } from '../domain/ids.ts';
import type { Rollout } from '../domain/rollout.ts';
import { computeAdvantages } from '../reward/advantage.ts';
import type { RewardState } from '../reward/reward-state.ts';
import { scoreBatch } from '../reward/score-batch.ts';
import type { RewardEvaluation } from '../reward/score-batch.ts';
import { pricedCountsOf } from '../reward/spec.ts';
import type { StepBatch } from '../rollout/manager.ts';
import type { TrainSample } from '../train/trainer.ts';

export type Evaluations = ReadonlyMap<RolloutId, RewardEvaluation>;

/**
 * The reward of every scored rollout that the batch holds or was observed with. A group that is still open is scored by
 * those of its rollouts that have finished; whole groups are scored whole.
 */
export function evaluateStep(config: Pick<RunConfig, 'reward'>, state: RewardState, batch: StepBatch): Evaluations {
  const rollouts = new Map<RolloutId, Rollout>();
  for (const rollout of batch.groups.flatMap((group) => group.rollouts)) rollouts.set(rollout.id, rollout);
  for (const { rollout } of batch.observed) rollouts.set(rollout.id, rollout);
  const scored = [...rollouts.values()].filter(isScored);
  const evaluations = scoreBatch(config.reward, state, scored.map(scoredRollout));
  return new Map(
    scored.flatMap(({ id }, index) => {
      const evaluation = evaluations[index];
      return evaluation === undefined ? [] : [[id, evaluation] as const];
    }),
  );
}

/** The batch's rollouts with their advantages, in the order of their groups. */
export function toSamples(
  batch: StepBatch,
  evaluations: Evaluations,
  { algorithm, reward }: Pick<RunConfig, 'algorithm' | 'reward'>,
): TrainSample[] {
  const { advantage: baseline, deviation } = algorithm;
  const rollouts = batch.groups
    .flatMap((group) => group.rollouts)
    .map((rollout) => {
      const reward = evaluations.get(rollout.id)?.reward;
      return reward === undefined ? rollout : { ...rollout, reward };
    });
  const { values } = computeAdvantages(rollouts, { baseline, deviation, pricedCounts: pricedCountsOf(reward) });
  return rollouts.flatMap((rollout, index) => {
    const advantage = values[index];
    return advantage === undefined ? [] : [{ rolloutId: rollout.id, advantage, segments: rollout.segments }];
  });
}

/**
 * Advantages within groups. A group is the rollouts that share a group id, wherever they stand in the batch; one
 * rollout counts once, however many segments it has. Whether a group has variance is read from the raw outcome, never
 * from the shaped reward. A rollout that infrastructure lost is no evidence: out of the mean, and without an advantage.
 */
import { HoneError } from '../domain/errors.ts';
import type { GroupId } from '../domain/ids.ts';
import type { Outcome, Rollout } from '../domain/rollout.ts';

export type GroupMember = Pick<Rollout, 'groupId' | 'status' | 'outcome' | 'reward'>;

export interface AdvantageOptions {
  /** leave-one-out is unbiased: n/(n-1) times the mean-centred advantage. */
  readonly baseline?: 'mean' | 'leave-one-out';
  /** Also divide by the group's (population) standard deviation of the reward. */
  readonly normaliseDeviation?: boolean;
}

export interface GroupSummary {
  readonly groupId: GroupId;
  /** Members that were scored. */
  readonly scored: number;
  /** Members lost to infrastructure or aborted. */
  readonly lost: number;
  readonly rewardMean: number;
  /** Why the group teaches nothing; undefined when it is to be trained. */
  readonly dropReason?: 'zero-variance' | 'too-few-members';
}

export interface Advantages {
  /** One for each member, in the order given; undefined for lost members and for members of dropped groups. */
  readonly values: readonly (number | undefined)[];
  readonly groups: readonly GroupSummary[];
}

export function computeAdvantages(members: readonly GroupMember[], options: AdvantageOptions = {}): Advantages {
  const values = Array.from<number | undefined>({ length: members.length });
  const groups: GroupSummary[] = [];
  for (const [groupId, indices] of indicesByGroup(members)) {
    const scored = indices.filter((index) => !isLost(members[index]));
    const rewards = scored.map((index) => requireReward(members[index]));
    const scores = scored.map((index) => rawScore(members[index]));
    const rewardMean = meanOf(rewards);
    const summary = { groupId, scored: scored.length, lost: indices.length - scored.length, rewardMean };
    if (scored.length < 2) {
      groups.push({ ...summary, dropReason: 'too-few-members' });
    } else if (scores.every((score) => score === scores[0])) {
      groups.push({ ...summary, dropReason: 'zero-variance' });
    } else {
      groups.push(summary);
      const advantages = centre(rewards, options);
      for (const [position, index] of scored.entries()) values[index] = advantages[position];
    }
  }
  return { values, groups };
}

/** Advantages of one group of rewards; all 0 when the rewards are equal. */
export function centre(rewards: readonly number[], options: AdvantageOptions = {}): number[] {
  const { baseline = 'mean', normaliseDeviation = false } = options;
  const count = rewards.length;
  // Equal rewards must give exactly 0: a rounded mean would leave dust, which a deviation would blow up to ±1.
  if (count < 2 || rewards.every((reward) => reward === rewards[0])) return rewards.map(() => 0);
  const sum = rewards.reduce((total, reward) => total + reward, 0);
  const mean = sum / count;
  const deviation = Math.sqrt(meanOf(rewards.map((reward) => (reward - mean) ** 2)));
  const divisor = normaliseDeviation && deviation > 0 ? deviation : 1;
  return rewards.map((reward) => {
    const reference = baseline === 'mean' ? mean : (sum - reward) / (count - 1);
    return (reward - reference) / divisor;
  });
}

function indicesByGroup(members: readonly GroupMember[]): Map<GroupId, number[]> {
  const groups = new Map<GroupId, number[]>();
  for (const [index, { groupId }] of members.entries()) {
    const indices = groups.get(groupId);
    if (indices === undefined) groups.set(groupId, [index]);
    else indices.push(index);
  }
  return groups;
}

function isLost(member: GroupMember | undefined): boolean {
  return member === undefined || member.status === 'infra-failed' || member.status === 'aborted';
}

function requireReward(member: GroupMember | undefined): number {
  const reward = member?.reward;
  if (reward !== undefined && Number.isFinite(reward)) return reward;
  throw new HoneError(
    'invalid-rollout',
    `A ${member?.status} rollout of group ${member?.groupId} has the reward ${reward}.`,
    {
      cure: 'Score every completed or truncated rollout before its group is trained.',
    },
  );
}

/** What two rollouts must differ in for their group to carry signal: the verifier's figures, cheating voided. */
function rawScore(member: GroupMember | undefined): string {
  const outcome: Outcome | undefined = member?.outcome;
  if (outcome === undefined) {
    throw new HoneError('invalid-rollout', `A ${member?.status} rollout of group ${member?.groupId} has no outcome.`, {
      cure: 'Run the verifier on every completed or truncated rollout before its group is trained.',
    });
  }
  return outcome.cheated ? '0 0' : `${outcome.precision} ${outcome.recall}`;
}

function meanOf(values: readonly number[]): number {
  if (values.length === 0) return 0;
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

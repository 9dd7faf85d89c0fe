/**
 * Advantages within groups. A group is the rollouts that share a group id, wherever they stand in the batch; one
 * rollout counts once, however many segments it has. Whether a group has variance is read from the raw outcome
 * and the raw counts that are priced, never from the shaped reward. A rollout that infrastructure lost is no evidence: out of the mean, and without an advantage.
 * Cheating never pays: a voided rollout's recorded reward is 0, but beside honest failures that prices took below 0 this
 * would be a prize, so it is compared as min(0, lowest honest reward of its group).
 */
import type { Effort } from '../domain/effort.ts';
import { HoneError } from '../domain/errors.ts';
import type { GroupId } from '../domain/ids.ts';
import type { Rollout } from '../domain/rollout.ts';
import { effortBaselines, leaveOneOutBaselines, lengthWeightedBaseline, meanBaseline } from './baseline.ts';
import type { CostCounts } from './cost.ts';

/** `lookups` is read where they are priced. */
export type GroupMember = Pick<Rollout, 'groupId' | 'status' | 'outcome' | 'reward' | 'effort' | 'cost'> &
  Partial<Pick<Rollout, 'lookups'>>;

export interface DropOptions {
  /**
   * Counts that the reward makes rollouts of one outcome differ by (`pricedCountsOf`): a group in which one of them differs
   * is kept, as it can teach to be cheaper. Default none: the published filter, on outcomes alone.
   */
  readonly pricedCounts?: readonly (keyof CostCounts)[];
}

export interface AdvantageOptions extends DropOptions {
  /**
   * What a reward is compared with: `mean` of its group; `leave-one-out`, the mean of the others (unbiased: n / (n - 1)
   * times the first); `length-weighted`, the group's mean by sampled tokens; `effort`, the mean of the batch's scored
   * rollouts of its effort. Default mean.
   */
  readonly baseline?: 'mean' | 'leave-one-out' | 'length-weighted' | 'effort';
  /** Also divide by the population standard deviation of the reward, of the group or of the effort. Default none. */
  readonly deviation?: 'none' | 'group' | 'effort';
}

/**
 * `zero-variance`: nothing raw differs. `zero-reward-variance`: raw figures differ, and every reward came out the same, which
 * only scoring can tell: a budget that binds for none of them, a phase without the price.
 */
export type DropReason = 'zero-variance' | 'too-few-members' | 'zero-reward-variance';

export interface GroupSummary {
  readonly groupId: GroupId;
  /** Members that were scored. */
  readonly scored: number;
  /** Members lost to infrastructure or aborted. */
  readonly lost: number;
  /** Of the recorded rewards, voided ones counting as 0. */
  readonly rewardMean: number;
  /** Why the group teaches nothing; undefined when it is to be trained. */
  readonly dropReason?: DropReason;
}

export interface Advantages {
  /** One for each member, in the order given; undefined for lost members and for members of dropped groups. */
  readonly values: readonly (number | undefined)[];
  readonly groups: readonly GroupSummary[];
}

/**
 * Advantages of a batch of groups. With `pricedCounts` a group that is compared with itself and whose rewards are all equal
 * is dropped as `zero-reward-variance`: its advantages would all be 0. By the effort's mean it is kept, as it differs from
 * that. Throws `invalid-rollout` on a scored member without outcome or finite reward or a priced count, and, when an option
 * reads the effort, on a group whose members have several.
 */
export function computeAdvantages(members: readonly GroupMember[], options: AdvantageOptions = {}): Advantages {
  const { baseline = 'mean', deviation = 'none', pricedCounts = [] } = options;
  const groups = scoredGroups(members, {
    pricedCounts,
    dropEqualRewards: pricedCounts.length > 0 && baseline !== 'effort',
  });
  const all = groups.flatMap(({ scored }) => scored);
  if (baseline === 'effort' || deviation === 'effort') for (const { scored } of groups) checkOneEffort(scored);
  const effortMeans = baseline === 'effort' && all.length > 0 ? meansByEffort(all) : new Map<Effort, number>();
  const effortDivisors = deviation === 'effort' ? divisorsByEffort(all) : new Map<Effort, number>();

  const values = Array.from<number | undefined>({ length: members.length });
  for (const { summary, scored } of groups) {
    if (summary.dropReason !== undefined) continue;
    const baselines =
      baseline === 'effort'
        ? scored.map(({ member }) => effortMeans.get(member.effort) ?? 0)
        : groupBaselines(scored, baseline);
    const groupDivisor = deviation === 'group' ? divisorOf(scored) : 1;
    for (const [position, { index, member, compared }] of scored.entries()) {
      const divisor = effortDivisors.get(member.effort) ?? groupDivisor;
      values[index] = (compared - (baselines[position] ?? 0)) / divisor;
    }
  }
  return { values, groups: groups.map(({ summary }) => summary) };
}

/**
 * Why one group teaches nothing, from its members' raw outcomes and priced counts: no reward is needed. Undefined = it is to
 * be trained. Counts of rollouts that cheated are not read, as the void takes their price away. Throws `invalid-rollout` when
 * a completed or truncated member has no outcome or lacks a priced count.
 */
export function groupDropReason(
  members: readonly (Pick<GroupMember, 'groupId' | 'status' | 'outcome'> &
    Partial<Pick<GroupMember, 'cost' | 'lookups'>>)[],
  { pricedCounts = [] }: DropOptions = {},
): DropReason | undefined {
  const scored = members.filter((member) => !isLost(member));
  const scores = scored.map((member) => rawScore(member));
  if (scores.length < 2) return 'too-few-members';
  if (scores.some((score) => score !== scores[0])) return undefined;
  const honest = scored.filter(({ outcome }) => outcome?.cheated !== true);
  const differs = (count: keyof CostCounts): boolean => {
    const values = honest.map((member) => rawCount(member, count));
    return values.some((value) => value !== values[0]);
  };
  return pricedCounts.some(differs) ? undefined : 'zero-variance';
}

/**
 * Sentences for the user about advantages that work against a steered price. Dividing by each group's own deviation
 * weighs tasks anew, so that the actor improves other means than those that the controller measures; a deviation of
 * the whole effort scales all its tasks alike and moves nothing.
 */
export function steeringWarnings(options: {
  readonly isSteered: boolean;
  readonly deviation: NonNullable<AdvantageOptions['deviation']>;
}): string[] {
  if (!options.isSteered || options.deviation !== 'group') return [];
  return [
    "Advantages are divided by each group's own deviation while a price is steered: tasks are then weighed anew, and the policy improves other means than the controller measures. Set the deviation to 'none' or 'effort'.",
  ];
}

interface ScoredMember {
  /** Place in the batch. */
  readonly index: number;
  readonly member: GroupMember;
  /** The reward that it is compared by: its own, or that of a voided rollout. */
  readonly compared: number;
}

function scoredGroups(
  members: readonly GroupMember[],
  { pricedCounts, dropEqualRewards }: Required<DropOptions> & { readonly dropEqualRewards: boolean },
): { readonly summary: GroupSummary; readonly scored: readonly ScoredMember[] }[] {
  const byGroup = Map.groupBy(members.entries(), ([, member]) => member.groupId);
  return [...byGroup].map(([groupId, entries]) => {
    const scored = entries.filter(([, member]) => !isLost(member));
    const rewards = scored.map(([, member]) => requireReward(member));
    // The lowest honest reward, and at most 0.
    let voided = 0;
    for (const [position, [, member]] of scored.entries())
      if (member.outcome?.cheated !== true) voided = Math.min(voided, rewards[position] ?? 0);
    const compared = scored.map(([, member], position) =>
      member.outcome?.cheated === true ? voided : (rewards[position] ?? 0),
    );
    const isFlat = dropEqualRewards && compared.every((reward) => reward === compared[0]);
    const dropReason =
      groupDropReason(
        entries.map(([, member]) => member),
        { pricedCounts },
      ) ?? (isFlat ? 'zero-reward-variance' : undefined);
    return {
      summary: {
        groupId,
        scored: scored.length,
        lost: entries.length - scored.length,
        rewardMean: rewards.length === 0 ? 0 : meanBaseline(rewards),
        ...(dropReason === undefined ? {} : { dropReason }),
      },
      scored: scored.map(([index, member], position) => ({
        index,
        member,
        compared: compared[position] ?? 0,
      })),
    };
  });
}

function groupBaselines(
  scored: readonly ScoredMember[],
  baseline: Exclude<AdvantageOptions['baseline'], 'effort' | undefined>,
): number[] {
  const rewards = scored.map(({ compared }) => compared);
  switch (baseline) {
    case 'mean': {
      const mean = meanBaseline(rewards);
      return rewards.map(() => mean);
    }
    case 'leave-one-out':
      return leaveOneOutBaselines(rewards);
    case 'length-weighted': {
      const lengths = scored.map(({ member }) => member.cost.sampledTokens);
      const weighted = lengthWeightedBaseline(rewards, lengths);
      return rewards.map(() => weighted);
    }
    default:
      return baseline satisfies never;
  }
}

function meansByEffort(scored: readonly ScoredMember[]): Map<Effort, number> {
  return effortBaselines(
    scored.map(({ compared }) => compared),
    scored.map(({ member }) => member.effort),
  );
}

function divisorsByEffort(scored: readonly ScoredMember[]): Map<Effort, number> {
  const byEffort = Map.groupBy(scored, ({ member }) => member.effort);
  return new Map([...byEffort].map(([effort, list]) => [effort, divisorOf(list)]));
}

/** The population standard deviation; 1 where it is 0, so that advantages of 0 stay 0. */
function divisorOf(scored: readonly ScoredMember[]): number {
  const rewards = scored.map(({ compared }) => compared);
  const mean = meanBaseline(rewards);
  const deviation = Math.sqrt(meanBaseline(rewards.map((reward) => (reward - mean) ** 2)));
  return deviation > 0 ? deviation : 1;
}

function checkOneEffort(scored: readonly ScoredMember[]): void {
  const first = scored[0]?.member;
  const other = scored.find(({ member }) => member.effort !== first?.effort)?.member;
  if (first === undefined || other === undefined) return;
  throw new HoneError(
    'invalid-rollout',
    `Group ${first.groupId} has rollouts of the efforts ${first.effort} and ${other.effort}, so they cannot be compared by effort.`,
    { cure: 'Draw one effort for a whole group.' },
  );
}

function isLost({ status }: Pick<GroupMember, 'status'>): boolean {
  return status === 'infra-failed' || status === 'aborted';
}

function requireReward({ reward, status, groupId }: GroupMember): number {
  if (reward !== undefined && Number.isFinite(reward)) return reward;
  throw new HoneError('invalid-rollout', `A ${status} rollout of group ${groupId} has the reward ${reward}.`, {
    cure: 'Score every completed or truncated rollout before its group is trained.',
  });
}

/** Raw, of a member whose outcome is known. */
function rawCount(
  {
    cost,
    lookups,
    status,
    groupId,
  }: Pick<GroupMember, 'groupId' | 'status'> & Partial<Pick<GroupMember, 'cost' | 'lookups'>>,
  count: keyof CostCounts,
): number {
  const value = count === 'lookups' ? lookups : cost?.[count];
  if (value !== undefined) return value;
  throw new HoneError('invalid-rollout', `A ${status} rollout of group ${groupId} has no ${count}, which are priced.`, {
    cure: 'Give every completed or truncated rollout its cost and its look-ups before its group is filtered.',
  });
}

/** What two rollouts must differ in for their group to carry signal: the verifier's figures, cheating voided. */
function rawScore({ outcome, status, groupId }: Pick<GroupMember, 'groupId' | 'status' | 'outcome'>): string {
  if (outcome === undefined) {
    throw new HoneError('invalid-rollout', `A ${status} rollout of group ${groupId} has no outcome.`, {
      cure: 'Run the verifier on every completed or truncated rollout before its group is trained.',
    });
  }
  return outcome.cheated ? '0 0' : `${outcome.precision} ${outcome.recall}`;
}

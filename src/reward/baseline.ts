/**
 * What a reward is compared with. A baseline may depend on a rollout's task and effort, never on what it did itself
 * (leave-one-out) or only by the n-th part (mean): then it lowers the variance of the policy gradient and leaves its
 * direction. Invariant: where all rewards are equal, every baseline is exactly that reward, so that no advantage is
 * made of rounding.
 */
import type { Effort } from '../domain/effort.ts';
import { HoneError } from '../domain/errors.ts';

/** sum R / n, one number for all. Shrinks the gradient by (n - 1) / n. Throws `invalid-rollout` on none or on a NaN. */
export function meanBaseline(rewards: readonly number[]): number {
  checkRewards(rewards, 1);
  return equalValue(rewards) ?? sumOf(rewards) / rewards.length;
}

/**
 * For each member the mean of the others, (sum R - R_i) / (n - 1). Unbiased: R_i minus it is n / (n - 1) times R_i minus
 * the mean. Throws `invalid-rollout` on fewer than 2 rewards or on a NaN.
 */
export function leaveOneOutBaselines(rewards: readonly number[]): number[] {
  checkRewards(rewards, 2);
  const equal = equalValue(rewards);
  const sum = sumOf(rewards);
  return rewards.map((reward) => equal ?? (sum - reward) / (rewards.length - 1));
}

/**
 * sum R L / sum L, one number for all, lengths in sampled tokens: the optimal baseline when a rollout's squared score
 * grows with its length. Source: SWE-2. Throws `invalid-rollout` on no rewards, a NaN, a negative length, or lengths
 * that are all 0.
 */
export function lengthWeightedBaseline(rewards: readonly number[], lengths: readonly number[]): number {
  return weightedMean(rewards, lengths, 'length');
}

/**
 * E[R |z|^2] / E[|z|^2], one number for all, from each rollout's squared score norm |grad log pi|^2: the constant
 * baseline of least gradient variance. Source: Greensmith, Bartlett and Baxter 2004. Throws as lengthWeightedBaseline.
 */
export function optimalBaseline(rewards: readonly number[], squaredScoreNorms: readonly number[]): number {
  return weightedMean(rewards, squaredScoreNorms, 'squared score norm');
}

/**
 * For each effort the mean over all of its rollouts, whatever their task. `efforts` has the length of `rewards`.
 * Throws `invalid-rollout` on no rewards, a NaN or another length.
 */
export function effortBaselines(rewards: readonly number[], efforts: readonly Effort[]): Map<Effort, number> {
  checkRewards(rewards, 1);
  checkSameLength(rewards, efforts, 'effort');
  const byEffort = Map.groupBy(rewards, (_, index) => efforts[index] ?? '');
  return new Map([...byEffort].map(([effort, list]) => [effort, meanBaseline(list)]));
}

function weightedMean(rewards: readonly number[], weights: readonly number[], what: string): number {
  checkRewards(rewards, 1);
  checkSameLength(rewards, weights, what);
  let weighted = 0;
  let total = 0;
  for (const [index, weight] of weights.entries()) {
    if (!(weight >= 0 && Number.isFinite(weight))) {
      throw new HoneError('invalid-rollout', `A rollout has the ${what} ${weight}, must be finite and at least 0.`, {
        cure: 'Look at the recorder that measured it.',
      });
    }
    weighted += (rewards[index] ?? 0) * weight;
    total += weight;
  }
  if (total === 0) {
    throw new HoneError('invalid-rollout', `Every one of ${rewards.length} rollouts has the ${what} 0.`, {
      cure: 'A weighted baseline needs one above 0; use the mean, or look at the recorder that measured them.',
    });
  }
  return equalValue(rewards) ?? weighted / total;
}

/** The value that all entries have, if they have one. */
function equalValue(values: readonly number[]): number | undefined {
  const first = values[0];
  return values.every((value) => value === first) ? first : undefined;
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}

function checkRewards(rewards: readonly number[], atLeast: number): void {
  if (rewards.length < atLeast) {
    throw new HoneError('invalid-rollout', `A baseline was asked of ${rewards.length} rewards, needs ${atLeast}.`, {
      cure: 'Drop the group, or sample more rollouts of its task.',
    });
  }
  const broken = rewards.find((reward) => !Number.isFinite(reward));
  if (broken === undefined) return;
  throw new HoneError('invalid-rollout', `A rollout has the reward ${broken}.`, {
    cure: 'Score every completed or truncated rollout before its group is trained.',
  });
}

function checkSameLength(rewards: readonly number[], column: readonly unknown[], what: string): void {
  if (column.length === rewards.length) return;
  throw new HoneError('invalid-rollout', `${rewards.length} rewards come with ${column.length} entries of ${what}.`, {
    cure: 'Give one for each reward.',
  });
}

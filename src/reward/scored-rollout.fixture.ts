/** For tests only: rollouts as the reward reads them, by hand and drawn from a small world in which effort pays. */
import type { Effort } from '../domain/effort.ts';
import { createRandom, deriveSeed, groupId, taskId } from '../domain/ids.ts';
import type { Outcome } from '../domain/rollout.ts';
import type { CostCounts } from './cost.ts';
import type { ScoredRollout } from './scored-rollout.ts';

export interface RolloutOptions {
  readonly task?: string;
  readonly group?: string;
  readonly effort?: Effort;
  readonly outcome?: Partial<Outcome>;
  readonly cost?: Partial<CostCounts>;
  readonly latencySeconds?: number;
}

/** A right and honest rollout that cost nothing, but for what is given. */
export function rolloutWith(options: RolloutOptions = {}): ScoredRollout {
  const { task = 't0', group = 'g0', effort = 'standard', outcome, cost, latencySeconds } = options;
  return {
    taskId: taskId(task),
    groupId: groupId(group),
    effort,
    outcome: {
      truePositives: 1,
      predicted: 1,
      actual: 1,
      precision: 1,
      recall: 1,
      valid: true,
      cheated: false,
      ...outcome,
    },
    cost: { tokens: 0, sampledTokens: 0, turns: 0, toolSeconds: 0, lookups: 0, ...cost },
    ...(latencySeconds === undefined ? {} : { latencySeconds }),
  };
}

export interface WorldOptions {
  readonly seed: number;
  /** Mean number of look-ups at each effort. */
  readonly efforts: Readonly<Record<Effort, number>>;
  readonly tasks: number;
  readonly rolloutsPerTask: number;
  /** Chance that one look-up finds the bug of an easy task; a hard one has a quarter. */
  readonly skill?: number;
  readonly cheatShare?: number;
}

/**
 * Rollouts that look up a geometric number of names, each of which may find the bug: success = 1 - (1 - p)^lookups, so the
 * slope of success on cost is above 0 at every effort. Some also report a false bug.
 */
export function drawRollouts(options: WorldOptions): ScoredRollout[] {
  const { seed, efforts, tasks, rolloutsPerTask, skill = 0.3, cheatShare = 0 } = options;
  return Object.entries(efforts).flatMap(([effort, meanLookups]) =>
    Array.from({ length: tasks }, (_, task) => {
      const chance = task % 2 === 0 ? skill : skill / 4;
      return Array.from({ length: rolloutsPerTask }, (__, attempt) => {
        const random = createRandom(deriveSeed(seed, effort, task, attempt));
        const ratio = meanLookups / (1 + meanLookups);
        const lookups = Math.floor(Math.log(1 - random.next()) / Math.log(ratio));
        const found = random.next() < 1 - (1 - chance) ** lookups;
        const noisy = random.next() < 0.4;
        const turns = 1 + Math.ceil(lookups / 2);
        const sampledTokens = 20 + 30 * lookups + random.below(40);
        return rolloutWith({
          task: `t${task}`,
          group: `${effort}-g${task}`,
          effort,
          outcome: {
            truePositives: found ? 1 : 0,
            predicted: (found ? 1 : 0) + (noisy ? 1 : 0),
            actual: 1,
            precision: found ? 1 / (noisy ? 2 : 1) : 0,
            recall: found ? 1 : 0,
            cheated: random.next() < cheatShare,
          },
          cost: { tokens: 3 * sampledTokens, sampledTokens, turns, toolSeconds: 0.5 * lookups, lookups },
          latencySeconds: 0.5 + sampledTokens / 200 + 0.25 * turns,
        });
      });
    }).flat(),
  );
}

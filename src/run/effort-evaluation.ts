/**
 * One policy at every level of effort on the same tasks: what a frontier is fitted from. A rollout becomes one line of raw
 * success and raw counts; no price enters. Precision is weighed against recall once, over all lines, by the config's base.
 */
import type { RunConfig } from './config.ts';
import { effortsOf } from './efforts.ts';
import { evaluateRollouts } from './evaluate.ts';
import type { EvaluatedRollout, EvaluateOptions } from './evaluate.ts';
import type { PolicyStack } from './policy-stack.ts';
import { scoredRollout } from './scored-rollout.ts';
import type { Effort } from '../domain/effort.ts';
import { bootstrapIntervals, weightedSum } from '../domain/statistics.ts';
import type { Interval } from '../domain/statistics.ts';
import type { Task } from '../domain/task.ts';
import type { CostCounts } from '../reward/cost.ts';
import { createRewardState } from '../reward/reward-start.ts';
import { scoreBatch } from '../reward/score-batch.ts';

/** A line of an evaluations file: the form that `hone frontier fit` reads. */
export interface EvaluationLine {
  readonly task: string;
  readonly effort: Effort;
  readonly attempt: number;
  /** Of the raw outcome, in [0, 1]; 0 when it cheated. */
  readonly success: number;
  readonly precision: number;
  readonly recall: number;
  readonly cost: CostCounts;
  readonly cheated: boolean;
  readonly latencySeconds: number | null;
}

export interface EffortEvaluationOptions extends EvaluateOptions {
  readonly tasks: readonly Task[];
  readonly rolloutsPerTask: number;
}

/** Efforts in the order of the config, all rollouts of one before the next; the same draws at each. */
export async function evaluateEfforts(
  stack: PolicyStack,
  config: RunConfig,
  options: EffortEvaluationOptions,
): Promise<EvaluationLine[]> {
  const { tasks, label, onProgress } = options;
  const evaluated: EvaluatedRollout[] = [];
  for (const effort of effortsOf(config)) {
    const before = evaluated.length;
    evaluated.push(
      ...(await evaluateRollouts(tasks, stack.setting({ greedy: false, lookups: config.harness.lookups, effort }), {
        ...options,
        label: `${label}-${effort}`,
        onProgress: (done) => onProgress?.(before + done),
      })),
    );
  }
  const scored = evaluated.map(({ rollout }) => scoredRollout(rollout));
  // Success alone is asked for: terms and phases have no part in it.
  const spec = { ...config.reward, terms: [], phases: [] };
  const { state } = createRewardState(spec, { baseline: scored, efforts: effortsOf(config), seed: options.seed });
  const evaluations = scoreBatch(spec, state, scored);
  return scored.map(({ taskId, effort, outcome, cost, latencySeconds }, index) => ({
    task: taskId,
    effort,
    attempt: evaluated[index]?.rollout.attempt ?? 0,
    success: evaluations[index]?.success ?? 0,
    precision: outcome.precision,
    recall: outcome.recall,
    cost,
    cheated: outcome.cheated,
    latencySeconds: latencySeconds ?? null,
  }));
}

export interface EffortSummary {
  readonly effort: Effort;
  readonly tasks: number;
  readonly rollouts: number;
  /** Means over rollouts, with 95 % bootstrap intervals over tasks. */
  readonly success: Interval;
  readonly lookups: Interval;
  readonly turns: Interval;
  readonly tokens: Interval;
}

/** One summary an effort, in the order of the lines. Throws `invalid-config` with fewer than two tasks at an effort. */
export function summariseEfforts(
  lines: readonly EvaluationLine[],
  options: { readonly seed: number },
): EffortSummary[] {
  return [...Map.groupBy(lines, ({ effort }) => effort)].map(([effort, atEffort]) => {
    const byTask = [...Map.groupBy(atEffort, ({ task }) => task).values()];
    const counts = Float64Array.from(byTask, ({ length }) => length);
    // Each measure gets the same resamples, as they share the seed.
    const intervalOf = (measure: (line: EvaluationLine) => number): Interval => {
      const sums = Float64Array.from(byTask, (ofTask) => ofTask.reduce((sum, line) => sum + measure(line), 0));
      const evaluate = (multiplicities: Int32Array): readonly number[] => [
        weightedSum(sums, multiplicities) / weightedSum(counts, multiplicities),
      ];
      const [interval] = bootstrapIntervals({ count: byTask.length, evaluate }, options);
      return interval ?? { estimate: Number.NaN, low: Number.NaN, high: Number.NaN };
    };
    return {
      effort,
      tasks: byTask.length,
      rollouts: atEffort.length,
      success: intervalOf(({ success }) => success),
      lookups: intervalOf(({ cost }) => cost.lookups),
      turns: intervalOf(({ cost }) => cost.turns),
      tokens: intervalOf(({ cost }) => cost.tokens),
    };
  });
}

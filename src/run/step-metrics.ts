/**
 * One step's measurements, from what the manager handed over and what the trainer reported; what was published comes
 * last, as the measurements are stored before the step's checkpoint.
 */
import { reportedBeta } from './reported-beta.ts';
import type { Evaluations } from './step-reward.ts';
import { ELSEWHERE_CATEGORIES } from '../domain/task.ts';
import type { Task } from '../domain/task.ts';
import type { Rollout } from '../domain/rollout.ts';
import type { StepMetrics } from '../eval/events.ts';
import { fBeta } from '../reward/f-beta.ts';
import type { EffortMeasurement, RewardAdvance } from '../reward/reward-advance.ts';
import { precisionWeightOf } from '../reward/reward-state.ts';
import type { RewardState } from '../reward/reward-state.ts';
import type { RewardSpec } from '../reward/spec.ts';
import type { StepBatch } from '../rollout/manager.ts';
import type { PublishReport } from '../sync/publisher.ts';
import type { StepReport } from '../train/trainer.ts';

export interface ObservedLookups {
  readonly task: Task;
  readonly rollout: Rollout;
  /** Lines that were looked up. */
  readonly lines: readonly number[];
}

export interface StepParts {
  readonly batch: StepBatch;
  readonly lookups: readonly ObservedLookups[];
  readonly report: StepReport;
  readonly reward: StepRewardParts;
  readonly sampledTokens: number;
  readonly wallMs: number;
  readonly timeSplitMs: Readonly<Record<string, number>>;
}

export interface StepRewardParts {
  readonly spec: RewardSpec;
  /** The state that the step was scored under. */
  readonly state: RewardState;
  readonly evaluations: Evaluations;
  /** What the state learnt from the step. */
  readonly advance: Pick<RewardAdvance, 'measured' | 'detection'>;
}

const ELSEWHERE: ReadonlySet<string> = new Set(ELSEWHERE_CATEGORIES);

export function stepMetrics(parts: StepParts): StepMetrics {
  const { batch, report } = parts;
  const scored = batch.observed.map(({ rollout }) => rollout).filter((rollout) => rollout.outcome !== undefined);
  const mean = (value: (rollout: Rollout) => number): number =>
    scored.length === 0 ? 0 : scored.reduce((sum, rollout) => sum + value(rollout), 0) / scored.length;
  const { spec, state, evaluations } = parts.reward;
  const precision = mean(({ outcome }) => outcome?.precision ?? 0);
  const recall = mean(({ outcome }) => outcome?.recall ?? 0);
  const histogram: number[] = [];
  for (const { staleness, tokens } of report.mismatch) {
    while (histogram.length <= staleness) histogram.push(0);
    histogram[staleness] = tokens;
  }
  return {
    'rollout/reward_mean': mean(({ id }) => evaluations.get(id)?.reward ?? 0),
    'rollout/precision': precision,
    'rollout/recall': recall,
    'rollout/f_beta': fBeta({ precision, recall }, reportedBeta(spec)),
    'rollout/turns_mean': mean(({ cost }) => cost.turns),
    'rollout/tokens_mean': mean(({ cost }) => cost.tokens),
    'rollout/invalid_share': mean(({ outcome }) => (outcome?.valid === false ? 1 : 0)),
    'rollout/lookup_rate_elsewhere': lookupShare(parts.lookups, true),
    'rollout/lookup_rate_other': lookupShare(parts.lookups, false),
    'rollout/groups_with_variance': batch.finished === 0 ? 1 : batch.varied / batch.finished,
    'rollout/groups_dropped': { ...batch.dropped },
    'rollout/staleness_histogram': histogram,
    'policy/entropy': report.entropy,
    'policy/singleton_share': report.singletonShare,
    'policy/kept_size_mean': report.meanKept,
    'reward/precision_weight': precisionWeightOf(state, spec) ?? null,
    'reward/cheated_share': mean(({ outcome }) => (outcome?.cheated === true ? 1 : 0)),
    ...rewardMetrics(scored, parts.reward),
    'train/loss': report.loss,
    'train/gradient_norm': report.gradientNorm,
    'train/learning_rate': report.learningRate,
    'train/tokens': report.trainedTokens,
    'train/mismatch_by_staleness': report.mismatch.map(({ staleness, tokens, k3, maxAbsDelta }) => ({
      staleness,
      tokens,
      k3,
      max_abs_delta: maxAbsDelta,
    })),
    'speed/sampled_tokens_per_second': (parts.sampledTokens / parts.wallMs) * 1000,
    'speed/trained_tokens_per_second': (report.tokens / Math.max(1, report.computeMs)) * 1000,
    'speed/time_split_ms': { ...parts.timeSplitMs },
    'sync/delta_bytes': null,
    'sync/changed_share': null,
    'sync/pause_ms': null,
  };
}

/** Means of what the reward is made of, and where each effort stands against the starting policy. */
function rewardMetrics(scored: readonly Rollout[], { evaluations, advance }: StepRewardParts): Partial<StepMetrics> {
  const found = scored.flatMap(({ id }) => evaluations.get(id) ?? []);
  const [first] = found;
  if (first === undefined) return {};
  const components = Object.fromEntries(
    Object.keys(first.components).map((name) => [
      name,
      found.reduce((sum, evaluation) => sum + (evaluation.components[name] ?? 0), 0) / found.length,
    ]),
  );
  const efforts = Object.entries(advance.measured);
  const tangentError = advance.detection?.tangentError;
  const metrics: Partial<StepMetrics> = {
    'reward/components': components,
    'reward/phase': first.phase,
    ...(tangentError === undefined ? {} : { 'reward/tangent_error': tangentError }),
    'rollout/success': Object.fromEntries(efforts.map(([effort, { success }]) => [effort, success])),
  };
  const gains = efforts.flatMap(([effort, { successGain }]) =>
    successGain === undefined ? [] : [[effort, successGain] as const],
  );
  if (gains.length === 0) return metrics;
  const byCost = (pick: (at: EffortMeasurement) => Readonly<Record<string, number>>): Record<string, number> =>
    Object.fromEntries(
      efforts.flatMap(([effort, at]) => Object.entries(pick(at)).map(([cost, value]) => [`${effort}/${cost}`, value])),
    );
  return {
    ...metrics,
    'rollout/cost': byCost(({ cost }) => cost),
    'frontier/success_gain': Object.fromEntries(gains),
    'frontier/cost_saving': byCost(({ costSaving }) => costSaving),
    'frontier/log_price': byCost(({ price }) =>
      Object.fromEntries(Object.entries(price).map(([name, value]) => [name, Math.log(value)])),
    ),
    'frontier/gap': byCost(({ gap }) => gap),
  };
}

export interface Synchronisation {
  readonly published: PublishReport;
  /** Undefined when nothing was committed. */
  readonly pauseMs: number | undefined;
}

export function withSynchronisation(metrics: StepMetrics, { published, pauseMs }: Synchronisation): StepMetrics {
  return {
    ...metrics,
    'sync/delta_bytes': published.bytes,
    'sync/changed_share': published.changedElements / published.totalElements,
    'sync/pause_ms': pauseMs ?? null,
  };
}

/** Of the changed lines of one sort that were seen, the share that was looked up. */
function lookupShare(observed: readonly ObservedLookups[], elsewhere: boolean): number | null {
  let lines = 0;
  let lookedUp = 0;
  for (const { task, lines: looked } of observed) {
    for (const edit of task.metadata.edits) {
      if (ELSEWHERE.has(edit.kind) !== elsewhere) continue;
      lines++;
      if (looked.includes(edit.line)) lookedUp++;
    }
  }
  return lines === 0 ? null : lookedUp / lines;
}

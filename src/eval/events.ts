/**
 * The step event of a run's events.jsonl: everything that is measured at one optimizer step, under keys `area/name` that
 * are never renamed. One schema for who writes and who draws. A measurement that a step did not make is null, never 0;
 * one that the run does not make at all, or that an older version did not make, is absent.
 */
import { z } from 'zod';

import { HoneError } from '../domain/errors.ts';

const number = z.number();
const share = z.number().min(0).max(1);
const count = z.int().nonnegative();
const byName = z.record(z.string(), number).optional();

export const stepMetricsSchema = z.strictObject({
  'rollout/reward_mean': number.describe('mean reward of the scored rollouts, dropped groups included'),
  'rollout/precision': share.describe('mean over samples'),
  'rollout/recall': share.describe('mean over samples'),
  'rollout/f_beta': share.describe('of the two means'),
  'rollout/turns_mean': number,
  'rollout/tokens_mean': number.describe('tokens of a rollout, environment included'),
  'rollout/invalid_share': share.describe('rollouts whose report could not be read'),
  'rollout/lookup_rate_elsewhere': share
    .nullable()
    .describe('changed lines looked up, of those with evidence elsewhere'),
  'rollout/lookup_rate_other': share.nullable().describe('changed lines looked up, of the others'),
  'rollout/groups_with_variance': share.describe('of the groups that were scored'),
  'rollout/groups_dropped': z.record(z.string(), count).describe('groups not trained, by reason'),
  'rollout/staleness_histogram': z.array(count).describe('trained tokens by versions late: index 0 = current'),
  'policy/entropy': number.nullable().describe('over the full vocabulary, nats, mean over trained tokens'),
  'policy/singleton_share': share.describe('trained tokens whose kept set has one member'),
  'policy/kept_size_mean': number.describe('tokens in a kept set, mean over trained tokens'),
  'rollout/success': z
    .record(z.string(), share)
    .optional()
    .describe('mean raw success of the scored rollouts, by effort; 0 where cheated'),
  'rollout/cost': byName.describe('mean cost that is steered by, by effort/cost name'),
  'reward/precision_weight': number
    .nullable()
    .describe('weight of precision against a recall weight of 1; null when success is all or nothing'),
  'reward/tangent_error': number
    .optional()
    .describe('F-beta of the two means minus the tangent that the reward climbs, exact, at most 0'),
  'reward/components': byName.describe('what each part added to the mean reward, by name; they sum to the mean'),
  'reward/phase': z.string().optional().describe('phase of the reward that the step was scored in'),
  'reward/cheated_share': share.optional().describe('scored rollouts that were voided for an attempt at cheating'),
  'frontier/success_gain': byName.describe('success over that of the starting policy, minus 1, by effort'),
  'frontier/cost_saving': byName.describe('1 minus cost over that of the starting policy, by effort/cost name'),
  'frontier/log_price': byName.describe('ln of the price of cost that the step was scored with, by effort/cost name'),
  'frontier/gap': byName.describe('(1 - alpha) gain - alpha saving, by effort/cost name; the price follows it'),
  'train/loss': number,
  'train/gradient_norm': number.describe('before clipping'),
  'train/learning_rate': number,
  'train/tokens': count.describe('tokens with a loss'),
  'train/mismatch_by_staleness': z
    .array(
      z.strictObject({
        staleness: count,
        tokens: count,
        k3: number.describe('mean of r - 1 - ln r, r = trained over sampled probability'),
        max_abs_delta: number.describe('largest |difference of log-probabilities|'),
      }),
    )
    .describe('trainer against sampler; exactly 0 at staleness 0'),
  'speed/sampled_tokens_per_second': number,
  'speed/trained_tokens_per_second': number,
  'speed/time_split_ms': z.record(z.string(), z.number().nonnegative()).describe('wall time of the step by phase'),
  'sync/delta_bytes': count.nullable().describe('published, compressed'),
  'sync/changed_share': share.nullable().describe('served weights that changed'),
  'sync/pause_ms': number.nullable().describe('sampling stood still to commit a version'),
});
export type StepMetrics = z.infer<typeof stepMetricsSchema>;

export const stepEventSchema = z.strictObject({
  event: z.literal('step-end'),
  time: z.iso.datetime(),
  step: z.int().positive(),
  version: count.describe('policy version that the step published'),
  metrics: stepMetricsSchema,
});
export type StepEvent = z.infer<typeof stepEventSchema>;

/**
 * The step events among a run's events, by step. A resumed run may have done a step twice: the last one counts.
 * Throws `invalid-config` on a step event that does not keep the schema.
 */
export function readStepEvents(events: Iterable<unknown>): StepEvent[] {
  const steps = new Map<number, StepEvent>();
  let position = 0;
  for (const event of events) {
    position++;
    if (typeof event !== 'object' || event === null || !('event' in event) || event.event !== 'step-end') continue;
    const parsed = stepEventSchema.safeParse(event);
    if (!parsed.success) {
      const [issue] = parsed.error.issues;
      const where = issue?.path.join('.') ?? '';
      throw new HoneError('invalid-config', `Event ${position} is not a step event: ${where} ${issue?.message}.`, {
        cure: 'The run was written by another version of hone; draw its report with that version.',
      });
    }
    steps.set(parsed.data.step, parsed.data);
  }
  return [...steps.values()].toSorted((one, other) => one.step - other.step);
}

/**
 * A run's config: one strict schema, every field with its unit and default. Unknown keys and impossible mixes are errors
 * at start, all of them at once, each with the key and the cure. The resolved config is what the run folder stores.
 */
import { z } from 'zod';

import { HoneError } from '../domain/errors.ts';
import { rewardSpecSchema } from '../reward/spec.ts';

const positive = z.int().positive();

export const runConfigSchema = z
  .strictObject({
    name: z
      .string()
      .regex(/^[\w.-]+$/u, 'letters, digits, dot, dash and underscore only')
      .describe('folder name of the run under runs/'),
    seed: z.int().min(0).max(0xffffffff).default(1).describe('every seed of the run derives from it'),
    model: z.string().describe('Hugging Face folder of the model to start from; relative to the working directory'),
    tasks: z
      .strictObject({
        maxCharacters: positive.default(600).describe('longest function, in characters'),
        maxLines: positive.default(24).describe('longest function, in lines'),
        elsewhereShare: z
          .number()
          .min(0)
          .max(1)
          .default(0.5)
          .describe('share of edits whose evidence lies elsewhere in the package, where the function offers one'),
        bugShare: z
          .number()
          .min(0)
          .max(1)
          .default(2 / 3)
          .describe('share of tasks that hold at least one bug'),
      })
      .prefault({}),
    harness: z
      .strictObject({
        strategy: z
          .enum(['sweep', 'report'])
          .default('sweep')
          .describe('sweep asks about each changed line; report wants one list of findings'),
        lookups: z.enum(['on', 'off']).default('on').describe('whether names can be looked up'),
        instructions: z
          .enum(['none', 'full'])
          .default('none')
          .describe('full = a system message that explains the format, for models not trained on it'),
        maxTurns: positive.default(24).describe('assistant turns in one rollout'),
        maxTokens: positive.default(256).describe('sampled tokens in one rollout'),
        maxSeconds: z.number().positive().default(60).describe('seconds for one rollout'),
      })
      .prefault({}),
    sampling: z
      .strictObject({
        temperature: z.number().positive().max(5).default(1).describe('divides the logits; 1 leaves them'),
        topP: z.number().gt(0).max(1).default(0.98).describe('least probability mass that is kept; 1 = off'),
        topK: z.int().min(0).default(0).describe('0 = off'),
        minP: z.number().min(0).lt(1).default(0).describe('0 = off'),
        maxTokensPerTurn: positive.default(8).describe('sampled tokens in one assistant turn'),
      })
      .prefault({}),
    replay: z
      .strictObject({
        keptSets: z.boolean().default(true).describe('recompute log-probabilities over the recorded kept sets'),
        acknowledgeMismatch: z
          .boolean()
          .default(false)
          .describe('must be true to train with a truncated sampler and no replay'),
      })
      .prefault({}),
    reward: rewardSpecSchema.prefault({}),
    algorithm: z
      .strictObject({
        steps: positive.default(60).describe('optimizer steps'),
        groupSize: z.int().min(2).default(8).describe('rollouts of one task'),
        groupsPerStep: positive.default(16).describe('groups with variance in one optimizer step'),
        learningRate: z.number().positive().default(5e-4).describe('AdamW, after the warm-up'),
        warmupSteps: z.int().min(0).default(4).describe('steps of linear warm-up'),
        beta1: z.number().min(0).lt(1).default(0.9).describe('AdamW, decay of the first moment'),
        beta2: z.number().min(0).lt(1).default(0.98).describe('AdamW, decay of the second moment'),
        epsilon: z.number().positive().default(1e-8).describe('AdamW, added to the root of the second moment'),
        weightDecay: z.number().min(0).default(0).describe('AdamW, decoupled'),
        clipNorm: z.number().positive().default(1).describe('largest gradient norm'),
        importanceCap: z.number().min(1).default(2).describe('truncation of the importance weight'),
        entropyCoefficient: z.number().min(0).default(0).describe('nats to loss; 0 = no entropy bonus'),
        advantage: z
          .enum(['mean', 'leave-one-out'])
          .default('mean')
          .describe("what a reward is compared with: the group's mean, or the mean of its other members"),
      })
      .prefault({}),
    schedule: z
      .strictObject({
        mode: z
          .enum(['async', 'sync'])
          .default('async')
          .describe('sync is bit-reproducible; async samples while it trains'),
        maxStaleness: z
          .int()
          .min(0)
          .optional()
          .describe('versions that a rollout may lag; default 1 in async, 0 in sync'),
        concurrency: positive.default(64).describe('rollouts in flight'),
        infraRetries: z.int().min(0).default(2).describe('further tries after an infrastructure failure'),
        maxMinutes: z
          .number()
          .positive()
          .optional()
          .describe('stop training after this many minutes of one start and evaluate; default none'),
      })
      .prefault({}),
    engine: z
      .strictObject({
        build: z
          .enum(['auto', 'plain', 'fma'])
          .default('auto')
          .describe('kernel build; plain has the same bits on every CPU, auto is the fused one where it runs'),
        threads: z
          .int()
          .min(1)
          .max(16)
          .default(2)
          .describe('threads of the trainer, and of the sampler when it works alone; half of them while both work'),
        slots: positive.default(96).describe('sequences whose keys and values are kept'),
        microBatchTokens: positive.default(2048).describe('rows of one forward and backward pass'),
      })
      .prefault({}),
    weights: z
      .strictObject({ anchorEvery: positive.default(20).describe('versions from one full anchor to the next') })
      .prefault({}),
    checkpoints: z
      .strictObject({ keep: positive.default(2).describe('newest checkpoints kept; one is written every step') })
      .prefault({}),
    eval: z
      .strictObject({
        tasks: z.int().min(0).default(600).describe('held-out tasks; 0 = no evaluation'),
        seed: z.int().min(0).default(7).describe("of held-out tasks and their draws; independent of the run's seed"),
        controls: z.boolean().default(true).describe('always silent, n-gram classifier, tuned threshold, look-ups off'),
        controlTasks: positive.default(600).describe('RL-split tasks that controls are tuned on'),
      })
      .prefault({}),
  })
  .superRefine((config, context) => {
    const fail = (path: string[], message: string): void => {
      context.addIssue({ code: 'custom', path, message });
    };
    const truncated = config.sampling.topP < 1 || config.sampling.topK > 0 || config.sampling.minP > 0;
    if (truncated && !config.replay.keptSets && !config.replay.acknowledgeMismatch)
      fail(
        ['replay', 'keptSets'],
        `is false while sampling is truncated (topP ${config.sampling.topP}, topK ${config.sampling.topK}, minP ${config.sampling.minP}): the trainer would see other probabilities than the sampler. Set replay.keptSets to true, or replay.acknowledgeMismatch to true`,
      );
    if (config.schedule.mode === 'async' && config.schedule.maxStaleness === 0)
      fail(
        ['schedule', 'maxStaleness'],
        'is 0 while schedule.mode is async: nothing could be sampled while training. Set it to 1 or more, or use schedule.mode sync',
      );
    if (config.schedule.mode === 'sync' && (config.schedule.maxStaleness ?? 0) > 0)
      fail(
        ['schedule', 'maxStaleness'],
        `is ${config.schedule.maxStaleness} while schedule.mode is sync, which trains on no stale token. Leave it out, or use schedule.mode async`,
      );
    if (config.harness.strategy === 'report' && config.harness.instructions === 'none')
      fail(['harness', 'instructions'], 'is none, but the report strategy always explains itself. Set it to full');
    if (config.replay.acknowledgeMismatch && config.replay.keptSets)
      fail(
        ['replay', 'acknowledgeMismatch'],
        'is true while replay.keptSets is true, so there is no mismatch to acknowledge. Leave it out',
      );
    if (config.schedule.concurrency > config.engine.slots)
      fail(
        ['engine', 'slots'],
        `is ${config.engine.slots}, fewer than schedule.concurrency ${config.schedule.concurrency}: rollouts would evict each other's keys and values. Raise slots or lower concurrency`,
      );
  });

/** As written in hone.config.ts: every field with a default may be left out. */
export type RunConfigInput = z.input<typeof runConfigSchema>;
export type RunConfig = z.output<typeof runConfigSchema> & { readonly schedule: { readonly maxStaleness: number } };

/** Identity, for editor completion in hone.config.ts. */
export function defineRun(config: RunConfigInput): RunConfigInput {
  return config;
}

/** Validates the whole config and reports every problem at once. `source` names where it came from. */
export function resolveConfig(input: unknown, source: string): RunConfig {
  const parsed = runConfigSchema.safeParse(input);
  if (!parsed.success) {
    const problems = parsed.error.issues.map((issue) => {
      const path = issue.path.join('.');
      if (issue.code === 'unrecognized_keys')
        return issue.keys
          .map((key) => `${path === '' ? key : `${path}.${key}`} is not a known option${suggestion(key, path)}`)
          .join('; ');
      return `${path} ${issue.message}`;
    });
    throw new HoneError(
      'invalid-config',
      `${source} has ${problems.length} problem${problems.length > 1 ? 's' : ''}: ${problems.join('; ')}.`,
      { cure: 'Mend these keys; `hone config` lists every option with its unit and default.' },
    );
  }
  const config = parsed.data;
  const unread = unreadOptions(config);
  if (unread.length > 0)
    throw new HoneError('invalid-config', `${source} sets what nothing would read: ${unread.join('; ')}.`, {
      cure: 'Leave these keys out.',
    });
  return {
    ...config,
    schedule: {
      ...config.schedule,
      maxStaleness: config.schedule.maxStaleness ?? (config.schedule.mode === 'async' ? 1 : 0),
    },
  };
}

/** Options that differ from their defaults although another one makes them mean nothing. */
function unreadOptions({ reward, eval: evaluation }: z.output<typeof runConfigSchema>): string[] {
  const defaults = runConfigSchema.parse({ name: 'defaults', model: 'defaults' });
  const unread: string[] = [];
  if (reward.precisionWeight !== 'measured')
    for (const key of ['recalibrationBand', 'recalibrationPatience'] as const)
      if (reward[key] !== defaults.reward[key]) unread.push(`reward.${key}, as reward.precisionWeight is a number`);
  if (!evaluation.controls && evaluation.controlTasks !== defaults.eval.controlTasks)
    unread.push('eval.controlTasks, as eval.controls is false');
  return unread;
}

/** The known sibling nearest in spelling, if it is near enough to be a typing slip. */
function suggestion(key: string, path: string): string {
  const schema = z.toJSONSchema(runConfigSchema, { io: 'input' });
  // z.toJSONSchema returns plain JSON; only `properties` is read.
  let node: unknown = schema;
  for (const part of path === '' ? [] : path.split('.'))
    node = (node as { properties?: Record<string, unknown> }).properties?.[part];
  const known = Object.keys((node as { properties?: Record<string, unknown> } | undefined)?.properties ?? {});
  const near = known
    .map((name) => ({ name, distance: editDistance(key.toLowerCase(), name.toLowerCase()) }))
    .sort((a, b) => a.distance - b.distance)[0];
  return near !== undefined && near.distance <= Math.max(2, key.length / 3) ? ` (did you mean ${near.name}?)` : '';
}

function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next.push(
        Math.min((row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1, (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1)),
      );
    row = next;
  }
  return row[b.length] ?? 0;
}

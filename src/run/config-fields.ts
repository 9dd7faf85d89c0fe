/**
 * The fields of a run's config, each with its unit and default; how they may be combined is checked in config-checks.ts.
 * Unknown keys are errors: every object is strict.
 */
import { z } from 'zod';

import { effortSchema } from '../domain/effort.ts';
import { rewardSpecSchema } from '../reward/spec.ts';

const positive = z.int().positive();

const effortLimitsSchema = z.strictObject({
  maxLookups: z.int().min(0).optional().describe('declarations shown in one rollout; default harness.maxLookups'),
  maxTurns: positive.optional().describe('assistant turns in one rollout; default harness.maxTurns'),
  maxTokens: positive.optional().describe('sampled tokens in one rollout; default harness.maxTokens'),
});

export const runConfigFields = z.strictObject({
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
      pool: z
        .int()
        .min(0)
        .default(0)
        .describe('distinct tasks that come in turn, over and over; 0 = a stream without end'),
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
      maxLookups: z
        .int()
        .min(0)
        .optional()
        .describe('declarations shown in one rollout; default 6 in a sweep, no limit in a report'),
      maxTurns: positive.default(24).describe('assistant turns in one rollout'),
      maxTokens: positive.default(256).describe('sampled tokens in one rollout'),
      maxSeconds: z.number().positive().default(60).describe('seconds for one rollout'),
    })
    .prefault({}),
  efforts: z
    .record(effortSchema, effortLimitsSchema)
    .default({})
    .describe(
      'levels of effort by name, each with its limits; a group draws one, and the model is told it. {} = one level, standard, untold',
    ),
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
  baseline: z
    .strictObject({
      tasks: positive
        .default(256)
        .describe('training tasks that the starting policy does at every effort, before step 1'),
      rolloutsPerTask: positive
        .default(1)
        .describe('rollouts of each; a starting price from within tasks compares 2 or more'),
    })
    .prefault({})
    .describe('what the reward measures once, before training: precision weight, references, starting prices, budgets'),
  algorithm: z
    .strictObject({
      steps: positive.default(60).describe('optimizer steps'),
      groupSize: z.int().min(2).default(8).describe('rollouts of one task'),
      groupsPerStep: positive.default(16).describe('groups with variance in one optimizer step'),
      learningRate: z.number().positive().default(5e-4).describe('AdamW, after the warm-up'),
      warmupSteps: z.int().min(0).default(4).describe('steps of linear warm-up'),
      learningRateDecay: z
        .strictObject({
          steps: z.number().positive().describe('steps over which the rate begins to fall'),
          power: z.number().positive().describe('rate x (1 + (step - 1) / steps)^-power'),
        })
        .nullable()
        .default(null)
        .describe('of the learning rate; a steered run settles better with one. null = constant'),
      beta1: z.number().min(0).lt(1).default(0.9).describe('AdamW, decay of the first moment'),
      beta2: z.number().min(0).lt(1).default(0.98).describe('AdamW, decay of the second moment'),
      epsilon: z.number().positive().default(1e-8).describe('AdamW, added to the root of the second moment'),
      weightDecay: z.number().min(0).default(0).describe('AdamW, decoupled'),
      clipNorm: z.number().positive().default(1).describe('largest gradient norm'),
      importanceCap: z.number().min(1).default(2).describe('truncation of the importance weight'),
      entropyCoefficient: z.number().min(0).default(0).describe('nats to loss; 0 = no entropy bonus'),
      advantage: z
        .enum(['mean', 'leave-one-out', 'length-weighted', 'effort'])
        .default('mean')
        .describe(
          "what a reward is compared with: the group's mean, the mean of its other members, its mean weighted by length, or the mean of the batch's rollouts at the same effort",
        ),
      deviation: z
        .enum(['none', 'group', 'effort'])
        .default('none')
        .describe('what advantages are divided by: nothing, or the standard deviation of the group or of the effort'),
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
    .strictObject({
      store: z
        .string()
        .min(1)
        .optional()
        .describe(
          'where versions are published: a folder, or s3://bucket/prefix with ?region= and ?endpoint=; default weights/ in the run folder',
        ),
      encoding: z
        .enum(['sparse', 'xor', 'overwrite'])
        .default('sparse')
        .describe('form of a delta; xor and overwrite are larger and read by other systems too'),
      anchorEvery: positive.default(20).describe('versions from one full anchor to the next'),
      fork: z
        .boolean()
        .default(false)
        .describe('take the pointer of a store over from another run, with an anchor of this one'),
      keep: positive
        .optional()
        .describe('newest versions kept in the store, with what they and live replicas build on; default all'),
      wake: z
        .array(z.url())
        .default([])
        .describe('control URLs of controllers and replicas that are told of each version at once; others poll'),
    })
    .prefault({}),
  serve: z
    .strictObject({
      routers: z
        .array(z.url())
        .default([])
        .describe(
          'data URLs of routers that sample instead of a replica in this process; the next one is tried when one is gone',
        ),
      deadlineSeconds: z
        .number()
        .positive()
        .default(120)
        .describe('for one reply through a router, tries on other replicas included'),
      keptSets: z
        .enum(['inline', 'store'])
        .default('inline')
        .describe(
          'how kept sets come back: with each token, or in one object a reply through weights.store, which replicas must be able to write; a reply that is cut then starts anew',
        ),
    })
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
});

export type RunConfigFields = z.output<typeof runConfigFields>;

/**
 * The parts that a reward is made of, as data: what a run's config may say of each. What they do lies in the file of each
 * formula; how they add up in score-batch.ts. Every field names its unit and default; a default that the notes of the
 * method leave open does not exist: the owner gives it.
 */
import { z } from 'zod';

import { effortSchema } from '../domain/effort.ts';
import { budgetFields } from './budget.ts';
import { costWeightsSchema } from './cost.ts';
import { dropOffSchema } from './drop-off.ts';
import { latencyModelSchema } from './latency-model.ts';
import { overlongFields } from './overlong.ts';

const componentName = z
  .string()
  .regex(/^[a-z][a-z0-9-]*$/u, 'must be lower-case letters, digits and dashes, a letter first')
  // Names are keys of plain objects, and every such object has a constructor.
  .refine((name) => name !== 'constructor', 'is constructor, which is taken by the language: choose another');

const termName = (kind: string): z.ZodDefault<typeof componentName> =>
  componentName.default(kind).describe('names the component in reports and phases; unique; default the kind');

const weights = costWeightsSchema.describe('what a cost is made of: prices of the things that a rollout counts');

export const rewardBaseSchema = z
  .discriminatedUnion('kind', [
    z.strictObject({
      kind: z
        .literal('detection')
        .describe(
          'F-beta made linear in the precision P and recall R of a sample, scaled into [0, 1]: (w P + R) / (1 + w)',
        ),
      beta: z.number().positive().default(0.5).describe('of F-beta; below 1 weighs precision above recall'),
      precisionWeight: z
        .union([z.literal('measured'), z.number().nonnegative()])
        .default('measured')
        .describe(
          'w, weight of precision against a recall weight of 1; measured = (R/P)^2 / beta^2 from the policy itself',
        ),
      recalibrationBand: z
        .number()
        .gt(1)
        .default(1.25)
        .describe('factor by which a measured weight may be off before it is measured anew'),
      recalibrationPatience: z
        .int()
        .positive()
        .default(3)
        .describe('measurements in a row outside the band before it is'),
    }),
    z.strictObject({
      kind: z.literal('correct').describe('1 when precision and recall are both 1, else 0'),
    }),
  ])
  .prefault({ kind: 'detection' })
  .describe('what is good: success in [0, 1], before any price; default detection');
export type RewardBase = z.output<typeof rewardBaseSchema>;

export const controllerSchema = z
  .strictObject({
    rate: z
      .number()
      .positive()
      .default(0.02)
      .describe('change of log price per unit of gap; 0.05 and more ring at low effort, 0.002 is slow'),
    decay: z
      .strictObject({
        steps: z.number().positive().default(500).describe('updates over which the rate begins to fall'),
        power: z.number().nonnegative().default(0.6).describe('rate x (1 + (update - 1) / steps)^-power'),
      })
      .nullable()
      .prefault({})
      .describe('of the rate; null = constant, which costs most at low effort'),
    proportional: z
      .number()
      .nonnegative()
      .default(0.2)
      .describe('change of log price per change of gap: damps the loop, the safeguard that helps most; 0 = none'),
    slewLimit: z
      .number()
      .positive()
      .nullable()
      .default(0.05)
      .describe('largest change of log price in one step: a policy cannot follow faster than it learns; null = none'),
    clip: z
      .number()
      .gt(1)
      .nullable()
      .default(20)
      .describe(
        'the price stays within this factor of its start, so that an end out of reach cannot wind it up; null = free',
      ),
    deadZone: z
      .number()
      .nonnegative()
      .default(1)
      .describe("no move while the gap is within this many standard deviations of the reference's noise; 0 = none"),
  })
  .prefault({});

const costSchema = z.strictObject({
  name: componentName.default('cost').describe('names the cost and its price in reports; unique in the term'),
  weights,
  share: z
    .number()
    .positive()
    .max(1)
    .optional()
    .describe('of 1 - alpha that is to go into saving this cost; all or none, sum 1; default equal'),
});

export const frontierTermSchema = z.strictObject({
  kind: z
    .literal('frontier')
    .describe('minus price x cost, the price of each effort steered so that gains run along the direction alpha'),
  name: termName('frontier'),
  alpha: z
    .number()
    .min(0)
    .max(1)
    .describe('share of the improvement that is to be success: 0 = all into saving cost, 1 = all into success'),
  costs: z.array(costSchema).min(1, 'is empty: give at least one cost').describe('what is to be saved'),
  startingPrice: z
    .discriminatedUnion('from', [
      z.strictObject({
        from: z
          .literal('within-task')
          .describe('slope of success on cost among rollouts of the same task; needs 2 or more of each'),
      }),
      z.strictObject({
        from: z
          .literal('across-efforts')
          .describe('slope of a monotone concave curve through the efforts; needs 2 or more of them'),
      }),
      z.strictObject({
        from: z.literal('given'),
        prices: z
          .record(effortSchema, z.union([z.number().positive(), z.record(componentName, z.number().positive())]))
          .describe('success per unit of cost, by effort; with several costs an object by the name of each'),
      }),
    ])
    .prefault({ from: 'within-task' })
    .describe(
      'where the price starts; steering makes up for a start that is wrong by a factor of 3, in hundreds of steps; default within-task',
    ),
  controller: controllerSchema.describe('how the price moves: log price += rate x gap, with safeguards'),
});
export type FrontierTerm = z.output<typeof frontierTermSchema>;

export const rewardTermSchema = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z.literal('cost').describe('minus the weighted cost, at prices that never move'),
    name: termName('cost'),
    weights,
  }),
  frontierTermSchema,
  z.strictObject({
    kind: z.literal('latency').describe('minus kappa x the share of users that would have left by then'),
    name: termName('latency'),
    kappa: z.number().positive().describe('reward that is lost when every user has left; the base lies in [0, 1]'),
    dropOff: dropOffSchema.describe('histogram of how long users stayed'),
    latency: z
      .discriminatedUnion('from', [
        z.strictObject({
          from: z.literal('model').describe('overhead + sampled tokens / tokensPerSecond + turns x secondsPerTurn'),
          ...latencyModelSchema.shape,
        }),
        z.strictObject({
          from: z
            .literal('measured')
            .describe('the same model, fitted at start on the recorded latency of the baseline'),
        }),
        z.strictObject({ from: z.literal('recorded').describe('the wall time that each rollout recorded') }),
      ])
      .describe('where the latency of a rollout comes from'),
  }),
  z.strictObject({
    kind: z.literal('budget').describe('a limit on cost, measured on correct rollouts at the start and frozen'),
    name: termName('budget'),
    ...budgetFields,
    scope: z.enum(['task', 'effort']).describe('one budget for each task at each effort, or one for each effort'),
    weights,
  }),
  z.strictObject({
    kind: z.literal('overlong').describe('weight x the soft over-long penalty: 0 to -1 before the limit, -1 beyond'),
    name: termName('overlong'),
    ...overlongFields,
    weight: z.number().positive().default(1).describe('reward that is lost at the limit and beyond'),
  }),
]);
export type RewardTerm = z.output<typeof rewardTermSchema>;

const UNTIL_FORMS = 'must be { steps } or { metric, atLeast, patience }';

/** What is wrong inside the form that its keys say it is meant to be, each key with its value. */
function untilProblem({ input, errors }: z.core.$ZodRawIssue<z.core.$ZodIssueInvalidUnion>): string {
  if (typeof input !== 'object' || input === null || !('steps' in input || 'metric' in input)) return UNTIL_FORMS;
  // In the order of the union.
  const issues = errors['metric' in input ? 1 : 0] ?? [];
  const problems = issues.map(({ path, message }) => {
    const [key] = path;
    // Keys of JSON; a value that is not there is told as undefined.
    const value = key === undefined ? undefined : (input as Readonly<Record<PropertyKey, unknown>>)[key];
    return key === undefined ? message : `${String(key)} is ${JSON.stringify(value) ?? 'missing'}: ${message}`;
  });
  return `${UNTIL_FORMS}: ${problems.join('; ')}`;
}

const untilSchema = z.union(
  [
    z.strictObject({ steps: z.int().positive().describe('optimizer steps that the phase lasts') }),
    z.strictObject({
      metric: z
        .enum(['precision', 'recall', 'f_beta', 'success'])
        .describe('mean over the rollouts of a step, raw; success is the base of the reward'),
      atLeast: z.number().min(0).max(1).describe('the figure that ends the phase'),
      patience: z.int().positive().default(3).describe('steps in a row that must reach it'),
    }),
  ],
  { error: (issue) => (issue.code === 'invalid_union' ? untilProblem(issue) : UNTIL_FORMS) },
);

export const rewardPhaseSchema = z.strictObject({
  name: componentName.describe('names the phase in reports; unique'),
  terms: z.array(componentName).describe('names of the terms in force; the base and the void for cheating always are'),
  until: untilSchema.optional().describe('when the next phase begins; only the last phase may have none'),
});
export type RewardPhase = z.output<typeof rewardPhaseSchema>;

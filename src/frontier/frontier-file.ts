/**
 * frontier.json: what `hone frontier fit` found, in the form that `hone frontier simulate` and a run's config take. Written and
 * read by one schema; a file that does not fit it is refused, naming the key.
 */
import { z } from 'zod';

import { effortSchema } from '../domain/effort.ts';
import { HoneError } from '../domain/errors.ts';

const intervalSchema = z.strictObject({ estimate: z.number(), low: z.number(), high: z.number() });

const PRICE_SOURCES = ['across-efforts', 'within-task'] as const;

const effortFitSchema = z.strictObject({
  effort: effortSchema,
  tasks: z.int(),
  rollouts: z.int(),
  cheated: z.int().describe('rollouts that cheated: counted as failures'),
  success: intervalSchema.describe('mean over rollouts'),
  cost: intervalSchema.describe('mean over rollouts'),
  reference: z
    .strictObject({
      success: z.number(),
      cost: z.number(),
      successError: z.number(),
      costError: z.number(),
      covariance: z.number(),
      tasks: z.int(),
      rollouts: z.int(),
    })
    .nullable()
    .describe(
      's0 and c0 with their standard errors, by task; null where nothing was spent, as gains are relative to cost',
    ),
  rolloutsNeeded: z
    .array(z.strictObject({ alpha: z.number(), rollouts: z.number() }))
    .describe('rollouts that a reference needs so that the gap is known to a point; empty where there is none'),
  slopes: z
    .strictObject({
      withinTask: intervalSchema.nullable(),
      pooled: intervalSchema.nullable(),
      acrossEfforts: intervalSchema.nullable(),
    })
    .describe('success that one more unit of cost comes with; null where it cannot be measured'),
  dominated: z
    .strictObject({ by: z.array(effortSchema), share: z.number() })
    .nullable()
    .describe('efforts that reach more for less, alone or mixed, and the share of resamples in which they do'),
  startingPrice: z
    .strictObject({ price: z.number(), low: z.number(), high: z.number(), from: z.enum(PRICE_SOURCES) })
    .nullable(),
});
export type EffortFit = z.infer<typeof effortFitSchema>;

export const frontierFileSchema = z.strictObject({
  format: z.literal('hone-frontier-1'),
  source: z.string(),
  seed: z.int(),
  resamples: z.int(),
  cost: z.strictObject({ unit: z.string(), weights: z.record(z.string(), z.number()).nullable() }),
  efforts: z.array(effortFitSchema).min(1).describe('ascending by cost'),
  curve: z
    .array(z.strictObject({ cost: z.number(), success: z.number(), slope: z.number() }))
    .describe('the concave fit across efforts at their costs; empty with a single effort'),
  band: z
    .array(z.strictObject({ cost: z.number(), success: z.number(), low: z.number(), high: z.number() }))
    .describe('the same curve on a grid, with its pointwise band'),
  warnings: z.array(z.string()),
  rewardTerm: z
    .record(z.string(), z.unknown())
    .nullable()
    .describe('a term for reward.terms with the starting prices; null while an effort that can be steered has none'),
});
export type FrontierFile = z.infer<typeof frontierFileSchema>;

/** Throws `invalid-config` naming the first key that does not fit. */
export function parseFrontierFile(value: unknown, origin: string): FrontierFile {
  const parsed = frontierFileSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new HoneError(
    'invalid-config',
    `${origin} is no result of hone frontier fit: ${issue?.path.join('.') ?? ''}: ${issue?.message ?? 'unreadable'}.`,
    { cure: 'Run hone frontier fit again, or give a list of points with effort, cost and success.' },
  );
}

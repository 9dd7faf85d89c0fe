/**
 * The plan of a toy study: its schema, with every range, and how the command's few numbers become one. The default is
 * the recovered configuration of the public study with, beside it, arms that start from a wrong price. Reports every
 * problem of a plan at once.
 */
import { z } from 'zod';

import { HoneError } from '../domain/errors.ts';
import { schemaProblem } from '../domain/schema-problem.ts';
import { RECOVERED_ALPHAS, RECOVERED_PLAN } from './recovered-plan.ts';
import { MAX_BATCH } from './rollout-sampler.ts';
import type { StudyArm, StudyPlan } from './study-record.ts';
import { TOY_PROBLEM_COUNT } from './toy-task.ts';

/** Starting prices as multiples of the true slope, for the arms that show what a wrong start does. */
const WRONG_SLOPES = [3, 1 / 3] as const;
const WRONG_SLOPE_SEEDS = 1;
/** Recorded points of a run beside its start, where the steps allow it. */
const RECORDED_POINTS = 50;
/** Coprime to the size of the grid: taken this far apart, a part of the problems spreads over both of its axes. */
const PROBLEM_STRIDE = 37;

const positive = z.number().positive();
const decayFields = {
  rate: z.number().nonnegative().describe('at the first update'),
  decay: z
    .strictObject({ steps: positive, power: z.number().nonnegative() })
    .nullable()
    .describe('rate x (1 + (t - 1) / steps)^-power; null = constant'),
};

const studyPlanSchema = z.strictObject({
  seed: z.int().min(0).max(0xffffffff),
  problems: z
    .array(
      z
        .int()
        .min(0)
        .max(TOY_PROBLEM_COUNT - 1),
    )
    .min(1)
    .refine((problems) => new Set(problems).size === problems.length, 'names a problem twice')
    .describe('positions in the grid of problems'),
  arms: z
    .array(
      z.strictObject({
        rule: z.discriminatedUnion('kind', [
          z.strictObject({ kind: z.literal('fixed') }),
          z.strictObject({ kind: z.literal('steered'), alpha: z.number().min(0).max(1) }),
        ]),
        slopeFactor: positive.describe('starting price over the true slope'),
        seeds: z.int().positive(),
      }),
    )
    .min(1),
  steps: z.int().positive(),
  batch: z.int().min(1).max(MAX_BATCH).describe('rollouts of one step, all efforts together'),
  actor: z.strictObject({
    ...decayFields,
    optimizer: z.enum(['adam', 'sgd']),
    beta1: z.number().min(0).lt(1),
    beta2: z.number().min(0).lt(1),
    epsilon: positive,
  }),
  baseline: z.enum(['none', 'batch', 'effort', 'leave-one-out', 'length-weighted', 'deviation']),
  controller: z.strictObject({
    ...decayFields,
    proportional: z.number().nonnegative().describe('weight of the change of the gap, in log price'),
    slewLimit: z
      .union([positive, z.literal('actor')])
      .nullable()
      .describe('largest change of log price in one step'),
    clip: z.number().gt(1).nullable().describe('the price stays within start / clip and start x clip'),
    deadZone: z.number().nonnegative().describe('standard deviations of the reference noise'),
  }),
  referenceRollouts: z.int().positive().nullable().describe('an effort; null = exact references'),
  isSkillFrozen: z.boolean(),
  costFloor: z.number().positive().max(1).nullable().describe('of the starting cost'),
  costCeiling: z.number().min(1).nullable().describe('of the starting cost'),
  recordEvery: z.int().positive().describe('steps between two recorded points'),
});

/** The plan itself when it is in range. Throws `invalid-config` with every problem and its value. */
export function checkStudyPlan(plan: unknown, origin = 'The plan of the study'): StudyPlan {
  const parsed = studyPlanSchema.safeParse(plan);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.map((issue) => `${issue.path.join('.') || 'it'} ${schemaProblem(issue, plan)}`);
  throw new HoneError(
    'invalid-config',
    `${origin} has ${problems.length} problem${problems.length === 1 ? '' : 's'}: ${problems.join('; ')}.`,
    { cure: 'Mend these values.' },
  );
}

export interface StudyPlanOptions {
  readonly seed?: number;
  /** Number of problems of the grid, spread over it: 1 .. 100. */
  readonly problems?: number;
  /** Seeds of the arms that start from the true slope. */
  readonly seeds?: number;
  readonly steps?: number;
  /** Rollouts of one step, 1 .. MAX_BATCH. */
  readonly batch?: number;
  /** The steered arms, each in [0, 1], none twice; a fixed price always runs beside them. */
  readonly alphas?: readonly number[];
  /** Also arms from 3 times and a third of the true slope, with one seed: the fixed price, the outer alphas and the middle one. */
  readonly hasWrongSlopes?: boolean;
}

/** The recovered configuration with these changes. Throws `invalid-config` on values out of range. */
export function createStudyPlan(options: StudyPlanOptions = {}): StudyPlan {
  const { problems = TOY_PROBLEM_COUNT, seeds = 3, steps = RECOVERED_PLAN.steps, hasWrongSlopes = true } = options;
  const alphas = (options.alphas ?? RECOVERED_ALPHAS).toSorted((left, right) => left - right);
  if (new Set(alphas).size !== alphas.length) {
    throw new HoneError('invalid-config', `The alphas ${alphas.join(', ')} name one twice.`, {
      cure: 'Name each alpha once.',
    });
  }
  const middle = alphas[Math.floor(alphas.length / 2)];
  const shown = new Set([alphas[0], middle, alphas.at(-1)].filter((alpha) => alpha !== undefined));
  return checkStudyPlan({
    ...RECOVERED_PLAN,
    seed: options.seed ?? RECOVERED_PLAN.seed,
    problems: spreadProblems(problems),
    arms: [
      ...armsOf(alphas, { slopeFactor: 1, seeds }),
      ...WRONG_SLOPES.flatMap((slopeFactor) =>
        hasWrongSlopes ? armsOf([...shown], { slopeFactor, seeds: WRONG_SLOPE_SEEDS }) : [],
      ),
    ],
    steps,
    batch: options.batch ?? RECOVERED_PLAN.batch,
    recordEvery: Math.max(1, Math.floor(steps / RECORDED_POINTS)),
  });
}

function armsOf(alphas: readonly number[], start: Pick<StudyArm, 'slopeFactor' | 'seeds'>): StudyArm[] {
  return [
    { rule: { kind: 'fixed' }, ...start },
    ...alphas.map((alpha): StudyArm => ({ rule: { kind: 'steered', alpha }, ...start })),
  ];
}

function spreadProblems(count: number): number[] {
  if (!Number.isInteger(count) || count < 1 || count > TOY_PROBLEM_COUNT) {
    throw new HoneError('invalid-config', `The study is to have ${count} problems.`, {
      cure: `The grid has ${TOY_PROBLEM_COUNT}: give a whole number from 1 to ${TOY_PROBLEM_COUNT}.`,
    });
  }
  return Array.from({ length: count }, (_, place) => (place * PROBLEM_STRIDE) % TOY_PROBLEM_COUNT).toSorted(
    (left, right) => left - right,
  );
}

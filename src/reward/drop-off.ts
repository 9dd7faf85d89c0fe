/**
 * What waiting costs, read from a histogram of how long users stayed: the penalty of a latency is the share of users
 * that had left by then, linear between bucket midpoints, 0 where nobody had to wait and 1 in the tail.
 * Sessions that ended before the user left are right-censored; the share is Kaplan and Meier's (1958), which without
 * them is the plain empirical distribution. Invariant: non-decreasing and continuous in latency, within [0, 1].
 * Source: SWE-check's latency penalty, in the literal reading (`minmax`) and two variants.
 */
import { z } from 'zod';

import { HoneError } from '../domain/errors.ts';

const count = z.number('is not a finite number').nonnegative('is below 0: counts are numbers of sessions');

export const dropOffSchema = z
  .strictObject({
    edges: z
      .array(z.union([z.number(), z.literal('inf')], "is neither a finite number nor 'inf'"))
      .min(2, 'has fewer than 2 edges: a bucket needs both of its ends')
      .describe("seconds at which the buckets begin and end, ascending, one more than counts; the last may be 'inf'"),
    counts: z.array(count).describe('sessions whose user left within the bucket'),
    censored: z
      .array(count)
      .optional()
      .describe('sessions that ended within the bucket for another reason than the user leaving; default none'),
    variant: z
      .enum(['minmax', 'origin', 'mid'])
      .default('minmax')
      .describe(
        'minmax = 0 up to the first midpoint; origin = grows from 0 seconds on; mid = minmax with each bucket counted half at its own midpoint',
      ),
    openTailSeconds: z
      .number()
      .positive()
      .optional()
      .describe("seconds that the bucket up to 'inf' is taken to last; default the width of the bucket before it"),
  })
  .superRefine((histogram, context) => {
    for (const message of histogramProblems(histogram)) context.addIssue({ code: 'custom', message });
  });
export type DropOffHistogram = z.input<typeof dropOffSchema>;

/** Plain JSON. Knots ascend in both columns, from penalty 0 to penalty 1. */
export interface DropOff {
  readonly knots: readonly { readonly seconds: number; readonly penalty: number }[];
  /** The first bucket holds all departures, so that the variant has no range: `origin` took its place. */
  readonly fallback: boolean;
}

/**
 * The penalty's knots. With m_i the midpoints, F_i the share that left by the end of bucket i and n buckets:
 * minmax (F_i - F_1) / (F_n - F_1); origin (0, 0) and F_i / F_n; mid as minmax with (F_(i-1) + F_i) / 2 for F_i.
 * Throws `invalid-config` on a histogram that the schema refuses, with every problem in the message.
 */
export function fitDropOff(histogram: DropOffHistogram): DropOff {
  const parsed = dropOffSchema.safeParse(histogram);
  if (!parsed.success) {
    const problems = parsed.error.issues.map(({ path, message }) => `${path.join('.')} ${message}`.trim());
    throw new HoneError('invalid-config', `The drop-off histogram cannot be used: ${problems.join('; ')}.`, {
      cure: "Give edges in ascending seconds (the last may be 'inf') and, for each bucket, how many users left in it.",
    });
  }
  const { counts, censored, variant } = parsed.data;
  const midpoints = bucketMidpoints(parsed.data);
  const shares = departedShares(counts, censored);
  const levels = variant === 'mid' ? shares.map((share, index) => ((shares[index - 1] ?? 0) + share) / 2) : shares;
  const first = levels[0] ?? 0;
  const range = (levels.at(-1) ?? 0) - first;
  const fallback = range === 0;
  if (variant === 'origin' || fallback) {
    const last = shares.at(-1) ?? 1;
    const rest = midpoints.map((seconds, index) => ({ seconds, penalty: (shares[index] ?? 0) / last }));
    return { knots: [{ seconds: 0, penalty: 0 }, ...rest], fallback: variant !== 'origin' };
  }
  return {
    knots: midpoints.map((seconds, index) => ({ seconds, penalty: ((levels[index] ?? 0) - first) / range })),
    fallback: false,
  };
}

/** In [0, 1], for a latency in seconds; +Infinity = 1. Throws `invalid-rollout` on one that is negative or NaN. */
export function latencyPenalty({ knots }: DropOff, seconds: number): number {
  if (!(seconds >= 0)) {
    throw new HoneError('invalid-rollout', `A rollout has a latency of ${seconds} seconds.`, {
      cure: 'Latencies are at least 0; look at the clock that measured it or at the latency model.',
    });
  }
  // The first knot after `seconds`.
  let after = 0;
  let end = knots.length;
  while (after < end) {
    const middle = (after + end) >>> 1;
    if ((knots[middle]?.seconds ?? Infinity) > seconds) end = middle;
    else after = middle + 1;
  }
  const left = knots[after - 1];
  const right = knots[after];
  if (left === undefined) return knots[0]?.penalty ?? 0;
  if (right === undefined) return left.penalty;
  const slope = (right.penalty - left.penalty) / (right.seconds - left.seconds);
  // Rounding must not carry a point above the knot that follows it.
  return Math.min(left.penalty + slope * (seconds - left.seconds), right.penalty);
}

/**
 * Kaplan-Meier by bucket: F_i = 1 - product over j <= i of (1 - d_j / n_j), n_j the sessions still there when bucket j
 * begins. Convention of the 1958 paper for ties: who is censored in a bucket was at risk all through it.
 */
function departedShares(counts: readonly number[], censored: readonly number[] | undefined): number[] {
  // Summed from the end and as a ratio of two sums, so that no factor exceeds 1 and the last is exactly 0 without
  // censoring.
  const factors = counts.map(() => 1);
  let atRisk = 0;
  for (let index = counts.length - 1; index >= 0; index--) {
    const survivors = atRisk + (censored?.[index] ?? 0);
    atRisk = survivors + (counts[index] ?? 0);
    factors[index] = atRisk === 0 ? 1 : survivors / atRisk;
  }
  let surviving = 1;
  return factors.map((factor) => {
    surviving *= factor;
    return 1 - surviving;
  });
}

function bucketMidpoints({
  edges,
  openTailSeconds,
}: {
  readonly edges: readonly (number | 'inf')[];
  readonly openTailSeconds?: number | undefined;
}): number[] {
  // The schema lets only the last edge be open, after at least one finite edge.
  const finite = edges.filter((edge) => edge !== 'inf');
  if (finite.length < edges.length) {
    const start = finite.at(-1) ?? 0;
    finite.push(start + (openTailSeconds ?? start - (finite.at(-2) ?? 0)));
  }
  return finite.slice(1).map((edge, index) => ((finite[index] ?? 0) + edge) / 2);
}

function histogramProblems(histogram: {
  readonly edges: readonly (number | 'inf')[];
  readonly counts: readonly number[];
  readonly censored?: readonly number[] | undefined;
  readonly openTailSeconds?: number | undefined;
}): string[] {
  const { edges, counts, censored, openTailSeconds } = histogram;
  const buckets = edges.length - 1;
  const problems: string[] = [];
  if ((edges[0] ?? 0) === 'inf' || Number(edges[0]) < 0)
    problems.push(`edges begin at ${edges[0]}: begin at 0 seconds or later`);
  for (const [index, edge] of edges.entries()) {
    const previous = edges[index - 1];
    if (edge === 'inf' && index < buckets) problems.push(`edges have inf at place ${index}: only the last may be open`);
    if (typeof edge === 'number' && typeof previous === 'number' && edge <= previous)
      problems.push(`edges go from ${previous} to ${edge}: sort the buckets by time and join empty-width ones`);
  }
  // Fewer than 2 edges are told by the schema of the edges.
  if (buckets > 0 && counts.length !== buckets)
    problems.push(`counts has ${counts.length} entries for ${buckets} buckets: give one a bucket`);
  if (censored !== undefined && censored.length !== counts.length)
    problems.push(`censored has ${censored.length} entries for ${counts.length} counts: give one a bucket`);
  if (counts.every((sessions) => sessions === 0))
    problems.push('counts add up to 0: record sessions until some users have left');
  const isOpen = edges.at(-1) === 'inf';
  if (isOpen && edges.length === 2 && openTailSeconds === undefined)
    problems.push('the only bucket is open and says nothing of time: split it or give openTailSeconds');
  if (!isOpen && openTailSeconds !== undefined)
    problems.push(`openTailSeconds is ${openTailSeconds} but no bucket is open: leave it out or end edges with 'inf'`);
  return problems;
}

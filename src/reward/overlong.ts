/**
 * The soft over-long penalty: nothing while a rollout keeps clear of its limit, then linear down to -1 at the limit.
 * Invariant: it never rises with length, and beyond the limit it stays -1 (printed forms that return to 0 there pay a
 * truncated rollout for being longer). Source: DAPO's soft overlong punishment (arXiv 2503.14476).
 */
import { z } from 'zod';

import { HoneError } from '../domain/errors.ts';

/** The fields that an over-long term of the reward spec is made of; `overlongProblem` says what they may not combine to. */
export const overlongFields = {
  limit: z.number().positive().describe('sampled tokens at which the penalty reaches -1'),
  buffer: z.number().positive().describe('sampled tokens before the limit over which it grows from 0; at most limit'),
};

export interface OverlongLimits {
  readonly limit: number;
  readonly buffer: number;
}

/** What is wrong with the two, as a sentence with the cure; undefined when nothing is. */
export function overlongProblem({ limit, buffer }: OverlongLimits): string | undefined {
  if (!(limit > 0 && Number.isFinite(limit))) return `limit is ${limit}, must be a finite number of tokens above 0`;
  if (!(buffer > 0 && buffer <= limit)) return `buffer is ${buffer}: give tokens above 0 and at most limit (${limit})`;
  return undefined;
}

/**
 * In [-1, 0], for a length in sampled tokens: 0 up to limit - buffer, (limit - buffer - length) / buffer up to limit,
 * -1 beyond. Throws `invalid-rollout` on a length that is negative or NaN, `invalid-config` unless 0 < buffer <= limit.
 */
export function overlongPenalty(length: number, limits: OverlongLimits): number {
  const problem = overlongProblem(limits);
  if (problem !== undefined) {
    throw new HoneError('invalid-config', `The over-long penalty cannot be computed: ${problem}.`, {
      cure: 'Set limit to the token limit of the harness and buffer to a fifth of it.',
    });
  }
  if (!(length >= 0)) {
    throw new HoneError('invalid-rollout', `A rollout has the length ${length}.`, {
      cure: 'Lengths are at least 0 tokens; look at the recorder that counted.',
    });
  }
  const { limit, buffer } = limits;
  const start = limit - buffer;
  if (length <= start) return 0;
  return Math.max((start - length) / buffer, -1);
}

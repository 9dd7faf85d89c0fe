/**
 * A sealed session as JSON, on its way from the router that recorded it to whoever trains on it: arrays as base64 of their
 * little-endian bytes. Invariant: what is read is what was sealed, to the bit, and is checked as segments are.
 */
import { z } from 'zod';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { policyVersion } from '../../domain/ids.ts';
import { checkSegment } from '../../domain/rollout.ts';
import type { Segment } from '../../domain/rollout.ts';
import { schemaProblem } from '../../domain/schema-problem.ts';
import type { SealedSession } from '../session.ts';
import { decodeBase64, decodeFloat32, decodeInt32, encodeBase64 } from '../wire/base64-array.ts';

const count = z.int().min(0);

const schema = z.strictObject({
  segments: z.array(
    z.strictObject({
      tokens: z.string(),
      trained: z.string(),
      logprobs: z.string(),
      keptIds: z.string(),
      keptOffsets: z.string(),
      versions: z.array(z.strictObject({ version: count, start: count, end: count })),
      temperature: z.number().positive(),
    }),
  ),
  cost: z.strictObject({ tokens: count, sampledTokens: count, turns: count, toolSeconds: z.number().min(0) }),
  stats: z.strictObject({ turns: count, replayedRetries: count, newSegments: count, truncated: z.boolean() }),
  failure: z.string().optional(),
  emptyReason: z.string().optional(),
});

export function sealedSessionJson({ segments, cost, stats, failure, emptyReason }: SealedSession): string {
  return JSON.stringify({
    segments: segments.map(({ tokens, trained, logprobs, kept, versions, temperature }) => ({
      tokens: encodeBase64(tokens),
      trained: encodeBase64(trained),
      logprobs: encodeBase64(logprobs),
      keptIds: encodeBase64(kept.ids),
      keptOffsets: encodeBase64(kept.offsets),
      versions,
      temperature,
    })),
    cost,
    stats,
    ...(failure === undefined ? {} : { failure }),
    ...(emptyReason === undefined ? {} : { emptyReason }),
  });
}

/** Throws `invalid-rollout` when the text is no sealed session, or its segments break an invariant. */
export function readSealedSession(text: string): SealedSession {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw damaged(reasonOf(error));
  }
  const parsed = schema.safeParse(json);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw damaged(issue === undefined ? 'is none' : `${issue.path.join('.')} ${schemaProblem(issue, json)}`);
  }
  const { segments, cost, stats, failure, emptyReason } = parsed.data;
  const read = segments.map((segment): Segment => ({
    tokens: decodeInt32('tokens', segment.tokens),
    trained: decodeBase64('trained', segment.trained),
    logprobs: decodeFloat32('logprobs', segment.logprobs),
    kept: { ids: decodeInt32('keptIds', segment.keptIds), offsets: decodeInt32('keptOffsets', segment.keptOffsets) },
    versions: segment.versions.map(({ version, start, end }) => ({ version: policyVersion(version), start, end })),
    temperature: segment.temperature,
  }));
  for (const segment of read) checkSegment(segment);
  return { segments: read, cost, stats, failure, emptyReason };
}

function damaged(what: string): HoneError {
  return new HoneError('invalid-rollout', `A sealed session is damaged: ${what}.`, {
    cure: 'Run router and trainer of one release of Hone; the rollout was not trained.',
  });
}

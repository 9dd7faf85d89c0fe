/**
 * The body of `POST /generate`, written and read. Owns the one place where bytes from outside become a request: every field is
 * checked, unknown ones are refused, and a refusal is one sentence with the field, its value and what it must be.
 */
import { z } from 'zod';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { policyVersion, type PolicyVersion } from '../../domain/ids.ts';
import type { GenerateRequest, Sampling } from '../../domain/policy.ts';
import { schemaProblem } from '../../domain/schema-problem.ts';
import { decodeInt32, encodeBase64 } from './base64-array.ts';
import type { GenerateWireRequest } from './generate-wire.ts';

/** Where the kept sets of a reply go. */
export type KeptSetsPlace = NonNullable<GenerateWireRequest['keptSets']>;

export interface DecodedGenerateRequest {
  readonly tokens: Int32Array;
  readonly sampling: Sampling;
  readonly seed: number;
  readonly drawnBefore: number;
  readonly minVersion: PolicyVersion | undefined;
  readonly exactVersion: PolicyVersion | undefined;
  readonly session: string | undefined;
  readonly keptSets: KeptSetsPlace;
}

const MAX_INT32 = 0x7fffffff;
const VERSION = z.int().min(0);

const SCHEMA = z.strictObject({
  tokens: z.string('must be a string: base64 of int32, little-endian'),
  sampling: z.strictObject({
    temperature: z.number().min(0).max(1e6),
    topK: z.int().min(0).max(MAX_INT32),
    topP: z.number().gt(0).max(1),
    minP: z.number().min(0).lt(1),
    maxTokens: z.int().min(1).max(MAX_INT32),
    stopIds: z.array(z.int().min(0).max(MAX_INT32)).max(1024),
    greedy: z.boolean(),
  }),
  seed: z.int().min(0).max(0xffffffff),
  drawnBefore: z.int().min(0).max(MAX_INT32).default(0),
  minVersion: VERSION.optional(),
  exactVersion: VERSION.optional(),
  session: z.string().min(1).max(256).optional(),
  keptSets: z.enum(['inline', 'store']).default('inline'),
});

/** The JSON text of a request; what has its default is left out. */
export function encodeGenerateRequest(
  request:
    | (Omit<GenerateRequest, 'signal' | 'onToken'> & { readonly keptSets?: KeptSetsPlace })
    | DecodedGenerateRequest,
): string {
  const { tokens, sampling, seed, drawnBefore = 0, minVersion, exactVersion, session, keptSets = 'inline' } = request;
  const { temperature, topK, topP, minP, maxTokens, stopIds, greedy } = sampling;
  const wire: GenerateWireRequest = {
    tokens: encodeBase64(tokens),
    sampling: { temperature, topK, topP, minP, maxTokens, stopIds, greedy },
    seed: seed >>> 0,
    ...(drawnBefore > 0 ? { drawnBefore } : {}),
    ...(minVersion === undefined ? {} : { minVersion }),
    ...(exactVersion === undefined ? {} : { exactVersion }),
    ...(session === undefined ? {} : { session }),
    ...(keptSets === 'inline' ? {} : { keptSets }),
  };
  return JSON.stringify(wire);
}

/** Throws `invalid-config` with one sentence when the body is not a request. Whether the model can do it is the engine's to say. */
export function decodeGenerateRequest(body: Uint8Array | string): DecodedGenerateRequest {
  const json = parse(
    typeof body === 'string' ? body : Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString(),
  );
  const checked = SCHEMA.safeParse(json);
  if (!checked.success) {
    const [issue] = checked.error.issues;
    if (issue === undefined) throw refused('The request is not one.');
    throw refused(`${['request', ...issue.path].join('.')} ${schemaProblem(issue, json)}.`);
  }
  const { minVersion, exactVersion, tokens, drawnBefore, session, sampling, seed, keptSets } = checked.data;
  const ids = decodeInt32('request.tokens', tokens);
  if (ids.length === 0) throw refused('request.tokens is empty, must have at least one token.');
  const foreign = ids.find((id) => id < 0);
  if (foreign !== undefined) throw refused(`request.tokens has ${foreign}, must have ids from 0.`);
  if (drawnBefore >= ids.length)
    throw refused(
      `request.drawnBefore is ${drawnBefore}, must be less than the ${ids.length} tokens that it is part of.`,
    );
  if (minVersion !== undefined && exactVersion !== undefined && minVersion > exactVersion)
    throw refused(`request.exactVersion is ${exactVersion}, must be at least minVersion, which is ${minVersion}.`);
  return {
    tokens: ids,
    sampling,
    seed,
    drawnBefore,
    minVersion: minVersion === undefined ? undefined : policyVersion(minVersion),
    exactVersion: exactVersion === undefined ? undefined : policyVersion(exactVersion),
    session,
    keptSets,
  };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw refused(`The body is not JSON: ${reasonOf(error)}.`);
  }
}

function refused(sentence: string): HoneError {
  return new HoneError('invalid-config', sentence, {
    cure: 'Send tokens, sampling and seed in the wire format of src/serve/wire/generate-wire.ts, which docs/clusters.md points to.',
  });
}

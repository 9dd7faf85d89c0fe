/**
 * Answers other than tokens: those that the router makes itself, and what those of replicas say. Owns their JSON and the headers that
 * are passed on. Invariant: a body that is no error of ours says nothing, and never throws.
 */
import { errorBody } from '../service/control-server.ts';
import type { DecodedGenerateRequest } from '../wire/generate-request.ts';
import { GENERATE_STATUS, REPLICA_HEADER } from '../wire/generate-wire.ts';
import type { AnswerHeaders } from './generate-transport.ts';
import { readRetryAfter } from './generate-transport.ts';
import type { ResponseHead } from './response-head.ts';

export interface Refusal {
  readonly status: number;
  readonly headers: AnswerHeaders;
  readonly body: Buffer;
}

const NO_HEADERS: AnswerHeaders = {
  contentType: 'application/json',
  replica: undefined,
  retryAfterSeconds: undefined,
};

export function answerHeaders(head: ResponseHead | undefined): AnswerHeaders {
  if (head === undefined) return NO_HEADERS;
  return {
    contentType: head.headers.get('content-type') ?? 'text/event-stream',
    replica: head.headers.get(REPLICA_HEADER),
    retryAfterSeconds: readRetryAfter(head.headers.get('retry-after')),
  };
}

/** What an error's body says; nothing where it is none. */
export function readError(body: Buffer | string): { type?: string; message?: string; served?: number } {
  try {
    // Any key may be read of an object; what is not there is undefined.
    const { error } = JSON.parse(body.toString()) as {
      error?: Partial<Record<'type' | 'message' | 'served', unknown>>;
    };
    return {
      ...(typeof error?.type === 'string' ? { type: error.type } : {}),
      ...(typeof error?.message === 'string' ? { message: error.message } : {}),
      ...(typeof error?.served === 'number' ? { served: error.served } : {}),
    };
  } catch {
    return {};
  }
}

/** The version that a refusal for its version names; undefined where it is another one. */
export function servedVersion(body: Buffer | string): number | undefined {
  const { type, served } = readError(body);
  return type === VERSION_NOT_READY ? served : undefined;
}

const VERSION_NOT_READY = 'WeightVersionNotReady';

export function versionRefusal(served: number, { minVersion, exactVersion }: DecodedGenerateRequest): Refusal {
  const asked = exactVersion === undefined ? `at least ${minVersion}` : `exactly ${exactVersion}`;
  const { error } = errorBody(VERSION_NOT_READY, `Version ${served} is served; ${asked} is asked for.`);
  return {
    status: GENERATE_STATUS.versionNotReady,
    headers: { ...NO_HEADERS, retryAfterSeconds: 1 },
    body: Buffer.from(JSON.stringify({ error: { ...error, served } })),
  };
}

export function refusal(status: number, type: string, message: string): Refusal {
  return {
    status,
    headers: { ...NO_HEADERS, retryAfterSeconds: 1 },
    body: Buffer.from(JSON.stringify(errorBody(type, message))),
  };
}

/**
 * `POST /generate`, the one data route of replica and router: a JSON request, answered by server-sent events, one a decode step,
 * so that whoever reads them holds every token with its log-probability, kept set and version before the next one is drawn. The
 * router passes the bytes on as they are. Owns the shapes; typed arrays travel as base64 of their little-endian bytes.
 * Before the first event a refusal is a plain HTTP error `{ error: { type, message, … } }` (statuses below).
 */
import type { PolicyVersion } from '../../domain/ids.ts';
import type { Generation, Sampling } from '../../domain/policy.ts';

export const GENERATE_PATH = '/generate';
/** Names the request through router and replica; one that a replica is already at work on is refused with 409. */
export const REQUEST_ID_HEADER = 'x-hone-request-id';
/** Which replica answered, by id and boot id. */
export const REPLICA_HEADER = 'x-hone-replica';
/** Told to a router: replicas that this request should not go to, as `REPLICA_HEADER` names them, with commas between them. */
export const AVOID_HEADER = 'x-hone-avoid';
/** Names in it at most. */
export const MOST_AVOIDED = 32;

export interface GenerateWireRequest {
  /** int32. */
  readonly tokens: string;
  readonly sampling: Sampling;
  readonly seed: number;
  readonly drawnBefore?: number;
  readonly minVersion?: PolicyVersion;
  readonly exactVersion?: PolicyVersion;
  readonly session?: string;
  /** `store`: kept sets go to the weight store as side data and the last event names the object. Default `inline`. */
  readonly keptSets?: 'inline' | 'store';
}

/** The `data:` of one event. */
export type GenerateWireEvent =
  /** Tokens of one decode step (one, or several when the reader was slow). `kept`: rows in the kept-set code; absent with `store`. */
  | {
      readonly type: 'tokens';
      readonly ids: string;
      readonly logprobs: string;
      readonly kept?: string;
      readonly version: PolicyVersion;
    }
  /** The last event of a whole reply. Versions are those served at admission and at the end. */
  | {
      readonly type: 'end';
      readonly finish: Generation['finish'];
      readonly versionStart: PolicyVersion;
      readonly versionEnd: PolicyVersion;
      /** Number of tokens that were sent, so that a cut stream can never look whole. */
      readonly tokens: number;
      readonly cachedTokens: number;
      /** With `store`: the side-data object that holds the kept sets of this reply. */
      readonly keptObject?: string;
    }
  /** The replica could not go on; what came before is good. A stream that ends without `end` or `error` was cut: the same holds. */
  | { readonly type: 'error'; readonly code: string; readonly message: string };

/** Refusals before the first event. */
export const GENERATE_STATUS = {
  /** A body that is not a request, or asks for what the model cannot do (`context-too-small`). Never retried. */
  invalid: 400,
  unauthorized: 401,
  /** `WeightVersionNotReady` with `served`: the replica woke its reconciler; ask again, here or elsewhere. */
  versionNotReady: 409,
  /** Of a router: every replica that serves is one that the request avoids. */
  allAvoided: 424,
  /** Too many requests wait; `retry-after` in seconds. */
  busy: 429,
  /** Not yet caught up, closing, failed, or no replica: `retry-after` in seconds. */
  unavailable: 503,
} as const;

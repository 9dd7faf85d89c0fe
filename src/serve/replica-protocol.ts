/**
 * What an embedded policy and its replica thread say to each other. Both sides send lists, one a turn of their loop. Every message
 * to the replica carries a ticket, and each ticket is answered once at its end. Tokens of one decode step travel in one message,
 * kept sets in the kept-set code, whatever the number of requests.
 */
import { HoneError } from '../domain/errors.ts';
import type { HoneErrorCode } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { Generation, Sampling } from '../domain/policy.ts';

export interface ReplicaSetup {
  readonly configJson: unknown;
  /** bf16 bytes by tensor name. */
  readonly served: ReadonlyMap<string, Uint8Array>;
  readonly version: PolicyVersion;
  readonly build: 'auto' | 'plain' | 'fma';
  readonly threads: number;
  readonly slots: number;
  readonly contextLength?: number;
  readonly prefillChunk?: number;
  /** What a commit does with the cached rows of requests that have drawn. Default `keep`. */
  readonly inFlight?: 'keep' | 'recompute';
}

export interface ReplicaStats {
  /** Requests being sampled, and those that wait: for a slot, a version or the end of a commit. */
  readonly running: number;
  readonly waiting: number;
  readonly sampledTokens: number;
  /** Prompt tokens that were computed, and those whose keys and values were already there. */
  readonly computedPromptTokens: number;
  readonly cachedPromptTokens: number;
  /** Milliseconds of sampling inside kernels, and outside of them. */
  readonly kernelMs: number;
  readonly outsideMs: number;
}

export interface SubmitMessage {
  readonly type: 'submit';
  readonly ticket: number;
  readonly tokens: Int32Array;
  readonly sampling: Sampling;
  readonly seed: number;
  readonly drawnBefore: number;
  readonly minVersion: PolicyVersion | undefined;
  readonly exactVersion: PolicyVersion | undefined;
  /** A version that is not served yet: wait for it, or be refused at once. */
  readonly unmet: 'wait' | 'refuse';
  /** Send tokens as they are drawn. */
  readonly isStreamed: boolean;
  /** Send all of them at the end. */
  readonly isRecorded: boolean;
}

/** Which requests end before a commit: those bound to the served version, or all that have begun. */
export type CommitMode = 'in-place' | 'quiesce';

export interface CommitMessage {
  readonly type: 'commit';
  readonly ticket: number;
  readonly version: PolicyVersion;
  readonly mode: CommitMode;
  /** Requests that the commit waits for are ended after this. */
  readonly drainMs: number;
}

export type ToReplica =
  | SubmitMessage
  | CommitMessage
  | { readonly type: 'abort'; readonly ticket: number }
  | { readonly type: 'stage'; readonly ticket: number; readonly name: string; readonly bytes: Uint8Array }
  | { readonly type: 'checksums'; readonly ticket: number }
  | { readonly type: 'threads'; readonly ticket: number; readonly threads: number }
  | { readonly type: 'stats'; readonly ticket: number }
  | { readonly type: 'close'; readonly ticket: number };

/** Tokens of one decode step, one a request. */
export interface StepMessage {
  readonly type: 'step';
  readonly version: PolicyVersion;
  readonly tickets: Int32Array;
  readonly ids: Int32Array;
  readonly logprobs: Float32Array;
  /** Kept rows, each in the kept-set code, those of request i at [keptOffsets[i], keptOffsets[i + 1]). */
  readonly kept: Uint8Array;
  readonly keptOffsets: Int32Array;
}

export type FromReplica =
  | {
      readonly type: 'ready';
      readonly contextLength: number;
      readonly build: 'plain' | 'fma';
      /** Bytes of each tensor as it is staged. */
      readonly tensorBytes: ReadonlyMap<string, number>;
    }
  | StepMessage
  /** The request may start; said in the turn in which its version was checked. */
  | { readonly type: 'admitted'; readonly ticket: number; readonly version: PolicyVersion }
  /** Not admitted, or ended by a commit: `not-ready` may be met later, `passed` never here. */
  | {
      readonly type: 'refused';
      readonly ticket: number;
      readonly reason: 'not-ready' | 'passed';
      readonly served: PolicyVersion;
    }
  | {
      readonly type: 'generated';
      readonly ticket: number;
      readonly generation: Generation;
      readonly cachedTokens: number;
      readonly versionEnd: PolicyVersion;
    }
  | { readonly type: 'done'; readonly ticket: number }
  | { readonly type: 'committed'; readonly ticket: number; readonly version: PolicyVersion; readonly pauseMs: number }
  | { readonly type: 'checksums'; readonly ticket: number; readonly checksums: ReadonlyMap<string, string> }
  | { readonly type: 'stats'; readonly ticket: number; readonly stats: ReplicaStats }
  | { readonly type: 'failed'; readonly ticket: number; readonly error: PlainError }
  | { readonly type: 'broken'; readonly error: PlainError };

/** An error that survives the way between threads with its code and cure. */
export interface PlainError {
  readonly code: HoneErrorCode;
  readonly message: string;
  readonly cure: string | undefined;
}

export function toPlainError(error: unknown): PlainError {
  if (error instanceof HoneError) return { code: error.code, message: error.message, cure: error.cure };
  return {
    code: 'engine-failed',
    message: error instanceof Error ? (error.stack ?? error.message) : String(error),
    cure: undefined,
  };
}

export function fromPlainError({ code, message, cure }: PlainError): HoneError {
  return new HoneError(code, message, cure === undefined ? {} : { cure });
}

/** Structured cloning copies the whole buffer behind a view, so views into larger buffers are copied first; shared ones never are. */
export function ownBuffer<T extends Int32Array | Uint8Array>(array: T): T {
  if (array.buffer instanceof SharedArrayBuffer || array.byteLength === array.buffer.byteLength) return array;
  // slice keeps the concrete array type; the generic hides it from the checker.
  return array.slice() as T;
}

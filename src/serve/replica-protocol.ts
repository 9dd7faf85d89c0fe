/**
 * What an embedded policy and its replica thread say to each other. Both sides send lists, one a turn of their loop.
 * Every message to the replica that changes something carries a ticket that comes back once.
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
}

export interface ReplicaStats {
  /** Requests being sampled, and those that wait for a version. */
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
  readonly minVersion: PolicyVersion | undefined;
  readonly exactVersion: PolicyVersion | undefined;
  /** Send tokens as they are drawn. */
  readonly isStreamed: boolean;
}

export type ToReplica =
  | SubmitMessage
  | { readonly type: 'abort'; readonly ticket: number }
  | { readonly type: 'stage'; readonly ticket: number; readonly name: string; readonly bytes: Uint8Array }
  | { readonly type: 'commit'; readonly ticket: number; readonly version: PolicyVersion }
  | { readonly type: 'threads'; readonly ticket: number; readonly threads: number }
  | { readonly type: 'stats'; readonly ticket: number }
  | { readonly type: 'close'; readonly ticket: number };

export type FromReplica =
  | { readonly type: 'ready'; readonly contextLength: number; readonly build: 'plain' | 'fma' }
  | { readonly type: 'tokens'; readonly ticket: number; readonly ids: readonly number[] }
  | { readonly type: 'generated'; readonly ticket: number; readonly generation: Generation }
  | { readonly type: 'done'; readonly ticket: number }
  | { readonly type: 'committed'; readonly ticket: number; readonly version: PolicyVersion; readonly pauseMs: number }
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

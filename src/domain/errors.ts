/**
 * The one error root. A `code` says what a caller may branch on; the message says what happened, with which
 * value, and the cure. Outcomes that a caller must handle are unions, not errors (see docs/decisions).
 */

export type HoneErrorCode =
  | 'invalid-config'
  | 'invalid-model'
  | 'invalid-tokenizer'
  | 'invalid-safetensors'
  | 'invalid-task'
  | 'invalid-rollout'
  | 'context-too-small'
  | 'run-locked'
  | 'run-config-changed'
  | 'store-failed'
  | 'store-unavailable'
  | 'store-denied'
  | 'pointer-conflict'
  | 'pointer-rewind'
  | 'delta-base-mismatch'
  | 'checksum-mismatch'
  | 'non-finite-gradient'
  | 'runtime-too-old'
  | 'corpus-missing'
  | 'engine-failed'
  | 'version-not-ready'
  | 'no-replica'
  | 'unauthorized'
  | 'aborted';

export class HoneError extends Error {
  readonly code: HoneErrorCode;
  /** What the user can do about it: one sentence, printed after the message. */
  readonly cure: string | undefined;

  constructor(code: HoneErrorCode, message: string, options: { cure?: string; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'HoneError';
    this.code = code;
    this.cure = options.cure;
  }
}

/** What went wrong, in the words of the cause: for the end of a sentence. */
export function reasonOf(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}

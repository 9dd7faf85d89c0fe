/**
 * What a codec pool and its worker threads say to each other. A job carries a ticket that comes back exactly once, with a result or
 * an error; an abort travels through shared memory, because a worker in the middle of a tensor reads no messages.
 */
import { HoneError, type HoneErrorCode } from '../../domain/errors.ts';
import type { BytePlace } from '../tensor-place.ts';
import type { ApplyTensorJob, ChecksumFormat, CopyTensorJob, EncodedTensor, EncodeTensorJob } from './delta-codec.ts';

export type CodecJob =
  | { readonly kind: 'encode'; readonly job: EncodeTensorJob }
  | { readonly kind: 'apply'; readonly job: ApplyTensorJob }
  | { readonly kind: 'copy'; readonly job: CopyTensorJob }
  | { readonly kind: 'checksum'; readonly place: BytePlace; readonly format: ChecksumFormat };

export type CodecResult =
  | { readonly kind: 'encode'; readonly encoded: EncodedTensor }
  | { readonly kind: 'apply' }
  | { readonly kind: 'copy' | 'checksum'; readonly checksum: string };

export interface ToCodecWorker {
  readonly ticket: number;
  /** Where the worker looks for an abort of this job. */
  readonly slot: number;
  readonly job: CodecJob;
}

export type FromCodecWorker =
  | { readonly type: 'ready' }
  | { readonly type: 'done'; readonly ticket: number; readonly result: CodecResult }
  | { readonly type: 'failed'; readonly ticket: number; readonly error: PlainError };

export interface CodecWorkerData {
  readonly deltaKernels: WebAssembly.Module;
  /** One word a slot; not 0 = give the job up. */
  readonly aborts: Int32Array;
}

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

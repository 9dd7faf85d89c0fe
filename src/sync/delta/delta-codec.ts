/**
 * The delta of one tensor as bytes: what is stored under the tensor's name in a version's safetensors files. Three encodings:
 * `sparse` (Hone's default), and the byte-wise `xor` and `overwrite` that slime, miles, stitch and ModelExpress read.
 * Invariant: applying a blob to the bytes it was taken against gives exactly the new bytes, proven by their checksum, or throws.
 * Owns the names and the contract; each encoding has its file, and CodecPool runs them on threads.
 */
import type { BytePlace, TensorPlace } from '../tensor-place.ts';

export type DeltaEncoding = 'sparse' | 'xor' | 'overwrite';

/** Checksums of the new bytes of a tensor. Hone writes xxh3-128 and reads both. */
export type ChecksumFormat = 'xxh3-128' | 'adler32';

export interface EncodeTensorJob {
  readonly name: string;
  readonly encoding: DeltaEncoding;
  /** Same dtype, shape and size; both may lie in memory or in files. */
  readonly old: TensorPlace;
  readonly next: TensorPlace;
}

export interface EncodedTensor {
  /** xxh3-128 of the new bytes, 32 hex digits. */
  readonly checksum: string;
  /** Elements of the dtype's width whose bits differ; 0 = nothing is to be stored. */
  readonly changedElements: number;
  readonly elements: number;
  /** The blob's bytes in order; empty when nothing changed. */
  readonly chunks: readonly Uint8Array[];
}

export interface ApplyTensorJob {
  readonly name: string;
  readonly encoding: DeltaEncoding;
  /** The stored bytes. */
  readonly blob: BytePlace;
  readonly from: TensorPlace;
  /** The same place as `from` to change it in place. */
  readonly to: TensorPlace;
  /** What the new bytes must have; anything else is `checksum-mismatch`, naming the tensor. */
  readonly checksum: string;
  readonly checksumFormat: ChecksumFormat;
}

export interface CopyTensorJob {
  readonly name: string;
  readonly from: BytePlace;
  readonly to: BytePlace;
  /** When given, the bytes must have it. */
  readonly checksum?: string;
  readonly checksumFormat?: ChecksumFormat;
}

/**
 * The codec on threads. Each worker holds at most two chunks of a tensor (`CHUNK_BYTES` each) besides the blob's own frames,
 * whatever the tensor's size. Jobs may be given at once; they run as threads come free. A failed job fails alone.
 */
export interface TensorCodec extends AsyncDisposable {
  encode(job: EncodeTensorJob, signal?: AbortSignal): Promise<EncodedTensor>;
  /** Checks the checksum over the new bytes while it writes them. In place, a failure leaves `to` in an unknown state. */
  apply(job: ApplyTensorJob, signal?: AbortSignal): Promise<void>;
  /** Copies and hashes; returns the xxh3-128 of the bytes. */
  copy(job: CopyTensorJob, signal?: AbortSignal): Promise<string>;
  /** xxh3-128 (or the format asked for) of a place. */
  checksum(place: BytePlace, options?: { format?: ChecksumFormat; signal?: AbortSignal }): Promise<string>;
  close(): Promise<void>;
}

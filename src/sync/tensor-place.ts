/**
 * Where the bytes of a tensor lie: in memory that threads share, or in a range of a file. Plain values, so that they pass between
 * threads as they are. Invariant: a place always has exactly `sizeBytes` bytes, row-major and little-endian.
 */
import type { Dtype } from '../tensor/dtype.ts';

export type BytePlace =
  /** `bytes` should lie in a SharedArrayBuffer: others are copied on their way to another thread. */
  | { readonly kind: 'memory'; readonly bytes: Uint8Array }
  | { readonly kind: 'file'; readonly path: string; readonly offset: number; readonly sizeBytes: number };

export interface TensorPlace {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  readonly place: BytePlace;
}

/** All tensors of one version, by name. */
export type TensorPlaces = ReadonlyMap<string, TensorPlace>;

export function placeSizeBytes(place: BytePlace): number {
  return place.kind === 'memory' ? place.bytes.byteLength : place.sizeBytes;
}

/**
 * How bytes are proven on their way through a cluster: an object is cut into chunks of `CHUNK_BYTES` at fixed offsets (the last one
 * is shorter), and each travels and rests with its xxh3-128 digest. Invariant: a chunk's number gives its offset, so any source
 * that has a chunk can give it, and a transfer goes on at any chunk.
 */
import { xxh3 } from '@node-rs/xxhash';

import { compileDeltaKernels, DeltaKernels } from '../delta/delta-kernels.ts';

export const CHUNK_BYTES = 1024 * 1024;
export const DIGEST_BYTES = 16;

export function chunkCountOf(sizeBytes: number): number {
  return Math.ceil(sizeBytes / CHUNK_BYTES);
}

export function chunkSizeOf(sizeBytes: number, chunk: number): number {
  return Math.min(CHUNK_BYTES, sizeBytes - chunk * CHUNK_BYTES);
}

let kernels: DeltaKernels | undefined;

/** Loads the kernels that hash several times as fast as the library; without them digests are the same. */
export async function prepareDigests(): Promise<void> {
  kernels ??= new DeltaKernels(await compileDeltaKernels());
}

/** 32 hex digits, the same form as checksums in a version's index. */
export function chunkDigest(bytes: Uint8Array): string {
  if (kernels !== undefined) {
    kernels.resetHash('tensor');
    kernels.hashBytes('tensor', bytes);
    return kernels.digest('tensor').toString('hex');
  }
  return xxh3
    .xxh128(bytes)
    .toString(16)
    .padStart(2 * DIGEST_BYTES, '0');
}

/**
 * All tensors of one policy version as the bytes that are served, with their checksums.
 * Invariant: checksums belong to exactly these bytes; images are never changed in place, so a version that failed to arrive
 * leaves the one before it whole.
 */
import { xxh3 } from '@node-rs/xxhash';

export interface WeightImage {
  readonly tensors: ReadonlyMap<string, Uint8Array>;
  /** xxh3-128 of each tensor's bytes, 32 hex digits. */
  readonly checksums: ReadonlyMap<string, string>;
}

/** The name that readers of the shared format know it by. */
export const CHECKSUM_FORMAT = 'xxh3-128' as const;

export function checksumOf(bytes: Uint8Array): string {
  return xxh3.xxh128(bytes).toString(16).padStart(32, '0');
}

/** Copies the bytes, so that their owner may go on changing them. */
export function imageOf(tensors: ReadonlyMap<string, Uint8Array>): WeightImage {
  const copies = new Map<string, Uint8Array>();
  const checksums = new Map<string, string>();
  for (const [name, bytes] of tensors) {
    const copy = new Uint8Array(bytes);
    copies.set(name, copy);
    checksums.set(name, checksumOf(copy));
  }
  return { tensors: copies, checksums };
}

/**
 * One checksum over all tensors. A delta carries only what changed; this one also proves that the receiver's unchanged
 * tensors are the publisher's.
 */
export function imageChecksum(image: WeightImage): string {
  const lines = [...image.checksums].map(([name, checksum]) => `${name}\0${checksum}\n`).sort();
  return xxh3.xxh128(lines.join('')).toString(16).padStart(32, '0');
}

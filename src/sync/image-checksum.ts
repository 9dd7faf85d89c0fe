/**
 * One checksum over all tensors of a version. A delta carries only what changed; this one also proves that the receiver's
 * unchanged tensors are the publisher's. Invariant: it depends on names and tensor checksums alone, not on their order.
 */
import { xxh3 } from '@node-rs/xxhash';

/** From the xxh3-128 of each tensor, by name; itself 32 hex digits. */
export function imageChecksum(checksums: ReadonlyMap<string, string>): string {
  const lines = [...checksums].map(([name, checksum]) => `${name}\0${checksum}\n`).sort();
  return xxh3.xxh128(lines.join('')).toString(16).padStart(32, '0');
}

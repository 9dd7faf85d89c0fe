/**
 * Checksums of packed weights, read back out of the forms that the forward pass computes with, in slices short enough to fit between
 * decode steps. Invariant: they are of the bf16 bytes that the forms stand for, whatever was once written.
 */
import type { PackedWeights, ParameterLayout } from './weights.ts';

/** Hashes a tensor's bytes in order. */
export interface TensorHash {
  update(bytes: Uint8Array): void;
  digest(): string;
}

/** bf16 bytes of one slice: well under a millisecond. */
const SLICE_BYTES = 256 * 1024;

/** By tensor name. The weights must not change until it is done. */
export function* readChecksums(
  weights: PackedWeights,
  layout: ParameterLayout,
  createHash: () => TensorHash,
): Generator<undefined, Map<string, string>> {
  const checksums = new Map<string, string>();
  for (const { name } of layout.parameters) {
    const hash = createHash();
    for (const part of weights.partsOf(name, SLICE_BYTES)) {
      const { start, end } = weights.byteRange(name, part);
      const words = new Uint16Array((end - start) / 2);
      weights.read(name, part, words);
      hash.update(new Uint8Array(words.buffer));
      yield;
    }
    checksums.set(name, hash.digest());
  }
  return checksums;
}

/**
 * The WeightStore port: immutable objects by key, and pointers that move only by compare-and-swap.
 * Invariants every adapter keeps (store-conformance.ts): an object is whole or absent and never changes; a swap that reported
 * `swapped` is seen by every later read; of two swaps that expect the same tag at most one succeeds.
 */
import { HoneError } from '../../domain/errors.ts';

export interface WeightStore {
  /**
   * Creates the object if its key is free. `identical`: it already holds exactly these bytes (a retry of the same upload);
   * `different`: the key is taken by other bytes, which stay. Chunks are stored one after the other.
   */
  putObject(key: string, chunks: readonly Uint8Array[]): Promise<'created' | 'identical' | 'different'>;
  /** The whole object, or undefined when the key is free. */
  getObject(key: string): Promise<Uint8Array | undefined>;
  /** Every object key that starts with the prefix, ascending. Pointers are not objects. */
  list(prefix: string): Promise<string[]>;
  /** Removes one object; a free key is fine. */
  remove(key: string): Promise<void>;
  /** The value and the tag to swap against, or undefined while the pointer was never set. */
  readPointer(name: string): Promise<Pointer | undefined>;
  /** Sets the pointer only if its tag is still the expected one (undefined = it must not exist yet). */
  compareAndSwapPointer(name: string, expectedTag: string | undefined, value: string): Promise<'swapped' | 'conflict'>;
}

export interface Pointer {
  readonly value: string;
  /** Opaque: only good for the next swap. */
  readonly tag: string;
}

/** Keys are slash-separated names that are safe as file names and as object keys alike. Throws `store-failed` for any other. */
export function checkStoreKey(key: string): void {
  if (key.split('/').every((name) => /^[A-Za-z0-9_][A-Za-z0-9._-]*$/.test(name))) return;
  throw new HoneError('store-failed', `${JSON.stringify(key)} cannot be a key of a weight store.`, {
    cure: 'Use names of letters, digits, dots, hyphens and underscores, separated by slashes; a run id is part of a key.',
  });
}

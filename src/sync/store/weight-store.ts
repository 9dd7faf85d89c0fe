/**
 * The WeightStore port: immutable objects by key, and pointers that move only by compare-and-swap.
 * Invariants every adapter keeps (store-conformance.ts): an object is whole or absent and never changes; a swap that reported
 * `swapped` is seen by every later read; of two swaps that expect the same tag at most one succeeds.
 * Every call takes a signal and ends in bounded time: an adapter retries what passes and throws `store-unavailable` when it
 * does not pass, `store-denied` when nobody but the owner of the credentials can mend it, `store-failed` for the rest. A call whose
 * signal aborts rejects soon, with the signal's reason.
 */
import { HoneError } from '../../domain/errors.ts';

/** The bytes of an object to store. `chunks` may be called again: a retry reads them anew. */
export interface ObjectBody {
  readonly sizeBytes: number;
  chunks(): Iterable<Uint8Array> | AsyncIterable<Uint8Array>;
}

export interface StoredObject {
  readonly key: string;
  readonly sizeBytes: number;
  /** Milliseconds since 1970 by the store's own clock. */
  readonly modifiedMs: number;
}

/** Half-open range of bytes. */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}

export interface CallOptions {
  readonly signal?: AbortSignal;
}

export interface ListOptions extends CallOptions {
  /**
   * Also keys that a writer took for an object whose bytes never came, or are on their way: for whoever clears away what can no
   * longer become visible. `remove` frees them. A store whose writers take no keys ahead has none.
   */
  readonly withClaims?: boolean;
}

/** What reading a version needs; a cluster's relay offers this much as well. */
export interface ObjectSource {
  /**
   * The object's bytes in order, in chunks of any size, or undefined when the key is free. With a range only those bytes; one that
   * passes the end is `store-failed`. Iterating throws when the stream breaks off and retries did not help.
   */
  readObject(
    key: string,
    options?: CallOptions & { readonly range?: ByteRange },
  ): Promise<AsyncIterable<Uint8Array> | undefined>;
  statObject(key: string, options?: CallOptions): Promise<StoredObject | undefined>;
  /** The value and the tag to swap against, or undefined while the pointer was never set. */
  readPointer(name: string, options?: CallOptions): Promise<Pointer | undefined>;
  /** The object as a file of this machine that may be read in place and does not change; undefined where there is none. */
  localPath(key: string): string | undefined;
  /**
   * Where a source keeps copies of what it reads: resolves when the object is here, whole and checked, so that `localPath` has it
   * until `letGo`. Throws `store-failed` when there is no such object.
   */
  makeLocal?(key: string, options?: CallOptions): Promise<void>;
  /**
   * Once for each `makeLocal` that resolved: the file is read no more. `damaged`: its bytes turned out wrong, so the source looks at its
   * copy and brings the object anew to whoever asks next.
   */
  letGo?(key: string, outcome: 'used' | 'damaged'): Promise<void>;
}

export interface WeightStore extends ObjectSource {
  /** Where the store is, for messages: a folder, or `s3://bucket/prefix`. */
  readonly location: string;
  /**
   * Creates the object if its key is free. `identical`: it already holds exactly these bytes (a retry, or another writer of them);
   * `different`: the key is taken by other bytes, which stay.
   */
  putObject(key: string, body: ObjectBody, options?: CallOptions): Promise<'created' | 'identical' | 'different'>;
  /** Every object whose key starts with the prefix, by ascending key. Pointers are not objects. */
  list(prefix: string, options?: ListOptions): Promise<StoredObject[]>;
  /** Removes one object; a free key is fine. */
  remove(key: string, options?: CallOptions): Promise<void>;
  /** Names of all pointers that start with the prefix, ascending. */
  listPointers(prefix: string, options?: CallOptions): Promise<string[]>;
  /** Sets the pointer only if its tag is still the expected one (undefined = it must not exist yet). */
  compareAndSwapPointer(
    name: string,
    expectedTag: string | undefined,
    value: string,
    options?: CallOptions,
  ): Promise<'swapped' | 'conflict'>;
  removePointer(name: string, options?: CallOptions): Promise<void>;
  /**
   * Tries on scratch keys whether conditional writes hold, a race included. A publisher asks once at its start and refuses to
   * publish when this throws `store-failed`, naming what the store let through.
   */
  probeConditionalWrites(options?: CallOptions): Promise<void>;
}

export interface Pointer {
  readonly value: string;
  /** Opaque: only good for the next swap. */
  readonly tag: string;
}

/** A body of chunks that are already in memory. */
export function bodyOf(...chunks: readonly Uint8Array[]): ObjectBody {
  return { sizeBytes: chunks.reduce((sum, chunk) => sum + chunk.byteLength, 0), chunks: () => chunks };
}

/**
 * The whole object in one array, or undefined when the key is free. For small objects: indexes, manifests. One of more than `maxBytes`
 * is `store-failed` before it fills the memory.
 */
export async function readWhole(
  source: Pick<ObjectSource, 'readObject'>,
  key: string,
  { maxBytes = Infinity, ...options }: CallOptions & { readonly range?: ByteRange; readonly maxBytes?: number } = {},
): Promise<Uint8Array | undefined> {
  const stream = await source.readObject(key, options);
  if (stream === undefined) return undefined;
  const chunks: Uint8Array[] = [];
  let sizeBytes = 0;
  for await (const chunk of stream) {
    sizeBytes += chunk.byteLength;
    if (sizeBytes > maxBytes)
      throw new HoneError('store-failed', `${key} has more than ${maxBytes} bytes, which none of its kind needs.`, {
        cure: 'Find out who wrote it, and remove it from the weight store.',
      });
    chunks.push(chunk);
  }
  return chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks);
}

/** Keys are slash-separated names that are safe as file names and as object keys alike. */
export function isStoreKey(key: string): boolean {
  return key.split('/').every((name) => /^[A-Za-z0-9_][A-Za-z0-9._-]*$/.test(name));
}

/** Throws `store-failed` for what is no key. */
export function checkStoreKey(key: string): void {
  if (isStoreKey(key)) return;
  throw new HoneError('store-failed', `${JSON.stringify(key)} cannot be a key of a weight store.`, {
    cure: 'Use names of letters, digits, dots, hyphens and underscores, separated by slashes; a run id is part of a key.',
  });
}

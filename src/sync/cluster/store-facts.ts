/**
 * What is known of an object of the weight store before its bytes: size and checksum from its version's index, or the size that the
 * store tells. Invariant: where an index speaks of an object, the index is believed and the store is not asked.
 */
import { readIndex } from '../version-chain.ts';
import { formatIdentity, INDEX_FILE, parseIdentity, type VersionIndex } from '../version-directory.ts';
import type { ObjectSource } from '../store/weight-store.ts';
import type { KnownObject } from './relayed-objects.ts';

export interface StoreFactsOptions {
  readonly store: Pick<ObjectSource, 'statObject'>;
  /** Indexes are read through it: from the cache where they are there. */
  readonly objects: () => Pick<ObjectSource, 'readObject'> & { discard(key: string): Promise<void> };
  /** Size of an object that an earlier process began to fetch. */
  readonly cachedSize: (key: string) => number | undefined;
}

const KEPT_INDEXES = 500;

export class StoreFacts {
  readonly #options: StoreFactsOptions;
  readonly #indexes = new Map<string, VersionIndex>();

  constructor(options: StoreFactsOptions) {
    this.#options = options;
  }

  /** The index of a version such as `my-run/weight_v000007`, parsed once. */
  async index(version: string, signal: AbortSignal): Promise<VersionIndex> {
    const known = this.#indexes.get(version);
    if (known !== undefined) return known;
    const objects = this.#options.objects();
    let index: VersionIndex;
    try {
      index = await readIndex(objects, parseIdentity(version, version), { signal });
    } catch (error) {
      // No checksum speaks for an index: one that was damaged on its way must not stay in the cache.
      await objects.discard(`${version}/${INDEX_FILE}`);
      throw error;
    }
    this.#indexes.set(version, index);
    if (this.#indexes.size > KEPT_INDEXES) this.#indexes.delete(this.#indexes.keys().next().value ?? '');
    return index;
  }

  /** Forgets the index of a version whose files are not what it says, so that it is read again. */
  async forget(version: string): Promise<void> {
    const index = this.#indexes.get(version);
    this.#indexes.delete(version);
    const objects = this.#options.objects();
    await objects.discard(`${version}/${INDEX_FILE}`);
    for (const file of new Set(index?.weightMap.values())) await objects.discard(`${version}/${file}`);
  }

  async find(key: string, signal: AbortSignal): Promise<KnownObject | undefined> {
    const { store, cachedSize } = this.#options;
    const version = versionOfKey(key);
    const file = key.slice(key.lastIndexOf('/') + 1);
    if (version !== undefined && file !== INDEX_FILE) {
      const index = await this.index(version, signal);
      const published = index.files?.get(file);
      if (published !== undefined) return { key, ...published, modifiedMs: index.publishedAtMs ?? 0 };
    }
    // Objects never change, so one that is here has the size that the store would tell.
    const sizeBytes = cachedSize(key);
    if (sizeBytes !== undefined) return { key, sizeBytes, checksum: undefined, modifiedMs: 0 };
    const stored = await store.statObject(key, { signal });
    if (stored === undefined) return undefined;
    return { key, sizeBytes: stored.sizeBytes, checksum: undefined, modifiedMs: stored.modifiedMs };
  }
}

/** The version whose directory an object lies in, such as `my-run/weight_v000007`. */
export function versionOfKey(key: string): string | undefined {
  const directory = key.slice(0, Math.max(0, key.lastIndexOf('/')));
  try {
    return formatIdentity(parseIdentity(directory, key));
  } catch {
    return undefined;
  }
}

/**
 * Brings into the cluster, once, the files that its members need to come to a version: from the oldest version that one of them holds.
 * Invariants: a version is begun once, beside one that is still on its way; what failed is brought again at the next call, what is here
 * is not.
 */
import { HoneError, reasonOf } from '../../domain/errors.ts';
import { policyVersion } from '../../domain/ids.ts';
import type { WeightStore } from '../store/weight-store.ts';
import { planChain } from '../version-chain.ts';
import { formatIdentity, type VersionIdentity, type VersionIndex } from '../version-directory.ts';
import type { KnownObject, RelayedObjects } from './relayed-objects.ts';
import type { StoreFacts } from './store-facts.ts';

export interface HeldByMember {
  /** Undefined = the boot model. */
  readonly runId?: string | undefined;
  readonly version: number;
}

export interface VersionIntakeOptions {
  readonly store: WeightStore;
  readonly objects: RelayedObjects;
  readonly facts: StoreFacts;
  /** Monotonic milliseconds. */
  readonly now: () => number;
  readonly signal: AbortSignal;
  readonly onFetched: (version: string, bytes: number, ms: number) => void;
  /** A member cannot be brought to the version from what it holds. */
  readonly onLaggard: (version: string, reason: string) => void;
  /** It is tried again at the next call. */
  readonly onFailure: (version: string, error: unknown) => void;
}

export class VersionIntake {
  readonly #options: VersionIntakeOptions;
  /** The version that is here, or on its way. */
  #brought: string | undefined;
  #isWorking = false;

  constructor(options: VersionIntakeOptions) {
    this.#options = options;
  }

  /** Whether the version is here, with what members needed to come to it when it was brought. */
  has(version: string): boolean {
    return this.#brought === version && !this.#isWorking;
  }

  /** Begins, unless the version is here or on its way. */
  bring(target: VersionIdentity, held: readonly HeldByMember[]): void {
    const { now, signal, onFetched, onFailure } = this.#options;
    const version = formatIdentity(target);
    if (this.#brought === version) return;
    this.#brought = version;
    this.#isWorking = true;
    const startedMs = now();
    const settle = (isHere: boolean): void => {
      if (this.#brought !== version) return; // A newer one is on its way.
      this.#isWorking = false;
      if (!isHere) this.#brought = undefined;
    };
    this.#fetchAll(target, held).then(
      (bytes) => {
        settle(true);
        onFetched(version, bytes, now() - startedMs);
      },
      (error: unknown) => {
        settle(false);
        if (!signal.aborted) onFailure(version, error);
      },
    );
  }

  async #fetchAll(target: VersionIdentity, held: readonly HeldByMember[]): Promise<number> {
    let bytes = 0;
    for (const index of await this.#plan(target, held)) {
      const version = formatIdentity(index.identity);
      const files = [...new Set(index.weightMap.values())].map((file) => `${version}/${file}`);
      const facts = await Promise.all(files.map(async (key) => this.#fetchNeeded(key)));
      for (const { sizeBytes } of facts) bytes += sizeBytes;
    }
    return bytes;
  }

  async #fetchNeeded(key: string): Promise<KnownObject> {
    const facts = await this.#options.objects.fetch(key, this.#options.signal);
    if (facts !== undefined) return facts;
    throw new HoneError('store-failed', `The weight store has no ${key}, which a published version needs.`, {
      cure: 'Restore it from a copy of the store; versions may be pruned only behind a newer full anchor.',
    });
  }

  /** From the oldest version that a member holds; what a joiner needs beyond it comes when it asks. */
  async #plan(target: VersionIdentity, held: readonly HeldByMember[]): Promise<VersionIndex[]> {
    const { facts, signal, onLaggard } = this.#options;
    const oldest = held
      .filter(({ runId, version }) => (runId === undefined || runId === target.runId) && version < target.version)
      .toSorted((one, other) => one.version - other.version)[0];
    if (oldest !== undefined) {
      const from = { runId: oldest.runId, version: policyVersion(oldest.version) };
      try {
        return await planChain(this.#indexSource(), target, from, { signal });
      } catch (error) {
        // A member that cannot come along finds out by itself; the others need the newest version all the same.
        onLaggard(formatIdentity(target), reasonOf(error));
      }
    }
    return [await facts.index(formatIdentity(target), signal)];
  }

  /** The objects as planChain reads them: through the cache, indexes included. */
  #indexSource(): Parameters<typeof planChain>[0] {
    const { store, objects } = this.#options;
    return {
      readObject: async (key, options) => objects.readObject(key, options),
      statObject: async (key, options) => store.statObject(key, options),
      readPointer: async (name, options) => store.readPointer(name, options),
      localPath: () => undefined,
    };
  }
}

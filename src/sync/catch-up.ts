/**
 * Brings local weights to a published version, whatever they hold: plans the chain, fetches the next version while one is applied,
 * and starts over from an anchor (or the boot model) where a change had broken off. Nothing is served from here.
 * Invariant: each version of the chain is applied and proven before the next one begins; what failed leaves nothing in the cache
 * that a retry would trip over.
 */
import { HoneError } from '../domain/errors.ts';
import { applyVersion } from './apply-version.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import {
  discardFetched,
  fetchVersion,
  isDamage,
  type FetchedVersion,
  type FetchOptions,
  type FetchProgress,
} from './fetch-version.ts';
import type { LocalWeights } from './local-weights.ts';
import type { ObjectSource } from './store/weight-store.ts';
import { planChain } from './version-chain.ts';
import { formatIdentity, type VersionIdentity, type VersionIndex } from './version-directory.ts';

export interface CatchUpOptions extends Pick<
  FetchOptions,
  'cacheDirectory' | 'deadlineMs' | 'stallMs' | 'partBytes' | 'partsInFlight'
> {
  readonly codec: TensorCodec;
  readonly weights: LocalWeights;
  readonly signal?: AbortSignal | undefined;
  readonly maxLinks?: number;
  /** Milliseconds of a clock that only goes forward. */
  readonly now: () => number;
  readonly onProgress?: (version: VersionIdentity, progress: FetchProgress) => void;
}

export interface CaughtUp {
  /** Versions that were applied, one after the other. */
  readonly versions: number;
  readonly anchors: number;
  /** Of the weight files that were needed, wherever they lay. */
  readonly bytes: number;
  readonly fetchMs: number;
  readonly applyMs: number;
  /** Where the weights were taken from anew, when what was held could not be used. */
  readonly reseededFrom: 'anchor' | 'boot' | undefined;
}

/** Throws what `planChain`, `fetchVersion` and `applyVersion` throw; the weights then hold some version before, or are dirty. */
export async function catchUp(
  source: ObjectSource,
  target: VersionIdentity,
  options: CatchUpOptions,
): Promise<CaughtUp> {
  const { weights, now, signal, maxLinks, cacheDirectory } = options;
  const wasDirty = weights.held === undefined;
  const call = {
    ...(signal === undefined ? {} : { signal }),
    ...(maxLinks === undefined ? {} : { maxLinks }),
  };
  const startedMs = now();
  let reseededFrom: CaughtUp['reseededFrom'];
  let chain: VersionIndex[];
  try {
    chain = await planChain(source, target, weights.held, call);
    if (wasDirty) reseededFrom = 'anchor';
  } catch (error) {
    // Without an anchor only the model that the run booted from can begin the chain.
    const isGap = error instanceof HoneError && error.code === 'delta-base-mismatch';
    if (!wasDirty || weights.restoreBoot === undefined || !isGap) throw error;
    await weights.restoreBoot({ signal });
    chain = await planChain(source, target, weights.held, call);
    reseededFrom = 'boot';
  }
  const total = { bytes: 0, fetchMs: now() - startedMs, applyMs: 0 };
  const stop = new AbortController();
  const both = signal === undefined ? stop.signal : AbortSignal.any([signal, stop.signal]);
  const fetch = async (index: VersionIndex): Promise<FetchedVersion> => {
    const fetchStartedMs = now();
    const { onProgress } = options;
    const fetched = await fetchVersion(source, index, {
      ...options,
      signal: both,
      onProgress: (progress) => onProgress?.(index.identity, progress),
    });
    total.fetchMs += now() - fetchStartedMs;
    total.bytes += fetched.bytes;
    return fetched;
  };
  let ahead: Promise<FetchedVersion> | undefined;
  try {
    for (const [step, index] of chain.entries()) {
      const fetched = await (ahead ?? fetch(index));
      const following = chain[step + 1];
      ahead = following === undefined ? undefined : fetch(following);
      ahead?.catch(() => undefined); // It is awaited in the next round, or given up below.
      await applyFetched(index, fetched, options, total);
    }
  } catch (error) {
    stop.abort(error);
    await ahead?.then(
      async (fetched) => fetched.letGo('used'),
      () => undefined,
    );
    throw error;
  }
  await discardFetched(cacheDirectory, { runId: target.runId });
  const anchors = chain.filter(({ encoding }) => encoding === undefined).length;
  return { ...total, versions: chain.length, anchors, reseededFrom };
}

async function applyFetched(
  index: VersionIndex,
  fetched: FetchedVersion,
  { codec, weights, signal, cacheDirectory, now }: CatchUpOptions,
  total: { applyMs: number },
): Promise<void> {
  const startedMs = now();
  let outcome: 'used' | 'damaged' = 'used';
  try {
    await applyVersion(codec, { index, paths: fetched.paths, weights, signal });
  } catch (error) {
    if (!isDamage(error)) throw error;
    // Bytes that turned out wrong must not be found here, or at the source, by the next try.
    outcome = 'damaged';
    await discardFetched(cacheDirectory, index.identity);
    if (error.message.includes(formatIdentity(index.identity))) throw error;
    throw new HoneError(error.code, `${formatIdentity(index.identity)}: ${error.message}`, {
      ...(error.cure === undefined ? {} : { cure: error.cure }),
      cause: error,
    });
  } finally {
    total.applyMs += now() - startedMs;
    await fetched.letGo(outcome);
  }
  await discardFetched(cacheDirectory, index.identity);
}

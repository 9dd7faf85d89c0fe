/**
 * A published version rebuilt in memory: the newest anchor read from its files, then the deltas after it, every checksum proven.
 * For whoever needs its tensors without being a replica: a publisher that resumes, the tools. A run whose chain begins at its boot
 * model needs that model. Invariant: what is returned is the version, or an error names the object that is at fault.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { HoneError } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import { proveAnchor, readAnchorTensors } from './anchor-tensors.ts';
import { applyVersion } from './apply-version.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { discardFetched, fetchVersion, type FetchedVersion, type FetchProgress } from './fetch-version.ts';
import { MemoryWeights } from './memory-weights.ts';
import type { ObjectSource } from './store/weight-store.ts';
import type { TensorPlaces } from './tensor-place.ts';
import { planChain } from './version-chain.ts';
import { formatIdentity, type VersionIdentity, type VersionIndex } from './version-directory.ts';

export interface BootWeights {
  readonly version: PolicyVersion;
  readonly tensors: TensorPlaces;
  readonly checksums: ReadonlyMap<string, string>;
}

export interface RestoreContext {
  readonly codec: TensorCodec;
  /** For what a remote store has to send; see `withCache`. */
  readonly cacheDirectory: string;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((index: VersionIndex, progress: FetchProgress) => void) | undefined;
}

/** `boot` is the model that the run booted from; only a chain without an anchor needs it. */
export async function restoreVersion(
  source: ObjectSource,
  target: VersionIdentity,
  { boot, ...context }: RestoreContext & { readonly boot?: BootWeights | undefined },
): Promise<MemoryWeights> {
  const { signal } = context;
  const call = signal === undefined ? {} : { signal };
  let weights: MemoryWeights | undefined;
  for (const index of await planChain(
    source,
    target,
    boot === undefined ? undefined : { version: boot.version },
    call,
  )) {
    if (index.base !== undefined && weights === undefined && boot !== undefined)
      weights = await bootWeightsOf(boot, context);
    weights = await advanceWeights(source, weights, index, context);
  }
  if (weights === undefined)
    throw new HoneError('store-failed', `${formatIdentity(target)} has an empty chain.`, {
      cure: 'Report this: a chain always holds the version that it leads to.',
    });
  return weights;
}

/** The weights after one more version of their chain: an anchor needs none before it. */
export async function advanceWeights(
  source: ObjectSource,
  before: MemoryWeights | undefined,
  index: VersionIndex,
  context: RestoreContext,
): Promise<MemoryWeights> {
  const { codec, cacheDirectory, signal, onProgress } = context;
  const fetched = await fetchVersion(source, index, {
    cacheDirectory,
    codec,
    signal,
    ...(onProgress === undefined ? {} : { onProgress: (progress) => onProgress(index, progress) }),
  });
  try {
    if (index.base === undefined) return await loadAnchor(index, fetched, context);
    if (before === undefined)
      throw new HoneError(
        'delta-base-mismatch',
        `${formatIdentity(index.identity)} needs ${formatIdentity(index.base)}.`,
        {
          cure: 'Rebuild its chain from the anchor on.',
        },
      );
    await applyVersion(codec, { index, paths: fetched.paths, weights: before, signal });
    return before;
  } finally {
    await fetched.letGo('used');
    await discardFetched(cacheDirectory, index.identity);
  }
}

/** The boot model as weights that a chain can be applied to. */
export function bootWeightsOf(
  { version, tensors, checksums }: BootWeights,
  { codec, signal }: Pick<RestoreContext, 'codec' | 'signal'>,
): Promise<MemoryWeights> {
  const held = { runId: undefined, version, checksums };
  return MemoryWeights.copyOf(tensors, held, { codec, ...(signal === undefined ? {} : { signal }) });
}

/** Runs the work with a folder for downloads: the given one, else a temporary one that is removed afterwards. */
export async function withCache<T>(given: string | undefined, work: (directory: string) => Promise<T>): Promise<T> {
  if (given !== undefined) return work(given);
  const directory = await mkdtemp(join(tmpdir(), 'hone-versions-'));
  try {
    return await work(directory);
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

/** An anchor's files hold the tensors as they are: copied, each proven by its checksum. */
async function loadAnchor(
  index: VersionIndex,
  { paths }: FetchedVersion,
  { codec, signal }: RestoreContext,
): Promise<MemoryWeights> {
  const anchor = await readAnchorTensors(index, paths);
  const { runId, version } = index.identity;
  const options = { codec, ...(signal === undefined ? {} : { signal }) };
  const weights = await MemoryWeights.copyOf(anchor.tensors, { runId, version }, options);
  await proveAnchor(index, anchor, { tensors: weights.tensors, checksums: weights.held.checksums, codec, signal });
  return weights;
}

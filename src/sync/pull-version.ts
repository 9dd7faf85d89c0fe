/**
 * A folder of this machine brought to a published version: seeded from the newest anchor of its chain, then the deltas after it; what
 * is there already is not fetched again. Config and tokenizer are the boot model's.
 * Invariant: the folder is the version when this returns; broken off at any point, the next pull goes on or begins anew, and the error
 * says so. A folder that a failed pull made, and that holds no version yet, is gone.
 */
import { existsSync } from 'node:fs';
import { rm, rmdir } from 'node:fs/promises';
import { join } from 'node:path';

import { HoneError } from '../domain/errors.ts';
import { policyVersion } from '../domain/ids.ts';
import { readModelPlaces } from '../tensor/hugging-face-folder.ts';
import { proveAnchor, readAnchorTensors, type AnchorTensors } from './anchor-tensors.ts';
import { applyVersion } from './apply-version.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { discardFetched, fetchVersion, type FetchedVersion, type FetchProgress } from './fetch-version.ts';
import { readFolderState } from './folder-state.ts';
import { FolderWeights, refuseForeign } from './folder-weights.ts';
import { imageChecksum } from './image-checksum.ts';
import type { ObjectSource } from './store/weight-store.ts';
import { placeSizeBytes, type TensorPlaces } from './tensor-place.ts';
import { planChain } from './version-chain.ts';
import { formatIdentity, type VersionIdentity, type VersionIndex } from './version-directory.ts';

/** What a run boots from when no publisher said otherwise. */
const BOOT_VERSION = policyVersion(0);

export interface PullOptions {
  readonly directory: string;
  /** Hugging Face folder that the run booted from. */
  readonly bootModel: string;
  readonly codec: TensorCodec;
  readonly maxShardBytes?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  /** `done` versions of `total` are applied, `index` is at work or was the last one. */
  readonly onProgress?:
    | ((at: { done: number; total: number; index: VersionIndex; fetched: FetchProgress }) => void)
    | undefined;
}

export interface PulledVersion {
  readonly identity: VersionIdentity;
  readonly imageChecksum: string;
  /** Versions that were fetched, oldest first: none when the folder was there already. */
  readonly applied: readonly VersionIdentity[];
  /** Bytes of their weight files. */
  readonly fetchedBytes: number;
  readonly tensors: number;
  readonly modelBytes: number;
}

export async function pullVersion(
  source: ObjectSource,
  target: VersionIdentity,
  options: PullOptions,
): Promise<PulledVersion> {
  try {
    return await pullInto(source, target, options);
  } catch (error) {
    throw await withWhatIsLeft(error, options.directory);
  }
}

/** As `pullVersion`, for a folder that the caller removes when this throws. */
export async function pullInto(
  source: ObjectSource,
  target: VersionIdentity,
  options: PullOptions,
): Promise<PulledVersion> {
  const { directory, bootModel, codec, signal, maxShardBytes } = options;
  const call = signal === undefined ? {} : { signal };
  const cacheDirectory = join(directory, '.fetched');
  const boot = await readModelPlaces(bootModel);
  const applied: VersionIdentity[] = [];
  let fetchedBytes = 0;
  let total = 0;
  let letGo: FetchedVersion['letGo'] | undefined;
  const fetch = async (index: VersionIndex): Promise<ReadonlyMap<string, string>> => {
    const fetched = await fetchVersion(source, index, {
      cacheDirectory,
      codec,
      signal,
      onProgress: (progress) => options.onProgress?.({ done: applied.length, total, index, fetched: progress }),
    });
    fetchedBytes += fetched.bytes;
    ({ letGo } = fetched);
    return fetched.paths;
  };
  const settled = async (index: VersionIndex): Promise<void> => {
    await letGo?.('used');
    await discardFetched(cacheDirectory, index.identity);
    applied.push(index.identity);
    options.onProgress?.({ done: applied.length, total, index, fetched: { doneBytes: 0, totalBytes: 0 } });
  };
  const open = (seed: TensorPlaces, version = BOOT_VERSION): Promise<FolderWeights> =>
    FolderWeights.open(directory, {
      bootModel,
      bootTensors: seed,
      bootVersion: version,
      codec,
      signal,
      ...(maxShardBytes === undefined ? {} : { maxShardBytes }),
    });
  const isNew = !existsSync(directory);
  const state = await readFolderState(directory);
  // Before an anchor is fetched for nothing, and into it.
  if (state === undefined && existsSync(directory)) await refuseForeign(directory);
  const isThere = state?.state === 'whole' || state?.state === 'dirty';
  let weights = isThere ? await open(await readModelPlaces(directory)) : undefined;
  try {
    const held = weights === undefined ? { version: BOOT_VERSION } : weights.held;
    const chain = await planFrom(source, target, held, call);
    total = chain.length;
    if (weights === undefined) {
      const [first] = chain;
      if (first?.base !== undefined || first === undefined) weights = await open(boot);
      else {
        // Seeded from the anchor itself, in the types that are served, which need not be those of the boot model's files.
        const seed = await readAnchorTensors(first, await fetch(first));
        checkFits(first.identity, seed.tensors, boot);
        weights = await open(seed.tensors, first.identity.version);
        await settleSeed(weights, first, { seed, codec, signal });
        await settled(first);
        chain.shift();
      }
    }
    for (const index of chain) {
      await applyVersion(codec, { index, paths: await fetch(index), weights, signal });
      await settled(index);
    }
    const { tensors } = weights;
    return {
      identity: target,
      imageChecksum: imageChecksum(weights.held?.checksums ?? new Map()),
      applied,
      fetchedBytes,
      tensors: tensors.size,
      modelBytes: [...tensors.values()].reduce((sum, { place }) => sum + placeSizeBytes(place), 0),
    };
  } catch (error) {
    // While it is still locked; the boot model's files are no version that a next pull could go on from.
    if (isNew && weights !== undefined && applied.length === 0) await rm(directory, { recursive: true, force: true });
    throw error;
  } finally {
    await letGo?.('used');
    await weights?.close();
    await rm(cacheDirectory, { recursive: true, force: true });
    if (isNew && weights === undefined) await rmdir(directory).catch(() => undefined); // Only if nothing is in it.
  }
}

/** The error with a word on what the folder is now, where there is one that the next pull takes up. */
async function withWhatIsLeft(error: unknown, directory: string): Promise<unknown> {
  if (!(error instanceof HoneError) || error.code === 'run-locked') return error;
  const state = await readFolderState(directory).catch(() => undefined);
  if (state === undefined) return error;
  const left =
    state.state === 'whole'
      ? `${directory} holds ${state.run === undefined ? 'the boot model' : `version ${state.version} of ${state.run}`}; the next pull goes on from there.`
      : `${directory} is there, half changed; the next pull into it begins with an anchor.`;
  return new HoneError(error.code, error.message, {
    cure: error.cure === undefined ? left : `${error.cure} ${left}`,
    cause: error,
  });
}

/** From what is held if the chain leads there; a folder that is ahead, or of another run, starts again from an anchor. */
async function planFrom(
  source: ObjectSource,
  target: VersionIdentity,
  held: { readonly runId?: string | undefined; readonly version: VersionIdentity['version'] } | undefined,
  call: { signal?: AbortSignal },
): Promise<VersionIndex[]> {
  const isBehind = held !== undefined && (held.runId === undefined || held.runId === target.runId);
  return planChain(source, target, isBehind ? held : undefined, call);
}

/** The folder holds the anchor's bytes: proven, it is the anchor's version. */
async function settleSeed(
  weights: FolderWeights,
  index: VersionIndex,
  { seed, ...tools }: { readonly seed: AnchorTensors } & Pick<PullOptions, 'codec' | 'signal'>,
): Promise<void> {
  const { runId, version } = index.identity;
  const checksums = weights.held?.checksums ?? new Map<string, string>();
  try {
    await proveAnchor(index, seed, { tensors: weights.tensors, checksums, ...tools });
  } catch (error) {
    const change = await weights.beginChange({ whole: true });
    for (const name of weights.tensors.keys()) change.target(name);
    await change.abandon(); // Leaves the folder dirty.
    throw error;
  }
  const change = await weights.beginChange({ whole: false });
  await change.finish({ runId, version, checksums });
}

function checkFits(identity: VersionIdentity, published: TensorPlaces, boot: TensorPlaces): void {
  const problems: string[] = [];
  for (const [name, { shape }] of published) {
    const own = boot.get(name);
    if (own === undefined) problems.push(`${name} is not in the model`);
    else if (own.shape.join() !== shape.join())
      problems.push(`${name} has shape [${shape.join(', ')}], in the model [${own.shape.join(', ')}]`);
  }
  if (problems.length === 0) return;
  throw new HoneError(
    'delta-base-mismatch',
    `${formatIdentity(identity)} is of another model than the one that was named: ${problems.join('; ')}.`,
    { cure: 'Name the Hugging Face folder that the run booted from.' },
  );
}

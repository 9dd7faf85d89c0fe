/**
 * Proves published versions: every object has the size and checksum of its index, every tensor that it rebuilds the checksum of
 * its file, all together that of the image. Versions of one run are rebuilt on top of each other, so that all of them cost one pass.
 * Invariant: nothing is called good that was not rebuilt from the bytes in the store.
 */
import { HoneError } from '../domain/errors.ts';
import { throwIfAborted } from './deadline.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { discardFetched, fetchVersion } from './fetch-version.ts';
import type { MemoryWeights } from './memory-weights.ts';
import { advanceWeights, bootWeightsOf, restoreVersion, type BootWeights } from './restore-version.ts';
import type { WeightStore } from './store/weight-store.ts';
import { formatIdentity, INDEX_FILE, type VersionIdentity, type VersionIndex } from './version-directory.ts';

export interface VerifyContext {
  readonly codec: TensorCodec;
  readonly cacheDirectory: string;
  /** The model that the run booted from; only a chain that begins there needs it. */
  readonly boot?: BootWeights | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Called before each version is read. */
  readonly onVersion?: (index: VersionIndex, done: number) => void;
}

export type VerifiedVersion =
  | {
      readonly kind: 'good';
      readonly directory: string;
      readonly imageChecksum: string | undefined;
      /** Objects that were read, the index included, and their bytes without it. */
      readonly objects: number;
      readonly bytes: number;
    }
  /** `error` names the object. */
  | { readonly kind: 'damaged'; readonly directory: string; readonly error: HoneError }
  /** Not looked into further: what it builds on is damaged or missing. */
  | { readonly kind: 'unprovable'; readonly directory: string; readonly needs: string };

/** Verifies the versions in the given order, bases before what builds on them. Throws only when called off. */
export async function verifyVersions(
  store: WeightStore,
  indexes: readonly VersionIndex[],
  context: VerifyContext,
): Promise<VerifiedVersion[]> {
  const results: VerifiedVersion[] = [];
  const bad = new Set<string>();
  let weights: MemoryWeights | undefined;
  let held: string | undefined;
  for (const [done, index] of indexes.entries()) {
    throwIfAborted(context.signal);
    context.onVersion?.(index, done);
    const directory = formatIdentity(index.identity);
    const base = index.base === undefined ? undefined : formatIdentity(index.base);
    try {
      const objects = await verifyObjects(store, index, context);
      if (base !== undefined && base !== held) {
        held = undefined;
        weights = bad.has(base) ? undefined : await restoreBase(store, index.base, context);
        if (weights === undefined) {
          bad.add(directory);
          results.push({ kind: 'unprovable', directory, needs: base });
          continue;
        }
      }
      weights = await advanceWeights(store, weights, index, context);
      held = directory;
      results.push({ kind: 'good', directory, imageChecksum: index.imageChecksum, ...objects });
    } catch (error) {
      if (!(error instanceof HoneError) || context.signal?.aborted === true) throw error;
      held = undefined;
      bad.add(directory);
      results.push({ kind: 'damaged', directory, error });
    }
  }
  return results;
}

/** Undefined when what the version builds on is not there, or is no good itself. */
async function restoreBase(
  store: WeightStore,
  base: VersionIdentity | undefined,
  { boot, ...context }: VerifyContext,
): Promise<MemoryWeights | undefined> {
  if (base === undefined) return undefined;
  if (boot?.version === base.version) return bootWeightsOf(boot, context);
  try {
    return await restoreVersion(store, base, { ...context, boot });
  } catch (error) {
    if (error instanceof HoneError && context.signal?.aborted !== true) return undefined;
    throw error;
  }
}

/** Whole objects against the index; what is downloaded stays in the cache for the rebuilding. */
async function verifyObjects(
  store: WeightStore,
  index: VersionIndex,
  { codec, cacheDirectory, signal }: VerifyContext,
): Promise<{ objects: number; bytes: number }> {
  const directory = formatIdentity(index.identity);
  const { paths, bytes } = await fetchVersion(store, index, { codec, cacheDirectory, signal });
  for (const [file, path] of paths) {
    const expected = index.files?.get(file);
    if (expected === undefined) continue; // Other writers tell none; the tensors' checksums prove the rest.
    const { sizeBytes, checksum } = expected;
    const found = await codec.checksum(
      { kind: 'file', path, offset: 0, sizeBytes },
      signal === undefined ? {} : { signal },
    );
    if (found === checksum) continue;
    await discardFetched(cacheDirectory, index.identity);
    throw new HoneError(
      'checksum-mismatch',
      `${directory}/${file} is damaged: it has checksum ${found}, ${INDEX_FILE} says ${checksum}.`,
      { cure: 'Restore it from a copy of the store, or publish a full anchor.' },
    );
  }
  return { objects: paths.size + 1, bytes };
}

/** What the `hone weights` commands share: the store that a person names, the version they mean, sizes in units. */
import { existsSync, statSync } from 'node:fs';
import { join } from 'node:path';

import { HoneError } from '../domain/errors.ts';
import { chooseVersion } from '../sync/choose-version.ts';
import { CodecPool } from '../sync/delta/codec-pool.ts';
import { withCache } from '../sync/restore-version.ts';
import { openWeightStore } from '../sync/store/open-weight-store.ts';
import type { WeightStore } from '../sync/store/weight-store.ts';
import type { VersionIdentity } from '../sync/version-directory.ts';
import { listVersions, readLatest, type ListedVersion, type StoreListing } from '../sync/version-listing.ts';

/**
 * A folder, a run folder (whose store is `weights/`), or `s3://bucket/prefix`. A folder must exist, and with `isReader` nothing is
 * made in it.
 */
export async function openNamedStore(name: string, { isReader }: { isReader: boolean }): Promise<WeightStore> {
  const options = { environment: process.env, isReader };
  if (/^[a-z][a-z0-9+.-]*:/iu.test(name)) return openWeightStore(name, options);
  const isFolder = existsSync(name) && statSync(name).isDirectory();
  if (!isFolder)
    throw new HoneError('invalid-config', `There is no weight store ${name}.`, {
      cure: 'Name a folder that versions were published to, a run folder such as runs/nano-check, or s3://bucket/prefix.',
    });
  const inRun = join(name, 'weights');
  const isRun = existsSync(join(name, 'config.json')) && existsSync(inRun);
  return openWeightStore(isRun ? inRun : name, options);
}

export interface OpenedStore {
  readonly store: WeightStore;
  readonly listing: StoreListing;
  readonly latest: VersionIdentity | undefined;
}

export async function readNamedStore(name: string): Promise<OpenedStore> {
  const store = await openNamedStore(name, { isReader: true });
  return { store, listing: await listVersions(store), latest: await readLatest(store) };
}

/** The version that the text means, the newest without one; its index must be readable. */
export function versionNamed({ store, listing, latest }: OpenedStore, text: unknown): IndexedVersion {
  const version = chooseVersion(listing, {
    latest,
    text: typeof text === 'string' ? text : undefined,
    location: store.location,
  });
  if (version.problem !== undefined) throw version.problem;
  const { index } = version;
  if (index === undefined)
    throw new HoneError('store-failed', `${version.directory} has no index: its upload was not finished.`, {
      cure: 'Name a version that hone weights ls shows.',
    });
  return { ...version, index };
}

export type IndexedVersion = ListedVersion & { readonly index: NonNullable<ListedVersion['index']> };

/** Runs the work with a codec and a folder for downloads; both are gone afterwards, whatever happened. Ctrl-C calls it off. */
export async function withCodec<T>(
  work: (tools: { codec: CodecPool; cacheDirectory: string; signal: AbortSignal }) => Promise<T>,
): Promise<T> {
  const stop = new AbortController();
  const onSignal = (): void => stop.abort();
  process.once('SIGINT', onSignal);
  process.once('SIGTERM', onSignal);
  try {
    await using codec = await CodecPool.start();
    return await withCache(undefined, (cacheDirectory) => work({ codec, cacheDirectory, signal: stop.signal }));
  } finally {
    process.removeListener('SIGINT', onSignal);
    process.removeListener('SIGTERM', onSignal);
  }
}

/** 1536 -> `1.5 KiB`. */
export function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let size = bytes;
  let unit = 0;
  while (size >= 1023.95 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? size : size.toFixed(size < 9.995 ? 2 : 1)} ${units[unit]}`;
}

/** 0.0123 -> `1.23 %`; a dash for what is not known. */
export function formatShare(share: number | undefined): string {
  if (share === undefined) return '-';
  return `${(100 * share).toFixed(share < 0.0995 ? 2 : 1)} %`;
}

export function formatTime(milliseconds: number): string {
  return new Date(milliseconds).toISOString().replace('T', ' ').slice(0, 19);
}

/** Bytes of the whole model as the newest anchor at or before the version holds it; undefined where there is none. */
export function modelBytes(
  versions: readonly ListedVersion[],
  { runId, version }: VersionIdentity,
): number | undefined {
  return versions.findLast(
    ({ identity, index }) =>
      index !== undefined &&
      index.base === undefined &&
      index.encoding === undefined &&
      identity.runId === runId &&
      identity.version <= version,
  )?.sizeBytes;
}

export function printJson(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value)}\n`);
}

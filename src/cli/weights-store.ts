/** What the `hone weights` commands share: the store that a person names, the version they mean, sizes in units. */
import { existsSync, readFileSync, statSync } from 'node:fs';
import { isAbsolute, join, resolve } from 'node:path';

import { z } from 'zod';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { chooseVersion } from '../sync/choose-version.ts';
import { CodecPool } from '../sync/delta/codec-pool.ts';
import { withCache } from '../sync/restore-version.ts';
import { openWeightStore } from '../sync/store/open-weight-store.ts';
import type { WeightStore } from '../sync/store/weight-store.ts';
import type { VersionIdentity } from '../sync/version-directory.ts';
import { listVersions, readLatest, type ListedVersion, type StoreListing } from '../sync/version-listing.ts';

const LAST_DATE_MS = 8.64e15;

/** What a run folder tells of the run's store; other programs' folders have a `config.json` too. */
const runConfigSchema = z.object({ weights: z.object({ store: z.string().optional() }).optional() });

/**
 * A folder, a run folder (the store of its config, else its `weights/`), or `s3://bucket/prefix`. A folder must exist, and with
 * `isReader` nothing is made in it.
 */
export async function openNamedStore(name: string, { isReader }: { isReader: boolean }): Promise<WeightStore> {
  const options = { environment: process.env, isReader };
  if (isUrl(name)) return openWeightStore(name, options);
  if (!isFolder(name))
    throw new HoneError('invalid-config', `There is no weight store ${name}.`, {
      cure: 'Name a folder that versions were published to, a run folder such as runs/nano-check, or s3://bucket/prefix.',
    });
  const own = join(name, 'weights');
  const configured = storeOfRun(name);
  if (configured === undefined)
    return openWeightStore(existsSync(join(name, 'config.json')) && existsSync(own) ? own : name, options);
  // As the run opened it: a path counts from where hone is called.
  if (!isUrl(configured) && !isFolder(configured))
    throw new HoneError(
      'invalid-config',
      `The run ${name} publishes to ${configured}, which is not a folder${isAbsolute(configured) ? '' : ` of ${resolve('.')}`}.`,
      {
        cure: isAbsolute(configured)
          ? 'Bring the store back to that place, or name it where it is.'
          : 'Call hone from the folder that the run was started in, or name the store where it is.',
      },
    );
  return openWeightStore(configured, options);
}

/** `weights.store` of the run's config; undefined for a run with a store of its own, and for what is no run folder. */
function storeOfRun(folder: string): string | undefined {
  const path = join(folder, 'config.json');
  if (!existsSync(path)) return undefined;
  try {
    return runConfigSchema.parse(JSON.parse(readFileSync(path, 'utf8'))).weights?.store;
  } catch (error) {
    throw new HoneError(
      'invalid-config',
      `${path} does not tell where the run publishes to: ${error instanceof z.ZodError ? z.prettifyError(error).replaceAll('\n', ' ') : reasonOf(error)}.`,
      { cure: 'Restore the file, or name the weight store itself.', cause: error },
    );
  }
}

function isUrl(location: string): boolean {
  return /^[a-z][a-z0-9+.-]*:/iu.test(location);
}

function isFolder(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
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
  const onSignal = (name: NodeJS.Signals): void =>
    stop.abort(new HoneError('aborted', `Called off by ${name}.`, { cure: 'Call it again for the rest.' }));
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

/** As `2026-12-01 00:34:06`; a time that another's clock made too large for a date is the last one that there is. */
export function formatTime(milliseconds: number): string {
  return new Date(Math.max(-LAST_DATE_MS, Math.min(milliseconds, LAST_DATE_MS)))
    .toISOString()
    .replace('T', ' ')
    .slice(0, 19);
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

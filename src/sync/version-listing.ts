/**
 * What version directories a store holds, read from one listing: of any run, visible or not, whole or left behind. For commands and
 * pruning; whoever serves weights follows the pointer instead.
 * Invariant: an object that lies in no version directory is never part of one, so nothing foreign is shown or removed.
 */
import { HoneError } from '../domain/errors.ts';
import { forEachBounded } from './bounded-work.ts';
import type { CallOptions, ListOptions, StoredObject, WeightStore } from './store/weight-store.ts';
import { readIndexBytes } from './version-chain.ts';
import {
  formatIdentity,
  INDEX_FILE,
  LATEST_POINTER,
  parseIdentity,
  parseIndex,
  type VersionIdentity,
  type VersionIndex,
} from './version-directory.ts';

/** Indexes read at a time. */
const READS_IN_FLIGHT = 8;

export interface ListedVersion {
  readonly identity: VersionIdentity;
  /** `<run>/weight_v000007` */
  readonly directory: string;
  /** Undefined = no index: an upload that is not finished, or a removal that broke off. */
  readonly index: VersionIndex | undefined;
  /** Why the index cannot be read, when there is one that cannot. */
  readonly problem: HoneError | undefined;
  /** The index first. */
  readonly objects: readonly StoredObject[];
  readonly sizeBytes: number;
  /** Newest of its objects, by the store's clock. */
  readonly modifiedMs: number;
}

export interface StoreListing {
  /** By run, version, attempt. */
  readonly versions: readonly ListedVersion[];
  /** Everything else. */
  readonly others: readonly StoredObject[];
}

/** With claims a directory in which there is nothing else counts as an upload that is not finished. */
export async function listVersions(store: WeightStore, options: ListOptions = {}): Promise<StoreListing> {
  const directories = new Map<string, { identity: VersionIdentity; objects: StoredObject[] }>();
  const others: StoredObject[] = [];
  for (const object of await store.list('', options)) {
    const identity = identityOf(object.key);
    if (identity === undefined) {
      others.push(object);
      continue;
    }
    const directory = formatIdentity(identity);
    const entry = directories.get(directory) ?? { identity, objects: [] };
    directories.set(directory, entry);
    if (object.key === `${directory}/${INDEX_FILE}`) entry.objects.unshift(object);
    else entry.objects.push(object);
  }
  const ordered = [...directories].sort(([, left], [, right]) => compareIdentities(left.identity, right.identity));
  const versions: ListedVersion[] = Array.from({ length: ordered.length });
  await forEachBounded(ordered.entries(), { limit: READS_IN_FLIGHT, signal: options.signal }, async (entry) => {
    const [at, [directory, { identity, objects }]] = entry;
    const isIndexed = objects[0]?.key === `${directory}/${INDEX_FILE}`;
    versions[at] = {
      identity,
      directory,
      ...(isIndexed ? await readListedIndex(store, identity, options) : { index: undefined, problem: undefined }),
      objects,
      sizeBytes: objects.reduce((sum, object) => sum + object.sizeBytes, 0),
      modifiedMs: objects.reduce((newest, object) => Math.max(newest, object.modifiedMs), 0),
    };
  });
  return { versions, others };
}

/** Whether anything is published, and as what. Throws when the pointer's text names no version. */
export async function readLatest(
  store: Pick<WeightStore, 'readPointer'>,
  options: CallOptions = {},
): Promise<VersionIdentity | undefined> {
  const pointer = await store.readPointer(LATEST_POINTER, options);
  return pointer === undefined ? undefined : parseIdentity(pointer.value, `Pointer ${LATEST_POINTER}`);
}

/**
 * The versions of one run that a pointer named, ascending. Of several directories of one version, those that another builds on were visible, as publishers build only on what
 * the pointer named; where none tells, every one with an index may have been.
 */
export function visibleVersions(
  versions: readonly ListedVersion[],
  pointed: VersionIdentity | undefined,
): readonly ListedVersion[] {
  const bases = new Set<string>();
  for (const { index } of versions) if (index?.base !== undefined) bases.add(formatIdentity(index.base));
  if (pointed !== undefined) bases.add(formatIdentity(pointed));
  const visible: ListedVersion[] = [];
  for (const [version, attempts] of Map.groupBy(versions, ({ identity }) => identity.version)) {
    if (pointed !== undefined && version > pointed.version) continue;
    const built = attempts.filter(({ directory }) => bases.has(directory));
    visible.push(
      ...(built.length > 0 ? built : attempts).filter(
        ({ index, problem }) => index !== undefined || problem !== undefined,
      ),
    );
  }
  return visible;
}

/** One version's index; a damaged one is reported beside the others, not thrown. */
async function readListedIndex(
  store: WeightStore,
  identity: VersionIdentity,
  options: CallOptions,
): Promise<Pick<ListedVersion, 'index' | 'problem'>> {
  const bytes = await readIndexBytes(store, identity, options);
  if (bytes === undefined) return { index: undefined, problem: undefined }; // Removed since the listing.
  try {
    return { index: parseIndex(bytes, identity), problem: undefined };
  } catch (error) {
    if (!(error instanceof HoneError)) throw error;
    return { index: undefined, problem: error };
  }
}

function identityOf(key: string): VersionIdentity | undefined {
  const directory = key.slice(0, Math.max(0, key.lastIndexOf('/')));
  if (!/^[^/]+\/weight_v\d{6,15}(-r[1-9]\d{0,5})?$/.test(directory)) return undefined;
  const identity = parseIdentity(directory, key);
  return formatIdentity(identity) === directory ? identity : undefined;
}

function compareIdentities(left: VersionIdentity, right: VersionIdentity): number {
  if (left.runId !== right.runId) return left.runId < right.runId ? -1 : 1;
  return left.version - right.version || left.attempt - right.attempt;
}

/** `hone weights ls`: every version of a store, one line each. */
import { formatBytes, formatShare, formatTime, modelBytes, openNamedStore, printJson } from './weights-store.ts';
import { HoneError } from '../domain/errors.ts';
import { renderTextTable } from '../frontier/text-table.ts';
import { formatIdentity, type VersionIdentity } from '../sync/version-directory.ts';
import {
  listVersions,
  readLatest,
  visibleVersions,
  type ListedVersion,
  type StoreListing,
} from '../sync/version-listing.ts';
import type { WeightStore } from '../sync/store/weight-store.ts';

interface Row {
  readonly run: string;
  readonly version: number;
  readonly directory: string;
  /** `anchor`, the encoding of a delta, or what is wrong with it. */
  readonly kind: string;
  readonly bytes: number;
  readonly base: string | null;
  readonly publishedMs: number;
  /** Of the full model's bytes. */
  readonly share: number | null;
  readonly latest: boolean;
}

export async function listWeights(name: string, options: Record<string, unknown>): Promise<void> {
  const store = await openNamedStore(name, { isReader: true });
  const listing = await listVersions(store);
  const { latest, problem } = await readPointer(store);
  const rows = rowsOf(listing, latest);
  if (options['json'] === true)
    printJson({
      store: store.location,
      latest: latest === undefined ? null : formatIdentity(latest),
      problem: problem?.message ?? null,
      versions: rows,
    });
  else printTable(rows, { location: store.location, isPointerReadable: problem === undefined });
  // What there is can be seen all the same; the exit says that nobody can follow this store.
  if (problem !== undefined) throw problem;
}

/** The newest version, or why the pointer does not tell it. */
async function readPointer(store: WeightStore): Promise<{ latest?: VersionIdentity | undefined; problem?: HoneError }> {
  try {
    return { latest: await readLatest(store) };
  } catch (error) {
    if (!(error instanceof HoneError)) throw error;
    return { problem: error };
  }
}

function printTable(
  rows: readonly Row[],
  { location, isPointerReadable }: { location: string; isPointerReadable: boolean },
): void {
  if (rows.length === 0) {
    process.stdout.write(
      isPointerReadable ? `Nothing has been published to ${location}.\n` : `${location} has no version.\n`,
    );
    return;
  }
  process.stdout.write(
    `${renderTextTable(
      ['RUN', 'VERSION', 'KIND', 'BASE', 'PUBLISHED (UTC)', 'BYTES', 'OF MODEL'],
      rows.map((row) => [
        row.run,
        `${row.directory.slice(row.run.length + 1)}${row.latest ? ' *' : ''}`,
        row.kind,
        row.base ?? '-',
        formatTime(row.publishedMs),
        formatBytes(row.bytes),
        formatShare(row.share ?? undefined),
      ]),
      { leftColumns: 5 },
    )}\n\n${summary(rows, isPointerReadable)}\n`,
  );
}

function rowsOf({ versions }: StoreListing, latest: VersionIdentity | undefined): Row[] {
  const visible = new Set<ListedVersion>();
  for (const [runId, ofRun] of Map.groupBy(versions, ({ identity }) => identity.runId))
    for (const version of visibleVersions(ofRun, runId === latest?.runId ? latest : undefined)) visible.add(version);
  return versions.map((version) => {
    const { identity, directory, index, sizeBytes } = version;
    const full = modelBytes(versions, identity);
    return {
      run: identity.runId,
      version: identity.version,
      directory,
      kind: kindOf(version, visible.has(version)),
      bytes: sizeBytes,
      base: index?.base === undefined ? null : formatIdentity(index.base).slice(identity.runId.length + 1),
      publishedMs: index?.publishedAtMs ?? version.modifiedMs,
      share: full === undefined ? null : sizeBytes / full,
      latest: latest !== undefined && directory === formatIdentity(latest),
    };
  });
}

function kindOf({ index, problem }: ListedVersion, isVisible: boolean): string {
  if (problem !== undefined) return 'damaged';
  if (index === undefined) return 'unfinished';
  const kind = index.encoding ?? 'anchor';
  return isVisible ? kind : `${kind}, never visible`;
}

function summary(rows: readonly Row[], isPointerReadable: boolean): string {
  const bytes = rows.reduce((sum, row) => sum + row.bytes, 0);
  const latest = rows.find((row) => row.latest)?.directory;
  const count = rows.length === 1 ? '1 version' : `${rows.length} versions`;
  const unmarked = isPointerReadable ? 'nothing is visible yet' : 'which one is the newest cannot be told';
  return `${count}, ${formatBytes(bytes)}; ${latest === undefined ? unmarked : `* is the newest, ${latest}`}`;
}

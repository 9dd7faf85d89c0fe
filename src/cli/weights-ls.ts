/** `hone weights ls`: every version of a store, one line each. */
import { formatBytes, formatShare, formatTime, modelBytes, printJson, readNamedStore } from './weights-store.ts';
import { renderTextTable } from '../frontier/text-table.ts';
import { formatIdentity, type VersionIdentity } from '../sync/version-directory.ts';
import { visibleVersions, type ListedVersion, type StoreListing } from '../sync/version-listing.ts';

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
  const { store, listing, latest } = await readNamedStore(name);
  const rows = rowsOf(listing, latest);
  if (options['json'] === true) {
    printJson({ store: store.location, latest: latest === undefined ? null : formatIdentity(latest), versions: rows });
    return;
  }
  if (rows.length === 0) {
    process.stdout.write(`Nothing has been published to ${store.location}.\n`);
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
    )}\n\n${summary(rows)}\n`,
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

function summary(rows: readonly Row[]): string {
  const bytes = rows.reduce((sum, row) => sum + row.bytes, 0);
  const latest = rows.find((row) => row.latest)?.directory;
  const count = rows.length === 1 ? '1 version' : `${rows.length} versions`;
  return `${count}, ${formatBytes(bytes)}; ${latest === undefined ? 'nothing is visible yet' : `* is the newest, ${latest}`}`;
}

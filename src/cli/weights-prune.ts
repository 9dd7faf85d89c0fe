/** `hone weights prune`: removes what neither the newest versions nor live clusters need. */
import { integerOption } from './options.ts';
import { createProgress } from './progress.ts';
import { formatBytes, formatTime, openNamedStore, printJson } from './weights-store.ts';
import { renderTextTable } from '../frontier/text-table.ts';
import { prune, type PruneReport } from '../sync/prune.ts';
import { formatIdentity } from '../sync/version-directory.ts';

export async function pruneWeights(name: string, options: Record<string, unknown>): Promise<void> {
  const keep = integerOption('--keep', options['keep'], { min: 1 });
  const dryRun = options['dryRun'] === true;
  const store = await openNamedStore(name, { isReader: dryRun });
  const progress = createProgress({ stream: process.stderr, now: () => performance.now() });
  progress.phase(`looking through ${store.location}`);
  const report = await prune(store, {
    keep,
    dryRun,
    nowMs: Date.now(),
    onProgress: ({ done, total, key }) => progress.update(done, total, key),
  });
  progress.end();
  if (options['json'] === true) {
    const { latest, kept, removed, removedSideData, leases, removedObjects, removedBytes } = report;
    printJson({
      store: store.location,
      dryRun,
      latest: latest === undefined ? null : formatIdentity(latest),
      kept,
      removed: removed.map(({ directory, reason, sizeBytes }) => ({ directory, reason, bytes: sizeBytes })),
      removedSideData: removedSideData.map(({ key }) => key),
      leases,
      removedObjects,
      removedBytes,
    });
    return;
  }
  process.stdout.write(`${describe(report, { location: store.location, dryRun })}\n`);
}

function describe(report: PruneReport, { location, dryRun }: { location: string; dryRun: boolean }): string {
  const { latest, kept, removed, removedSideData, leases, removedObjects, removedBytes } = report;
  if (latest === undefined) return `Nothing has been published to ${location}: nothing is to be pruned.`;
  const rows = [
    ...kept.map(({ directory, reason }) => [directory, 'kept', reason, '']),
    ...removed.map(({ directory, reason, sizeBytes }) => [
      directory,
      dryRun ? 'would go' : 'removed',
      reason,
      formatBytes(sizeBytes),
    ]),
  ].sort(([left = ''], [right = '']) => (left < right ? -1 : 1));
  const lines = [renderTextTable(['VERSION', 'DOES', 'WHY', 'BYTES'], rows, { leftColumns: 3 }), ''];
  for (const { cluster, runId, oldestVersion, isLive, honouredUntilMs } of leases)
    lines.push(
      `Lease of cluster ${cluster}: ${runId} from version ${oldestVersion} on, ${isLive ? 'honoured until' : 'not honoured since'} ${formatTime(honouredUntilMs)} UTC.`,
    );
  if (removedSideData.length > 0)
    lines.push(`Side data: ${removedSideData.length} objects ${dryRun ? 'would go' : 'removed'}.`);
  lines.push(
    `${dryRun ? 'Would remove' : 'Removed'} ${removedObjects} objects, ${formatBytes(removedBytes)}; ${kept.length} versions stay.`,
  );
  return lines.join('\n');
}

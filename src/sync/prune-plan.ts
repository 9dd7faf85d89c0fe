/**
 * Which version directories and side data of a store may go: a pure function of what is there, where the pointer is, and what live
 * clusters hold. Invariants: nothing that `latest` needs goes, nothing newer than it, no version that a live lease or the newest K
 * cover, and with a version its whole chain back to the anchor stays. What goes is ordered so that a removal that breaks off
 * anywhere leaves no version without its base.
 */
import { HoneError } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { ReplicaLease } from './replica-leases.ts';
import { parseSideDataKey } from './side-data.ts';
import type { StoredObject } from './store/weight-store.ts';
import { formatIdentity, type VersionIdentity } from './version-directory.ts';
import { visibleVersions, type ListedVersion, type StoreListing } from './version-listing.ts';

/** An upload of another run that began less than this ago may still be going on. */
const UNFINISHED_FOR_MS = 86_400_000;

export interface KeptVersion {
  readonly directory: string;
  /** `latest`, `newest 3`, `lease of eu`, `chain of …`, `newer than latest`, `may be uploading` */
  readonly reason: string;
}

export interface RemovedVersion {
  readonly directory: string;
  readonly reason: 'old' | 'never visible' | 'unfinished';
  /** Index first. */
  readonly objects: readonly StoredObject[];
  readonly sizeBytes: number;
}

export interface PrunePlan {
  readonly kept: readonly KeptVersion[];
  /** In the order in which they must go. */
  readonly removed: readonly RemovedVersion[];
  readonly removedSideData: readonly StoredObject[];
}

export interface PrunePlanInput {
  readonly listing: StoreListing;
  /** What the pointer names. */
  readonly latest: VersionIdentity;
  readonly leases: readonly ReplicaLease[];
  /** Newest visible versions to keep, at least 1. */
  readonly keep: number;
  readonly nowMs: number;
}

export function planPrune({ listing, latest, leases, keep, nowMs }: PrunePlanInput): PrunePlan {
  const kept: KeptVersion[] = [];
  const removed: RemovedVersion[] = [];
  const oldestSideData = new Map<string, number>();
  const live = leases.filter(({ isLive }) => isLive);
  for (const [runId, versions] of Map.groupBy(listing.versions, ({ identity }) => identity.runId)) {
    const pointed = runId === latest.runId ? latest : undefined;
    const run = planRun(versions, { pointed, leases: live.filter((lease) => lease.runId === runId), keep, nowMs });
    kept.push(...run.kept);
    removed.push(...run.removed);
    if (run.oldestNeeded !== undefined) oldestSideData.set(runId, run.oldestNeeded);
  }
  if (!kept.some(({ directory }) => directory === formatIdentity(latest)))
    throw missing(latest, formatIdentity(latest));
  const removedSideData = listing.others.filter(({ key }) => {
    const parsed = parseSideDataKey(key);
    const oldest = parsed === undefined ? undefined : oldestSideData.get(parsed.runId);
    return parsed !== undefined && oldest !== undefined && parsed.version < oldest;
  });
  return { kept, removed, removedSideData };
}

interface RunInput {
  /** Where the pointer is, if this is its run. */
  readonly pointed: VersionIdentity | undefined;
  readonly leases: readonly ReplicaLease[];
  readonly keep: number;
  readonly nowMs: number;
}

function planRun(
  versions: readonly ListedVersion[],
  { pointed, leases, keep, nowMs }: RunInput,
): Pick<PrunePlan, 'kept' | 'removed'> & { readonly oldestNeeded: number | undefined } {
  const byDirectory = new Map(versions.map((version) => [version.directory, version]));
  const reasons = new Map<string, string>();
  /** Keeps the version and everything it builds on; the first reason stays. */
  const retain = (version: ListedVersion, reason: string): void => {
    let at: ListedVersion | undefined = version;
    for (
      let because = reason;
      at !== undefined && !reasons.has(at.directory);
      because = `chain of ${nameOf(version)}`
    ) {
      reasons.set(at.directory, because);
      const base: VersionIdentity | undefined = at.index?.base;
      at = base === undefined ? undefined : byDirectory.get(formatIdentity(base));
    }
  };
  const visible = visibleVersions(versions, pointed);
  if (pointed !== undefined) {
    checkChain(byDirectory, pointed);
    for (const version of versions)
      if (version.directory === formatIdentity(pointed)) retain(version, 'latest');
      else if (version.identity.version > pointed.version) retain(version, 'newer than latest');
  }
  const newest = new Set<PolicyVersion>();
  for (const version of visible.toReversed()) {
    if (newest.size === keep && !newest.has(version.identity.version)) break;
    newest.add(version.identity.version);
    retain(version, `newest ${keep}`);
  }
  for (const lease of leases)
    for (const version of visible)
      if (version.identity.version >= lease.oldestVersion) retain(version, `lease of ${lease.cluster}`);
  // Only of a run that the pointer left, or is about to enter, can an upload still become visible.
  if (pointed === undefined)
    for (const version of versions)
      if (version.index === undefined && version.modifiedMs + UNFINISHED_FOR_MS > nowMs)
        retain(version, 'may be uploading');
  const isVisible = new Set(visible);
  const removed = versions
    .filter(({ directory }) => !reasons.has(directory))
    .toReversed() // What builds on others goes before them.
    .map((version): RemovedVersion => {
      const { directory, objects, sizeBytes, index, problem } = version;
      const unseen = index === undefined && problem === undefined ? 'unfinished' : 'never visible';
      return { directory, objects, sizeBytes, reason: isVisible.has(version) ? 'old' : unseen };
    });
  const needed = [...newest, ...leases.map(({ oldestVersion }) => oldestVersion)];
  return {
    kept: [...reasons].map(([directory, reason]) => ({ directory, reason })),
    removed,
    oldestNeeded: newest.size === 0 ? undefined : Math.min(...needed),
  };
}

/** Nothing is removed from a store whose newest version cannot be rebuilt: what looks useless may be what mends it. */
function checkChain(byDirectory: ReadonlyMap<string, ListedVersion>, latest: VersionIdentity): void {
  for (let identity: VersionIdentity | undefined = latest; identity !== undefined;) {
    const version = byDirectory.get(formatIdentity(identity));
    if (version?.problem !== undefined) throw version.problem;
    if (version?.index === undefined) throw missing(latest, formatIdentity(identity));
    identity = version.index.base;
  }
}

function nameOf({ directory }: ListedVersion): string {
  return directory.slice(directory.indexOf('/') + 1);
}

function missing(latest: VersionIdentity, directory: string): HoneError {
  return new HoneError(
    'store-failed',
    `Nothing was pruned: the newest version, ${formatIdentity(latest)}, needs ${directory}, which the store lacks.`,
    { cure: 'Restore it from a copy, or let the run publish its next full anchor first.' },
  );
}

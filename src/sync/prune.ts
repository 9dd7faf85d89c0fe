/**
 * Removes versions and side data that nobody needs any more; prune-plan.ts decides which.
 * Invariant: a version's index goes before its other objects, so that a reader sees it whole or not at all, and the pointer is
 * looked at once more before anything goes.
 */
import { HoneError } from '../domain/errors.ts';
import { forEachBounded } from './bounded-work.ts';
import { planPrune, type PrunePlan } from './prune-plan.ts';
import { readReplicaLeases, type ReplicaLease } from './replica-leases.ts';
import type { WeightStore } from './store/weight-store.ts';
import { formatIdentity, type VersionIdentity } from './version-directory.ts';
import { listVersions, readLatest } from './version-listing.ts';

/** Objects removed at a time. */
const REMOVALS_IN_FLIGHT = 8;

export interface PruneOptions {
  /** Newest versions to keep, at least 1. */
  readonly keep: number;
  /** Milliseconds since 1970. */
  readonly nowMs: number;
  /** Only says what would go. */
  readonly dryRun?: boolean;
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: { readonly done: number; readonly total: number; readonly key: string }) => void;
}

export interface PruneReport extends PrunePlan {
  readonly latest: VersionIdentity | undefined;
  readonly leases: readonly ReplicaLease[];
  readonly removedObjects: number;
  readonly removedBytes: number;
}

/** An empty plan when nothing was ever published. Throws, with nothing removed, when a lease or the newest version cannot be read. */
export async function prune(store: WeightStore, options: PruneOptions): Promise<PruneReport> {
  const { keep, nowMs, dryRun = false, signal, onProgress } = options;
  const call = signal === undefined ? {} : { signal };
  if (!Number.isSafeInteger(keep) || keep < 1)
    throw new HoneError('invalid-config', `keep is ${keep}, it must be a whole number of at least 1.`, {
      cure: 'The newest version always stays; keep as many as rollouts may be behind.',
    });
  const latest = await readLatest(store, call);
  // Leases before the listing: a cluster that joins later starts from what the pointer names, and that stays.
  const leases = await readReplicaLeases(store, { nowMs, ...call });
  if (latest === undefined)
    return { kept: [], removed: [], removedSideData: [], latest, leases, removedObjects: 0, removedBytes: 0 };
  // A key that a killed writer took is in no other list, so it would stay for ever.
  const listing = await listVersions(store, { ...call, withClaims: true });
  const plan = planPrune({ listing, latest, leases, keep, nowMs });
  const total = plan.removed.reduce((sum, { objects }) => sum + objects.length, 0) + plan.removedSideData.length;
  const bytes =
    plan.removed.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0) +
    plan.removedSideData.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
  const report = { ...plan, latest, leases, removedObjects: total, removedBytes: bytes };
  // Often nothing goes, as after most steps of a run: the store is then asked nothing more.
  if (dryRun || total === 0) return report;
  const now = await readLatest(store, call);
  if (now?.runId === latest.runId ? now.version < latest.version : now === undefined)
    throw new HoneError(
      'pointer-rewind',
      `Nothing was pruned: the pointer went from ${formatIdentity(latest)} to ${now === undefined ? 'nothing' : formatIdentity(now)} meanwhile.`,
      { cure: 'Find out who restores or resets this store, then prune again.' },
    );
  // The store also clears away the unfinished uploads of killed writers when it is asked this.
  await store.probeConditionalWrites(call);
  let done = 0;
  const remove = async (key: string): Promise<void> => {
    await store.remove(key, call);
    onProgress?.({ done: ++done, total, key });
  };
  const bounds = { limit: REMOVALS_IN_FLIGHT, signal };
  for (const { objects } of plan.removed) {
    const [index, ...rest] = objects;
    if (index !== undefined) await remove(index.key);
    await forEachBounded(rest, bounds, ({ key }) => remove(key));
  }
  await forEachBounded(plan.removedSideData, bounds, ({ key }) => remove(key));
  return report;
}

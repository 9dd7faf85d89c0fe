/**
 * Which versions live clusters still need, as one pointer a cluster in the weight store: `leases/<cluster>`. A cluster controller
 * renews its own; pruning reads all of them.
 * Invariant: a lease errs to the safe side. It counts as live a while longer than it says, one from a clock far ahead is live, and
 * text that cannot be understood is an error, never a lease that is skipped.
 */
import { z } from 'zod';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { policyVersion, type PolicyVersion } from '../domain/ids.ts';
import { checkStoreKey, type CallOptions, type WeightStore } from './store/weight-store.ts';

const LEASE_PREFIX = 'leases/';
/** Clocks of clusters may differ by this much from that of whoever prunes. */
const CLOCK_DIFFERENCE_MS = 600_000;
/** Only its own controller writes a lease; more conflicts than this mean that two controllers have one name. */
const MAX_SWAPS = 8;

export interface ReplicaLease {
  readonly cluster: string;
  readonly runId: string;
  /** The oldest version that a replica of the cluster holds or is fetching; it and all that follow are needed. */
  readonly oldestVersion: PolicyVersion;
  /** Milliseconds since 1970 by the cluster's clock. */
  readonly expiresAtMs: number;
  /** Until when pruning keeps to it: a while longer, as clocks differ. */
  readonly honouredUntilMs: number;
  readonly isLive: boolean;
}

const leaseSchema = z.object({
  run_id: z.string().min(1),
  oldest_version: z.int().min(0),
  expires_at_ms: z.number(),
});

/**
 * Takes or renews the cluster's lease. Nothing is written while the one in the store says the same and has more than half of its
 * time left. Throws `pointer-conflict` when others write the same cluster's lease all the time.
 */
export async function writeReplicaLease(
  store: WeightStore,
  lease: {
    readonly cluster: string;
    readonly runId: string;
    readonly oldestVersion: PolicyVersion;
    readonly nowMs: number;
    readonly ttlMs: number;
  },
  options: CallOptions = {},
): Promise<'written' | 'unchanged'> {
  const { cluster, runId, oldestVersion, nowMs, ttlMs } = lease;
  const name = leaseName(cluster);
  const value = JSON.stringify({ run_id: runId, oldest_version: oldestVersion, expires_at_ms: nowMs + ttlMs });
  for (let attempt = 0; attempt < MAX_SWAPS; attempt++) {
    const present = await store.readPointer(name, options);
    const held = present === undefined ? undefined : readableLease(present.value);
    if (held?.run_id === runId && held.oldest_version === oldestVersion) {
      const leftMs = held.expires_at_ms - nowMs;
      if (leftMs > ttlMs / 2 && leftMs <= ttlMs) return 'unchanged';
    }
    if ((await store.compareAndSwapPointer(name, present?.tag, value, options)) === 'swapped') return 'written';
  }
  throw new HoneError('pointer-conflict', `The lease of cluster ${cluster} was taken by others ${MAX_SWAPS} times.`, {
    cure: 'Give each cluster controller a name of its own.',
  });
}

/** Gives the lease up, so that what only this cluster needed can be pruned at once. */
export async function removeReplicaLease(
  store: WeightStore,
  cluster: string,
  options: CallOptions = {},
): Promise<void> {
  await store.removePointer(leaseName(cluster), options);
}

/** All leases by cluster, the ended ones too. One that cannot be read is `store-failed`, naming the cluster. */
export async function readReplicaLeases(
  store: WeightStore,
  { nowMs, ...options }: CallOptions & { readonly nowMs: number },
): Promise<ReplicaLease[]> {
  const leases: ReplicaLease[] = [];
  for (const name of await store.listPointers(LEASE_PREFIX, options)) {
    const pointer = await store.readPointer(name, options);
    if (pointer === undefined) continue; // Given up meanwhile.
    const lease = parseLease(pointer.value, name);
    leases.push({
      cluster: name.slice(LEASE_PREFIX.length),
      runId: lease.run_id,
      oldestVersion: policyVersion(lease.oldest_version),
      expiresAtMs: lease.expires_at_ms,
      honouredUntilMs: lease.expires_at_ms + CLOCK_DIFFERENCE_MS,
      isLive: lease.expires_at_ms + CLOCK_DIFFERENCE_MS > nowMs,
    });
  }
  return leases;
}

function leaseName(cluster: string): string {
  const name = `${LEASE_PREFIX}${cluster}`;
  checkStoreKey(name);
  if (cluster.includes('/'))
    throw new HoneError('store-failed', `${cluster} cannot be the name of a cluster: it holds a slash.`, {
      cure: 'Use letters, digits, dots, hyphens and underscores.',
    });
  return name;
}

function parseLease(text: string, name: string): z.output<typeof leaseSchema> {
  try {
    return leaseSchema.parse(JSON.parse(text));
  } catch (error) {
    throw new HoneError(
      'store-failed',
      `The lease ${name} cannot be read (${error instanceof z.ZodError ? z.prettifyError(error).replaceAll('\n', ' ') : reasonOf(error)}).`,
      { cure: 'Update this program, or remove the lease once no cluster of that name is running.', cause: error },
    );
  }
}

/** A controller replaces a lease of its own that it cannot read. */
function readableLease(text: string): z.output<typeof leaseSchema> | undefined {
  try {
    return parseLease(text, '');
  } catch {
    return undefined;
  }
}

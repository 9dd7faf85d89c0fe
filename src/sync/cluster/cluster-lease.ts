/**
 * A cluster's lease in the weight store: the oldest version that its members still need, so that pruning spares their chain.
 * Invariants: one write at a time; renewed when what is needed changed or a third of the lease is over; a write that fails is told and
 * tried again at the next renewal.
 */
import { reasonOf } from '../../domain/errors.ts';
import { policyVersion } from '../../domain/ids.ts';
import { writeReplicaLease } from '../replica-leases.ts';
import type { WeightStore } from '../store/weight-store.ts';
import type { VersionIdentity } from '../version-directory.ts';
import type { ClusterMemberRecord } from './member-registry.ts';

export interface ClusterLeaseOptions {
  readonly store: WeightStore;
  readonly cluster: string;
  /** How long pruning spares what the members hold, after the last renewal. */
  readonly leaseMs: number;
  /** Longest time for one write. */
  readonly timeoutMs: number;
  /** Monotonic milliseconds. */
  readonly now: () => number;
  /** Milliseconds since 1970. */
  readonly wallMs: () => number;
  readonly signal: AbortSignal;
  readonly onFailure: (reason: string) => void;
}

export class ClusterLease {
  readonly #options: ClusterLeaseOptions;
  #leased: string | undefined;
  #leasedMs = -Infinity;
  #writing: Promise<void> | undefined;

  constructor(options: ClusterLeaseOptions) {
    this.#options = options;
  }

  renew(accepted: VersionIdentity, members: readonly ClusterMemberRecord[]): void {
    const { now, leaseMs, signal } = this.#options;
    if (this.#writing !== undefined || signal.aborted) return;
    const { runId } = accepted;
    // A member that holds nothing of the run yet needs it from its first version on.
    const needed = members.map(({ held }) =>
      held !== undefined && (held.runId ?? runId) === runId ? held.version : 0,
    );
    const oldest = Math.min(accepted.version, ...needed);
    const wanted = `${runId} ${oldest}`;
    if (wanted === this.#leased && now() - this.#leasedMs < leaseMs / 3) return;
    this.#writing = this.#write({ runId, oldest, wanted }).finally(() => {
      this.#writing = undefined;
    });
  }

  /** Resolves when no write is on its way. Never rejects. */
  async settled(): Promise<void> {
    await this.#writing;
  }

  async #write({ runId, oldest, wanted }: { runId: string; oldest: number; wanted: string }): Promise<void> {
    const { store, cluster, leaseMs, timeoutMs, now, wallMs, signal, onFailure } = this.#options;
    const lease = { cluster, runId, oldestVersion: policyVersion(oldest), nowMs: wallMs(), ttlMs: leaseMs };
    try {
      await writeReplicaLease(store, lease, { signal: AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]) });
      this.#leased = wanted;
      this.#leasedMs = now();
    } catch (error) {
      if (!signal.aborted) onFailure(reasonOf(error));
    }
  }
}

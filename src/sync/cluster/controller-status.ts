/** What a controller shows of itself and its members on the status page. Read only. */
import type { VersionIdentity } from '../version-directory.ts';
import type { RelayCounts } from './cluster-protocol.ts';
import type { RefusedPointer } from './followed-version.ts';
import type { ClusterMemberRecord, MemberRegistry } from './member-registry.ts';

export interface ControllerStatus {
  readonly cluster: string;
  readonly store: string;
  readonly runId: string | undefined;
  /** Accepted and announced. */
  readonly version: string | undefined;
  readonly isFetched: boolean;
  readonly storeProblem: string | undefined;
  readonly refusals: readonly RefusedPointer[];
  readonly cachedBytes: number;
  readonly sentBytes: number;
  readonly parentReplacements: number;
  readonly members: readonly MemberStatus[];
}

export interface MemberStatus {
  readonly id: string;
  readonly url: string;
  /** Null = the controller. */
  readonly parent: string | null;
  readonly depth: number;
  readonly isSuspect: boolean;
  readonly held: ClusterMemberRecord['held'];
  /** Undefined for a member that holds nothing, or weights of another run. */
  readonly versionsBehind: number | undefined;
  readonly counts: RelayCounts;
}

export function memberStatus(registry: MemberRegistry, accepted: VersionIdentity | undefined): MemberStatus[] {
  return registry.list().map((member) => ({
    id: member.id,
    url: member.url,
    parent: registry.parentOf(member.id)?.id ?? null,
    depth: registry.depth(member.id),
    isSuspect: member.isSuspect,
    held: member.held,
    versionsBehind: versionsBehind(member, accepted),
    counts: member.counts,
  }));
}

function versionsBehind({ held }: ClusterMemberRecord, accepted: VersionIdentity | undefined): number | undefined {
  if (accepted === undefined) return 0;
  if (held === undefined || (held.runId !== undefined && held.runId !== accepted.runId)) return undefined;
  return Math.max(0, accepted.version - held.version);
}

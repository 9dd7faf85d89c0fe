/**
 * Who is in the cluster: members by lease on a monotonic clock, their place in the broadcast tree, what they hold and how they fare.
 * Owns who gets which parent, and that a parent which failed a child is not given to it again for a while. Invariant: the tree spans
 * exactly the members whose lease runs.
 */
import { depthOf, growTree, type BroadcastTree } from './broadcast-tree.ts';
import type { Heartbeat, ParentFault, ParentReport, RelayCounts } from './cluster-protocol.ts';

export interface ClusterMemberRecord {
  readonly id: string;
  readonly bootId: string;
  url: string;
  /** Monotonic. */
  expiresMs: number;
  held: { readonly runId?: string | undefined; readonly version: number } | undefined;
  /** A child could not be served by it, and it has not been heard of since. */
  isSuspect: boolean;
  counts: RelayCounts;
}

export type MemberEvent =
  | { readonly event: 'member-joined'; readonly member: string; readonly boot: string; readonly parent: string | null }
  | { readonly event: 'member-lost'; readonly member: string; readonly reason: 'lease-ended' | 'left' | 'replaced' }
  | {
      readonly event: 'parent-replaced';
      readonly member: string;
      readonly from: string | null;
      readonly to: string | null;
      readonly reason: ParentFault | 'member-lost';
    };

export interface MemberRegistryOptions {
  readonly fanOut: number;
  readonly leaseMs: number;
  /** How long a parent that failed a child is not given to it again. */
  readonly avoidMs: number;
  /** Monotonic milliseconds. */
  readonly now: () => number;
  readonly onEvent: (event: MemberEvent) => void;
}

export class MemberRegistry {
  readonly #options: MemberRegistryOptions;
  readonly #members = new Map<string, ClusterMemberRecord>();
  /** `child parent`, until when. */
  readonly #avoided = new Map<string, number>();
  readonly #claims = new Map<string, string | null>();
  #tree: BroadcastTree = new Map();
  /** Parents that were replaced since the start. */
  replacements = 0;

  constructor(options: MemberRegistryOptions) {
    this.#options = options;
  }

  /** Registers or renews; another boot id under the same id is a new process in the place of the old one. */
  renew(heartbeat: Heartbeat): ClusterMemberRecord {
    const { now, leaseMs, onEvent } = this.#options;
    this.expire();
    const { id, bootId, url } = heartbeat;
    let member = this.#members.get(id);
    if (member !== undefined && member.bootId !== bootId) {
      onEvent({ event: 'member-lost', member: id, reason: 'replaced' });
      this.#members.delete(id);
      member = undefined;
    }
    const isNew = member === undefined;
    member ??= { id, bootId, url, expiresMs: 0, held: undefined, isSuspect: false, counts: heartbeat.counts };
    member.url = url;
    member.expiresMs = now() + leaseMs;
    member.isSuspect = false;
    member.counts = heartbeat.counts;
    if (heartbeat.held !== undefined) member.held = heartbeat.held;
    if (isNew) {
      this.#members.set(id, member);
      if (heartbeat.parent !== undefined) this.#claims.set(id, heartbeat.parent);
      this.#regrow('member-lost');
      this.#claims.delete(id);
      onEvent({ event: 'member-joined', member: id, boot: bootId, parent: this.#tree.get(id) ?? null });
    }
    return member;
  }

  leave(id: string): boolean {
    if (!this.#members.delete(id)) return false;
    this.#options.onEvent({ event: 'member-lost', member: id, reason: 'left' });
    this.#regrow('member-lost');
    return true;
  }

  /** Ends the leases that ran out. */
  expire(): void {
    const nowMs = this.#options.now();
    let isChanged = false;
    for (const [id, member] of this.#members) {
      if (member.expiresMs > nowMs) continue;
      this.#members.delete(id);
      this.#options.onEvent({ event: 'member-lost', member: id, reason: 'lease-ended' });
      isChanged = true;
    }
    if (isChanged) this.#regrow('member-lost');
  }

  /** A child could not get on with its parent: it gets another one. */
  report(child: string, { parent, fault }: ParentReport): void {
    this.expire();
    if (!this.#members.has(child)) return;
    const record = this.#members.get(parent);
    if (record !== undefined && fault !== 'damaged') record.isSuspect = true;
    this.#avoided.set(edge(child, parent), this.#options.now() + this.#options.avoidMs);
    this.#regrow(fault);
  }

  parentOf(id: string): ClusterMemberRecord | null {
    const parent = this.#tree.get(id) ?? null;
    return parent === null ? null : (this.#members.get(parent) ?? null);
  }

  get(id: string): ClusterMemberRecord | undefined {
    return this.#members.get(id);
  }

  /** By id. */
  list(): ClusterMemberRecord[] {
    return [...this.#members.values()].sort((one, other) => (one.id < other.id ? -1 : 1));
  }

  depth(id: string): number {
    return depthOf(this.#tree, id);
  }

  #regrow(reason: ParentFault | 'member-lost'): void {
    const { fanOut, now, onEvent } = this.#options;
    const nowMs = now();
    for (const [key, untilMs] of this.#avoided) if (untilMs <= nowMs) this.#avoided.delete(key);
    const before = this.#tree;
    this.#tree = growTree(before, this.#members.keys(), {
      fanOut,
      claims: this.#claims,
      isAvoided: (member, parent) =>
        parent !== null &&
        (this.#avoided.has(edge(member, parent)) ||
          (before.get(member) !== parent && this.#members.get(parent)?.isSuspect === true)),
    });
    for (const [member, to] of this.#tree) {
      const from = before.get(member);
      if (from === undefined || from === to) continue;
      this.replacements += 1;
      onEvent({ event: 'parent-replaced', member, from, to, reason });
    }
  }
}

function edge(child: string, parent: string): string {
  return JSON.stringify([child, parent]);
}

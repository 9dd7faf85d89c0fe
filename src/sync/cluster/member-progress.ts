/**
 * Turns what members report into moments of the version timeline: received, staged, committed. Invariant: a member has received a
 * version when it has all the files that the version's index names, however they came.
 */
import { formatIdentity, parseIdentity, type VersionIdentity } from '../version-directory.ts';
import type { MemberProgress } from './cluster-protocol.ts';
import type { ClusterMemberRecord } from './member-registry.ts';
import { versionOfKey, type StoreFacts } from './store-facts.ts';
import type { VersionTimeline } from './version-timeline.ts';

export interface MemberProgressOptions {
  readonly timeline: VersionTimeline;
  readonly facts: StoreFacts;
  /** Of the cluster now. */
  readonly accepted: () => VersionIdentity | undefined;
  /** Milliseconds since 1970. */
  readonly wallMs: () => number;
  readonly signal: AbortSignal;
}

/** Of members and versions; the oldest are forgotten. */
const KEPT_RECEIPTS = 10_000;

export class MemberProgressNotes {
  readonly #options: MemberProgressOptions;
  /** Keys that came, by member, its process and version. */
  readonly #received = new Map<string, Set<string>>();

  constructor(options: MemberProgressOptions) {
    this.#options = options;
  }

  note(member: ClusterMemberRecord, progress: MemberProgress): void {
    const { timeline, wallMs } = this.#options;
    const { runId, version } = progress;
    if (progress.kind !== 'staged') member.held = { runId, version };
    if (runId === undefined || progress.kind === 'holding') return;
    const name = this.#nameOf(runId, version);
    if (name === undefined) return;
    const atMs = wallMs();
    timeline.member(
      name,
      member.id,
      progress.kind === 'staged' ? { stagedMs: atMs } : { committedMs: atMs, pauseMs: progress.pauseMs },
    );
  }

  noteReceived(member: ClusterMemberRecord, key: string): void {
    const { timeline, facts, wallMs, signal } = this.#options;
    const version = versionOfKey(key);
    if (version === undefined || timeline.get(version) === undefined) return;
    const name = JSON.stringify([member.id, member.bootId, version]);
    const keys = this.#received.get(name) ?? new Set();
    this.#received.set(name, keys);
    if (this.#received.size > KEPT_RECEIPTS) this.#received.delete(this.#received.keys().next().value ?? '');
    keys.add(key);
    void facts
      .index(version, signal)
      .then((index) => {
        const files = new Set(index.weightMap.values());
        if ([...files].every((file) => keys.has(`${version}/${file}`)))
          timeline.member(version, member.id, { receivedMs: wallMs() });
      })
      .catch(() => undefined);
  }

  #nameOf(runId: string, version: number): string | undefined {
    const { timeline, accepted } = this.#options;
    const newest = accepted();
    if (newest !== undefined && newest.runId === runId && newest.version === version) return formatIdentity(newest);
    return timeline.list().find((moments) => {
      const identity = parseIdentity(moments.version, moments.version);
      return identity.runId === runId && identity.version === version;
    })?.version;
  }
}

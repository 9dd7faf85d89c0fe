/**
 * When each version was where: published, seen by the controller, its first byte and all of it in the cluster, and received, staged
 * and committed at each member. Wall-clock milliseconds, all but `publishedMs` by the controller's clock. Invariant: a moment is written once:
 * what is reported again changes nothing. Keeps the newest versions only.
 */
export interface MemberMoments {
  receivedMs?: number;
  stagedMs?: number;
  committedMs?: number;
  pauseMs?: number;
}

export interface VersionMoments {
  /** Such as `my-run/weight_v000007`. */
  readonly version: string;
  /** By the publisher's clock. */
  publishedMs?: number;
  readonly seenMs: number;
  firstByteMs?: number;
  fetchedMs?: number;
  /** Of the version's files, when the index tells them. */
  sizeBytes?: number;
  /** Read from the store for this version; 0 when all was here already. */
  bytesFromStore: number;
  readonly members: Record<string, MemberMoments>;
}

const KEPT_VERSIONS = 200;

export class VersionTimeline {
  readonly #versions = new Map<string, VersionMoments>();

  see(
    version: string,
    seenMs: number,
    published: { readonly atMs: number | undefined; readonly sizeBytes: number | undefined },
  ): void {
    if (this.#versions.has(version)) return;
    this.#versions.set(version, {
      version,
      ...(published.atMs === undefined ? {} : { publishedMs: published.atMs }),
      seenMs,
      ...(published.sizeBytes === undefined ? {} : { sizeBytes: published.sizeBytes }),
      bytesFromStore: 0,
      members: {},
    });
    if (this.#versions.size > KEPT_VERSIONS) this.#versions.delete(this.#versions.keys().next().value ?? '');
  }

  addBytes(version: string, sizeBytes: number, atMs: number): void {
    const moments = this.#versions.get(version);
    if (moments === undefined) return;
    moments.firstByteMs ??= atMs;
    moments.bytesFromStore += sizeBytes;
  }

  fetched(version: string, atMs: number): void {
    const moments = this.#versions.get(version);
    if (moments !== undefined) moments.fetchedMs ??= atMs;
  }

  member(version: string, member: string, moment: Readonly<MemberMoments>): void {
    const moments = this.#versions.get(version);
    if (moments === undefined) return;
    moments.members[member] = { ...moment, ...moments.members[member] };
  }

  get(version: string): Readonly<VersionMoments> | undefined {
    return this.#versions.get(version);
  }

  /** Oldest first. */
  list(): readonly Readonly<VersionMoments>[] {
    return [...this.#versions.values()];
  }
}

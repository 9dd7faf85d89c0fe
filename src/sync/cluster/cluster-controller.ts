/**
 * The controller of one inference cluster: follows the store's pointer, brings each new version in once, and tells members what is new and
 * whom to fetch it from. Invariants: what is announced never goes back and never changes to another run (what the store says instead is
 * refused and told); the bytes of an object are read from the store once while they are in the cache; a controller that is killed and
 * started again goes on with the run, the version and the bytes it had. Long because it is where the cluster's parts meet; each decides in a
 * file of its own.
 */
import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { join } from 'node:path';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { lockFolder, type FolderLock } from '../../tensor/folder-lock.ts';
import { makeFolder } from '../../tensor/make-folder.ts';
import { formatIdentity, LATEST_POINTER, parseIdentity, type VersionIndex } from '../version-directory.ts';
import type { WeightStore } from '../store/weight-store.ts';
import { AnnouncementBoard } from './announcement-board.ts';
import { carriedObjects } from './carried-objects.ts';
import { ClusterLease } from './cluster-lease.ts';
import type { Announcement, Heartbeat, HeartbeatReply, ParentReport } from './cluster-protocol.ts';
import { memberStatus, type ControllerStatus } from './controller-status.ts';
import { FollowedVersion } from './followed-version.ts';
import { MemberProgressNotes } from './member-progress.ts';
import { MemberRegistry, type MemberEvent } from './member-registry.ts';
import { downloadObject } from './object-download.ts';
import { RelayedObjects, type KnownObject } from './relayed-objects.ts';
import { StoreFacts, versionOfKey } from './store-facts.ts';
import { VersionIntake } from './version-intake.ts';
import { VersionTimeline, type VersionMoments } from './version-timeline.ts';

export interface ClusterControllerOptions {
  readonly store: WeightStore;
  /** Name of the cluster, unique among those of the store. */
  readonly cluster: string;
  readonly cacheDirectory: string;
  readonly cacheBytes: number;
  /** The run to follow; the first one that the pointer names when left out. Another one than before starts anew. */
  readonly runId?: string | undefined;
  readonly fanOut: number;
  readonly pollEveryMs: number;
  readonly memberLeaseMs: number;
  /** How long pruning spares what the members hold, after this controller was last heard of. */
  readonly storeLeaseMs?: number;
  /** A member that takes no byte for this long is cut off. */
  readonly stallMs?: number;
  readonly aliveEveryMs?: number;
  /** Longest time for one look at the store's pointer. */
  readonly storeTimeoutMs?: number;
  /** Monotonic milliseconds. */
  readonly now: () => number;
  /** Milliseconds since 1970. */
  readonly wallMs: () => number;
  readonly onEvent?: (event: ControllerEvent) => void;
}

export type ControllerEvent =
  | MemberEvent
  | { readonly event: 'version-seen'; readonly version: string; readonly publishedMs: number | undefined }
  | { readonly event: 'version-refused'; readonly pointer: string; readonly reason: string }
  | { readonly event: 'object-fetched'; readonly key: string; readonly bytes: number }
  /** The store's pointer was read: for the first time, after a failure, or with another value. Null = nothing is published yet. */
  | { readonly event: 'store-answered'; readonly pointer: string | null }
  | { readonly event: 'version-fetched'; readonly version: string; readonly bytes: number; readonly ms: number }
  | { readonly event: 'store-retry'; readonly what: string; readonly reason: string; readonly cure?: string }
  | { readonly event: 'chunk-damaged'; readonly key: string; readonly chunk: number; readonly by: string };

const STATE_FILE = 'cluster.json';
/** Objects that come from the store at a time, each in several parts. */
const PARALLEL_OBJECTS = 2;
const STORE_LEASE_MS = 600_000;
const STORE_TIMEOUT_MS = 60_000;

export class ClusterController implements AsyncDisposable {
  readonly #options: ClusterControllerOptions;
  readonly #onEvent: (event: ControllerEvent) => void;
  readonly #registry: MemberRegistry;
  readonly #timeline: VersionTimeline;
  readonly #objects: RelayedObjects;
  readonly #facts: StoreFacts;
  readonly #followed: FollowedVersion;
  readonly #board = new AnnouncementBoard(randomUUID());
  readonly #progress: MemberProgressNotes;
  readonly #lease: ClusterLease;
  readonly #lock: FolderLock;
  readonly #stop = new AbortController();
  readonly #intake: VersionIntake;
  #isWoken = false;
  #endWait: (() => void) | undefined;
  #storeProblem: string | undefined;
  /** What the last look found; undefined before the first, and when it failed. */
  #answered: string | null | undefined;
  #loop: Promise<void> = Promise.resolve();
  /** Counts since the start, for metrics. */
  readonly counts = {
    bytesFromStore: 0,
    objectsFetched: 0,
    polls: 0,
    pollFailures: 0,
    damagedChunks: 0,
    versionsSeen: 0,
  };

  private constructor(
    options: ClusterControllerOptions,
    parts: { objects: RelayedObjects; facts: StoreFacts; followed: FollowedVersion; lock: FolderLock },
  ) {
    this.#options = options;
    this.#objects = parts.objects;
    this.#facts = parts.facts;
    this.#followed = parts.followed;
    this.#lock = parts.lock;
    this.#onEvent = options.onEvent ?? (() => undefined);
    this.#registry = new MemberRegistry({
      fanOut: options.fanOut,
      leaseMs: options.memberLeaseMs,
      avoidMs: Math.max(60_000, 10 * options.memberLeaseMs),
      now: options.now,
      onEvent: this.#onEvent,
    });
    const { signal } = this.#stop;
    this.#timeline = new VersionTimeline();
    this.#progress = new MemberProgressNotes({
      timeline: this.#timeline,
      facts: parts.facts,
      accepted: () => parts.followed.accepted?.identity,
      wallMs: options.wallMs,
      signal,
    });
    this.#intake = new VersionIntake({
      ...options,
      ...parts,
      signal,
      onFetched: (version, bytes, ms) => {
        this.#timeline.fetched(version, options.wallMs());
        this.#onEvent({ event: 'version-fetched', version, bytes, ms });
      },
      onLaggard: (what, reason) => this.#onEvent({ event: 'store-retry', what, reason }),
      onFailure: (version, error) => this.#failToBring(version, error),
    });
    this.#lease = new ClusterLease({
      ...options,
      leaseMs: options.storeLeaseMs ?? STORE_LEASE_MS,
      timeoutMs: options.storeTimeoutMs ?? STORE_TIMEOUT_MS,
      signal,
      onFailure: (reason) => this.#onEvent({ event: 'store-retry', what: `leases/${options.cluster}`, reason }),
    });
  }

  static async start(options: ClusterControllerOptions): Promise<ClusterController> {
    const lock = await takeCache(options.cacheDirectory);
    try {
      return await ClusterController.#startLocked(options, lock);
    } catch (error) {
      lock.release();
      throw error;
    }
  }

  static async #startLocked(options: ClusterControllerOptions, lock: FolderLock): Promise<ClusterController> {
    const { store, cacheDirectory, cacheBytes, stallMs = 60_000, aliveEveryMs = 1000 } = options;
    // The parts know each other: filled in below, before anything is asked of them.
    const parts: { objects?: RelayedObjects; controller?: ClusterController } = {};
    const withController = (body: (controller: ClusterController) => void): void => {
      if (parts.controller !== undefined) body(parts.controller);
    };
    const facts = new StoreFacts({
      store,
      objects: () => {
        if (parts.objects === undefined)
          throw new Error('The index of a version was asked for before the cache is open.');
        return parts.objects;
      },
      cachedSize: (key) => parts.objects?.cached(key)?.facts.sizeBytes,
    });
    const objects = await RelayedObjects.open({
      cacheDirectory: join(cacheDirectory, 'objects'),
      cacheBytes,
      stallMs,
      aliveEveryMs,
      parallelFills: PARALLEL_OBJECTS,
      isWanted: (key) => {
        const { controller } = parts;
        return controller === undefined || controller.#isWanted(key);
      },
      findFacts: async (key, signal) => facts.find(key, signal),
      fill: async (object, signal) =>
        downloadObject(object, {
          source: store,
          signal,
          onBytes: (sizeBytes) => withController((controller) => controller.#countBytes(object.facts.key, sizeBytes)),
        }),
      onComplete: ({ key, sizeBytes }) =>
        withController((controller) => {
          controller.counts.objectsFetched += 1;
          controller.#onEvent({ event: 'object-fetched', key, bytes: sizeBytes });
        }),
      onDamage: (key, chunk) => withController((controller) => controller.#countDamage(key, chunk, 'controller')),
    });
    parts.objects = objects;
    const followed = await FollowedVersion.open(join(cacheDirectory, STATE_FILE), options.runId);
    const controller = new ClusterController(options, { objects, facts, followed, lock });
    parts.controller = controller;
    controller.#loop = controller.#run();
    return controller;
  }

  /** Looks at the store at once. Several calls count as one. */
  wake(): void {
    this.#isWoken = true;
    this.#endWait?.();
  }

  heartbeat(heartbeat: Heartbeat): HeartbeatReply {
    const member = this.#registry.renew(heartbeat);
    for (const progress of heartbeat.progress) this.#progress.note(member, progress);
    for (const key of heartbeat.received) this.#progress.noteReceived(member, key);
    this.#renewLease();
    return {
      cluster: this.#options.cluster,
      leaseMs: this.#options.memberLeaseMs,
      parent: this.#parentOf(member.id),
      announcement: this.#board.current?.serial === heartbeat.heard ? null : (this.#board.current ?? null),
    };
  }

  leave(id: string): boolean {
    return this.#registry.leave(id);
  }

  /** Takes a child's complaint about its parent; returns the parent it has now. */
  report(child: string, report: ParentReport): { readonly id: string; readonly url: string } | null {
    if (report.fault === 'damaged') this.#countDamage(report.key, report.chunk, report.parent);
    this.#registry.report(child, report);
    return this.#parentOf(child);
  }

  /** The announcement, at once when its serial is another one than `after`, else when it changes or `waitMs` passed. */
  async announcement(options: {
    readonly after?: string | undefined;
    readonly waitMs: number;
    readonly signal: AbortSignal;
  }): Promise<Announcement | null> {
    const { after, waitMs } = options;
    const signal = AbortSignal.any([options.signal, this.#stop.signal, AbortSignal.timeout(waitMs)]);
    return this.#board.next(after, signal);
  }

  facts(key: string, signal: AbortSignal): Promise<KnownObject | undefined> {
    return this.#objects.facts(key, AbortSignal.any([signal, this.#stop.signal]));
  }

  provenDigests(key: string, signal: AbortSignal): Promise<string[] | undefined> {
    return this.#objects.provenDigests(key, signal);
  }

  handlePeerRequest(request: IncomingMessage, response: ServerResponse): boolean {
    return this.#objects.handle(request, response);
  }

  timeline(): readonly Readonly<VersionMoments>[] {
    return this.#timeline.list();
  }

  status(): ControllerStatus {
    this.#registry.expire();
    const { accepted, runId, refusals } = this.#followed;
    return {
      cluster: this.#options.cluster,
      store: this.#options.store.location,
      runId,
      version: accepted?.name,
      isFetched: accepted === undefined || this.#intake.has(accepted.name),
      storeProblem: this.#storeProblem,
      refusals,
      cachedBytes: this.#objects.cachedBytes,
      sentBytes: this.#objects.sentBytes,
      parentReplacements: this.#registry.replacements,
      members: memberStatus(this.#registry, accepted?.identity),
    };
  }

  async close(): Promise<void> {
    this.#stop.abort(new HoneError('aborted', 'The controller is closing.'));
    this.#endWait?.();
    await this.#loop;
    await this.#lease.settled();
    await this.#objects.close();
    this.#lock.release();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #run(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      this.#isWoken = false;
      await this.#poll();
      this.#registry.expire();
      this.#renewLease();
      if (!this.#isWoken && !signal.aborted) await this.#wait();
    }
  }

  async #wait(): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, this.#options.pollEveryMs);
      this.#endWait = (): void => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#endWait = undefined;
  }

  /** One look at the store. Whatever goes wrong is told and tried again at the next look; what was announced stays. */
  async #poll(): Promise<void> {
    this.counts.polls += 1;
    const { store, storeTimeoutMs = STORE_TIMEOUT_MS } = this.#options;
    try {
      const signal = AbortSignal.any([this.#stop.signal, AbortSignal.timeout(storeTimeoutMs)]);
      const pointer = await store.readPointer(LATEST_POINTER, { signal });
      if (pointer === undefined) this.#board.announce(this.#followed.accepted?.name ?? null);
      else await this.#follow(pointer.value, signal);
      this.#storeProblem = undefined;
      const answered = pointer?.value ?? null;
      if (this.#answered !== answered) this.#onEvent({ event: 'store-answered', pointer: answered });
      this.#answered = answered;
    } catch (error) {
      if (this.#stop.signal.aborted) return;
      this.counts.pollFailures += 1;
      this.#storeProblem = reasonOf(error);
      this.#answered = undefined;
      const cure = error instanceof HoneError && error.cure !== undefined ? { cure: error.cure } : {};
      this.#onEvent({ event: 'store-retry', what: LATEST_POINTER, reason: reasonOf(error), ...cure });
      // What an earlier start accepted is announced all the same: its bytes may be here.
      const { accepted } = this.#followed;
      if (accepted !== undefined) this.#board.announce(accepted.name);
    }
    this.#bringAccepted();
  }

  async #follow(pointer: string, signal: AbortSignal): Promise<void> {
    const verdict = this.#followed.judge(pointer);
    if (verdict.kind === 'refused') {
      const { reason } = verdict;
      const isNew = this.#followed.refuse({ atMs: this.#options.wallMs(), pointer, reason });
      if (isNew) this.#onEvent({ event: 'version-refused', pointer, reason });
      this.#board.announce(this.#followed.accepted?.name ?? null);
      return;
    }
    const { identity } = verdict;
    const version = formatIdentity(identity);
    const seenMs = this.#options.wallMs();
    const index = await this.#facts.index(version, signal);
    if (this.#timeline.get(version) === undefined) {
      this.counts.versionsSeen += 1;
      this.#timeline.see(version, seenMs, { atMs: index.publishedAtMs, sizeBytes: fileBytes(index) });
      this.#onEvent({ event: 'version-seen', version, publishedMs: index.publishedAtMs });
    }
    await this.#followed.accept(identity);
    if (this.#board.current?.pointer === version) return;
    const memberCount = this.#registry.list().length;
    const objects = await carriedObjects(index, { objects: this.#objects, memberCount, signal });
    this.#board.announce(version, objects);
  }

  #failToBring(version: string, error: unknown): void {
    // Either the index or the object is damaged, and nothing tells which: both are read again, and announced anew.
    if (error instanceof HoneError && error.code === 'checksum-mismatch') {
      this.#board.withdraw();
      void this.#facts.forget(version).catch(() => undefined);
    }
    this.#onEvent({ event: 'store-retry', what: version, reason: reasonOf(error) });
  }

  /** Beside the polling. */
  #bringAccepted(): void {
    const { accepted } = this.#followed;
    if (accepted === undefined) return;
    const held = this.#registry.list().flatMap((member) => (member.held === undefined ? [] : [member.held]));
    this.#intake.bring(accepted.identity, held);
  }

  #parentOf(id: string): { readonly id: string; readonly url: string } | null {
    const parent = this.#registry.parentOf(id);
    return parent === null ? null : { id: parent.id, url: parent.url };
  }

  /** What a member still has to apply goes from the cache last. */
  #isWanted(key: string): boolean {
    const version = versionOfKey(key);
    if (version === undefined) return false;
    const identity = parseIdentity(version, key);
    const { runId, accepted } = this.#followed;
    if (identity.runId !== runId) return false;
    const held = this.#registry.list().map((member) => member.held?.version ?? 0);
    return identity.version > Math.min(...held, accepted?.identity.version ?? 0) || version === accepted?.name;
  }

  #countBytes(key: string, sizeBytes: number): void {
    this.counts.bytesFromStore += sizeBytes;
    const version = versionOfKey(key);
    if (version !== undefined) this.#timeline.addBytes(version, sizeBytes, this.#options.wallMs());
  }

  #countDamage(key: string, chunk: number, by: string): void {
    this.counts.damagedChunks += 1;
    this.#onEvent({ event: 'chunk-damaged', key, chunk, by });
  }

  /** Tells the store what the members need. */
  #renewLease(): void {
    const { accepted } = this.#followed;
    if (accepted !== undefined) this.#lease.renew(accepted.identity, this.#registry.list());
  }
}

/** One controller a cache: two would write over each other's chunks. */
async function takeCache(directory: string): Promise<FolderLock> {
  try {
    await makeFolder(directory);
  } catch (error) {
    throw new HoneError('invalid-config', `The cache ${directory} cannot be made: ${reasonOf(error)}.`, {
      cure: 'Name a folder on a disk that can be written to.',
      cause: error,
    });
  }
  return lockFolder(directory, { fileName: 'controller.lock', cure: 'Give each controller a cache of its own.' });
}

function fileBytes(index: VersionIndex): number | undefined {
  if (index.files === undefined) return undefined;
  let sum = 0;
  for (const { sizeBytes } of index.files.values()) sum += sizeBytes;
  return sum;
}

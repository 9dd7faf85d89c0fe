/**
 * The controller of one inference cluster: follows the store's pointer, brings each new version in once, and tells members what is new and
 * whom to fetch it from. Invariants: what is announced never goes back and never changes to another run (what the store says instead is
 * refused and told); the bytes of an object are read from the store once while they are in the cache; a controller that is killed and
 * started again goes on with the run, the version and the bytes it had.
 */
import { randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { join } from 'node:path';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { policyVersion } from '../../domain/ids.ts';
import { errnoCode } from '../../tensor/errno-code.ts';
import { lockFolder, type FolderLock } from '../../tensor/folder-lock.ts';
import { makeFolder } from '../../tensor/make-folder.ts';
import { writeFileDurably } from '../../tensor/durable-file.ts';
import { writeReplicaLease } from '../replica-leases.ts';
import { planChain } from '../version-chain.ts';
import {
  formatIdentity,
  INDEX_FILE,
  LATEST_POINTER,
  parseIdentity,
  type VersionIdentity,
  type VersionIndex,
} from '../version-directory.ts';
import { readWhole, type WeightStore } from '../store/weight-store.ts';
import type {
  Announcement,
  CarriedObject,
  Heartbeat,
  HeartbeatReply,
  MemberProgress,
  ParentReport,
} from './cluster-protocol.ts';
import { downloadObject } from './object-download.ts';
import { MemberRegistry, type ClusterMemberRecord, type MemberEvent } from './member-registry.ts';
import { RelayedObjects, type KnownObject } from './relayed-objects.ts';
import { StoreFacts, versionOfKey } from './store-facts.ts';
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
  | { readonly event: 'version-fetched'; readonly version: string; readonly bytes: number; readonly ms: number }
  | { readonly event: 'store-retry'; readonly what: string; readonly reason: string }
  | { readonly event: 'chunk-damaged'; readonly key: string; readonly chunk: number; readonly by: string };

/** What was accepted last; kept on the disk, so that a restart neither goes back nor changes to another run. */
interface Accepted {
  readonly identity: VersionIdentity;
  readonly pointer: string;
}

const STATE_FILE = 'cluster.json';
/** Objects that come from the store at a time, each in several parts. */
const PARALLEL_OBJECTS = 2;
const REFUSALS_KEPT = 20;
/** Bytes of small objects that go with an announcement to each member, and to all members together. */
const MOST_CARRIED_BYTES = 256 * 1024;
const MOST_CARRIED_TO_ALL_BYTES = 16 * 2 ** 20;
const MOST_CARRIED_OBJECTS = 64;
/** A store that takes longer for a small object does not hold up the announcement. */
const CARRY_TIMEOUT_MS = 2_000;

export class ClusterController implements AsyncDisposable {
  readonly #options: ClusterControllerOptions;
  readonly #onEvent: (event: ControllerEvent) => void;
  readonly #registry: MemberRegistry;
  readonly #timeline = new VersionTimeline();
  readonly #objects: RelayedObjects;
  readonly #facts: StoreFacts;
  readonly #lock: FolderLock;
  readonly #stop = new AbortController();
  readonly #bootId = randomUUID();
  readonly #statePath: string;
  #accepted: Accepted | undefined;
  #runId: string | undefined;
  #announcement: Announcement | undefined;
  #announcements = 0;
  #announced = Promise.withResolvers<void>();
  #isFetched = true;
  #isWoken = false;
  #endWait: (() => void) | undefined;
  #lastRefused: string | undefined;
  readonly #refusals: { readonly atMs: number; readonly pointer: string; readonly reason: string }[] = [];
  #storeProblem: string | undefined;
  #loop: Promise<void> = Promise.resolve();
  #leasing: Promise<void> = Promise.resolve();
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
    parts: { objects: RelayedObjects; facts: StoreFacts; lock: FolderLock },
  ) {
    this.#options = options;
    this.#objects = parts.objects;
    this.#facts = parts.facts;
    this.#lock = parts.lock;
    this.#onEvent = options.onEvent ?? (() => undefined);
    this.#statePath = join(options.cacheDirectory, STATE_FILE);
    this.#registry = new MemberRegistry({
      fanOut: options.fanOut,
      leaseMs: options.memberLeaseMs,
      avoidMs: Math.max(60_000, 10 * options.memberLeaseMs),
      now: options.now,
      onEvent: this.#onEvent,
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
    const controller = new ClusterController(options, { objects, facts, lock });
    parts.controller = controller;
    await controller.#restore();
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
    for (const progress of heartbeat.progress) this.#note(member, progress);
    for (const key of heartbeat.received) this.#noteReceived(member, key);
    this.#renewStoreLease();
    return {
      cluster: this.#options.cluster,
      leaseMs: this.#options.memberLeaseMs,
      parent: this.#parentOf(member.id),
      announcement: this.#announcement?.serial === heartbeat.heard ? null : (this.#announcement ?? null),
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
    const signal = AbortSignal.any([options.signal, this.#stop.signal, AbortSignal.timeout(options.waitMs)]);
    while (!signal.aborted && (this.#announcement === undefined || this.#announcement.serial === options.after)) {
      const { promise } = this.#announced;
      await new Promise<void>((resolve) => {
        signal.addEventListener('abort', () => resolve(), { once: true });
        void promise.then(resolve);
      });
    }
    return this.#announcement ?? null;
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
    return {
      cluster: this.#options.cluster,
      store: this.#options.store.location,
      runId: this.#runId,
      version: this.#accepted?.pointer,
      isFetched: this.#isFetched,
      storeProblem: this.#storeProblem,
      refusals: this.#refusals,
      cachedBytes: this.#objects.cachedBytes,
      sentBytes: this.#objects.sentBytes,
      parentReplacements: this.#registry.replacements,
      members: this.#registry.list().map((member) => ({
        id: member.id,
        url: member.url,
        parent: this.#registry.parentOf(member.id)?.id ?? null,
        depth: this.#registry.depth(member.id),
        isSuspect: member.isSuspect,
        held: member.held,
        versionsBehind: this.#versionsBehind(member),
        counts: member.counts,
      })),
    };
  }

  async close(): Promise<void> {
    this.#stop.abort(new HoneError('aborted', 'The controller is closing.'));
    this.#endWait?.();
    await this.#loop;
    await this.#leasing;
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
      this.#renewStoreLease();
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
    const { store, storeTimeoutMs = 60_000 } = this.#options;
    try {
      const signal = AbortSignal.any([this.#stop.signal, AbortSignal.timeout(storeTimeoutMs)]);
      const pointer = await store.readPointer(LATEST_POINTER, { signal });
      if (pointer === undefined) this.#announce(this.#accepted?.pointer ?? null);
      else await this.#follow(pointer.value, signal);
      this.#storeProblem = undefined;
    } catch (error) {
      if (this.#stop.signal.aborted) return;
      this.counts.pollFailures += 1;
      this.#storeProblem = reasonOf(error);
      this.#onEvent({ event: 'store-retry', what: LATEST_POINTER, reason: reasonOf(error) });
      // What an earlier start accepted is announced all the same: its bytes may be here.
      if (this.#accepted !== undefined) this.#announce(this.#accepted.pointer);
    }
    this.#fetchAccepted();
  }

  async #follow(pointer: string, signal: AbortSignal): Promise<void> {
    const verdict = this.#judge(pointer);
    if (verdict.kind === 'refused') {
      if (this.#lastRefused !== pointer) {
        this.#lastRefused = pointer;
        this.#refusals.push({ atMs: this.#options.wallMs(), pointer, reason: verdict.reason });
        if (this.#refusals.length > REFUSALS_KEPT) this.#refusals.shift();
        this.#onEvent({ event: 'version-refused', pointer, reason: verdict.reason });
      }
      this.#announce(this.#accepted?.pointer ?? null);
      return;
    }
    this.#lastRefused = undefined;
    const { identity } = verdict;
    const version = formatIdentity(identity);
    const seenMs = this.#options.wallMs();
    const index = await this.#facts.index(version, signal);
    if (this.#timeline.get(version) === undefined) {
      this.counts.versionsSeen += 1;
      this.#timeline.see(version, seenMs, { atMs: index.publishedAtMs, sizeBytes: fileBytes(index) });
      this.#onEvent({ event: 'version-seen', version, publishedMs: index.publishedAtMs });
      this.#isFetched = false;
    }
    if (this.#accepted?.pointer !== version) {
      this.#accepted = { identity, pointer: version };
      this.#runId = identity.runId;
      await this.#keep();
    }
    const objects = this.#announcement?.pointer === version ? [] : await this.#carried(index, signal);
    this.#announce(version, objects);
  }

  /** Facts of all that the version needs, and bytes where they are few. What cannot be had now is left to the members' own reads. */
  async #carried(index: VersionIndex, signal: AbortSignal): Promise<CarriedObject[]> {
    const version = formatIdentity(index.identity);
    const files = [INDEX_FILE, ...new Set(index.weightMap.values())].slice(0, MOST_CARRIED_OBJECTS);
    const within = AbortSignal.any([signal, AbortSignal.timeout(CARRY_TIMEOUT_MS)]);
    const memberCount = Math.max(1, this.#registry.list().length);
    let leftBytes = Math.min(MOST_CARRIED_BYTES, MOST_CARRIED_TO_ALL_BYTES / memberCount);
    const carried = files.map(async (file): Promise<CarriedObject[]> => {
      const key = `${version}/${file}`;
      const facts = await this.#objects.facts(key, within).catch(() => undefined);
      if (facts === undefined) return [];
      const known = { ...facts, checksum: facts.checksum ?? null };
      if (facts.sizeBytes === 0 || facts.sizeBytes > leftBytes) return [known];
      leftBytes -= facts.sizeBytes;
      try {
        const [bytes] = await Promise.all([
          readWhole(this.#objects, key, { signal: within }),
          this.#objects.fetch(key, within),
        ]);
        return bytes === undefined ? [known] : [{ ...known, base64: Buffer.from(bytes).toString('base64') }];
      } catch {
        return [known];
      }
    });
    return (await Promise.all(carried)).flat();
  }

  /** A pointer is followed when it is readable, of the run that is followed, and not behind what was accepted. */
  #judge(pointer: string): { kind: 'followed'; identity: VersionIdentity } | { kind: 'refused'; reason: string } {
    let identity: VersionIdentity;
    try {
      identity = parseIdentity(pointer, `Pointer ${LATEST_POINTER}`);
    } catch (error) {
      return { kind: 'refused', reason: reasonOf(error) };
    }
    if (this.#runId !== undefined && identity.runId !== this.#runId)
      return {
        kind: 'refused',
        reason: `The weight store now belongs to run ${identity.runId}, this cluster follows ${this.#runId}. Start the controller with --run ${identity.runId} to follow it.`,
      };
    const accepted = this.#accepted?.identity;
    if (accepted === undefined || formatIdentity(identity) === formatIdentity(accepted))
      return { kind: 'followed', identity };
    if (identity.version > accepted.version) return { kind: 'followed', identity };
    return {
      kind: 'refused',
      reason: `The pointer went back from ${formatIdentity(accepted)} to ${pointer}.`,
    };
  }

  #announce(pointer: string | null, objects: CarriedObject[] = []): void {
    if (this.#announcement !== undefined && this.#announcement.pointer === pointer) return;
    this.#announcements += 1;
    this.#announcement = { serial: `${this.#bootId}-${this.#announcements}`, pointer, objects };
    const announced = this.#announced;
    this.#announced = Promise.withResolvers<void>();
    announced.resolve();
  }

  /** Brings in what members need to come to the accepted version, beside the polling. */
  #fetchAccepted(): void {
    const accepted = this.#accepted;
    if (accepted === undefined || this.#isFetched) return;
    this.#isFetched = true;
    const startedMs = this.#options.now();
    const work = async (): Promise<void> => {
      let bytes = 0;
      for (const index of await this.#planned(accepted.identity)) {
        const version = formatIdentity(index.identity);
        const files = [...new Set(index.weightMap.values())].map((file) => `${version}/${file}`);
        const facts = await Promise.all(files.map(async (key) => this.#fetchNeeded(key)));
        for (const { sizeBytes } of facts) bytes += sizeBytes;
      }
      this.#timeline.fetched(accepted.pointer, this.#options.wallMs());
      this.#onEvent({
        event: 'version-fetched',
        version: accepted.pointer,
        bytes,
        ms: this.#options.now() - startedMs,
      });
    };
    work().catch((error: unknown) => {
      if (this.#stop.signal.aborted) return;
      if (this.#accepted === accepted) this.#isFetched = false;
      // Either the index or the object is damaged, and nothing tells which: both are read again, and announced anew.
      if (error instanceof HoneError && error.code === 'checksum-mismatch') {
        this.#announcement = undefined;
        void this.#facts.forget(accepted.pointer).catch(() => undefined);
      }
      this.#onEvent({ event: 'store-retry', what: accepted.pointer, reason: reasonOf(error) });
    });
  }

  async #fetchNeeded(key: string): Promise<KnownObject> {
    const facts = await this.#objects.fetch(key, this.#stop.signal);
    if (facts !== undefined) return facts;
    throw new HoneError('store-failed', `The weight store has no ${key}, which a published version needs.`, {
      cure: 'Restore it from a copy of the store; versions may be pruned only behind a newer full anchor.',
    });
  }

  /** From the oldest version that a member holds; what a joiner needs beyond it comes when it asks. */
  async #planned(target: VersionIdentity): Promise<VersionIndex[]> {
    const { signal } = this.#stop;
    const held = this.#registry.list().flatMap((member) => (member.held === undefined ? [] : [member.held]));
    const oldest = held
      .filter(({ runId, version }) => (runId === undefined || runId === target.runId) && version < target.version)
      .toSorted((one, other) => one.version - other.version)[0];
    if (oldest !== undefined) {
      try {
        return await planChain(
          this.#indexSource(),
          target,
          { runId: oldest.runId, version: policyVersion(oldest.version) },
          { signal },
        );
      } catch (error) {
        // A member that cannot come along finds out by itself; the others need the newest version all the same.
        this.#onEvent({ event: 'store-retry', what: formatIdentity(target), reason: reasonOf(error) });
      }
    }
    return [await this.#facts.index(formatIdentity(target), signal)];
  }

  /** The objects as planChain reads them: through the cache, indexes included. */
  #indexSource(): Parameters<typeof planChain>[0] {
    const { store } = this.#options;
    return {
      readObject: async (key, options) => this.#objects.readObject(key, options),
      statObject: async (key, options) => store.statObject(key, options),
      readPointer: async (name, options) => store.readPointer(name, options),
      localPath: () => undefined,
    };
  }

  #parentOf(id: string): { readonly id: string; readonly url: string } | null {
    const parent = this.#registry.parentOf(id);
    return parent === null ? null : { id: parent.id, url: parent.url };
  }

  #note(member: ClusterMemberRecord, progress: MemberProgress): void {
    const { runId, version } = progress;
    if (progress.kind !== 'staged') member.held = { runId, version };
    if (runId === undefined || progress.kind === 'holding') return;
    const name = this.#timelineName(runId, version);
    if (name === undefined) return;
    const atMs = this.#options.wallMs();
    this.#timeline.member(
      name,
      member.id,
      progress.kind === 'staged' ? { stagedMs: atMs } : { committedMs: atMs, pauseMs: progress.pauseMs },
    );
  }

  readonly #receivedKeys = new Map<string, Set<string>>();

  /** A member has a version when it has all of its files. */
  #noteReceived(member: ClusterMemberRecord, key: string): void {
    const version = versionOfKey(key);
    if (version === undefined || this.#timeline.get(version) === undefined) return;
    const name = JSON.stringify([member.id, member.bootId, version]);
    const keys = this.#receivedKeys.get(name) ?? new Set();
    this.#receivedKeys.set(name, keys);
    if (this.#receivedKeys.size > 10_000) this.#receivedKeys.delete(this.#receivedKeys.keys().next().value ?? '');
    keys.add(key);
    void this.#facts
      .index(version, this.#stop.signal)
      .then((index) => {
        const files = new Set(index.weightMap.values());
        if ([...files].every((file) => keys.has(`${version}/${file}`)))
          this.#timeline.member(version, member.id, { receivedMs: this.#options.wallMs() });
      })
      .catch(() => undefined);
  }

  #timelineName(runId: string, version: number): string | undefined {
    const accepted = this.#accepted?.identity;
    if (accepted !== undefined && accepted.runId === runId && accepted.version === version)
      return formatIdentity(accepted);
    return this.#timeline.list().find((moments) => {
      const identity = parseIdentity(moments.version, moments.version);
      return identity.runId === runId && identity.version === version;
    })?.version;
  }

  #versionsBehind(member: ClusterMemberRecord): number | undefined {
    const accepted = this.#accepted?.identity;
    if (accepted === undefined) return 0;
    const { held } = member;
    if (held === undefined || (held.runId !== undefined && held.runId !== accepted.runId)) return undefined;
    return Math.max(0, accepted.version - held.version);
  }

  /** What a member still has to apply goes from the cache last. */
  #isWanted(key: string): boolean {
    const version = versionOfKey(key);
    if (version === undefined) return false;
    const identity = parseIdentity(version, key);
    if (identity.runId !== this.#runId) return false;
    const held = this.#registry.list().map((member) => member.held?.version ?? 0);
    return (
      identity.version > Math.min(...held, this.#accepted?.identity.version ?? 0) || version === this.#accepted?.pointer
    );
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

  #leasedMs = -Infinity;
  #leased: string | undefined;
  #isLeasing = false;

  /** Tells the store what the members need, when that changed or a third of the lease is over. */
  #renewStoreLease(): void {
    const accepted = this.#accepted?.identity;
    if (accepted === undefined || this.#isLeasing || this.#stop.signal.aborted) return;
    const { store, cluster, wallMs, now, storeLeaseMs = 600_000, storeTimeoutMs = 60_000 } = this.#options;
    const oldest = Math.min(
      accepted.version,
      ...this.#registry
        .list()
        .map(({ held }) =>
          held !== undefined && (held.runId ?? accepted.runId) === accepted.runId ? held.version : 0,
        ),
    );
    const wanted = `${accepted.runId} ${oldest}`;
    if (wanted === this.#leased && now() - this.#leasedMs < storeLeaseMs / 3) return;
    this.#isLeasing = true;
    const signal = AbortSignal.any([this.#stop.signal, AbortSignal.timeout(storeTimeoutMs)]);
    const lease = {
      cluster,
      runId: accepted.runId,
      oldestVersion: policyVersion(oldest),
      nowMs: wallMs(),
      ttlMs: storeLeaseMs,
    };
    this.#leasing = writeReplicaLease(store, lease, { signal })
      .then(() => {
        this.#leased = wanted;
        this.#leasedMs = now();
      })
      .catch((error: unknown) => {
        if (!this.#stop.signal.aborted)
          this.#onEvent({ event: 'store-retry', what: `leases/${cluster}`, reason: reasonOf(error) });
      })
      .finally(() => {
        this.#isLeasing = false;
      });
  }

  async #restore(): Promise<void> {
    const { runId } = this.#options;
    this.#runId = runId;
    let text: string;
    try {
      text = await readFile(this.#statePath, 'utf8');
    } catch (error) {
      if (errnoCode(error) === 'ENOENT') return;
      throw error;
    }
    const identity = parseIdentity(text.trim(), this.#statePath);
    if (runId !== undefined && runId !== identity.runId) return;
    this.#runId = identity.runId;
    this.#accepted = { identity, pointer: formatIdentity(identity) };
    this.#isFetched = false;
  }

  async #keep(): Promise<void> {
    if (this.#accepted === undefined) return;
    await writeFileDurably(this.#statePath, [Buffer.from(`${this.#accepted.pointer}\n`)], { mode: 'replace' });
  }
}

export interface ControllerStatus {
  readonly cluster: string;
  readonly store: string;
  readonly runId: string | undefined;
  /** Accepted and announced. */
  readonly version: string | undefined;
  readonly isFetched: boolean;
  readonly storeProblem: string | undefined;
  readonly refusals: readonly { readonly atMs: number; readonly pointer: string; readonly reason: string }[];
  readonly cachedBytes: number;
  readonly sentBytes: number;
  readonly parentReplacements: number;
  readonly members: readonly {
    readonly id: string;
    readonly url: string;
    readonly parent: string | null;
    readonly depth: number;
    readonly isSuspect: boolean;
    readonly held: { readonly runId?: string | undefined; readonly version: number } | undefined;
    /** Undefined for a member that holds nothing, or weights of another run. */
    readonly versionsBehind: number | undefined;
    readonly counts: Heartbeat['counts'];
  }[];
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

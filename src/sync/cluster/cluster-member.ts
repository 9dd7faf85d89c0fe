/**
 * A replica's place in its cluster: the ObjectSource that reads through the broadcast tree and hands on to its own children what it
 * reads. Invariants: `readPointer` says what the controller announced and never goes back within a run; bytes are given out, to this replica and
 * to children, only after their digest was checked here; without a controller everything that is here stays readable.
 */
import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';

import { Agent } from 'undici';
import { z } from 'zod';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { LATEST_POINTER, parseIdentity } from '../version-directory.ts';
import type { CallOptions, ObjectSource, Pointer, StoredObject } from '../store/weight-store.ts';
import {
  announcementSchema,
  DIGESTS_PATH,
  digestsSchema,
  FACTS_PATH,
  factsSchema,
  heartbeatReplySchema,
  MEMBERS_PATH,
  parentReplySchema,
  POINTER_PATH,
  type Announcement,
  type CarriedObject,
  type Heartbeat,
  type MemberProgress,
  type ParentFault,
  type ParentReport,
  type RelayCounts,
} from './cluster-protocol.ts';
import { ControllerClient } from './controller-client.ts';
import { RelayedObjects, type KnownObject } from './relayed-objects.ts';
import { versionOfKey } from './store-facts.ts';
import { fetchThroughTree, type TreeSource } from './tree-fetch.ts';

export interface ClusterMemberOptions {
  readonly controllerUrl: string;
  /** The fleet's secret, for the controller and for peers. */
  readonly token?: string | undefined;
  readonly id: string;
  /** Where this replica's control server can be reached by its peers; asked for at each heartbeat. */
  readonly peerUrl: () => string;
  readonly cacheDirectory: string;
  /** Bound of the cache; what is needed or in use may pass it. */
  readonly cacheBytes?: number;
  /** A source from which nothing comes for this long is replaced. */
  readonly stallMs?: number;
  /** An object of which no new chunk comes for this long fails. */
  readonly patienceMs?: number;
  /** Monotonic milliseconds. */
  readonly now: () => number;
  /** Milliseconds since 1970. */
  readonly wallMs: () => number;
  /** Uniform in [0, 1): the jitter between tries. */
  readonly random?: () => number;
  readonly signal: AbortSignal;
  /** Another version was announced. */
  readonly onWake: () => void;
  readonly onEvent?: (event: ClusterMemberEvent) => void;
}

export type ClusterMemberEvent =
  | { readonly event: 'controller-found'; readonly controller: string; readonly cluster: string }
  | { readonly event: 'controller-lost'; readonly controller: string; readonly reason: string }
  | {
      readonly event: 'parent-failed';
      /** Null = the controller. */
      readonly parent: string | null;
      readonly fault: ParentFault;
      readonly key: string;
      readonly chunk: number;
      readonly reason: string;
    }
  | { readonly event: 'object-received'; readonly key: string; readonly bytes: number; readonly ms: number }
  | { readonly event: 'chunk-damaged'; readonly key: string; readonly chunk: number };

const STALL_MS = 20_000;
const PATIENCE_MS = 300_000;
/** The controller may have to read an index from the store before it can tell. */
const FACTS_TIMEOUT_MS = 60_000;
/** Objects that come at a time; children wait for those that wait for a turn. */
const PARALLEL_FILLS = 16;
const CACHE_BYTES = 64 * 2 ** 30;
const CALL_TIMEOUT_MS = 10_000;
const LONG_POLL_MS = 25_000;
const FIRST_HEARTBEAT_MS = 2_000;
const FIRST_RETRY_MS = 100;
const LAST_RETRY_MS = 2_000;
/** Of one heartbeat; more than these wait for the next. */
const MOST_REPORTED = 1000;

export class ClusterMember implements ObjectSource, AsyncDisposable {
  readonly #options: ClusterMemberOptions;
  readonly #objects: RelayedObjects;
  readonly #agent: Agent;
  readonly #client: ControllerClient;
  readonly #stop = new AbortController();
  readonly #signal: AbortSignal;
  readonly #bootId = randomUUID();
  readonly #controller: TreeSource;
  /** Who each object comes from now. */
  readonly #sources = new Map<string, TreeSource>();
  #parent: TreeSource | undefined;
  #announcement: Announcement | undefined;
  #held: Heartbeat['held'];
  #progress: MemberProgress[] = [];
  #received: string[] = [];
  #counts: RelayCounts = { receivedBytes: 0, sentBytes: 0, receivedChunks: 0, hopSeconds: 0, damagedChunks: 0 };
  #isControllerKnown = false;
  #heartbeatMs = FIRST_HEARTBEAT_MS;
  #isBeatWanted = false;
  #endWait: (() => void) | undefined;
  #loops: Promise<unknown> = Promise.resolve();
  #closing: Promise<void> | undefined;

  private constructor(options: ClusterMemberOptions, objects: RelayedObjects, agent: Agent) {
    this.#options = options;
    this.#objects = objects;
    this.#agent = agent;
    this.#client = new ControllerClient({ url: options.controllerUrl, token: options.token, dispatcher: agent });
    this.#controller = { id: null, url: this.#client.url };
    this.#signal = AbortSignal.any([options.signal, this.#stop.signal]);
    this.#signal.addEventListener('abort', () => this.#endWait?.(), { once: true });
  }

  /** Opens the cache and begins to look for the controller; a controller that cannot be reached yet is waited for in the background. */
  static async join(options: ClusterMemberOptions): Promise<ClusterMember> {
    // An answer that waits for a version, and bodies of gigabytes, end by deadlines of their own.
    const agent = new Agent({
      headersTimeout: 0,
      bodyTimeout: 0,
      keepAliveTimeout: 30_000,
      connect: { timeout: 5_000 },
    });
    const parts: { member?: ClusterMember } = {};
    const joined = (): ClusterMember => {
      if (parts.member === undefined) throw new Error('The cache was asked before the member had joined.');
      return parts.member;
    };
    const objects = await RelayedObjects.open({
      cacheDirectory: options.cacheDirectory,
      cacheBytes: options.cacheBytes ?? CACHE_BYTES,
      stallMs: 2 * (options.stallMs ?? STALL_MS),
      parallelFills: PARALLEL_FILLS,
      isWanted: (key) => {
        const { member } = parts;
        return member === undefined || member.#isWanted(key);
      },
      findFacts: async (key, signal) => joined().#findFacts(key, signal),
      fill: async (object, signal) => joined().#fill(object, signal),
      onComplete: ({ key }) => {
        joined().#received.push(key);
        joined().#beat();
      },
      onDamage: (key, chunk) => {
        joined().#counts.damagedChunks += 1;
        options.onEvent?.({ event: 'chunk-damaged', key, chunk });
      },
      refuse: ({ key, member: child }) =>
        joined().#sources.get(key)?.id === child ? `${options.id} gets ${key} from ${child} itself.` : undefined,
    });
    const member = new ClusterMember(options, objects, agent);
    parts.member = member;
    member.#loops = Promise.all([member.#beatOnAndOn(), member.#listenOnAndOn()]);
    return member;
  }

  /** Tells the controller, at once. `holding` is for what a replica came up with. */
  report(progress: MemberProgress): void {
    if (progress.kind !== 'staged')
      this.#held = { version: progress.version, ...(progress.runId === undefined ? {} : { runId: progress.runId }) };
    this.#progress.push(progress);
    this.#beat();
  }

  /** What passed through here since the start. */
  get counts(): RelayCounts {
    return { ...this.#counts, sentBytes: this.#objects.sentBytes };
  }

  /** The parent of now: null = the controller, undefined while it was never told. */
  get parentId(): string | null | undefined {
    return this.#parent?.id;
  }

  async readObject(
    key: string,
    options: Parameters<ObjectSource['readObject']>[1] = {},
  ): Promise<AsyncIterable<Uint8Array> | undefined> {
    return this.#objects.readObject(key, options);
  }

  async statObject(key: string, { signal }: CallOptions = {}): Promise<StoredObject | undefined> {
    const facts = await this.#objects.facts(key, this.#with(signal));
    return facts === undefined ? undefined : { key, sizeBytes: facts.sizeBytes, modifiedMs: facts.modifiedMs };
  }

  /** Throws `store-unavailable` until the controller was heard for the first time. */
  readPointer(name: string): Promise<Pointer | undefined> {
    if (name !== LATEST_POINTER)
      return Promise.reject(
        new HoneError('store-failed', `A cluster's controller announces ${LATEST_POINTER} alone, not ${name}.`, {
          cure: 'Read other pointers from the weight store.',
        }),
      );
    if (this.#announcement === undefined)
      return Promise.reject(
        new HoneError('store-unavailable', `The cluster controller ${this.#client.url} was not heard yet.`, {
          cure: 'Start it, or look whether the address and HONE_TOKEN are right.',
        }),
      );
    const { pointer, serial } = this.#announcement;
    return Promise.resolve(pointer === null ? undefined : { value: pointer, tag: serial });
  }

  localPath(key: string): string | undefined {
    return this.#objects.localPath(key);
  }

  /** Brings the object here, whole and proven, so that `localPath` has it until `letGo`. */
  async makeLocal(key: string, { signal }: CallOptions = {}): Promise<void> {
    if ((await this.#objects.hold(key, this.#with(signal))) !== undefined) return;
    throw new HoneError('store-failed', `The weight store has no ${key}, which a published version needs.`, {
      cure: 'Restore it from a copy of the store; versions may be pruned only behind a newer full anchor.',
    });
  }

  async letGo(key: string, outcome: 'used' | 'damaged'): Promise<void> {
    await this.#objects.letGo(key, outcome);
  }

  /** Serves a peer, token already checked; false when the path is not one of the cluster's. */
  handlePeerRequest(request: IncomingMessage, response: ServerResponse): boolean {
    return this.#objects.handle(request, response);
  }

  /** Says goodbye, so that children get another parent at once, and ends everything. Safe to call twice. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    this.#stop.abort(new HoneError('aborted', 'The replica is leaving its cluster.'));
    this.#endWait?.();
    await this.#loops;
    if (this.#isControllerKnown)
      await this.#client
        .call({
          method: 'DELETE',
          path: `${MEMBERS_PATH}/${encodeURIComponent(this.#options.id)}`,
          schema: z.unknown(),
          timeoutMs: 2_000,
          signal: AbortSignal.timeout(2_000),
        })
        .catch(() => undefined);
    await this.#objects.close();
    await this.#agent.destroy();
  }

  async #findFacts(key: string, signal: AbortSignal): Promise<KnownObject | undefined> {
    const cached = this.#objects.cached(key);
    if (cached?.isProven === true) return { ...cached.facts, modifiedMs: 0 };
    const facts = await this.#client.call({
      method: 'GET',
      path: `${FACTS_PATH}?key=${encodeURIComponent(key)}`,
      schema: factsSchema,
      timeoutMs: FACTS_TIMEOUT_MS,
      signal,
    });
    return facts === undefined ? undefined : { ...facts, checksum: facts.checksum ?? undefined };
  }

  async #fill(object: Parameters<typeof fetchThroughTree>[0], signal: AbortSignal): Promise<void> {
    const { id, now, stallMs = STALL_MS, patienceMs = PATIENCE_MS, random = Math.random, onEvent } = this.#options;
    const { key, sizeBytes } = object.facts;
    const startedMs = now();
    await fetchThroughTree(object, {
      dispatcher: this.#agent,
      headers: this.#client.headers,
      member: id,
      stallMs,
      patienceMs,
      now,
      random,
      signal: this.#with(signal),
      controller: this.#controller,
      parent: () => this.#parent ?? this.#controller,
      report: async (report) => this.#reportParent(report),
      provenDigests: async (wanted, until) => this.#provenDigests(wanted, until),
      onSource: (source) => {
        if (source === undefined) this.#sources.delete(key);
        else this.#sources.set(key, source);
      },
      onChunk: (_source, bytes, hopMs) => {
        this.#counts.receivedBytes += bytes;
        this.#counts.receivedChunks += 1;
        this.#counts.hopSeconds += hopMs / 1000;
      },
      onFault: (source, { fault, chunk, reason }) => {
        if (fault === 'damaged') this.#counts.damagedChunks += 1;
        onEvent?.({ event: 'parent-failed', parent: source.id, fault, key, chunk, reason });
      },
    });
    onEvent?.({ event: 'object-received', key, bytes: sizeBytes, ms: now() - startedMs });
  }

  async #provenDigests(key: string, signal: AbortSignal): Promise<readonly string[] | undefined> {
    const reply = await this.#client.call({
      method: 'GET',
      path: `${DIGESTS_PATH}?key=${encodeURIComponent(key)}`,
      schema: digestsSchema,
      timeoutMs: this.#options.patienceMs ?? PATIENCE_MS,
      signal,
    });
    return reply?.digests;
  }

  /** Never rejects: when the controller is away, the next heartbeat that reaches it brings a parent. */
  async #reportParent(report: ParentReport): Promise<void> {
    try {
      const reply = await this.#client.call({
        method: 'POST',
        path: `${MEMBERS_PATH}/${encodeURIComponent(this.#options.id)}/reports`,
        body: report,
        schema: parentReplySchema,
        timeoutMs: CALL_TIMEOUT_MS,
        signal: this.#signal,
      });
      if (reply !== undefined) this.#parent = reply.parent ?? this.#controller;
      else this.#beat();
    } catch (error) {
      this.#loseController(error);
    }
  }

  #beat(): void {
    this.#isBeatWanted = true;
    this.#endWait?.();
  }

  async #beatOnAndOn(): Promise<void> {
    let failures = 0;
    while (!this.#signal.aborted) {
      this.#isBeatWanted = false;
      const isHeard = await this.#sendHeartbeat();
      failures = isHeard ? 0 : failures + 1;
      if (this.#signal.aborted || (isHeard && this.#isBeatWanted)) continue;
      await this.#wait(isHeard ? this.#heartbeatMs : this.#retryMs(failures), isHeard);
    }
  }

  async #sendHeartbeat(): Promise<boolean> {
    const progress = this.#progress.slice(0, MOST_REPORTED);
    const received = this.#received.slice(0, MOST_REPORTED);
    const heartbeat: Heartbeat = {
      id: this.#options.id,
      bootId: this.#bootId,
      url: this.#options.peerUrl(),
      ...(this.#parent === undefined ? {} : { parent: this.#parent.id }),
      ...(this.#announcement === undefined ? {} : { heard: this.#announcement.serial }),
      ...(this.#held === undefined ? {} : { held: this.#held }),
      progress,
      received,
      counts: this.counts,
    };
    try {
      const reply = await this.#client.call({
        method: 'POST',
        path: MEMBERS_PATH,
        body: heartbeat,
        schema: heartbeatReplySchema,
        timeoutMs: CALL_TIMEOUT_MS,
        signal: this.#signal,
      });
      if (reply === undefined)
        throw new HoneError('store-unavailable', `${this.#client.url} is no cluster controller.`, {
          cure: 'Give the control address of hone serve controller.',
        });
      this.#progress.splice(0, progress.length);
      this.#received.splice(0, received.length);
      this.#heartbeatMs = reply.leaseMs / 3;
      this.#parent = reply.parent ?? this.#controller;
      if (!this.#isControllerKnown)
        this.#options.onEvent?.({ event: 'controller-found', controller: this.#client.url, cluster: reply.cluster });
      this.#isControllerKnown = true;
      if (reply.announcement !== null) await this.#hear(reply.announcement);
      return true;
    } catch (error) {
      this.#loseController(error);
      return false;
    }
  }

  /** Waits at the controller for the next announcement, so that a new version is known within a round trip. */
  async #listenOnAndOn(): Promise<void> {
    let failures = 0;
    while (!this.#signal.aborted) {
      const after = this.#announcement === undefined ? '' : `&after=${encodeURIComponent(this.#announcement.serial)}`;
      try {
        const announcement = await this.#client.call({
          method: 'GET',
          path: `${POINTER_PATH}?wait=${LONG_POLL_MS}${after}`,
          schema: announcementSchema.nullable(),
          timeoutMs: LONG_POLL_MS + CALL_TIMEOUT_MS,
          signal: this.#signal,
        });
        failures = 0;
        if (announcement !== undefined && announcement !== null) await this.#hear(announcement);
      } catch (error) {
        this.#loseController(error);
        failures += 1;
        await delay(this.#retryMs(failures), undefined, { signal: this.#signal }).catch(() => undefined);
      }
    }
  }

  async #hear(announcement: Announcement): Promise<void> {
    const before = this.#announcement;
    if (before?.pointer !== undefined && before.pointer !== null) {
      if (announcement.pointer === null || isBehind(announcement.pointer, before.pointer)) {
        // A controller that lost its memory is behind for a while; the serial is taken, so that its next word is waited for.
        this.#announcement = { ...before, serial: announcement.serial };
        return;
      }
    }
    this.#announcement = announcement;
    await Promise.all(announcement.objects.map(async (object) => this.#takeIn(object)));
    if (before === undefined || announcement.pointer !== before.pointer) this.#options.onWake();
  }

  /** Never rejects: what cannot be kept now is asked for when it is needed. */
  async #takeIn({ base64, ...facts }: CarriedObject): Promise<void> {
    const known = { ...facts, checksum: facts.checksum ?? undefined };
    try {
      if (base64 === undefined) {
        this.#objects.know(known);
        return;
      }
      // Not counted: the counts are of what came through the tree.
      await this.#objects.put(known, Buffer.from(base64, 'base64'));
    } catch {
      // A full disk, say: whoever reads the object hears of it.
    }
  }

  #loseController(error: unknown): void {
    if (this.#signal.aborted || !this.#isControllerKnown) return;
    this.#isControllerKnown = false;
    this.#options.onEvent?.({ event: 'controller-lost', controller: this.#client.url, reason: reasonOf(error) });
  }

  /** A version that this replica does not hold yet leaves the cache last. */
  #isWanted(key: string): boolean {
    const version = versionOfKey(key);
    if (version === undefined) return false;
    return parseIdentity(version, key).version > (this.#held?.version ?? 0);
  }

  #retryMs(failures: number): number {
    const { random = Math.random } = this.#options;
    return random() * Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** failures);
  }

  /** Until time is up, or a heartbeat is wanted at once and the controller is there. */
  async #wait(waitMs: number, mayEnd: boolean): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, waitMs);
      this.#endWait = (): void => {
        if (!mayEnd && !this.#signal.aborted) return;
        clearTimeout(timer);
        resolve();
      };
      if (this.#signal.aborted) this.#endWait();
    });
    this.#endWait = undefined;
  }

  #with(signal: AbortSignal | undefined): AbortSignal {
    return signal === undefined ? this.#signal : AbortSignal.any([this.#signal, signal]);
  }
}

/** Whether an announced version is older than another one of the same run. */
function isBehind(pointer: string, before: string): boolean {
  try {
    const next = parseIdentity(pointer, 'The announced version');
    const last = parseIdentity(before, 'The announced version');
    return next.runId === last.runId && next.version < last.version;
  } catch {
    // What names no version is passed on: the reconciler says so and refuses it.
    return false;
  }
}

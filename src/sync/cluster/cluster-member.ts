/**
 * A replica's place in its cluster: the ObjectSource that reads through the broadcast tree and hands on to its own children what it
 * reads. Invariants: `readPointer` says what the controller announced and never goes back within a run; bytes are given out, to this replica and
 * to children, only after their digest was checked here; without a controller everything that is here stays readable.
 */
import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';

import { Agent } from 'undici';

import { HoneError } from '../../domain/errors.ts';
import { LATEST_POINTER, parseIdentity } from '../version-directory.ts';
import type { CallOptions, ObjectSource, Pointer, StoredObject } from '../store/weight-store.ts';
import {
  DIGESTS_PATH,
  digestsSchema,
  FACTS_PATH,
  factsSchema,
  type CarriedObject,
  type MemberProgress,
  type ParentFault,
  type RelayCounts,
} from './cluster-protocol.ts';
import { ControllerClient } from './controller-client.ts';
import { ControllerLink, type ControllerLinkEvent } from './controller-link.ts';
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
  | ControllerLinkEvent
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

export class ClusterMember implements ObjectSource, AsyncDisposable {
  readonly #options: ClusterMemberOptions;
  readonly #objects: RelayedObjects;
  readonly #agent: Agent;
  readonly #client: ControllerClient;
  readonly #stop = new AbortController();
  readonly #signal: AbortSignal;
  readonly #link: ControllerLink;
  /** Who each object comes from now. */
  readonly #sources = new Map<string, TreeSource>();
  #counts: RelayCounts = { receivedBytes: 0, sentBytes: 0, receivedChunks: 0, hopSeconds: 0, damagedChunks: 0 };
  #closing: Promise<void> | undefined;

  private constructor(options: ClusterMemberOptions, objects: RelayedObjects, agent: Agent) {
    this.#options = options;
    this.#objects = objects;
    this.#agent = agent;
    this.#client = new ControllerClient({ url: options.controllerUrl, token: options.token, dispatcher: agent });
    this.#signal = AbortSignal.any([options.signal, this.#stop.signal]);
    const { id, peerUrl, random = Math.random, onEvent, onWake } = options;
    this.#link = new ControllerLink({
      id,
      bootId: randomUUID(),
      client: this.#client,
      peerUrl,
      counts: () => this.counts,
      takeIn: async (object) => this.#takeIn(object),
      random,
      signal: this.#signal,
      onWake,
      onEvent: (event) => onEvent?.(event),
    });
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
      onComplete: ({ key }) => joined().#link.received(key),
      onDamage: (key, chunk) => {
        joined().#counts.damagedChunks += 1;
        options.onEvent?.({ event: 'chunk-damaged', key, chunk });
      },
      refuse: ({ key, member: child }) =>
        joined().#sources.get(key)?.id === child ? `${options.id} gets ${key} from ${child} itself.` : undefined,
    });
    const member = new ClusterMember(options, objects, agent);
    parts.member = member;
    member.#link.start();
    return member;
  }

  /** Tells the controller, at once. `holding` is for what a replica came up with. */
  report(progress: MemberProgress): void {
    this.#link.report(progress);
  }

  /** What passed through here since the start. */
  get counts(): RelayCounts {
    return { ...this.#counts, sentBytes: this.#objects.sentBytes };
  }

  /** The parent of now: null = the controller, undefined while it was never told. */
  get parentId(): string | null | undefined {
    return this.#link.parent?.id;
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
    const { announcement } = this.#link;
    if (announcement === undefined)
      return Promise.reject(
        new HoneError('store-unavailable', `The cluster controller ${this.#client.url} was not heard yet.`, {
          cure: 'Start it, or look whether the address and HONE_TOKEN are right.',
        }),
      );
    const { pointer, serial } = announcement;
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
    await this.#link.leave();
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
      controller: this.#link.controller,
      parent: () => this.#link.parent ?? this.#link.controller,
      report: async (report) => this.#link.reportParent(report),
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

  /** A version that this replica does not hold yet leaves the cache last. */
  #isWanted(key: string): boolean {
    const version = versionOfKey(key);
    if (version === undefined) return false;
    return parseIdentity(version, key).version > (this.#link.held?.version ?? 0);
  }

  #with(signal: AbortSignal | undefined): AbortSignal {
    return signal === undefined ? this.#signal : AbortSignal.any([this.#signal, signal]);
  }
}

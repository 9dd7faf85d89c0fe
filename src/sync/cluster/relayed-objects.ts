/**
 * The objects that a controller or a member hands on: what is known of each, the cache they lie in, whoever fills one that is not whole yet,
 * and the requests of children. Invariant: an object is filled by one task at a time, started by the first who asks for it and shared by
 * all; it is never closed or removed while someone fills, reads or serves it.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';

import { HoneError } from '../../domain/errors.ts';
import { isDiskFull } from '../../tensor/errno-code.ts';
import { checkStoreKey, type ObjectSource } from '../store/weight-store.ts';
import { chunkDigest } from './chunk-digest.ts';
import { ChunkMemory } from './chunk-memory.ts';
import { parseObjectPath, type ObjectRequest } from './cluster-protocol.ts';
import { readRelayed } from './object-reading.ts';
import type { ObjectFacts, RelayObject } from './object-relay.ts';
import { sendObject } from './object-sending.ts';
import { refusePeer } from './peer-refusal.ts';
import { RelayCache } from './relay-cache.ts';

export interface KnownObject extends ObjectFacts {
  /** Milliseconds since 1970, by whoever stored it. */
  readonly modifiedMs: number;
}

export interface RelayedObjectsOptions {
  readonly cacheDirectory: string;
  readonly cacheBytes: number;
  /** Keys that leave the cache last. */
  readonly isWanted: (key: string) => boolean;
  /** Undefined when there is no such object. */
  readonly findFacts: (key: string, signal: AbortSignal) => Promise<KnownObject | undefined>;
  /** Brings in what is missing; ends with the object complete, or throws. */
  readonly fill: (object: RelayObject, signal: AbortSignal) => Promise<void>;
  /** Objects filled at a time; the others wait their turn. */
  readonly parallelFills: number;
  /** When given, readers of an object that waits for its source hear this often that it lives. */
  readonly aliveEveryMs?: number;
  /** A child that takes no byte for this long is cut off. */
  readonly stallMs: number;
  readonly onComplete: (facts: ObjectFacts) => void;
  readonly onDamage: (key: string, chunk: number) => void;
  /** A reason not to serve this child, such as that it is the source itself. */
  readonly refuse?: (request: ObjectRequest) => string | undefined;
}

const KNOWN_OBJECTS = 20_000;

export class RelayedObjects implements Pick<ObjectSource, 'readObject' | 'localPath'> {
  readonly #options: RelayedObjectsOptions;
  readonly #cache: RelayCache;
  readonly #stop = new AbortController();
  readonly #known = new Map<string, KnownObject>();
  readonly #fills = new Map<string, Promise<void>>();
  readonly #serving = new Set<Promise<void>>();
  #running = 0;
  readonly #queue: (() => void)[] = [];
  /** Sent to children. */
  sentBytes = 0;

  private constructor(options: RelayedObjectsOptions, cache: RelayCache) {
    this.#options = options;
    this.#cache = cache;
  }

  static async open(options: RelayedObjectsOptions): Promise<RelayedObjects> {
    const { cacheDirectory, cacheBytes, isWanted } = options;
    const damage: { handle: (object: RelayObject, chunk: number) => void } = { handle: () => undefined };
    const cache = await RelayCache.open({
      directory: cacheDirectory,
      maxBytes: cacheBytes,
      isWanted,
      onDamage: (object, chunk) => damage.handle(object, chunk),
    });
    const objects = new RelayedObjects(options, cache);
    damage.handle = ({ facts }, chunk) => {
      options.onDamage(facts.key, chunk);
      // Whoever follows the object waits for the chunk, or hears of the failure.
      void objects.fetch(facts.key, objects.#stop.signal).catch(() => undefined);
    };
    return objects;
  }

  get cachedBytes(): number {
    return this.#cache.sizeBytes;
  }

  /** What is known of an object that lies here, whole or not. */
  cached(key: string): { readonly facts: ObjectFacts; readonly isProven: boolean } | undefined {
    return this.#cache.peek(key);
  }

  /** Undefined when there is no such object. */
  async facts(key: string, signal: AbortSignal): Promise<KnownObject | undefined> {
    checkStoreKey(key);
    const known = this.#known.get(key);
    if (known !== undefined) return known;
    const facts = await this.#options.findFacts(key, signal);
    if (facts !== undefined) this.#known.set(key, facts);
    if (this.#known.size > KNOWN_OBJECTS) this.#known.delete(this.#known.keys().next().value ?? '');
    return facts;
  }

  /** Takes the word of whoever vouches for these facts. */
  know(facts: KnownObject): void {
    checkStoreKey(facts.key);
    this.#known.set(facts.key, facts);
  }

  /** Takes in an object of one chunk whose bytes came with its facts; what lies here with other bytes gives way. False: they do not fit. */
  async put(facts: KnownObject, bytes: Uint8Array): Promise<boolean> {
    const { key, sizeBytes, checksum } = facts;
    const digest = chunkDigest(bytes);
    if (bytes.byteLength !== sizeBytes || (checksum !== undefined && checksum !== digest)) return false;
    this.know(facts);
    const held = await this.#cache.use(facts);
    const isOther = held.isComplete && held.digestOf(0) !== digest;
    if (isOther) {
      await this.#cache.release(held);
      if (!(await this.#cache.discard(key))) return false;
    }
    const object = isOther ? await this.#cache.use(facts) : held;
    try {
      if (object.isComplete || object.chunkCount !== 1) return object.isComplete;
      await object.leftoverChecked;
      object.adoptProvenDigests([digest]);
      await object.write(0, { digest, memory: ChunkMemory.of(bytes) });
      if ((await object.seal()) !== 'complete') return false;
      this.#cache.markProven(object);
      this.#options.onComplete(facts);
      return true;
    } finally {
      await this.#cache.release(object);
    }
  }

  /** Forgets an object that turned out not to be what it should, so that it is read again. */
  async discard(key: string): Promise<void> {
    this.#known.delete(key);
    // Whoever read it may have its last chunk before the filling has let go of it.
    await this.#fills.get(key);
    await this.#cache.discard(key);
  }

  /** Resolves when the object is here, whole and proven; undefined when there is none. */
  async fetch(key: string, signal: AbortSignal): Promise<KnownObject | undefined> {
    return this.#bring(key, signal, () => undefined);
  }

  async #bring(key: string, signal: AbortSignal, whenHere: () => void): Promise<KnownObject | undefined> {
    const both = AbortSignal.any([this.#stop.signal, signal]);
    const facts = await this.facts(key, both);
    if (facts === undefined) return undefined;
    const object = await this.#use(facts);
    try {
      await object.whenComplete(both);
      this.#cache.markProven(object);
      whenHere();
    } finally {
      await this.#cache.release(object);
    }
    return facts;
  }

  /** Like `fetch`, and the file that `localPath` names stays until `letGo`. */
  async hold(key: string, signal: AbortSignal): Promise<KnownObject | undefined> {
    return this.#bring(key, signal, () => this.#cache.hold(key));
  }

  /** Pairs with `hold`. `damaged`: its reader found wrong bytes in the file; they are looked for here, and read anew. */
  async letGo(key: string, outcome: 'used' | 'damaged'): Promise<void> {
    this.#cache.letGo(key);
    const held = outcome === 'damaged' ? this.#cache.peek(key) : undefined;
    if (held === undefined) return;
    const object = await this.#cache.use(held.facts);
    let wrong: number[];
    try {
      wrong = await object.recheck();
    } finally {
      await this.#cache.release(object);
    }
    for (const chunk of wrong) this.#options.onDamage(key, chunk);
    // The disk has what came: then what came was wrong.
    if (wrong.length === 0) await this.discard(key);
  }

  async readObject(
    key: string,
    options: Parameters<ObjectSource['readObject']>[1] = {},
  ): Promise<AsyncIterable<Uint8Array> | undefined> {
    const signal = AbortSignal.any([this.#stop.signal, ...(options.signal === undefined ? [] : [options.signal])]);
    const facts = await this.facts(key, signal);
    if (facts === undefined) return undefined;
    return readRelayed(facts, options.range, {
      signal,
      use: async () => this.#use(facts),
      release: async (object) => this.#cache.release(object),
    });
  }

  localPath(key: string): string | undefined {
    return this.#cache.localPath(key);
  }

  /** Digests of all chunks, as soon as the whole is proven. */
  async provenDigests(key: string, signal: AbortSignal): Promise<string[] | undefined> {
    const both = AbortSignal.any([this.#stop.signal, signal]);
    const facts = await this.facts(key, both);
    if (facts === undefined) return undefined;
    const object = await this.#use(facts);
    try {
      await object.whenComplete(both);
      return object.provenDigests();
    } finally {
      await this.#cache.release(object);
    }
  }

  /** Serves a child that asks for chunks; false when the path is another's. */
  handle(request: IncomingMessage, response: ServerResponse): boolean {
    const wanted = parseObjectPath(request.url);
    if (wanted === undefined) return false;
    if (wanted === 'invalid' || request.method !== 'GET') {
      refusePeer(response, 400, 'This is no request for chunks of an object.');
      return true;
    }
    const serving = this.#serve(wanted, response).finally(() => this.#serving.delete(serving));
    this.#serving.add(serving);
    return true;
  }

  async close(): Promise<void> {
    this.#stop.abort(new HoneError('aborted', 'The relay is closing.'));
    for (const start of this.#queue.splice(0)) start();
    await Promise.allSettled([...this.#fills.values(), ...this.#serving]);
    await this.#cache.close();
  }

  /** Never rejects. */
  async #serve(wanted: ObjectRequest, response: ServerResponse): Promise<void> {
    const { refuse, stallMs } = this.#options;
    let object: RelayObject | undefined;
    try {
      const reason = refuse?.(wanted);
      const facts = reason === undefined ? await this.facts(wanted.key, this.#stop.signal) : undefined;
      if (facts === undefined) {
        refusePeer(response, reason === undefined ? 404 : 409, reason ?? `There is no ${wanted.key}.`);
        return;
      }
      object = await this.#use(facts);
    } catch (error) {
      refusePeer(response, 503, error);
      return;
    }
    await sendObject(object, response, {
      start: wanted.start,
      end: Math.min(wanted.end, object.chunkCount),
      stallMs,
      signal: this.#stop.signal,
      onSent: (sizeBytes) => (this.sentBytes += sizeBytes),
    });
    await this.#cache.release(object).catch(() => undefined);
  }

  /** The object, with its filling on the way; to be released. */
  async #use(facts: KnownObject): Promise<RelayObject> {
    const object = await this.#cache.use(facts);
    const { key } = facts;
    if (!object.isComplete && !this.#fills.has(key)) {
      // Its failure reaches whoever follows the object.
      const fill = this.#fill(facts)
        .catch(() => undefined)
        .finally(() => this.#fills.delete(key));
      this.#fills.set(key, fill);
    }
    return object;
  }

  async #fill(facts: KnownObject): Promise<void> {
    const { aliveEveryMs, fill, onComplete, parallelFills } = this.#options;
    const object = await this.#cache.use(facts);
    const alive = aliveEveryMs === undefined ? undefined : setInterval(() => object.touch(), aliveEveryMs);
    try {
      if (this.#running >= parallelFills) await new Promise<void>((resolve) => this.#queue.push(resolve));
      this.#running += 1;
      try {
        this.#stop.signal.throwIfAborted();
        await fill(object, this.#stop.signal);
      } finally {
        this.#running -= 1;
        this.#queue.shift()?.();
      }
      this.#cache.markProven(object);
      onComplete(facts);
    } catch (error) {
      if (error instanceof HoneError && isDiskFull(error.cause)) await this.#cache.giveUp(facts.sizeBytes);
      object.fail(error);
    } finally {
      clearInterval(alive);
      await this.#cache.release(object);
    }
  }
}

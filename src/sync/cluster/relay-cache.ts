/**
 * The objects that a controller or a member keeps on its disk to hand on, under a bound of bytes; where others fill the disk, its room is
 * the bound. Invariants: one RelayObject a key, however many use it; what someone uses or holds is never removed, and versions go oldest
 * first; files that a killed process left are either taken over (their chunks are checked when they are used) or removed at open; files
 * are removed and made one after the other, so that no removal strikes the successor of what it was meant for.
 */
import { mkdir, readdir, rename, stat, statfs } from 'node:fs/promises';
import { dirname, join, sep } from 'node:path';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { checkStoreKey } from '../store/weight-store.ts';
import { chunkCountOf, DIGEST_BYTES, prepareDigests } from './chunk-digest.ts';
import { removePlace, type ObjectPlace } from './object-place.ts';
import { RelayObject, type ObjectFacts } from './object-relay.ts';

export interface RelayCacheOptions {
  readonly directory: string;
  readonly maxBytes: number;
  /** A chunk that was already here turned out damaged on the disk. */
  readonly onDamage: (object: RelayObject, chunk: number) => void;
  /** Keys that should go last although nobody reads them now. */
  readonly isWanted?: (key: string) => boolean;
}

interface Entry {
  readonly facts: ObjectFacts;
  /** Whether this process has seen the whole proven. */
  isProven: boolean;
  users: number;
  /** Readers of its file, who do not need it open. */
  holders: number;
  opened: Promise<RelayObject> | undefined;
}

/** Left free for those who share the disk, the state of a replica's weights above all; of a small disk this share. */
const RESERVE_BYTES = 64 << 20;
const RESERVE_SHARE = 1 / 8;
const GROWING = 'growing';
const WHOLE = 'whole';
const DIGESTS = 'digests';

export class RelayCache {
  readonly #options: RelayCacheOptions;
  readonly #entries = new Map<string, Entry>();
  /** Ends when the files are as the entries say: the next one who removes or makes files waits for it. */
  #filesDone: Promise<unknown> = Promise.resolve();
  #isClosed = false;

  private constructor(options: RelayCacheOptions) {
    this.#options = options;
  }

  static async open(options: RelayCacheOptions): Promise<RelayCache> {
    const cache = new RelayCache(options);
    await prepareDigests();
    try {
      await cache.#takeOver();
    } catch (error) {
      throw new HoneError('store-failed', `The cache ${options.directory} cannot be opened: ${reasonOf(error)}.`, {
        cure: 'Name a folder that can be read and written to, or remove it: it holds copies only.',
        cause: error,
      });
    }
    return cache;
  }

  get sizeBytes(): number {
    let sum = 0;
    for (const { facts } of this.#entries.values()) sum += facts.sizeBytes;
    return sum;
  }

  get maxBytes(): number {
    return this.#options.maxBytes;
  }

  /** The object under its key, made when missing; pair each call with `release`. Facts that differ replace what lies there. */
  async use(facts: ObjectFacts): Promise<RelayObject> {
    checkStoreKey(facts.key);
    if (this.#isClosed) throw new HoneError('aborted', 'The cache is closed.');
    const held = this.#entries.get(facts.key);
    const isSame =
      held?.facts.sizeBytes === facts.sizeBytes &&
      (held.isProven || held.opened === undefined || held.facts.checksum === facts.checksum);
    if (held !== undefined && isSame) {
      held.users += 1;
      const leftover = held.isProven ? 'proven' : 'unchecked';
      const entry = held.opened === undefined && !held.isProven ? this.#replaceFacts(held, facts) : held;
      return this.#openEntry(entry, leftover);
    }
    if (held !== undefined) {
      if (held.users > 0)
        throw new HoneError(
          'store-failed',
          `${facts.key} is in use with ${held.facts.sizeBytes} bytes, now it should have ${facts.sizeBytes}.`,
          {
            cure: 'Objects of a weight store never change; look for whoever replaced it.',
          },
        );
      void this.#remove(facts.key);
    }
    const entry: Entry = { facts, isProven: false, users: 1, holders: held?.holders ?? 0, opened: undefined };
    this.#entries.set(facts.key, entry);
    return this.#openEntry(entry, 'none');
  }

  async release(object: RelayObject): Promise<void> {
    const entry = this.#entries.get(object.facts.key);
    if (entry === undefined) return;
    entry.users -= 1;
    entry.isProven = object.isComplete;
    if (entry.users > 0) return;
    entry.opened = undefined;
    await object.close();
    if (!this.#isClosed) await this.#makeRoom();
  }

  /** The file of a proven object stays where it is until `letGo`, however full the cache. */
  hold(key: string): void {
    const entry = this.#entries.get(key);
    if (entry?.isProven !== true) throw new HoneError('store-failed', `${key} is not here to be held.`);
    entry.holders += 1;
  }

  letGo(key: string): void {
    const entry = this.#entries.get(key);
    if (entry !== undefined) entry.holders = Math.max(0, entry.holders - 1);
  }

  /** The object if somebody uses it now or this process has proven it. */
  peek(key: string): { readonly facts: ObjectFacts; readonly isProven: boolean } | undefined {
    const entry = this.#entries.get(key);
    return entry === undefined ? undefined : { facts: entry.facts, isProven: entry.isProven };
  }

  /** Notes that a whole object is proven while it is still in use, so that its path can be given out. */
  markProven(object: RelayObject): void {
    const entry = this.#entries.get(object.facts.key);
    if (entry !== undefined) entry.isProven = object.isComplete;
  }

  /** Forgets an object that turned out not to be what it should; false while somebody uses it. */
  async discard(key: string): Promise<boolean> {
    const entry = this.#entries.get(key);
    if (entry === undefined) return true;
    if (entry.users > 0) return false;
    await this.#remove(key);
    return true;
  }

  localPath(key: string): string | undefined {
    return this.#entries.get(key)?.isProven === true ? this.#place(key).wholePath : undefined;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    for (const { opened } of this.#entries.values()) await (await opened?.catch(() => undefined))?.close();
  }

  /** Removes what nobody uses until this many bytes fewer are kept: for a disk that is full although it did not say so. */
  async giveUp(bytes: number): Promise<void> {
    await this.#inTurn(async () => this.#evict(bytes));
  }

  #replaceFacts(held: Entry, facts: ObjectFacts): Entry {
    const entry: Entry = { ...held, facts };
    this.#entries.set(facts.key, entry);
    return entry;
  }

  async #openEntry(entry: Entry, leftover: 'none' | 'unchecked' | 'proven'): Promise<RelayObject> {
    const { key } = entry.facts;
    entry.opened ??= this.#makeRoom().then(async () =>
      RelayObject.open(entry.facts, this.#place(key), {
        leftover,
        onDamage: (object, chunk) => {
          entry.isProven = false;
          this.#options.onDamage(object, chunk);
        },
      }),
    );
    try {
      return await entry.opened;
    } catch (error) {
      // Whoever else waits for it gets the same error; the next one begins anew.
      entry.users -= 1;
      if (this.#entries.get(key) === entry && entry.users <= 0) await this.#remove(key);
      throw error;
    }
  }

  async #makeRoom(): Promise<void> {
    await this.#inTurn(async () =>
      this.#evict(Math.max(this.sizeBytes - this.#options.maxBytes, await this.#lackingBytes())),
    );
  }

  /** What the disk is short of for all that is on its way; negative where there is room. */
  async #lackingBytes(): Promise<number> {
    let comingBytes = 0;
    for (const { facts, isProven, opened } of this.#entries.values())
      if (opened !== undefined && !isProven) comingBytes += facts.sizeBytes;
    try {
      const { bavail, blocks, bsize } = await statfs(this.#options.directory);
      return comingBytes + Math.min(RESERVE_BYTES, blocks * bsize * RESERVE_SHARE) - bavail * bsize;
    } catch {
      return 0; // A disk that tells nothing says so when it is full.
    }
  }

  async #evict(excessBytes: number): Promise<void> {
    const { isWanted = () => false } = this.#options;
    const isIdle = ({ users, holders }: Entry): boolean => users === 0 && holders === 0;
    if (excessBytes <= 0) return;
    const idle = [...this.#entries].filter(([, entry]) => isIdle(entry));
    idle.sort(
      ([one], [other]) =>
        Number(isWanted(one)) - Number(isWanted(other)) || versionOf(one) - versionOf(other) || (one < other ? -1 : 1),
    );
    let leftBytes = excessBytes;
    for (const [key, entry] of idle) {
      if (leftBytes <= 0) return;
      if (!isIdle(entry) || this.#entries.get(key) !== entry) continue;
      leftBytes -= entry.facts.sizeBytes;
      this.#entries.delete(key);
      await removePlace(this.#place(key));
    }
  }

  async #remove(key: string): Promise<void> {
    this.#entries.delete(key);
    await this.#inTurn(async () => removePlace(this.#place(key)));
  }

  async #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#filesDone.then(work);
    this.#filesDone = done.catch(() => undefined);
    return done;
  }

  #place(key: string): ObjectPlace {
    const { directory } = this.#options;
    return {
      growingPath: join(directory, GROWING, key),
      wholePath: join(directory, WHOLE, key),
      digestsPath: join(directory, DIGESTS, key),
    };
  }

  /** What another process left: data and digests that fit each other are kept as unchecked, anything else goes. */
  async #takeOver(): Promise<void> {
    const { directory } = this.#options;
    const whole = await listFiles(join(directory, WHOLE));
    const growing = await listFiles(join(directory, GROWING));
    const digests = await listFiles(join(directory, DIGESTS));
    for (const key of new Set([...whole.keys(), ...growing.keys(), ...digests.keys()])) {
      const sizeBytes = whole.get(key) ?? growing.get(key);
      const digestBytes = digests.get(key);
      const isUsable =
        sizeBytes !== undefined &&
        digestBytes !== undefined &&
        digestBytes <= chunkCountOf(sizeBytes) * DIGEST_BYTES &&
        isStoreKey(key);
      if (!isUsable) {
        await this.#remove(key);
        continue;
      }
      // A whole object is checked like one that still grows, and gets its name again when it is proven.
      if (whole.has(key)) {
        const { growingPath, wholePath } = this.#place(key);
        await mkdir(dirname(growingPath), { recursive: true });
        await rename(wholePath, growingPath);
      }
      const facts = { key, sizeBytes, checksum: undefined };
      this.#entries.set(key, { facts, isProven: false, users: 0, holders: 0, opened: undefined });
    }
    await this.#makeRoom();
  }
}

/** Size of each file below a folder, by its path from there with forward slashes. */
async function listFiles(directory: string): Promise<Map<string, number>> {
  await mkdir(directory, { recursive: true });
  const sizes = new Map<string, number>();
  for (const entry of await readdir(directory, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const path = join(entry.parentPath, entry.name);
    sizes.set(path.slice(join(directory, sep).length).replaceAll(sep, '/'), (await stat(path)).size);
  }
  return sizes;
}

function isStoreKey(key: string): boolean {
  try {
    checkStoreKey(key);
    return true;
  } catch {
    return false;
  }
}

/** The version that a key belongs to; what belongs to none goes first. */
function versionOf(key: string): number {
  return Number(/\/weight_v(\d+)/.exec(key)?.[1] ?? -1);
}

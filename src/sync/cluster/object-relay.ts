/**
 * One object that grows on the local disk while others read it: a writer puts chunks in (in any order), readers follow from any
 * chunk and get each as soon as it is there. Beside the data lies a file with the digest of every chunk, so that what a killed
 * process left is checked and used. Invariants: nothing is readable before its digest was checked, and a chunk that comes from the disk
 * is checked once more; `isComplete` says that size and checksum of the whole are proven. Damage drops a chunk, never the object.
 */
import { mkdir, open, rename, type FileHandle } from 'node:fs/promises';
import { dirname } from 'node:path';

import { HoneError } from '../../domain/errors.ts';
import { errnoCode } from '../../tensor/errno-code.ts';
import { ChecksumInOrder } from './checksum-in-order.ts';
import { CHUNK_BYTES, chunkCountOf, chunkDigest, chunkSizeOf } from './chunk-digest.ts';
import { ChunkMemory } from './chunk-memory.ts';
import { DigestFile } from './digest-file.ts';
import { ObjectHash } from './object-hash.ts';
import { keepingFailure, openLeftover, type ObjectPlace } from './object-place.ts';
import { RecentChunks } from './recent-chunks.ts';
import { writeAll } from './write-all.ts';

/** What is known of an object before its first byte. */
export interface ObjectFacts {
  readonly key: string;
  readonly sizeBytes: number;
  /** xxh3-128 of all bytes; undefined where no index names it. */
  readonly checksum: string | undefined;
}

export type RelayedPart =
  | { readonly kind: 'alive' }
  /** The memory is held for the reader; one that does not release it may keep the bytes. */
  | { readonly kind: 'chunk'; readonly chunk: number; readonly digest: string; readonly memory: ChunkMemory };

export interface OpenRelayOptions {
  /** `unchecked`: left by another process; `proven`: checked by this one. */
  readonly leftover: 'none' | 'unchecked' | 'proven';
  /** A chunk that was there turned out damaged: someone has to fetch it again. */
  readonly onDamage: (object: RelayObject, chunk: number) => void;
}

export class RelayObject {
  readonly facts: ObjectFacts;
  readonly chunkCount: number;
  /** Settles when what a killed process left is checked. Never rejects. */
  readonly leftoverChecked: Promise<void>;
  readonly #place: ObjectPlace;
  readonly #onDamage: OpenRelayOptions['onDamage'];
  readonly #data: FileHandle;
  readonly #digestFile: DigestFile;
  readonly #digests: (string | undefined)[];
  readonly #isPresent: Uint8Array;
  readonly #recent = new RecentChunks();
  #presentCount = 0;
  /** The digests themselves are proven: a chunk with another one is wrong, whoever sends it. */
  #areDigestsProven = false;
  #isComplete = false;
  #failureCount = 0;
  #lastFailure: unknown;
  #isClosed = false;
  #changed = Promise.withResolvers<void>();
  #aliveCount = 0;
  /** Undefined where nothing says what the whole should be, and where the digest of the one chunk says it. */
  readonly #checksum: ChecksumInOrder | undefined;

  private constructor(facts: ObjectFacts, place: ObjectPlace, files: OpenFiles, options: OpenRelayOptions) {
    this.facts = facts;
    this.#place = place;
    this.#onDamage = options.onDamage;
    this.#data = files.data;
    this.#digestFile = files.digestFile;
    this.chunkCount = chunkCountOf(facts.sizeBytes);
    this.#digests = files.digests;
    if (files.hash !== undefined)
      this.#checksum = new ChecksumInOrder(files.hash, {
        has: (chunk) => this.has(chunk),
        recent: (chunk) => this.#recent.get(chunk)?.bytes,
        read: async (chunk) => this.#read(chunk),
      });
    this.#isPresent = new Uint8Array(this.chunkCount);
    if (options.leftover === 'proven') {
      for (const [chunk, digest] of this.#digests.entries()) if (digest !== undefined) this.#setPresent(chunk, true);
      this.#areDigestsProven = this.#presentCount === this.chunkCount;
      this.#isComplete = this.#areDigestsProven;
      this.leftoverChecked = Promise.resolve();
    } else this.leftoverChecked = this.#checkLeftover();
  }

  static async open(facts: ObjectFacts, place: ObjectPlace, options: OpenRelayOptions): Promise<RelayObject> {
    try {
      const { leftover } = options;
      for (const path of Object.values<string>({ ...place })) await mkdir(dirname(path), { recursive: true });
      const data = leftover === 'none' ? await open(place.growingPath, 'w+') : await openLeftover(place);
      try {
        // The file has its full length at once, so that a process that finds it knows the object's size.
        if (leftover === 'none') await data.truncate(facts.sizeBytes);
        const { file: digestFile, digests } = await DigestFile.open(place.digestsPath, {
          isNew: leftover === 'none',
          chunkCount: chunkCountOf(facts.sizeBytes),
        });
        const isProven = leftover === 'proven' && !digests.includes(undefined);
        const isHashed = !isProven && facts.checksum !== undefined && facts.sizeBytes > CHUNK_BYTES;
        const hash = isHashed ? await ObjectHash.take() : undefined;
        return new RelayObject(facts, place, { data, digestFile, digests, hash }, options);
      } catch (error) {
        await data.close();
        throw error;
      }
    } catch (error) {
      throw keepingFailure(facts.key, place.growingPath, error);
    }
  }

  /** Every chunk is there, and the whole has the size and the checksum that it should have. */
  get isComplete(): boolean {
    return this.#isComplete;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  get presentChunks(): number {
    return this.#presentCount;
  }

  has(chunk: number): boolean {
    return this.#isPresent[chunk] === 1;
  }

  /** Undefined for a chunk that never was here. */
  digestOf(chunk: number): string | undefined {
    return this.#digests[chunk];
  }

  /** The first run of at most `maxChunks` missing chunks at or after `from`, half-open. */
  missingRun(from = 0, maxChunks = Infinity): { readonly start: number; readonly end: number } | undefined {
    let start = from;
    while (start < this.chunkCount && this.has(start)) start += 1;
    if (start >= this.chunkCount) return undefined;
    let end = start;
    while (end < this.chunkCount && !this.has(end) && end - start < maxChunks) end += 1;
    return { start, end };
  }

  /** Takes a chunk in. `damaged`: the bytes are not what the digest, or an earlier proof, says; nothing changed. */
  async write(
    chunk: number,
    part: { readonly digest: string; readonly memory: ChunkMemory },
  ): Promise<'written' | 'damaged'> {
    const { digest, memory } = part;
    const { bytes } = memory;
    if (bytes.byteLength !== chunkSizeOf(this.facts.sizeBytes, chunk) || chunkDigest(bytes) !== digest)
      return 'damaged';
    if (this.#areDigestsProven && this.#digests[chunk] !== digest) return 'damaged';
    if (this.has(chunk)) return 'written';
    try {
      await writeAll(this.#data, bytes, chunk * CHUNK_BYTES);
    } catch (error) {
      throw keepingFailure(this.facts.key, this.#place.growingPath, error);
    }
    this.#digests[chunk] = digest;
    this.#digestFile.keep(chunk, digest);
    this.#remember(chunk, memory);
    this.#setPresent(chunk, true);
    this.#checksum?.advance();
    this.#notify();
    return 'written';
  }

  /** The source lives although no chunk came: readers pass it on, so that they are not taken for dead. */
  touch(): void {
    this.#aliveCount += 1;
    this.#notify();
  }

  /**
   * Proves the whole when no chunk is `missing` any more. `mismatch`: the chunks are not the object; all are still there, for
   * the caller to find and drop those that are wrong.
   */
  async seal(): Promise<'complete' | 'missing' | 'mismatch'> {
    if (this.#isComplete) return 'complete';
    if (this.#presentCount < this.chunkCount) return 'missing';
    const { checksum } = this.facts;
    if (!this.#areDigestsProven && checksum !== undefined) {
      // The digest of the one chunk is the checksum of the whole.
      const found = this.#checksum === undefined ? this.#digests[0] : await this.#checksum.digest(this.chunkCount);
      this.#checksum?.restart();
      if (found === undefined) return 'missing';
      if (found !== checksum) return 'mismatch';
    }
    try {
      await rename(this.#place.growingPath, this.#place.wholePath).catch((error: unknown) => {
        // A whole object that lost a chunk to damage is mended where it lies.
        if (errnoCode(error) !== 'ENOENT') throw error;
      });
    } catch (error) {
      throw keepingFailure(this.facts.key, this.#place.wholePath, error);
    }
    this.#areDigestsProven = true;
    this.#isComplete = true;
    // A killed process's successor finds all of it.
    await this.#digestFile.settled();
    this.#notify();
    return 'complete';
  }

  /** Forgets chunks that are damaged or not those of the object. */
  drop(chunks: Iterable<number>): void {
    for (const chunk of chunks) {
      this.#recent.forget(chunk);
      if (!this.has(chunk)) continue;
      this.#setPresent(chunk, false);
      if (!this.#areDigestsProven) this.#digests[chunk] = undefined;
    }
    this.#isComplete = this.#isComplete && this.#presentCount === this.chunkCount;
    this.#checksum?.restart();
  }

  /** Reads all that is here from the disk again; drops and returns the chunks that are not what was taken in. */
  async recheck(): Promise<number[]> {
    const wrong: number[] = [];
    for (let chunk = 0; chunk < this.chunkCount; chunk++) {
      if (!this.has(chunk)) continue;
      const memory = await this.#readFromDisk(chunk);
      if (memory === undefined || chunkDigest(memory.bytes) !== this.#digests[chunk]) wrong.push(chunk);
      memory?.release();
    }
    if (wrong.length > 0) this.drop(wrong);
    return wrong;
  }

  /** Takes digests that someone who proved the whole vouches for; drops and returns the chunks that have others. */
  adoptProvenDigests(digests: readonly string[]): number[] {
    const wrong: number[] = [];
    for (const [chunk, digest] of digests.entries()) {
      if (this.has(chunk) && this.#digests[chunk] !== digest) wrong.push(chunk);
    }
    this.drop(wrong);
    for (const [chunk, digest] of digests.entries()) this.#digests[chunk] = digest;
    this.#areDigestsProven = true;
    return wrong;
  }

  /** All digests, when the whole is proven. */
  provenDigests(): string[] | undefined {
    if (!this.#areDigestsProven) return undefined;
    return this.#digests.map((digest) => digest ?? '');
  }

  /** Breaks off every reader; the next fetch may begin again. */
  fail(error: unknown): void {
    this.#failureCount += 1;
    this.#lastFailure = error;
    this.#notify();
  }

  /** Chunks `start` to `end` in order, each as soon as it is there, with signs of life between. Throws when the fetch failed. */
  async *follow(start: number, end: number, signal: AbortSignal): AsyncGenerator<RelayedPart> {
    const failuresBefore = this.#failureCount;
    let aliveSeen = this.#aliveCount;
    for (let chunk = start; chunk < end;) {
      this.#throwIfEnded(signal, failuresBefore);
      if (this.has(chunk)) {
        const memory = this.#recent.get(chunk)?.hold() ?? (await this.#read(chunk));
        const digest = this.#digests[chunk];
        if (memory !== undefined && digest !== undefined) {
          yield { kind: 'chunk', chunk, digest, memory };
          chunk += 1;
          aliveSeen = this.#aliveCount;
        }
        continue;
      }
      if (this.#aliveCount !== aliveSeen) {
        aliveSeen = this.#aliveCount;
        yield { kind: 'alive' };
        continue;
      }
      await this.#change(signal);
    }
  }

  /** Resolves when the whole is proven; throws when the fetch failed. */
  async whenComplete(signal: AbortSignal): Promise<void> {
    const failuresBefore = this.#failureCount;
    while (!this.#isComplete) {
      this.#throwIfEnded(signal, failuresBefore);
      await this.#change(signal);
    }
  }

  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#notify();
    await this.leftoverChecked;
    await this.#checksum?.close();
    this.#recent.clear();
    await this.#data.close();
    await this.#digestFile.close();
  }

  /** Undefined when the disk has other bytes than were written: the chunk is dropped and asked for again. */
  async #read(chunk: number): Promise<ChunkMemory | undefined> {
    const recent = this.#recent.get(chunk);
    if (recent !== undefined) return recent.hold();
    const memory = await this.#readFromDisk(chunk);
    if (memory !== undefined && chunkDigest(memory.bytes) === this.#digests[chunk]) return memory;
    memory?.release();
    if (this.has(chunk)) {
      this.drop([chunk]);
      this.#onDamage(this, chunk);
    }
    return undefined;
  }

  async #readFromDisk(chunk: number): Promise<ChunkMemory | undefined> {
    const memory = ChunkMemory.take(chunkSizeOf(this.facts.sizeBytes, chunk));
    const { bytes } = memory;
    let filled = 0;
    try {
      while (filled < bytes.byteLength) {
        const { bytesRead } = await this.#data.read(
          bytes,
          filled,
          bytes.byteLength - filled,
          chunk * CHUNK_BYTES + filled,
        );
        if (bytesRead === 0) return undefined;
        filled += bytesRead;
      }
    } catch (error) {
      throw keepingFailure(this.facts.key, this.#place.growingPath, error);
    }
    return memory;
  }

  async #checkLeftover(): Promise<void> {
    for (let chunk = 0; chunk < this.chunkCount && !this.#isClosed; chunk++) {
      const digest = this.#digests[chunk];
      if (digest === undefined) continue;
      const memory = await this.#readFromDisk(chunk).catch(() => undefined);
      if (memory !== undefined && chunkDigest(memory.bytes) === digest) {
        this.#setPresent(chunk, true);
        this.#remember(chunk, memory);
        this.#checksum?.advance();
        this.#notify();
      } else this.#digests[chunk] = undefined;
      memory?.release();
    }
  }

  #remember(chunk: number, memory: ChunkMemory): void {
    if (!this.#isClosed) this.#recent.remember(chunk, memory);
  }

  #setPresent(chunk: number, isPresent: boolean): void {
    if (this.has(chunk) === isPresent) return;
    this.#isPresent[chunk] = isPresent ? 1 : 0;
    this.#presentCount += isPresent ? 1 : -1;
  }

  #notify(): void {
    const changed = this.#changed;
    this.#changed = Promise.withResolvers<void>();
    changed.resolve();
  }

  #throwIfEnded(signal: AbortSignal, failuresBefore: number): void {
    signal.throwIfAborted();
    if (this.#isClosed) throw new HoneError('aborted', `${this.facts.key} is no longer relayed.`);
    if (this.#failureCount > failuresBefore) throw this.#lastFailure;
  }

  async #change(signal: AbortSignal): Promise<void> {
    const { promise } = this.#changed;
    const aborted = Promise.withResolvers<void>();
    const onAbort = (): void => aborted.resolve();
    signal.addEventListener('abort', onAbort, { once: true });
    try {
      await Promise.race([promise, aborted.promise]);
    } finally {
      signal.removeEventListener('abort', onAbort);
    }
    signal.throwIfAborted();
  }
}

interface OpenFiles {
  readonly hash: ObjectHash | undefined;
  readonly data: FileHandle;
  readonly digestFile: DigestFile;
  readonly digests: (string | undefined)[];
}

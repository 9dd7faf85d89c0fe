/**
 * One object that grows on the local disk while others read it: a writer puts chunks in (in any order), readers follow from any
 * chunk and get each as soon as it is there. Beside the data lies a file with the digest of every chunk, so that what a killed
 * process left is checked and used. Invariants: nothing is readable before its digest was checked, and a chunk that comes from the disk
 * is checked once more; `isComplete` says that size and checksum of the whole are proven. Damage drops a chunk, never the object.
 */
import { mkdir, open, rename, rm, type FileHandle } from 'node:fs/promises';
import { dirname } from 'node:path';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { errnoCode, isDiskFull } from '../../tensor/errno-code.ts';
import { CHUNK_BYTES, chunkCountOf, chunkDigest, chunkSizeOf, DIGEST_BYTES } from './chunk-digest.ts';
import { ChunkMemory } from './chunk-memory.ts';
import { ObjectHash } from './object-hash.ts';

/** What is known of an object before its first byte. */
export interface ObjectFacts {
  readonly key: string;
  readonly sizeBytes: number;
  /** xxh3-128 of all bytes; undefined where no index names it. */
  readonly checksum: string | undefined;
}

/** Three files of one object: while it grows, when it is whole, and the digests of its chunks. */
export interface ObjectPlace {
  readonly growingPath: string;
  readonly wholePath: string;
  readonly digestsPath: string;
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

/** Chunks that readers close behind the writer take from memory. */
const RECENT_CHUNKS = 8;

export class RelayObject {
  readonly facts: ObjectFacts;
  readonly chunkCount: number;
  /** Settles when what a killed process left is checked. Never rejects. */
  readonly leftoverChecked: Promise<void>;
  readonly #place: ObjectPlace;
  readonly #onDamage: OpenRelayOptions['onDamage'];
  readonly #data: FileHandle;
  readonly #digestFile: FileHandle;
  readonly #digests: (string | undefined)[];
  readonly #isPresent: Uint8Array;
  readonly #recent = new Map<number, ChunkMemory>();
  #presentCount = 0;
  /** The digests themselves are proven: a chunk with another one is wrong, whoever sends it. */
  #areDigestsProven = false;
  #isComplete = false;
  #failureCount = 0;
  #lastFailure: unknown;
  #isClosed = false;
  #changed = Promise.withResolvers<void>();
  #aliveCount = 0;
  readonly #digestsToKeep = new Map<number, string>();
  /** Never rejects. */
  #digestsKept: Promise<void> = Promise.resolve();
  /** Undefined where nothing says what the whole should be, and where the digest of the one chunk says it. */
  #hash: ObjectHash | undefined;
  /** Counts how often the hash began anew. */
  #hashRound = 0;
  #hashedChunks = 0;
  #hashing: Promise<void> | undefined;

  private constructor(facts: ObjectFacts, place: ObjectPlace, files: OpenFiles, options: OpenRelayOptions) {
    this.facts = facts;
    this.#place = place;
    this.#onDamage = options.onDamage;
    this.#data = files.data;
    this.#digestFile = files.digestFile;
    this.chunkCount = chunkCountOf(facts.sizeBytes);
    this.#digests = files.digests;
    this.#hash = files.hash;
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
      const isHashed = leftover !== 'proven' && facts.checksum !== undefined && facts.sizeBytes > CHUNK_BYTES;
      const hash = isHashed ? await ObjectHash.take() : undefined;
      for (const path of Object.values<string>({ ...place })) await mkdir(dirname(path), { recursive: true });
      const data = leftover === 'none' ? await open(place.growingPath, 'w+') : await openLeftover(place);
      try {
        // The file has its full length at once, so that a process that finds it knows the object's size.
        if (leftover === 'none') await data.truncate(facts.sizeBytes);
        const digestFile = await open(place.digestsPath, leftover === 'none' ? 'w+' : 'r+');
        const digests = await readDigests(digestFile, chunkCountOf(facts.sizeBytes));
        return new RelayObject(facts, place, { data, digestFile, digests, hash }, options);
      } catch (error) {
        await data.close();
        throw error;
      }
    } catch (error) {
      throw relayFailure(facts.key, place.growingPath, error);
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
      throw relayFailure(this.facts.key, this.#place.growingPath, error);
    }
    this.#digests[chunk] = digest;
    this.#keepDigest(chunk, digest);
    this.#remember(chunk, memory);
    this.#setPresent(chunk, true);
    this.#advanceHash();
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
    if (!this.#areDigestsProven && this.#hash === undefined && this.chunkCount === 1) {
      const { checksum } = this.facts;
      if (checksum !== undefined && checksum !== this.#digests[0]) return 'mismatch';
    }
    if (!this.#areDigestsProven && this.#hash !== undefined) {
      while (this.#hashedChunks < this.chunkCount) {
        this.#advanceHash();
        await this.#hashing;
        if (this.#presentCount < this.chunkCount) return 'missing';
      }
      const checksum = this.#hash.digest();
      this.#restartHash();
      if (checksum !== this.facts.checksum) return 'mismatch';
    }
    try {
      await rename(this.#place.growingPath, this.#place.wholePath).catch((error: unknown) => {
        // A whole object that lost a chunk to damage is mended where it lies.
        if (errnoCode(error) !== 'ENOENT') throw error;
      });
    } catch (error) {
      throw relayFailure(this.facts.key, this.#place.wholePath, error);
    }
    this.#areDigestsProven = true;
    this.#isComplete = true;
    // A killed process's successor finds all of it.
    await this.#digestsKept;
    this.#notify();
    return 'complete';
  }

  /** Forgets chunks that are damaged or not those of the object. */
  drop(chunks: Iterable<number>): void {
    for (const chunk of chunks) {
      this.#forget(chunk);
      if (!this.has(chunk)) continue;
      this.#setPresent(chunk, false);
      if (!this.#areDigestsProven) this.#digests[chunk] = undefined;
    }
    this.#isComplete = this.#isComplete && this.#presentCount === this.chunkCount;
    this.#restartHash();
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
    await this.#hashing;
    await this.#digestsKept;
    for (const chunk of this.#recent.keys()) this.#forget(chunk);
    if (this.#hash !== undefined) ObjectHash.giveBack(this.#hash);
    this.#hash = undefined;
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
      throw relayFailure(this.facts.key, this.#place.growingPath, error);
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
        this.#advanceHash();
        this.#notify();
      } else this.#digests[chunk] = undefined;
      memory?.release();
    }
  }

  /** Takes the chunks that follow each other into the checksum of the whole, one task at a time. */
  #advanceHash(): void {
    if (this.#hash === undefined || this.#areDigestsProven || this.#hashing !== undefined) return;
    const next = this.#recent.get(this.#hashedChunks);
    if (next !== undefined && this.has(this.#hashedChunks)) {
      // The usual case, without a task: the chunk that just came is the next one.
      this.#hash.update(next.bytes);
      this.#hashedChunks += 1;
      if (!this.has(this.#hashedChunks)) return;
    } else if (!this.has(this.#hashedChunks)) return;
    this.#hashing = this.#catchUpHash().finally(() => {
      this.#hashing = undefined;
    });
  }

  async #catchUpHash(): Promise<void> {
    const round = this.#hashRound;
    while (this.has(this.#hashedChunks) && !this.#isClosed) {
      const memory = await this.#read(this.#hashedChunks).catch(() => undefined);
      // Chunks were dropped meanwhile: the hash began anew.
      if (memory !== undefined && round === this.#hashRound) {
        this.#hash?.update(memory.bytes);
        this.#hashedChunks += 1;
      }
      memory?.release();
      if (memory === undefined || round !== this.#hashRound) return;
    }
  }

  #restartHash(): void {
    this.#hash?.reset();
    this.#hashRound += 1;
    this.#hashedChunks = 0;
  }

  /** For readers close behind the writer. */
  #remember(chunk: number, memory: ChunkMemory): void {
    if (this.#isClosed) return;
    this.#forget(chunk);
    this.#recent.set(chunk, memory.hold());
    if (this.#recent.size > RECENT_CHUNKS) this.#forget(this.#recent.keys().next().value ?? chunk);
  }

  #forget(chunk: number): void {
    this.#recent.get(chunk)?.release();
    this.#recent.delete(chunk);
  }

  /** Digests only spare a process that comes after a crash some bytes: they are written behind, many at a time. */
  #keepDigest(chunk: number, digest: string): void {
    this.#digestsToKeep.set(chunk, digest);
    if (this.#digestsToKeep.size > 1) return;
    this.#digestsKept = this.#digestsKept.then(async () => this.#writeDigests());
  }

  async #writeDigests(): Promise<void> {
    const batch = [...this.#digestsToKeep].sort(([one], [other]) => one - other);
    this.#digestsToKeep.clear();
    try {
      for (let from = 0; from < batch.length;) {
        const [first = 0] = batch[from] ?? [];
        let to = from + 1;
        while (batch[to]?.[0] === first + to - from) to += 1;
        const run = batch.slice(from, to).map(([, digest]) => digest);
        await writeAll(this.#digestFile, Buffer.from(run.join(''), 'hex'), first * DIGEST_BYTES);
        from = to;
      }
    } catch {
      // A chunk without its digest is fetched again by the next process.
    }
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
  readonly digestFile: FileHandle;
  readonly digests: (string | undefined)[];
}

/** Removes what lies at the place; what is open elsewhere stays readable there. */
export async function removePlace(place: ObjectPlace): Promise<void> {
  for (const path of [place.growingPath, place.wholePath, place.digestsPath]) await rm(path, { force: true });
}

/** A whole object that lost a chunk to damage lies under its final name still. */
async function openLeftover(place: ObjectPlace): Promise<FileHandle> {
  try {
    return await open(place.wholePath, 'r+');
  } catch (error) {
    if (errnoCode(error) !== 'ENOENT') throw error;
    return open(place.growingPath, 'r+');
  }
}

async function readDigests(file: FileHandle, chunkCount: number): Promise<(string | undefined)[]> {
  const bytes = await file.readFile();
  return Array.from({ length: chunkCount }, (_, chunk) => {
    const digest = bytes.subarray(chunk * DIGEST_BYTES, (chunk + 1) * DIGEST_BYTES);
    return digest.byteLength < DIGEST_BYTES || digest.every((byte) => byte === 0) ? undefined : digest.toString('hex');
  });
}

async function writeAll(file: FileHandle, bytes: Uint8Array, position: number): Promise<void> {
  let written = 0;
  while (written < bytes.byteLength)
    written += (await file.write(bytes, written, bytes.byteLength - written, position + written)).bytesWritten;
}

function relayFailure(key: string, path: string, error: unknown): HoneError {
  const isFull = isDiskFull(error);
  return new HoneError(
    'store-failed',
    `${key} cannot be kept at ${path}: ${isFull ? 'the disk is full' : reasonOf(error)}.`,
    {
      cure: isFull
        ? 'Free space on that disk, or give the cache a smaller bound.'
        : 'Check that the cache is a folder that can be written to.',
      cause: error,
    },
  );
}

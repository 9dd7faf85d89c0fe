/**
 * The checksum of a whole object, taken while its chunks come in any order: each as soon as all before it are in. Invariants: one task reads
 * at a time; after `restart` nothing of the bytes before counts, even if a read of them is still on its way.
 */
import type { ChunkMemory } from './chunk-memory.ts';
import { ObjectHash } from './object-hash.ts';

export interface ChunksInHand {
  has(chunk: number): boolean;
  /** Of a chunk that is in memory still. */
  recent(chunk: number): Uint8Array | undefined;
  /** Undefined when the chunk turned out damaged; the memory is the caller's to release. */
  read(chunk: number): Promise<ChunkMemory | undefined>;
}

export class ChecksumInOrder {
  readonly #chunks: ChunksInHand;
  #hash: ObjectHash | undefined;
  #round = 0;
  #nextChunk = 0;
  #reading: Promise<void> | undefined;

  /** Takes the hash over, and gives it back at `close`. */
  constructor(hash: ObjectHash, chunks: ChunksInHand) {
    this.#hash = hash;
    this.#chunks = chunks;
  }

  /** To be called whenever a chunk came. */
  advance(): void {
    const chunks = this.#chunks;
    if (this.#hash === undefined || this.#reading !== undefined || !chunks.has(this.#nextChunk)) return;
    const bytes = chunks.recent(this.#nextChunk);
    if (bytes !== undefined) {
      // The usual case, without a task: the chunk that just came is the next one.
      this.#hash.update(bytes);
      this.#nextChunk += 1;
      if (!chunks.has(this.#nextChunk)) return;
    }
    this.#reading = this.#readOn().finally(() => {
      this.#reading = undefined;
    });
  }

  /** Of all chunks; undefined when one of them is missing, turned out damaged or cannot be read. */
  async digest(chunkCount: number): Promise<string | undefined> {
    while (this.#hash !== undefined && this.#nextChunk < chunkCount) {
      const before = this.#nextChunk;
      this.advance();
      await this.#reading;
      if (this.#nextChunk <= before) return undefined;
    }
    return this.#hash?.digest();
  }

  restart(): void {
    this.#hash?.reset();
    this.#round += 1;
    this.#nextChunk = 0;
  }

  /** Resolves when nothing of it reads any more. */
  async close(): Promise<void> {
    const hash = this.#hash;
    this.#hash = undefined;
    await this.#reading;
    if (hash !== undefined) ObjectHash.giveBack(hash);
  }

  async #readOn(): Promise<void> {
    const round = this.#round;
    while (this.#hash !== undefined && this.#chunks.has(this.#nextChunk)) {
      const memory = await this.#chunks.read(this.#nextChunk).catch(() => undefined);
      const isWanted = memory !== undefined && round === this.#round;
      if (isWanted) {
        this.#hash?.update(memory.bytes);
        this.#nextChunk += 1;
      }
      memory?.release();
      if (!isWanted) return;
    }
  }
}

/**
 * Memory of chunks on their way through this process, used again instead of left to the garbage collector. Whoever keeps a chunk beyond
 * the call that gave it holds it and releases it later. Invariant: memory is used again only after every holder released it; a holder that
 * never does costs that piece of memory its reuse and nothing else.
 */
import { CHUNK_BYTES } from './chunk-digest.ts';

/** Kept for the next chunks: enough for a few transfers side by side. */
const MOST_SPARE = 16;
/** Smaller chunks are cheaper to allocate than a whole piece is to keep. */
const LEAST_POOLED_BYTES = CHUNK_BYTES / 4;

const spare: Buffer[] = [];

export class ChunkMemory {
  readonly bytes: Buffer;
  readonly #memory: Buffer | undefined;
  #holders = 1;

  private constructor(bytes: Buffer, memory: Buffer | undefined) {
    this.bytes = bytes;
    this.#memory = memory;
  }

  /** Held once by the caller. The bytes are those of whatever lay there before. */
  static take(sizeBytes: number): ChunkMemory {
    if (sizeBytes < LEAST_POOLED_BYTES || sizeBytes > CHUNK_BYTES)
      return new ChunkMemory(Buffer.allocUnsafeSlow(sizeBytes), undefined);
    const memory = spare.pop() ?? Buffer.allocUnsafeSlow(CHUNK_BYTES);
    return new ChunkMemory(sizeBytes === CHUNK_BYTES ? memory : memory.subarray(0, sizeBytes), memory);
  }

  /** Bytes that belong to someone else and never change. */
  static of(bytes: Uint8Array): ChunkMemory {
    return new ChunkMemory(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength), undefined);
  }

  hold(): this {
    if (this.#holders === 0) throw new Error('A chunk was held after its memory had been given back.');
    this.#holders += 1;
    return this;
  }

  release(): void {
    if (this.#holders === 0) throw new Error('A chunk was released more often than it was held.');
    this.#holders -= 1;
    if (this.#holders === 0 && this.#memory !== undefined && spare.length < MOST_SPARE) spare.push(this.#memory);
  }
}

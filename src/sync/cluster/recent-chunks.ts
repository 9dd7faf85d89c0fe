/** The chunks that came last, in memory: readers close behind the writer need no disk. Holds each until it is forgotten. */
import type { ChunkMemory } from './chunk-memory.ts';

const MOST_CHUNKS = 8;

export class RecentChunks {
  readonly #chunks = new Map<number, ChunkMemory>();

  /** Not held for the caller. */
  get(chunk: number): ChunkMemory | undefined {
    return this.#chunks.get(chunk);
  }

  remember(chunk: number, memory: ChunkMemory): void {
    this.forget(chunk);
    this.#chunks.set(chunk, memory.hold());
    if (this.#chunks.size > MOST_CHUNKS) this.forget(this.#chunks.keys().next().value ?? chunk);
  }

  forget(chunk: number): void {
    this.#chunks.get(chunk)?.release();
    this.#chunks.delete(chunk);
  }

  clear(): void {
    for (const chunk of this.#chunks.keys()) this.forget(chunk);
  }
}

/**
 * Which prompts' beginnings each replica holds in its prefix cache, as far as the router can know: hashes of whole blocks of
 * tokens, chained, so that a block's hash stands for all that came before it. Bounded: the blocks that were used longest ago go
 * first. Invariant: blocks of another version never count, as a prefix cache does not outlive the weights that it was made by.
 */

/** Tokens of a block. */
export const BLOCK_TOKENS = 64;
const MOST_BLOCKS = 1 << 14;

/** One number a whole block, of 53 bits: the hash of all tokens up to its end. */
export function hashBlocks(tokens: Int32Array): Float64Array {
  const blocks = new Float64Array(Math.floor(tokens.length / BLOCK_TOKENS));
  let high = 0x9747b28c;
  let low = 0x3c6ef372;
  for (let block = 0; block < blocks.length; block++) {
    const start = block * BLOCK_TOKENS;
    for (let index = start; index < start + BLOCK_TOKENS; index++) {
      const token = tokens[index] ?? 0;
      high = Math.imul(high ^ token, 0x01000193);
      high ^= high >>> 15;
      low = Math.imul(low + token, 0x85ebca6b) ^ (high >>> 7);
    }
    blocks[block] = (high >>> 0) * 0x200000 + ((low >>> 0) & 0x1fffff);
  }
  return blocks;
}

export class PrefixIndex {
  /** Insertion order is the order of use. */
  readonly #blocks = new Set<number>();
  readonly #mostBlocks: number;
  #version: number | undefined;

  constructor(mostBlocks = MOST_BLOCKS) {
    this.#mostBlocks = mostBlocks;
  }

  get size(): number {
    return this.#blocks.size;
  }

  /** Tokens of the prompt that a replica serving this version would not have to compute again. */
  cachedTokens(blocks: Float64Array, version: number): number {
    if (version !== this.#version) return 0;
    let count = 0;
    while (count < blocks.length && this.#blocks.has(blocks[count] ?? -1)) count++;
    return count * BLOCK_TOKENS;
  }

  /** The replica computes this prompt, by this version. */
  add(blocks: Float64Array, version: number): void {
    if (version !== this.#version) this.#blocks.clear();
    this.#version = version;
    // Backwards, so that the end of a prompt goes before the beginning that it hangs on.
    for (let index = blocks.length - 1; index >= 0; index--) {
      const block = blocks[index] ?? 0;
      this.#blocks.delete(block);
      this.#blocks.add(block);
    }
    for (const oldest of this.#blocks) {
      if (this.#blocks.size <= this.#mostBlocks) break;
      this.#blocks.delete(oldest);
    }
  }

  clear(): void {
    this.#blocks.clear();
    this.#version = undefined;
  }
}

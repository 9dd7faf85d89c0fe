/**
 * The wasm kernels of the codec with types: one instance a thread, with a small memory of its own that never grows.
 * Owns the two chunk buffers, the lists of a block and two hash states. Invariant: views stay valid for the instance's life,
 * and bytes behind a chunk's end are equal in both chunks up to the next group of 64, as the scans need.
 */
import { readFileSync } from 'node:fs';

import type { ElementWidth } from './element-width.ts';

/** Bytes of a tensor that a worker holds at a time, from each of two places: both fit a core's second-level cache. */
export const CHUNK_BYTES = 262_144;
/** Changes in a block at most. A block is closed when fewer than `GROUP_BYTES` are free. */
export const BLOCK_CHANGES = 65_536;
const GROUP_BYTES = 64;
/** Elements that a dense block may span. */
export const DENSE_ELEMENTS = 163_840;
/** Bytes that the high parts of a block's gaps may take. */
export const GAP_BYTES = 2 * BLOCK_CHANGES;
export const MAX_SHIFT = 31;

interface KernelExports {
  readonly memory: { readonly buffer: ArrayBuffer };
  address(which: number): number;
  hash_reset(which: number): void;
  hash_update(which: number, data: number, count: number): void;
  hash_digest(which: number): void;
  adler(state: number, data: number, count: number): number;
  block_reset(): void;
  block_changes(): number;
  block_first(): number;
  block_span(): number;
  scan(width: number, base: number, begin: number, end: number): number;
  count_changes(width: number, count: number): number;
  xor_chunks(count: number): number;
  gap_lengths(): void;
  pack_gaps(shift: number): number;
  unpack_gaps(shift: number, count: number, bytes: number, span: number): number;
  scatter(width: number, offset: number, from: number, count: number, elements: number): number;
  spread(width: number): void;
  merge_dense(width: number, from: number, count: number, target: number): void;
  list_bytes(base: number, begin: number, end: number): number;
  put_bytes(from: number, count: number, base: number, size: number, before: number): number;
}

/** Which of the two hash states: of the tensor's new bytes, or of the blob. */
export type HashState = 'tensor' | 'blob';
type Chunk = 'old' | 'next';

/** Compiled once in the process; workers get the module, not the bytes. */
export function compileDeltaKernels(): Promise<WebAssembly.Module> {
  return WebAssembly.compile(new Uint8Array(readFileSync(new URL('../kernels/delta.wasm', import.meta.url))));
}

export class DeltaKernels {
  /** The chunk that the old bytes go to; applying turns it into the new ones. */
  readonly old: Buffer;
  /** The chunk that the new bytes, or a difference, go to. */
  readonly next: Buffer;
  readonly places: Uint32Array;
  readonly highGaps: Buffer;
  readonly lowGaps: Buffer;
  /** Place for bytes on their way into a hash; as large as a chunk. */
  readonly scratch: Buffer;
  readonly #kernels: KernelExports;
  readonly #values: Buffer;
  readonly #dense: Buffer;
  readonly #lengths: Uint32Array;
  readonly #digest: Buffer;
  readonly #addresses: { readonly old: number; readonly next: number; readonly scratch: number };

  constructor(module: WebAssembly.Module) {
    // Exports of the module that we compiled; its functions take and return numbers only.
    this.#kernels = new WebAssembly.Instance(module).exports as unknown as KernelExports;
    const { buffer } = this.#kernels.memory;
    const at = (which: number): number => this.#kernels.address(which);
    this.old = Buffer.from(buffer, at(0), CHUNK_BYTES + GROUP_BYTES);
    this.next = Buffer.from(buffer, at(1), CHUNK_BYTES + GROUP_BYTES);
    this.places = new Uint32Array(buffer, at(2), BLOCK_CHANGES);
    this.highGaps = Buffer.from(buffer, at(3), GAP_BYTES);
    this.lowGaps = Buffer.from(buffer, at(4), BLOCK_CHANGES * 4);
    this.#values = Buffer.from(buffer, at(5), 8 * BLOCK_CHANGES);
    this.#dense = Buffer.from(buffer, at(6), 8 * DENSE_ELEMENTS);
    this.#lengths = new Uint32Array(buffer, at(7), 33);
    this.#digest = Buffer.from(buffer, at(8), 16);
    this.scratch = Buffer.from(buffer, at(9), CHUNK_BYTES);
    this.#addresses = { old: at(0), next: at(1), scratch: at(9) };
  }

  /** The values of a sparse block's changes, one byte of the element a plane, least significant first. */
  valuePlane(plane: number, changes: number): Buffer {
    return this.#values.subarray(plane * BLOCK_CHANGES, plane * BLOCK_CHANGES + changes);
  }

  densePlane(plane: number, elements: number): Buffer {
    return this.#dense.subarray(plane * DENSE_ELEMENTS, plane * DENSE_ELEMENTS + elements);
  }

  /** Makes the bytes behind `sizeBytes` equal in both chunks, up to the next group. */
  pad(sizeBytes: number): void {
    const end = Math.ceil(sizeBytes / GROUP_BYTES) * GROUP_BYTES;
    if (end === sizeBytes) return;
    this.old.fill(0, sizeBytes, end);
    this.next.fill(0, sizeBytes, end);
  }

  resetHash(state: HashState): void {
    this.#kernels.hash_reset(state === 'tensor' ? 0 : 1);
  }

  hashChunk(state: HashState, chunk: Chunk | 'scratch', sizeBytes: number): void {
    this.#kernels.hash_update(state === 'tensor' ? 0 : 1, this.#addresses[chunk], sizeBytes);
  }

  /** Hashes bytes that lie outside of the kernels' memory. */
  hashBytes(state: HashState, bytes: Uint8Array): void {
    for (let start = 0; start < bytes.byteLength; start += CHUNK_BYTES) {
      const part = bytes.subarray(start, start + CHUNK_BYTES);
      this.scratch.set(part);
      this.hashChunk(state, 'scratch', part.byteLength);
    }
  }

  /** The xxh3-128 so far, 16 bytes in the order of its hexadecimal form. Valid until the next digest. */
  digest(state: HashState): Buffer {
    this.#kernels.hash_digest(state === 'tensor' ? 0 : 1);
    return this.#digest;
  }

  /** Adler-32 of what came before (`state`, 1 at the start) and a chunk. */
  adler(state: number, chunk: Chunk, sizeBytes: number): number {
    return this.#kernels.adler(state, this.#addresses[chunk], sizeBytes) >>> 0;
  }

  resetBlock(): void {
    this.#kernels.block_reset();
  }

  /** What the block holds: its changes, the element of the first, and the elements from the first to the last. */
  block(): { readonly changes: number; readonly first: number; readonly span: number } {
    const changes = this.#kernels.block_changes();
    return { changes, first: this.#kernels.block_first(), span: changes === 0 ? 0 : this.#kernels.block_span() };
  }

  /** Adds changes in bytes [begin, end) of the chunks to the block; returns where it stopped: before `end` = the block is full. */
  scan(width: ElementWidth, range: { base: number; begin: number; end: number }): number {
    return this.#kernels.scan(width, range.base, range.begin, range.end);
  }

  countChanges(width: ElementWidth, sizeBytes: number): number {
    return this.#kernels.count_changes(width, sizeBytes);
  }

  /** `old` becomes old XOR next; returns whether `next` had a bit set. */
  xorChunks(sizeBytes: number): boolean {
    return this.#kernels.xor_chunks(sizeBytes) !== 0;
  }

  /** Number of gaps of the block by bit length, 0 to 32. */
  gapLengths(): Uint32Array {
    this.#kernels.gap_lengths();
    return this.#lengths;
  }

  /** Fills `highGaps` and `lowGaps`; returns the bytes of the former, `undefined` when they have no room. */
  packGaps(shift: number): number | undefined {
    const bytes = this.#kernels.pack_gaps(shift);
    return bytes < 0 ? undefined : bytes;
  }

  /** Fills `places` from `highGaps` and `lowGaps`; false when they do not describe `changes` changes over `span` elements. */
  unpackGaps(shift: number, block: { changes: number; gapBytes: number; span: number }): boolean {
    return this.#kernels.unpack_gaps(shift, block.changes, block.gapBytes, block.span) === 0;
  }

  /** Applies changes from number `from` on to `old`; returns the number of the first that lies behind the chunk. */
  scatter(width: ElementWidth, range: { offset: number; from: number; changes: number; elements: number }): number {
    return this.#kernels.scatter(width, range.offset, range.from, range.changes, range.elements);
  }

  /** Fills the dense planes from the block's changes. */
  spread(width: ElementWidth): void {
    this.#kernels.spread(width);
  }

  /** Applies `count` elements of the dense planes from number `from` on to `old`, beginning with its element `target`. */
  mergeDense(width: ElementWidth, range: { from: number; count: number; target: number }): void {
    this.#kernels.merge_dense(width, range.from, range.count, range.target);
  }

  /** Lists bytes of [begin, end) that differ: positions (plus `base`) in `places`, new bytes in the first value plane. */
  listBytes(range: { base: number; begin: number; end: number }): number {
    return this.#kernels.list_bytes(range.base, range.begin, range.end);
  }

  /** Puts listed bytes into `old`; returns the number of the first behind the chunk, `undefined` when positions do not rise. */
  putBytes(
    list: { from: number; count: number },
    chunk: { base: number; sizeBytes: number; before: number },
  ): number | undefined {
    const next = this.#kernels.put_bytes(list.from, list.count, chunk.base, chunk.sizeBytes, chunk.before);
    return next < 0 ? undefined : next;
  }
}

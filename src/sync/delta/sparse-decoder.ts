/**
 * Reads the `sparse` encoding and applies it. Invariants: the blob's own digest is proven before a byte of the tensor changes, so a
 * damaged blob leaves the tensor whole; memory is one block's, whatever the blob says.
 */
import type { ApplyTensorJob } from './delta-codec.ts';
import { CHUNK_BYTES } from './delta-kernels.ts';
import { TensorUpdate, type ChunkRange, type CodecContext } from './delta-pass.ts';
import type { ElementWidth } from './element-width.ts';
import { OpenPlace } from './open-place.ts';
import {
  BLOCK_HEAD_BYTES,
  DIGEST_BYTES,
  END_BYTES,
  HEAD_BYTES,
  lowGapBytes,
  parseBlockHead,
  parseHead,
  RAW_PLANE,
  type BlockHead,
} from './sparse-layout.ts';
import { damagedTensor } from './tensor-hash.ts';
import { expandPlane } from './zstd-frames.ts';

export function applySparse(context: CodecContext, job: ApplyTensorJob): void {
  using blob = new OpenPlace(job.blob, 'read');
  using update = new TensorUpdate(context, job);
  const reader = new BlockReader(context, { blob, update, name: job.name });
  reader.proveDigest();
  if (reader.readHead() === 'stored') {
    for (const chunk of update.chunks()) {
      reader.readStored(chunk);
      update.store(chunk, true);
    }
  } else {
    for (const chunk of update.chunks()) update.store(chunk, reader.applyTo(chunk));
  }
  reader.expectEnd();
  update.finish();
}

class BlockReader {
  readonly #context: CodecContext;
  readonly #blob: OpenPlace;
  readonly #name: string;
  readonly #width: ElementWidth;
  readonly #sizeBytes: number;
  readonly #head = Buffer.alloc(BLOCK_HEAD_BYTES);
  #at = 0;
  /** The block being applied, and how much of it was: changes, or elements of a dense one. */
  #block: BlockHead | undefined;
  #done = 0;
  #covered = 0;
  #changes = 0;
  #isStored = false;

  constructor(context: CodecContext, tensor: { blob: OpenPlace; update: TensorUpdate; name: string }) {
    this.#context = context;
    this.#blob = tensor.blob;
    this.#name = tensor.name;
    this.#width = tensor.update.width;
    this.#sizeBytes = tensor.update.sizeBytes;
  }

  proveDigest(): void {
    const { kernels, checkAbort } = this.#context;
    const bodyBytes = this.#blob.sizeBytes - DIGEST_BYTES;
    if (bodyBytes < HEAD_BYTES + END_BYTES - DIGEST_BYTES)
      throw this.#damaged(`its delta has only ${this.#blob.sizeBytes} bytes`);
    kernels.resetHash('blob');
    for (let offset = 0; offset < bodyBytes; offset += CHUNK_BYTES) {
      checkAbort();
      const count = Math.min(CHUNK_BYTES, bodyBytes - offset);
      this.#blob.read(offset, kernels.scratch.subarray(0, count));
      kernels.hashChunk('blob', 'scratch', count);
    }
    const stored = Buffer.alloc(DIGEST_BYTES);
    this.#blob.read(bodyBytes, stored);
    if (!stored.equals(kernels.digest('blob'))) throw this.#damaged('its delta is not the one that was written');
  }

  readHead(): 'blocks' | 'stored' {
    const head = parseHead(this.#take(HEAD_BYTES), { width: this.#width, sizeBytes: this.#sizeBytes });
    if (typeof head === 'string') throw this.#damaged(head);
    this.#isStored = head.form === 'stored';
    if (this.#isStored && this.#blob.sizeBytes !== HEAD_BYTES + this.#sizeBytes + END_BYTES)
      throw this.#damaged(`its delta has ${this.#blob.sizeBytes} bytes, which are not all of the tensor's`);
    return head.form;
  }

  readStored(chunk: ChunkRange): void {
    this.#blob.read(HEAD_BYTES + chunk.offset, this.#context.kernels.old.subarray(0, chunk.sizeBytes));
    this.#at = HEAD_BYTES + chunk.offset + chunk.sizeBytes;
  }

  /** Applies all blocks that reach into the chunk; returns whether there was one. */
  applyTo(chunk: ChunkRange): boolean {
    const { kernels } = this.#context;
    const width = this.#width;
    const start = chunk.offset / width;
    const elements = chunk.sizeBytes / width;
    let isChanged = false;
    for (;;) {
      this.#block ??= this.#nextBlock();
      const block = this.#block;
      if (block === undefined || block.first >= start + elements) return isChanged;
      isChanged = true;
      if (block.form === 'gaps') {
        const offset = block.first - start;
        this.#done = kernels.scatter(width, { offset, from: this.#done, changes: block.changes, elements });
        if (this.#done < block.changes) return isChanged;
      } else {
        const target = block.first + this.#done - start;
        const count = Math.min(block.span - this.#done, elements - target);
        kernels.mergeDense(width, { from: this.#done, count, target });
        this.#done += count;
        if (this.#done < block.span) return isChanged;
      }
      this.#block = undefined;
    }
  }

  expectEnd(): void {
    if (this.#block !== undefined || (!this.#isStored && this.#nextBlock() !== undefined))
      throw this.#damaged('its delta has blocks behind the end of the tensor');
    const end = this.#take(END_BYTES - DIGEST_BYTES);
    if (end.readUInt32LE(0) !== 0 || this.#at + DIGEST_BYTES !== this.#blob.sizeBytes)
      throw this.#damaged('its delta goes on behind its end');
    const changes = end.readBigUInt64LE(4);
    if (!this.#isStored && changes !== BigInt(this.#changes))
      throw this.#damaged(`its delta holds ${this.#changes} changes, its end says ${changes}`);
  }

  /** Loads the planes of the next block, `undefined` at the end mark, which it leaves unread. */
  #nextBlock(): BlockHead | undefined {
    const { kernels, checkAbort } = this.#context;
    checkAbort();
    this.#blobHas(4);
    this.#blob.read(this.#at, this.#head.subarray(0, 4));
    if (this.#head.readUInt32LE(0) === 0) return undefined;
    const elements = this.#sizeBytes / this.#width;
    const block = parseBlockHead(this.#take(BLOCK_HEAD_BYTES), { from: this.#covered, elements });
    if (typeof block === 'string') throw this.#damaged(`in its delta ${block}`);
    if (block.form === 'dense') {
      for (let plane = 0; plane < this.#width; plane++) this.#readPlane(kernels.densePlane(plane, block.span));
    } else {
      this.#readPlane(kernels.highGaps.subarray(0, block.gapBytes));
      const low = kernels.lowGaps.subarray(0, lowGapBytes(block));
      this.#blobHas(low.byteLength);
      this.#blob.read(this.#at, low);
      this.#at += low.byteLength;
      for (let plane = 0; plane < this.#width; plane++) this.#readPlane(kernels.valuePlane(plane, block.changes));
      if (!kernels.unpackGaps(block.shift, block))
        throw this.#damaged(`in its delta the gaps of the block at element ${block.first} do not add up`);
    }
    this.#covered = block.first + block.span;
    this.#changes += block.changes;
    this.#done = 0;
    return block;
  }

  #readPlane(into: Buffer): void {
    const length = this.#take(4).readUInt32LE(0);
    const sizeBytes = (length & ~RAW_PLANE) >>> 0;
    const isRaw = (length & RAW_PLANE) !== 0;
    if (isRaw ? sizeBytes !== into.byteLength : sizeBytes >= into.byteLength)
      throw this.#damaged(`a plane of ${into.byteLength} bytes takes ${sizeBytes} in its delta`);
    this.#blobHas(sizeBytes);
    const stored = isRaw ? into : Buffer.allocUnsafe(sizeBytes);
    this.#blob.read(this.#at, stored);
    this.#at += sizeBytes;
    if (!isRaw) expandPlane(stored, into, this.#name);
  }

  /** The next bytes of a head; valid until the next call. */
  #take(count: number): Buffer {
    this.#blobHas(count);
    const bytes = this.#head.subarray(0, count);
    this.#blob.read(this.#at, bytes);
    this.#at += count;
    return bytes;
  }

  #blobHas(count: number): void {
    if (this.#at + count > this.#blob.sizeBytes - DIGEST_BYTES)
      throw this.#damaged(`its delta ends at byte ${this.#blob.sizeBytes}, within a block`);
  }

  #damaged(what: string): Error {
    return damagedTensor(this.#name, what);
  }
}

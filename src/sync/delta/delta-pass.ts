/**
 * The walk over a tensor that all encodings share: chunk by chunk, old and new bytes into the kernels' memory, the new ones hashed;
 * or old bytes in, changed by the caller, new ones out. Invariant: bytes that are written are the bytes that were hashed.
 */
import { placeSizeBytes } from '../tensor-place.ts';
import type { ApplyTensorJob, EncodeTensorJob } from './delta-codec.ts';
import { CHUNK_BYTES, type DeltaKernels } from './delta-kernels.ts';
import { elementWidth, type ElementWidth } from './element-width.ts';
import { OpenPlace } from './open-place.ts';
import { sizesDiffer, TensorHash, type AbortCheck } from './tensor-hash.ts';

export interface CodecContext {
  readonly kernels: DeltaKernels;
  readonly checkAbort: AbortCheck;
}

/** A stretch of the tensor that lies in the chunks. */
export interface ChunkRange {
  readonly offset: number;
  readonly sizeBytes: number;
}

/** Both versions of a tensor, opened and compared in size. */
export class TensorPair implements Disposable {
  readonly sizeBytes: number;
  readonly width: ElementWidth;
  readonly #old: OpenPlace;
  readonly #next: OpenPlace;
  readonly #context: CodecContext;

  constructor(context: CodecContext, job: EncodeTensorJob) {
    this.#context = context;
    this.sizeBytes = placeSizeBytes(job.next.place);
    this.width = elementWidth(job.next.dtype, this.sizeBytes);
    if (placeSizeBytes(job.old.place) !== this.sizeBytes || job.old.dtype !== job.next.dtype)
      throw sizesDiffer(`Tensor ${job.name} as ${job.old.dtype} before`, this.sizeBytes, placeSizeBytes(job.old.place));
    this.#old = new OpenPlace(job.old.place, 'read');
    try {
      this.#next = new OpenPlace(job.next.place, 'read');
    } catch (error) {
      this.#old[Symbol.dispose]();
      throw error;
    }
  }

  /** Loads chunk after chunk of both, padded as the scans need. */
  *chunks(): Generator<ChunkRange> {
    const { kernels, checkAbort } = this.#context;
    for (let offset = 0; offset < this.sizeBytes; offset += CHUNK_BYTES) {
      checkAbort();
      const sizeBytes = Math.min(CHUNK_BYTES, this.sizeBytes - offset);
      this.#old.read(offset, kernels.old.subarray(0, sizeBytes));
      this.#next.read(offset, kernels.next.subarray(0, sizeBytes));
      kernels.pad(sizeBytes);
      yield { offset, sizeBytes };
    }
  }

  /** Loads chunk after chunk of the new bytes alone. */
  *nextChunks(): Generator<Buffer> {
    const { kernels, checkAbort } = this.#context;
    for (let offset = 0; offset < this.sizeBytes; offset += CHUNK_BYTES) {
      checkAbort();
      const chunk = kernels.next.subarray(0, Math.min(CHUNK_BYTES, this.sizeBytes - offset));
      this.#next.read(offset, chunk);
      yield chunk;
    }
  }

  [Symbol.dispose](): void {
    this.#old[Symbol.dispose]();
    this.#next[Symbol.dispose]();
  }
}

/** The tensor that a delta is applied to: `load` a chunk, change it, `store` it; `finish` proves the checksum. */
export class TensorUpdate implements Disposable {
  readonly sizeBytes: number;
  readonly width: ElementWidth;
  readonly #context: CodecContext;
  readonly #job: ApplyTensorJob;
  readonly #from: OpenPlace;
  readonly #to: OpenPlace;
  readonly #hash: TensorHash;
  readonly #inPlace: boolean;

  constructor(context: CodecContext, job: ApplyTensorJob) {
    this.#context = context;
    this.#job = job;
    this.sizeBytes = placeSizeBytes(job.from.place);
    this.width = elementWidth(job.from.dtype, this.sizeBytes);
    if (placeSizeBytes(job.to.place) !== this.sizeBytes)
      throw sizesDiffer(`The place for tensor ${job.name}`, this.sizeBytes, placeSizeBytes(job.to.place));
    this.#inPlace = isSamePlace(job);
    this.#from = new OpenPlace(job.from.place, this.#inPlace ? 'update' : 'read');
    try {
      this.#to = this.#inPlace ? this.#from : new OpenPlace(job.to.place, 'write');
    } catch (error) {
      this.#from[Symbol.dispose]();
      throw error;
    }
    this.#hash = new TensorHash(context.kernels, job.checksumFormat);
  }

  *chunks(): Generator<ChunkRange> {
    const { kernels, checkAbort } = this.#context;
    for (let offset = 0; offset < this.sizeBytes; offset += CHUNK_BYTES) {
      checkAbort();
      const sizeBytes = Math.min(CHUNK_BYTES, this.sizeBytes - offset);
      this.#from.read(offset, kernels.old.subarray(0, sizeBytes));
      yield { offset, sizeBytes };
    }
  }

  /** Hashes the chunk and writes it where that changes anything. */
  store({ offset, sizeBytes }: ChunkRange, isChanged: boolean): void {
    this.#hash.add('old', sizeBytes);
    if (isChanged || !this.#inPlace) this.#to.write(offset, this.#context.kernels.old.subarray(0, sizeBytes));
  }

  finish(): void {
    this.#hash.expect(this.#job.checksum, this.#job.name);
  }

  [Symbol.dispose](): void {
    this.#from[Symbol.dispose]();
    if (!this.#inPlace) this.#to[Symbol.dispose]();
  }
}

function isSamePlace({ from: { place: from }, to: { place: to } }: ApplyTensorJob): boolean {
  if (from.kind === 'file') return to.kind === 'file' && from.path === to.path && from.offset === to.offset;
  return to.kind === 'memory' && from.bytes.buffer === to.bytes.buffer && from.bytes.byteOffset === to.bytes.byteOffset;
}

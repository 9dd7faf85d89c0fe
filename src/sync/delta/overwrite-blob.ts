/**
 * The `overwrite` encoding of the same readers: a count, the positions of the changed bytes, then the new bytes; u32 little-endian, one
 * zstd frame of level 1. Safe to apply twice. Invariant: positions rise strictly and lie in the tensor; anything else is refused.
 */
import { HoneError } from '../../domain/errors.ts';
import type { ApplyTensorJob, EncodedTensor, EncodeTensorJob } from './delta-codec.ts';
import { BLOCK_CHANGES } from './delta-kernels.ts';
import { TensorPair, TensorUpdate, type CodecContext } from './delta-pass.ts';
import { OpenPlace } from './open-place.ts';
import { damagedTensor, TensorHash } from './tensor-hash.ts';
import { ZstdFrameWriter, ZstdReader } from './zstd-frames.ts';

const LARGEST_TENSOR_BYTES = 2 ** 32;

export async function encodeOverwrite(context: CodecContext, job: EncodeTensorJob): Promise<EncodedTensor> {
  const { kernels } = context;
  using pair = new TensorPair(context, job);
  const { width, sizeBytes } = pair;
  if (sizeBytes > LARGEST_TENSOR_BYTES)
    throw new HoneError(
      'invalid-config',
      `Tensor ${job.name} has ${sizeBytes} bytes; the overwrite encoding has positions of 32 bits.`,
      { cure: 'Publish with the delta encoding sparse or xor.' },
    );
  const hash = new TensorHash(kernels, 'xxh3-128');
  let changedElements = 0;
  let changedBytes = 0;
  for (const { sizeBytes: count } of pair.chunks()) {
    hash.add('next', count);
    changedElements += kernels.countChanges(width, count);
    changedBytes += kernels.countChanges(1, count);
  }
  const result = { checksum: hash.digest(), changedElements, elements: sizeBytes / width };
  if (changedElements === 0) return { ...result, chunks: [] };
  if (changedBytes >= 2 ** 32)
    throw new HoneError(
      'invalid-config',
      `Of tensor ${job.name} all ${changedBytes} bytes changed, one more than the overwrite encoding can count.`,
      {
        cure: 'Publish with the delta encoding sparse or xor.',
      },
    );
  const frame = new ZstdFrameWriter(4 + 5 * changedBytes);
  try {
    const count = Buffer.alloc(4);
    count.writeUInt32LE(changedBytes);
    await frame.write(count);
    // The positions of all come before the bytes of any: a walk each, so that memory stays that of a chunk.
    for (const part of ['positions', 'bytes'] as const)
      for (const { offset, sizeBytes: end } of pair.chunks())
        for (let begin = 0; begin < end; begin += BLOCK_CHANGES) {
          const range = { base: offset, begin, end: Math.min(end, begin + BLOCK_CHANGES) };
          const listed = kernels.listBytes(range);
          if (listed === 0) continue;
          const { buffer, byteOffset } = kernels.places;
          await frame.write(
            part === 'positions' ? Buffer.from(buffer, byteOffset, 4 * listed) : kernels.valuePlane(0, listed),
          );
        }
    return { ...result, chunks: await frame.finish() };
  } finally {
    frame.destroy();
  }
}

export async function applyOverwrite(context: CodecContext, job: ApplyTensorJob): Promise<void> {
  using blob = new OpenPlace(job.blob, 'read');
  using update = new TensorUpdate(context, job);
  // One reader goes through the positions, the other through the bytes, which begin where the positions end.
  const positions = new ZstdReader(blob, job.name);
  const bytes = new ZstdReader(blob, job.name);
  try {
    const head = Buffer.alloc(4);
    await positions.readFully(head);
    const total = head.readUInt32LE(0);
    if (total > update.sizeBytes)
      throw damagedTensor(job.name, `its delta has ${total} changed bytes, the tensor only ${update.sizeBytes}`);
    await bytes.skip(4 + 4 * total);
    const list = new ByteList(context, { positions, bytes, total, name: job.name });
    for (const chunk of update.chunks()) update.store(chunk, await list.putInto(chunk.offset, chunk.sizeBytes));
    list.expectEnd();
    await bytes.expectEnd();
  } finally {
    await Promise.all([positions.close(), bytes.close()]);
  }
  update.finish();
}

/** The listed bytes in order, a block of them at a time. */
class ByteList {
  readonly #context: CodecContext;
  readonly #positions: ZstdReader;
  readonly #bytes: ZstdReader;
  readonly #name: string;
  #rest: number;
  /** Those at hand, and how many of them were put. */
  #count = 0;
  #done = 0;
  #before = -1;

  constructor(context: CodecContext, list: { positions: ZstdReader; bytes: ZstdReader; total: number; name: string }) {
    this.#context = context;
    this.#positions = list.positions;
    this.#bytes = list.bytes;
    this.#name = list.name;
    this.#rest = list.total;
  }

  /** Puts what falls into the chunk; returns whether anything did. */
  async putInto(base: number, sizeBytes: number): Promise<boolean> {
    const { kernels } = this.#context;
    let isChanged = false;
    for (;;) {
      if (this.#done === this.#count && !(await this.#refill())) return isChanged;
      const next = kernels.putBytes(
        { from: this.#done, count: this.#count },
        { base, sizeBytes, before: this.#before },
      );
      if (next === undefined) throw damagedTensor(this.#name, 'the positions in its delta do not rise');
      if (next > this.#done) {
        isChanged = true;
        this.#before = kernels.places[next - 1] ?? this.#before;
      }
      this.#done = next;
      if (next < this.#count) return isChanged;
    }
  }

  expectEnd(): void {
    if (this.#rest > 0 || this.#done < this.#count)
      throw damagedTensor(this.#name, 'its delta has positions behind the end of the tensor');
  }

  async #refill(): Promise<boolean> {
    if (this.#rest === 0) return false;
    const { kernels } = this.#context;
    const count = Math.min(BLOCK_CHANGES, this.#rest);
    const { buffer, byteOffset } = kernels.places;
    await this.#positions.readFully(Buffer.from(buffer, byteOffset, 4 * count));
    await this.#bytes.readFully(kernels.valuePlane(0, count));
    this.#rest -= count;
    this.#count = count;
    this.#done = 0;
    return true;
  }
}

/**
 * Writes the `sparse` encoding: scans for changed elements, gathers them into blocks, and packs each block's gaps and values into
 * planes. Invariant: the bytes depend on old and new tensor alone; they are never more than the tensor and a head.
 */
import { BlobWriter } from './blob-writer.ts';
import type { EncodedTensor, EncodeTensorJob } from './delta-codec.ts';
import { DENSE_ELEMENTS, GAP_BYTES, MAX_SHIFT, type DeltaKernels } from './delta-kernels.ts';
import { TensorPair, type CodecContext } from './delta-pass.ts';
import type { ElementWidth } from './element-width.ts';
import { formatBlockHead, formatHead, lowGapBytes, RAW_PLANE } from './sparse-layout.ts';
import { TensorHash } from './tensor-hash.ts';
import { compressPlane } from './zstd-frames.ts';

/** Above this share of changed elements a block stores all elements of its span: the zeros then cost less than the gaps. */
const DENSE_SHARE = 0.42;
/** A block ends when it spans so many elements, long before a gap could leave 32 bits. */
const LARGEST_SPAN = 2 ** 30;

export function encodeSparse(context: CodecContext, job: EncodeTensorJob): EncodedTensor {
  const { kernels } = context;
  using pair = new TensorPair(context, job);
  const { width, sizeBytes } = pair;
  const hash = new TensorHash(kernels, 'xxh3-128');
  const writer = new BlockWriter(kernels, { width, sizeBytes });
  kernels.resetBlock();
  let isStored = false;
  let changedElements = 0;
  for (const { offset, sizeBytes: count } of pair.chunks()) {
    hash.add('next', count);
    if (isStored) {
      changedElements += kernels.countChanges(width, count);
      continue;
    }
    const base = offset / width;
    if (writer.startsFarFrom(base)) writer.closeBlock();
    for (let at = 0; (at = kernels.scan(width, { base, begin: at, end: count })) < count;) writer.closeBlock();
    if (writer.sizeBytes > sizeBytes) {
      writer.closeBlock();
      isStored = true;
      changedElements = writer.changedElements;
    }
  }
  if (!isStored) {
    writer.closeBlock();
    changedElements = writer.changedElements;
  }
  const checksum = hash.digest();
  const elements = sizeBytes / width;
  if (changedElements === 0) return { checksum, changedElements, elements, chunks: [] };
  if (writer.sizeBytes <= sizeBytes) return { checksum, changedElements, elements, chunks: writer.finish() };
  const stored = new BlockWriter(kernels, { width, sizeBytes }, 'stored');
  for (const chunk of pair.nextChunks()) stored.append(chunk);
  return { checksum, changedElements, elements, chunks: stored.finish(changedElements) };
}

/** The blob as it grows, and its digest. */
class BlockWriter {
  changedElements = 0;
  readonly #kernels: DeltaKernels;
  readonly #width: ElementWidth;
  readonly #blob = new BlobWriter();

  constructor(
    kernels: DeltaKernels,
    tensor: { width: ElementWidth; sizeBytes: number },
    form: 'blocks' | 'stored' = 'blocks',
  ) {
    this.#kernels = kernels;
    this.#width = tensor.width;
    kernels.resetHash('blob');
    this.append(formatHead({ ...tensor, form }));
  }

  get sizeBytes(): number {
    return this.#blob.sizeBytes;
  }

  append(bytes: Uint8Array): void {
    this.#blob.append(bytes);
    this.#kernels.hashBytes('blob', bytes);
  }

  startsFarFrom(element: number): boolean {
    const { changes, first } = this.#kernels.block();
    return changes > 0 && element - first > LARGEST_SPAN;
  }

  /** Packs what the block holds and empties it. */
  closeBlock(): void {
    const kernels = this.#kernels;
    const { changes, first, span } = kernels.block();
    if (changes === 0) return;
    this.changedElements += changes;
    if (changes > span * DENSE_SHARE && span <= DENSE_ELEMENTS) {
      this.append(formatBlockHead({ changes, span, first, form: 'dense', shift: 0, gapBytes: 0 }));
      kernels.spread(this.#width);
      for (let plane = 0; plane < this.#width; plane++) this.#appendPlane(kernels.densePlane(plane, span));
    } else {
      const { shift, gapBytes } = this.#packGaps(changes);
      this.append(formatBlockHead({ changes, span, first, form: 'gaps', shift, gapBytes }));
      this.#appendPlane(kernels.highGaps.subarray(0, gapBytes));
      this.append(kernels.lowGaps.subarray(0, lowGapBytes({ changes, shift })));
      for (let plane = 0; plane < this.#width; plane++) this.#appendPlane(kernels.valuePlane(plane, changes));
    }
    kernels.resetBlock();
  }

  finish(changedElements = this.changedElements): Uint8Array<ArrayBuffer>[] {
    const end = Buffer.alloc(12);
    end.writeBigUInt64LE(BigInt(changedElements), 4);
    this.append(end);
    this.#blob.append(this.#kernels.digest('blob'));
    return this.#blob.finish();
  }

  #appendPlane(plane: Buffer): void {
    const frame = compressPlane(plane);
    const stored = frame ?? plane;
    const length = Buffer.alloc(4);
    length.writeUInt32LE((frame === undefined ? stored.byteLength | RAW_PLANE : stored.byteLength) >>> 0);
    this.append(length);
    this.append(stored);
  }

  #packGaps(changes: number): { shift: number; gapBytes: number } {
    for (let shift = cheapestShift(this.#kernels.gapLengths(), changes - 1); shift <= MAX_SHIFT; shift++) {
      const gapBytes = this.#kernels.packGaps(shift);
      if (gapBytes !== undefined) return { shift, gapBytes };
    }
    throw new RangeError(`${changes} gaps do not fit ${GAP_BYTES} bytes`);
  }
}

/** What zstd spends on a symbol in a frame's table, about. */
const TABLE_BITS_A_SYMBOL = 5;

/**
 * The shift that makes the gaps cheapest, from how many there are of each bit length: `shift` raw bits each; for the bytes above them the
 * entropy of their bit length and the bits below its leading one, at least one bit a byte; the escapes; and the table of symbols.
 */
function cheapestShift(lengths: Uint32Array, gaps: number): number {
  const longest = lengths.findLastIndex((count) => count > 0);
  let best = 0;
  let bestBits = Infinity;
  for (let shift = 0; shift <= Math.max(0, longest); shift++) {
    let zeros = 0;
    let highBits = 0;
    for (let length = 0; length <= longest; length++) {
      const count = lengths[length] ?? 0;
      const above = length - shift;
      if (above <= 0) zeros += count;
      else if (count > 0) {
        const escapes = above <= 8 ? 0 : (0.75 * 2 ** above) / 255;
        highBits += count * (Math.log2(gaps / count) + above - 1 + escapes * 4);
      }
    }
    if (zeros > 0) highBits += zeros * Math.log2(gaps / zeros);
    const tableBits = TABLE_BITS_A_SYMBOL * Math.min(256, 2 ** Math.max(0, longest - shift));
    const bits = shift * gaps + Math.max(gaps, highBits) + tableBits;
    if (bits < bestBits) {
      best = shift;
      bestBits = bits;
    }
  }
  return best;
}

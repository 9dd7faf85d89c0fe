/**
 * zstd as the codec uses it: small whole frames for the planes of a block, and one long frame as a stream for the encodings that
 * others read. Invariant: an expansion never gives, and never allocates, more than the caller said; the frame's header tells its
 * size, which one-shot readers insist on.
 */
import { Readable } from 'node:stream';
import { finished } from 'node:stream/promises';
import {
  constants,
  createZstdCompress,
  createZstdDecompress,
  zstdCompressSync,
  zstdDecompressSync,
  type ZstdOptions,
} from 'node:zlib';

import { reasonOf } from '../../domain/errors.ts';
import { BlobWriter } from './blob-writer.ts';
import { CHUNK_BYTES } from './delta-kernels.ts';
import type { OpenPlace } from './open-place.ts';
import { damagedTensor } from './tensor-hash.ts';

/** A frame that wants a larger window is refused: 8 MiB is what zstd's levels up to 19 use. */
const STREAM_WINDOW_LOG = 23;
/** Frames of planes are at most 2^18 bytes. */
const PLANE_WINDOW_LOG = 18;

/**
 * Planes are nearly memoryless: entropy coding is all there is to gain, and the short matches that zstd finds by chance in a small
 * alphabet cost more than they save. Long matches and few places to look for them leave the coding of literals.
 */
const PLANE_PARAMETERS = {
  [constants.ZSTD_c_compressionLevel]: 1,
  [constants.ZSTD_c_minMatch]: 7,
  [constants.ZSTD_c_hashLog]: 6,
};

interface FrameOptions extends ZstdOptions {
  /** Makes the frame's header tell its size; the types of Node leave it out. */
  readonly pledgedSrcSize: number;
}

/** One frame of a plane, or `undefined` when compression does not make it smaller. */
export function compressPlane(plane: Uint8Array): Uint8Array | undefined {
  const frame = zstdCompressSync(plane, {
    chunkSize: Math.max(64, plane.byteLength),
    pledgedSrcSize: plane.byteLength,
    params: PLANE_PARAMETERS,
  } satisfies FrameOptions as ZstdOptions);
  return frame.byteLength < plane.byteLength ? frame : undefined;
}

/** Expands a plane's frame into `into`, which it must fill. */
export function expandPlane(frame: Uint8Array, into: Buffer, name: string): void {
  let plane: Buffer;
  try {
    plane = zstdDecompressSync(frame, {
      // A little more than needed: a buffer that is just full makes zlib ask for another.
      chunkSize: into.byteLength + 64,
      maxOutputLength: into.byteLength,
      params: { [constants.ZSTD_d_windowLogMax]: PLANE_WINDOW_LOG },
    });
  } catch (cause) {
    throw damagedTensor(name, `a frame of its delta does not expand (${reasonOf(cause)})`, cause);
  }
  if (plane.byteLength !== into.byteLength)
    throw damagedTensor(name, `a frame of its delta has ${plane.byteLength} bytes, expected were ${into.byteLength}`);
  plane.copy(into);
}

/** Bytes that go to or come from zlib's threads at a time: a quarter of it would spend a fifth of the time on the way. */
const PIECE_BYTES = 1 << 20;

/** One frame of level 1, written as it comes; two pieces are held, one being filled while the other is compressed. */
export class ZstdFrameWriter {
  readonly #stream;
  readonly #blob = new BlobWriter();
  readonly #end: Promise<void>;
  readonly #pieces: [Buffer, Buffer];
  #filled = 0;
  #isTaken = Promise.resolve();

  constructor(sizeBytes: number) {
    const pieceBytes = Math.min(PIECE_BYTES, sizeBytes);
    this.#pieces = [Buffer.allocUnsafe(pieceBytes), Buffer.allocUnsafe(pieceBytes)];
    this.#stream = createZstdCompress({
      chunkSize: CHUNK_BYTES,
      pledgedSrcSize: sizeBytes,
      params: { [constants.ZSTD_c_compressionLevel]: 1 },
    } satisfies FrameOptions as ZstdOptions);
    this.#stream.on('data', (bytes: Buffer) => this.#blob.append(bytes));
    this.#end = finished(this.#stream);
    // Told by `write` or `finish`; until one of them waits, a failure must not count as unhandled.
    this.#end.catch(() => undefined);
  }

  /** Settles when the bytes may be overwritten. */
  async write(bytes: Buffer): Promise<void> {
    for (let offset = 0; offset < bytes.byteLength;) {
      const count = bytes.copy(this.#pieces[0], this.#filled, offset);
      offset += count;
      this.#filled += count;
      if (this.#filled === this.#pieces[0].byteLength) await this.#flush();
    }
  }

  async finish(): Promise<Uint8Array<ArrayBuffer>[]> {
    if (this.#filled > 0) await this.#flush();
    await this.#isTaken;
    this.#stream.end();
    await this.#end;
    return this.#blob.finish();
  }

  destroy(): void {
    this.#stream.destroy();
  }

  /** Gives the filled piece away, once the one before it was taken. */
  async #flush(): Promise<void> {
    await this.#isTaken;
    const piece = this.#pieces[0].subarray(0, this.#filled);
    const taken = new Promise<void>((resolve, reject) => {
      this.#stream.write(piece, (error) => (error instanceof Error ? reject(error) : resolve()));
    });
    this.#isTaken = Promise.race([taken, this.#end]);
    this.#isTaken.catch(() => undefined);
    this.#pieces.reverse();
    this.#filled = 0;
  }
}

/** The expanded bytes of a blob, read in order with bounded memory. */
export class ZstdReader {
  readonly #name: string;
  readonly #source: Readable;
  readonly #pieces: AsyncIterator<Buffer>;
  #piece: Buffer = Buffer.alloc(0);

  constructor(blob: OpenPlace, name: string) {
    this.#name = name;
    this.#source = Readable.from(piecesOf(blob), { highWaterMark: 1 });
    const stream = createZstdDecompress({
      chunkSize: PIECE_BYTES,
      params: { [constants.ZSTD_d_windowLogMax]: STREAM_WINDOW_LOG },
    });
    this.#source.once('error', (error) => stream.destroy(error));
    // The reader may not be waiting when the stream finds the damage; its next read throws it.
    stream.on('error', () => undefined);
    this.#source.pipe(stream);
    this.#pieces = stream.iterator({ destroyOnReturn: true });
  }

  /** Fills `target`; fewer bytes only at the end. Returns how many. */
  async read(target: Buffer): Promise<number> {
    let filled = 0;
    while (filled < target.byteLength) {
      if (this.#piece.byteLength === 0 && !(await this.#advance())) break;
      const count = this.#piece.copy(target, filled);
      filled += count;
      this.#piece = this.#piece.subarray(count);
    }
    return filled;
  }

  /** `read` that must fill its target. */
  async readFully(target: Buffer): Promise<void> {
    const count = await this.read(target);
    if (count < target.byteLength)
      throw damagedTensor(this.#name, `its delta ends ${target.byteLength - count} bytes too early`);
  }

  /** Throws away that many bytes. */
  async skip(count: number): Promise<void> {
    let rest = count;
    while (rest > 0) {
      if (this.#piece.byteLength === 0 && !(await this.#advance()))
        throw damagedTensor(this.#name, `its delta ends ${rest} bytes too early`);
      const part = Math.min(rest, this.#piece.byteLength);
      this.#piece = this.#piece.subarray(part);
      rest -= part;
    }
  }

  async expectEnd(): Promise<void> {
    if (this.#piece.byteLength > 0 || (await this.#advance()))
      throw damagedTensor(this.#name, 'its delta goes on behind its end');
  }

  async close(): Promise<void> {
    this.#source.destroy();
    await this.#pieces.return?.();
  }

  async #advance(): Promise<boolean> {
    try {
      const step = await this.#pieces.next();
      this.#piece = step.done === true ? Buffer.alloc(0) : step.value;
      return step.done !== true;
    } catch (cause) {
      throw damagedTensor(this.#name, `its delta does not expand (${reasonOf(cause)})`, cause);
    }
  }
}

function* piecesOf(blob: OpenPlace): Generator<Buffer> {
  for (let offset = 0; offset < blob.sizeBytes; offset += CHUNK_BYTES) {
    const piece = Buffer.allocUnsafe(Math.min(CHUNK_BYTES, blob.sizeBytes - offset));
    blob.read(offset, piece);
    yield piece;
  }
}

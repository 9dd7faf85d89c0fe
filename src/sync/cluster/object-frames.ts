/**
 * Chunks on the wire between two hops: `[u32 length, little-endian][16 bytes xxh3-128][bytes]`, one after the other. A length of 0
 * carries nothing and has no digest: it says that the source is alive and waits for bytes itself. Owns the layout and its incremental reader.
 * Invariant: the reader gives a frame's bytes out only whole; whether they are right is for the caller to check against the digest.
 */
import { HoneError } from '../../domain/errors.ts';
import { CHUNK_BYTES, DIGEST_BYTES } from './chunk-digest.ts';
import { ChunkMemory } from './chunk-memory.ts';

const LENGTH_BYTES = 4;
const HEADER_BYTES = LENGTH_BYTES + DIGEST_BYTES;

export type Frame =
  | { readonly kind: 'alive' }
  /** The memory is the receiver's to release. */
  | { readonly kind: 'chunk'; readonly digest: string; readonly memory: ChunkMemory };

export const ALIVE_FRAME: Uint8Array = new Uint8Array(LENGTH_BYTES);

export function frameHeader(sizeBytes: number, digest: string): Uint8Array {
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt32LE(sizeBytes, 0);
  header.write(digest, LENGTH_BYTES, DIGEST_BYTES, 'hex');
  return header;
}

/** Bytes of any cutting in, frames out. What it was given may change after `push` came to its end. */
export class FrameReader {
  readonly #header = Buffer.alloc(HEADER_BYTES);
  #headerFilled = 0;
  #body: ChunkMemory | undefined;
  #bodyFilled = 0;

  /** Whether the bytes so far end between two frames. */
  get isBetweenFrames(): boolean {
    return this.#headerFilled === 0;
  }

  /** Throws `checksum-mismatch` for a length that no chunk has. */
  *push(bytes: Uint8Array): Generator<Frame> {
    let at = 0;
    while (at < bytes.byteLength) {
      if (this.#body === undefined) {
        const wanted = this.#headerFilled < LENGTH_BYTES ? LENGTH_BYTES : HEADER_BYTES;
        const end = Math.min(bytes.byteLength, at + wanted - this.#headerFilled);
        this.#header.set(bytes.subarray(at, end), this.#headerFilled);
        this.#headerFilled += end - at;
        at = end;
        if (this.#headerFilled === LENGTH_BYTES && wanted === LENGTH_BYTES && this.#startFrame() === 'alive')
          yield { kind: 'alive' };
        if (this.#headerFilled < HEADER_BYTES) continue;
        this.#body = ChunkMemory.take(this.#header.readUInt32LE(0));
        this.#bodyFilled = 0;
      }
      const { bytes: body } = this.#body;
      const end = Math.min(bytes.byteLength, at + body.byteLength - this.#bodyFilled);
      body.set(bytes.subarray(at, end), this.#bodyFilled);
      this.#bodyFilled += end - at;
      at = end;
      if (this.#bodyFilled < body.byteLength) continue;
      const frame: Frame = {
        kind: 'chunk',
        digest: this.#header.toString('hex', LENGTH_BYTES, HEADER_BYTES),
        memory: this.#body,
      };
      this.#body = undefined;
      this.#headerFilled = 0;
      yield frame;
    }
  }

  #startFrame(): 'alive' | 'chunk' {
    const sizeBytes = this.#header.readUInt32LE(0);
    if (sizeBytes === 0) {
      this.#headerFilled = 0;
      return 'alive';
    }
    if (sizeBytes > CHUNK_BYTES)
      throw new HoneError(
        'checksum-mismatch',
        `A frame says that it has ${sizeBytes} bytes; none has over ${CHUNK_BYTES}.`,
      );
    return 'chunk';
  }
}

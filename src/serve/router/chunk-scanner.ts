/**
 * Follows the frames of a chunked body as they pass, so that they can be passed on as they came. Invariants: what is accepted is
 * the one spelling that replicas write (hexadecimal sizes without leading zeros, no extensions, no trailers); a byte that does not
 * belong there throws; it keeps no bytes, and its work is per frame, not per byte.
 */
import { malformed } from './response-head.ts';

const CR = 13;
const LF = 10;
const MOST_SIZE_DIGITS = 7;

type State = 'size' | 'size-lf' | 'data' | 'data-cr' | 'data-lf' | 'last';

export class ChunkScanner {
  #state: State = 'size';
  #digits = 0;
  /** Of this frame's payload; while its size is read, the size so far. */
  #left = 0;
  /** Of the four bytes behind the zero of the last chunk. */
  #lastSeen = 0;
  /** Payload of all frames so far. */
  payloadBytes = 0;
  isDone = false;
  /** Bytes of the newest piece that the body took: more came behind its end when it is done and these are not all. */
  taken = 0;

  /** Takes the next piece; returns how many of its bytes are frames before the last chunk. Payload goes into the list, if any. */
  scan(bytes: Buffer, payload: Buffer[] | undefined): number {
    let at = 0;
    let frames = 0;
    while (at < bytes.length && !this.isDone) {
      const byte = bytes[at] ?? 0;
      switch (this.#state) {
        case 'size': {
          if (byte === CR && this.#digits > 0) {
            this.#state = 'size-lf';
          } else {
            const digit = hexDigit(byte);
            if (digit === 0 && this.#digits === 0) {
              this.#state = 'last';
              at += 1;
              continue;
            }
            this.#digits += 1;
            if (digit < 0 || this.#digits > MOST_SIZE_DIGITS) throw malformed('a chunk has no right size');
            this.#left = this.#left * 16 + digit;
          }
          break;
        }
        case 'size-lf':
          if (byte !== LF) throw malformed('a line of a chunk does not end right');
          this.#state = 'data';
          break;
        case 'data': {
          const end = Math.min(bytes.length, at + this.#left);
          payload?.push(bytes.subarray(at, end));
          this.payloadBytes += end - at;
          this.#left -= end - at;
          if (this.#left === 0) this.#state = 'data-cr';
          at = frames = end;
          continue;
        }
        case 'data-cr':
          if (byte !== CR) throw malformed('a chunk is longer than its size');
          this.#state = 'data-lf';
          break;
        case 'data-lf':
          if (byte !== LF) throw malformed('a chunk is longer than its size');
          this.#state = 'size';
          this.#digits = this.#left = 0;
          break;
        case 'last':
          if (byte !== (this.#lastSeen % 2 === 0 ? CR : LF)) throw malformed('something follows its last chunk');
          this.#lastSeen += 1;
          this.isDone = this.#lastSeen === 4;
          at += 1;
          continue;
        default:
          this.#state satisfies never;
      }
      at += 1;
      frames = at;
    }
    this.taken = at;
    return frames;
  }
}

function hexDigit(byte: number): number {
  if (byte >= 48 && byte <= 57) return byte - 48;
  if (byte >= 97 && byte <= 102) return byte - 87;
  if (byte >= 65 && byte <= 70) return byte - 55;
  return -1;
}

/**
 * Follows the frames of a chunked body as they pass, so that they can be passed on as they came. Invariants: what is accepted is
 * the one spelling that replicas write (hexadecimal sizes without leading zeros, no extensions, no trailers); a byte that does not
 * belong there throws; it keeps no bytes, and its work is per frame, not per byte.
 */
import { malformed } from './response-head.ts';

const CR = 13;
const LF = 10;
const MOST_SIZE_DIGITS = 7;

/** One more than the digit that a byte is; 0 = it is none. */
const HEX = Uint8Array.from(
  { length: 256 },
  (_, byte) => '0123456789abcdef'.indexOf(String.fromCharCode(byte | 32)) + 1,
);
// Of what differs from a digit in that bit alone.
for (let byte = 16; byte < 32; byte++) HEX[byte] = 0;

type State = 'size' | 'size-lf' | 'data' | 'data-cr' | 'data-lf' | 'last';

export interface ChunkPosition {
  readonly state: State;
  readonly digits: number;
  readonly left: number;
  readonly lastSeen: number;
}

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

  /** Where the next piece begins, for `payloadOf` that piece. */
  position(): ChunkPosition {
    return { state: this.#state, digits: this.#digits, left: this.#left, lastSeen: this.#lastSeen };
  }

  /** What lies within the frames of a piece that was taken from this position on. */
  static payloadOf(bytes: Buffer, { state, digits, left, lastSeen }: ChunkPosition): readonly Buffer[] {
    const scanner = new ChunkScanner();
    scanner.#state = state;
    scanner.#digits = digits;
    scanner.#left = left;
    scanner.#lastSeen = lastSeen;
    const payload: Buffer[] = [];
    scanner.scan(bytes, payload);
    return payload;
  }

  /** Takes the next piece; returns how many of its bytes are frames before the last chunk. Payload goes into the list, if any. */
  scan(bytes: Buffer, payload?: Buffer[]): number {
    let at = 0;
    let frames = 0;
    while (at < bytes.length && !this.isDone) {
      if (this.#state === 'size' && this.#digits === 0 && payload === undefined) {
        const end = this.#scanWhole(bytes, at);
        if (end > at) {
          at = frames = end;
          continue;
        }
      }
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

  /**
   * Passes frames that are whole within this piece, as nearly all are, and have a size of two or three digits, as events do. Returns the
   * offset behind them; what looks any other way is left to the states, which say what is wrong with it. No read passes the end of the
   * piece: one such read, and the engine's code for this loop takes about three times as long for the rest of the process.
   */
  #scanWhole(bytes: Buffer, start: number): number {
    let at = start;
    const { length } = bytes;
    while (at + 5 <= length) {
      const first = HEX[bytes[at] ?? 0] ?? 0;
      const second = HEX[bytes[at + 1] ?? 0] ?? 0;
      if (first === 0 || second === 0) return at;
      let size = first === 1 ? -1 : (first - 1) * 16 + second - 1;
      let data = at + 4;
      if (bytes[at + 2] !== CR) {
        const third = HEX[bytes[at + 2] ?? 0] ?? 0;
        if (third === 0 || size < 0) return at;
        size = size * 16 + third - 1;
        data = at + 5;
      }
      const end = data + size;
      if (size < 0 || end + 2 > length || bytes[data - 2] !== CR || bytes[data - 1] !== LF) return at;
      if (bytes[end] !== CR || bytes[end + 1] !== LF) return at;
      this.payloadBytes += size;
      at = end + 2;
    }
    return at;
  }
}

function hexDigit(byte: number): number {
  return (HEX[byte] ?? 0) - 1;
}

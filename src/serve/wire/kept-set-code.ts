/**
 * Kept sets as bytes: a row of ascending ids is their number, then groups of (gap to the id before, length when it is a run of
 * neighbours), all as varints. A row that keeps the whole vocabulary takes a few bytes, a row of forty about ninety.
 * Invariant: decoding gives exactly the rows that were encoded; bytes that no encoder wrote are refused.
 */
import { HoneError } from '../../domain/errors.ts';

/** No vocabulary is larger; a damaged count never asks for gigabytes. */
const MAX_ROW_IDS = 1 << 22;

/** The most bytes that `writeKeptRow` may take for a row of that many ids. */
export function maxKeptRowBytes(ids: number): number {
  return 5 + 5 * ids;
}

/** Writes one row and returns the offset behind it. */
export function writeKeptRow(row: Int32Array, target: Uint8Array, offset: number): number {
  let at = writeVarint(row.length, target, offset);
  let expected = 0;
  for (let index = 0; index < row.length;) {
    const first = row[index] ?? 0;
    if (first < expected) throw malformed(`id ${first} comes after ${expected - 1}`);
    let next = index + 1;
    // A row without holes is one run, whatever its length.
    if ((row[row.length - 1] ?? 0) - first === row.length - 1 - index) next = row.length;
    else while (next < row.length && row[next] === first + next - index) next++;
    const run = next - index;
    at = writeVarint(((first - expected) << 1) | (run > 1 ? 1 : 0), target, at);
    if (run > 1) at = writeVarint(run - 2, target, at);
    expected = first + run;
    index = next;
  }
  return at;
}

export function encodeKeptRows(rows: readonly Int32Array[]): Uint8Array {
  const target = new Uint8Array(rows.reduce((sum, row) => sum + maxKeptRowBytes(row.length), 0));
  let offset = 0;
  for (const row of rows) offset = writeKeptRow(row, target, offset);
  return target.slice(0, offset);
}

/** All rows of the bytes, in order. Throws `engine-failed` when they are not whole rows, or more than `mostRows`. */
export function decodeKeptRows(bytes: Uint8Array, mostRows = Infinity): Int32Array[] {
  const rows: Int32Array[] = [];
  const reader = new VarintReader(bytes);
  while (!reader.isAtEnd) {
    // A row of a few bytes may stand for millions of ids, so they are counted before they are made.
    if (rows.length === mostRows) throw malformed(`there are more than ${mostRows} rows`);
    const count = reader.next();
    if (count > MAX_ROW_IDS) throw malformed(`a row has ${count} ids`);
    const row = new Int32Array(count);
    let expected = 0;
    for (let filled = 0; filled < count;) {
      const group = reader.next();
      const first = expected + (group >>> 1);
      const run = (group & 1) === 0 ? 1 : reader.next() + 2;
      if (filled + run > count || first + run > 0x80000000) throw malformed(`a run of ${run} ids passes its row's end`);
      for (let index = 0; index < run; index++) row[filled + index] = first + index;
      filled += run;
      expected = first + run;
    }
    rows.push(row);
  }
  return rows;
}

function writeVarint(value: number, target: Uint8Array, offset: number): number {
  let rest = value >>> 0;
  let at = offset;
  while (rest > 0x7f) {
    target[at++] = (rest & 0x7f) | 0x80;
    rest >>>= 7;
  }
  target[at++] = rest;
  return at;
}

class VarintReader {
  readonly #bytes: Uint8Array;
  #offset = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  get isAtEnd(): boolean {
    return this.#offset >= this.#bytes.length;
  }

  next(): number {
    let value = 0;
    for (let shift = 0; shift < 35; shift += 7) {
      const byte = this.#bytes[this.#offset++];
      if (byte === undefined) throw malformed(`they break off after ${this.#bytes.length} bytes`);
      value += (byte & 0x7f) * 2 ** shift;
      if (byte < 0x80) {
        if (value > 0xffffffff) break;
        return value;
      }
    }
    throw malformed('a number is longer than 32 bits');
  }
}

function malformed(what: string): HoneError {
  return new HoneError('engine-failed', `Kept sets are not in the kept-set code: ${what}.`, {
    cure: 'Both sides must run the same version of Hone; replace the replica.',
  });
}

/**
 * Typed arrays as base64 of their little-endian bytes. Invariant: every bit comes back, those of NaN and -0 included; text that
 * is not base64 of whole elements is refused, never cut or padded.
 */
import { HoneError } from '../../domain/errors.ts';

const ALPHABET = Uint8Array.from(
  Buffer.from('ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/', 'latin1'),
);
const PADDING = 0x3d;

export function encodeBase64(array: Int32Array | Float32Array | Uint8Array): string {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString('base64');
}

export function base64Length(bytes: number): number {
  return Math.ceil(bytes / 3) * 4;
}

/** Writes `length` bytes of the source as ASCII without making a string; returns the offset behind it. */
export function writeBase64(source: Uint8Array, length: number, target: Uint8Array, offset: number): number {
  let at = offset;
  let index = 0;
  for (; index + 2 < length; index += 3) {
    const word = ((source[index] ?? 0) << 16) | ((source[index + 1] ?? 0) << 8) | (source[index + 2] ?? 0);
    target[at++] = ALPHABET[word >>> 18] ?? 0;
    target[at++] = ALPHABET[(word >>> 12) & 63] ?? 0;
    target[at++] = ALPHABET[(word >>> 6) & 63] ?? 0;
    target[at++] = ALPHABET[word & 63] ?? 0;
  }
  const rest = length - index;
  if (rest === 0) return at;
  const word = ((source[index] ?? 0) << 16) | (rest === 2 ? (source[index + 1] ?? 0) << 8 : 0);
  target[at++] = ALPHABET[word >>> 18] ?? 0;
  target[at++] = ALPHABET[(word >>> 12) & 63] ?? 0;
  target[at++] = rest === 2 ? (ALPHABET[(word >>> 6) & 63] ?? 0) : PADDING;
  target[at++] = PADDING;
  return at;
}

/** Throws `invalid-config` with the field's name. */
export function decodeBase64(field: string, text: string): Uint8Array<ArrayBuffer> {
  if (text.length % 4 !== 0 || !/^[A-Za-z0-9+/]*={0,2}$/u.test(text))
    throw new HoneError('invalid-config', `${field} is not base64: ${text.length} characters, ${quoted(text)}.`, {
      cure: 'Send the little-endian bytes in plain base64 with its padding.',
    });
  const padding = text.endsWith('==') ? 2 : Number(text.endsWith('='));
  const bytes = new Uint8Array((text.length / 4) * 3 - padding);
  Buffer.from(bytes.buffer).write(text, 'base64');
  return bytes;
}

export function decodeInt32(field: string, text: string): Int32Array<ArrayBuffer> {
  return new Int32Array(wholeWords(field, text));
}

export function decodeFloat32(field: string, text: string): Float32Array<ArrayBuffer> {
  return new Float32Array(wholeWords(field, text));
}

function wholeWords(field: string, text: string): ArrayBuffer {
  const bytes = decodeBase64(field, text);
  if (bytes.length % 4 !== 0)
    throw new HoneError('invalid-config', `${field} has ${bytes.length} bytes, not a multiple of 4.`, {
      cure: 'Send whole 32-bit elements.',
    });
  return bytes.buffer;
}

function quoted(text: string): string {
  return JSON.stringify(text.length > 24 ? `${text.slice(0, 24)}…` : text);
}

/**
 * Events of a reply as bytes, for all streams of a server: they are formatted straight into shared slabs, so that a token costs
 * no string and no object but the view that is handed out. Invariant: bytes that were handed out never change.
 */
import type { PolicyVersion } from '../../domain/ids.ts';
import { base64Length, writeBase64 } from './base64-array.ts';
import type { GenerateWireEvent } from './generate-wire.ts';

const ascii = (text: string): Uint8Array => Uint8Array.from(Buffer.from(text, 'latin1'));
const IDS = ascii('data: {"type":"tokens","ids":"');
const LOGPROBS = ascii('","logprobs":"');
const KEPT = ascii('","kept":"');
const VERSION = ascii('","version":');
const CLOSE = ascii('}\n\n');
const FIXED_BYTES = IDS.length + LOGPROBS.length + KEPT.length + VERSION.length + CLOSE.length + 20;

const DEFAULT_SLAB_BYTES = 64 * 1024;

export class EventWriter {
  readonly #slabBytes: number;
  #slab: Buffer;
  #used = 0;
  /** Elements in the order of their bytes, before base64. */
  #ids = new Int32Array(64);
  #logprobs = new Float32Array(64);
  #idBytes = new Uint8Array(this.#ids.buffer);
  #logprobBytes = new Uint8Array(this.#logprobs.buffer);

  constructor(slabBytes: number = DEFAULT_SLAB_BYTES) {
    this.#slabBytes = slabBytes;
    this.#slab = Buffer.allocUnsafeSlow(slabBytes);
  }

  /** Tokens [start, end) of one version. `kept` holds their rows in the kept-set code; undefined = they are sent elsewhere. */
  tokens(
    drawn: { readonly ids: ArrayLike<number>; readonly logprobs: ArrayLike<number> },
    kept: Uint8Array | undefined,
    version: PolicyVersion,
  ): Buffer {
    const count = drawn.ids.length;
    this.#reserveElements(count);
    for (let index = 0; index < count; index++) {
      this.#ids[index] = drawn.ids[index] ?? 0;
      this.#logprobs[index] = drawn.logprobs[index] ?? Number.NaN;
    }
    const most = FIXED_BYTES + 2 * base64Length(count * 4) + base64Length(kept?.length ?? 0);
    const start = this.#reserve(most);
    const slab = this.#slab;
    let at = put(IDS, slab, start);
    at = writeBase64(this.#idBytes, count * 4, slab, at);
    at = put(LOGPROBS, slab, at);
    at = writeBase64(this.#logprobBytes, count * 4, slab, at);
    if (kept !== undefined) {
      at = put(KEPT, slab, at);
      at = writeBase64(kept, kept.length, slab, at);
    }
    at = put(VERSION, slab, at);
    at = putInteger(version, slab, at);
    at = put(CLOSE, slab, at);
    this.#used = at;
    return slab.subarray(start, at);
  }

  /** The last event of a stream: rare, so plain JSON. */
  last(event: Exclude<GenerateWireEvent, { type: 'tokens' }>): Buffer {
    return Buffer.from(`data: ${JSON.stringify(event)}\n\n`);
  }

  #reserveElements(count: number): void {
    if (count <= this.#ids.length) return;
    this.#ids = new Int32Array(2 * count);
    this.#logprobs = new Float32Array(2 * count);
    this.#idBytes = new Uint8Array(this.#ids.buffer);
    this.#logprobBytes = new Uint8Array(this.#logprobs.buffer);
  }

  #reserve(bytes: number): number {
    if (this.#used + bytes > this.#slab.length) {
      // What was handed out keeps the old slab alive until it is sent.
      this.#slab = Buffer.allocUnsafeSlow(Math.max(this.#slabBytes, bytes));
      this.#used = 0;
    }
    return this.#used;
  }
}

function put(text: Uint8Array, target: Uint8Array, offset: number): number {
  for (let index = 0; index < text.length; index++) target[offset + index] = text[index] ?? 0;
  return offset + text.length;
}

function putInteger(value: number, target: Uint8Array, offset: number): number {
  let digits = 1;
  for (let rest = value; rest >= 10; rest = Math.floor(rest / 10)) digits++;
  let rest = value;
  for (let place = digits - 1; place >= 0; place--) {
    target[offset + place] = 0x30 + (rest % 10);
    rest = Math.floor(rest / 10);
  }
  return offset + digits;
}

/**
 * Gathers what one decode step drew for streamed requests and hands it out as one message. Its buffers are used again for every
 * step. Invariant: a message holds each token of the step once, in the order of the draws, all of one version.
 */
import type { PolicyVersion } from '../domain/ids.ts';
import type { DrawnToken } from '../domain/policy.ts';
import type { StepMessage } from './replica-protocol.ts';
import { maxKeptRowBytes, writeKeptRow } from './wire/kept-set-code.ts';

export class StepBatch {
  #count = 0;
  #tickets: Int32Array;
  #ids: Int32Array;
  #logprobs: Float32Array;
  #keptOffsets: Int32Array;
  #kept = new Uint8Array(16 * 1024);

  /** `most`: requests that may draw in one step. */
  constructor(most: number) {
    this.#tickets = new Int32Array(most);
    this.#ids = new Int32Array(most);
    this.#logprobs = new Float32Array(most);
    this.#keptOffsets = new Int32Array(most + 1);
  }

  add(ticket: number, id: number, { logprob, kept }: DrawnToken): void {
    const at = this.#count++;
    const offset = this.#keptOffsets[at] ?? 0;
    const most = offset + maxKeptRowBytes(kept.length);
    if (most > this.#kept.length) {
      const grown = new Uint8Array(2 * most);
      grown.set(this.#kept.subarray(0, offset));
      this.#kept = grown;
    }
    this.#tickets[at] = ticket;
    this.#ids[at] = id;
    this.#logprobs[at] = logprob;
    this.#keptOffsets[at + 1] = writeKeptRow(kept, this.#kept, offset);
  }

  /** Everything since the last call; undefined when nothing was drawn. */
  take(version: PolicyVersion): StepMessage | undefined {
    const count = this.#count;
    if (count === 0) return undefined;
    this.#count = 0;
    return {
      type: 'step',
      version,
      tickets: this.#tickets.slice(0, count),
      ids: this.#ids.slice(0, count),
      logprobs: this.#logprobs.slice(0, count),
      kept: this.#kept.slice(0, this.#keptOffsets[count]),
      keptOffsets: this.#keptOffsets.slice(0, count + 1),
    };
  }
}

/**
 * One context window while it grows: environment tokens and sampled tokens, appended turn by turn, beside the exact
 * text that they stand for. Invariants: append-only; per-token arrays have one length; boundaries are positions where
 * text and tokens are known to agree, so that another window may begin with the same ids.
 */
import type { Generation } from '../domain/policy.ts';
import type { Segment, VersionSpan } from '../domain/rollout.ts';

export interface Boundary {
  readonly textLength: number;
  readonly tokenCount: number;
}

/** A typed array that doubles. */
class Growing<T extends Int32Array | Float32Array | Uint8Array> {
  #array: T;
  readonly #allocate: (length: number) => T;
  length = 0;

  constructor(allocate: (length: number) => T) {
    this.#allocate = allocate;
    this.#array = allocate(256);
  }

  /** Makes room for `count` more entries, zero, and returns the array to write into. */
  extend(count: number): T {
    const needed = this.length + count;
    if (needed > this.#array.length) {
      const larger = this.#allocate(Math.max(needed, this.#array.length * 2));
      larger.set(this.#array.subarray(0, this.length));
      this.#array = larger;
    }
    this.length = needed;
    return this.#array;
  }

  copy(end = this.length): T {
    // slice keeps the concrete array type; the union hides it from the checker.
    return this.#array.slice(0, end) as T;
  }
}

export class SegmentTape {
  readonly #tokens = new Growing((length) => new Int32Array(length));
  readonly #trained = new Growing((length) => new Uint8Array(length));
  readonly #logprobs = new Growing((length) => new Float32Array(length));
  readonly #keptIds = new Growing((length) => new Int32Array(length));
  /** End of each position's kept row. */
  readonly #keptEnds = new Growing((length) => new Int32Array(length));
  readonly #versions: VersionSpan[] = [];
  readonly #boundaries: Boundary[] = [];
  readonly #temperature: number;
  #text = '';
  #sampledCount = 0;

  constructor(temperature: number) {
    this.#temperature = temperature;
  }

  get text(): string {
    return this.#text;
  }

  get tokenCount(): number {
    return this.#tokens.length;
  }

  get sampledCount(): number {
    return this.#sampledCount;
  }

  tokens(end: number): Int32Array {
    return this.#tokens.copy(end);
  }

  /** The furthest boundary whose text begins `text`. */
  sharedBoundary(text: string): Boundary | undefined {
    return this.#boundaries.findLast((boundary) => text.startsWith(this.#text.slice(0, boundary.textLength)));
  }

  appendEnvironment(tokens: Int32Array, text: string): void {
    const start = this.#extend(tokens.length);
    this.#tokens.extend(0).set(tokens, start);
    this.#keptEnds.extend(0).fill(this.#keptIds.length, start, start + tokens.length);
    this.#close(text);
  }

  /** `stopLength` is how much of the text is the stop token's; the place before it is a boundary too. */
  appendSampled(generation: Generation, text: string, stopLength: number): void {
    const { tokens, logprobs, kept, versions } = generation;
    const start = this.#extend(tokens.length);
    this.#tokens.extend(0).set(tokens, start);
    this.#trained.extend(0).fill(1, start, start + tokens.length);
    this.#logprobs.extend(0).set(logprobs, start);
    const keptStart = this.#keptIds.length;
    this.#keptIds.extend(kept.ids.length).set(kept.ids, keptStart);
    const ends = this.#keptEnds.extend(0);
    for (let index = 0; index < tokens.length; index++)
      ends[start + index] = keptStart + (kept.offsets[index + 1] ?? 0);
    for (const span of versions)
      this.#versions.push({ version: span.version, start: start + span.start, end: start + span.end });
    this.#sampledCount += tokens.length;
    if (stopLength > 0)
      this.#boundaries.push({
        textLength: this.#text.length + text.length - stopLength,
        tokenCount: this.tokenCount - 1,
      });
    this.#close(text);
  }

  toSegment(): Segment {
    const length = this.tokenCount;
    const offsets = new Int32Array(length + 1);
    offsets.set(this.#keptEnds.copy(), 1);
    return {
      tokens: this.#tokens.copy(),
      trained: this.#trained.copy(),
      logprobs: this.#logprobs.copy(),
      kept: { ids: this.#keptIds.copy(), offsets },
      versions: [...this.#versions],
      temperature: this.#temperature,
    };
  }

  #extend(count: number): number {
    const start = this.tokenCount;
    this.#tokens.extend(count);
    this.#trained.extend(count);
    this.#logprobs.extend(count);
    this.#keptEnds.extend(count);
    return start;
  }

  #close(text: string): void {
    this.#text += text;
    this.#boundaries.push({ textLength: this.#text.length, tokenCount: this.tokenCount });
  }
}

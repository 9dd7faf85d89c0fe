/**
 * Receives one run of chunks of an object from one source, parent or controller, and puts each into the object once it is verified.
 * Invariant: what is not right is dropped here and ends the transfer; whatever the source does, the call ends: a source from which
 * neither a chunk nor a sign of life comes for `stallMs` is given up. The socket is read while a chunk is written, no further.
 */
import type { Dispatcher } from 'undici';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { objectPath, type ParentFault } from './cluster-protocol.ts';
import { FrameReader, type Frame } from './object-frames.ts';
import type { RelayObject } from './object-relay.ts';

export interface ReceiveOptions {
  readonly dispatcher: Dispatcher;
  /** Base URL of the source. */
  readonly url: string;
  readonly headers: Record<string, string>;
  /** Who asks. */
  readonly member: string;
  readonly stallMs: number;
  /** Monotonic milliseconds. */
  readonly now: () => number;
  readonly signal: AbortSignal;
  /** `hopMs`: from the chunk's first byte until it is verified, on the disk and open to readers. */
  readonly onChunk: (chunk: number, sizeBytes: number, hopMs: number) => void;
}

export type ReceiveOutcome =
  | { readonly kind: 'received' }
  /** `chunk` is the first one that is still missing. */
  | { readonly kind: 'failed'; readonly fault: ParentFault; readonly chunk: number; readonly reason: string };

/** Throws only what is not the source's fault: an aborted signal, a full disk. */
export async function receiveChunks(
  object: RelayObject,
  run: { readonly start: number; readonly end: number },
  options: ReceiveOptions,
): Promise<ReceiveOutcome> {
  const { url, member, stallMs, now, signal, onChunk } = options;
  const stalled = new AbortController();
  const stall = setTimeout(() => stalled.abort(), stallMs);
  let chunk = run.start;
  const failed = (fault: ParentFault, reason: string): ReceiveOutcome => ({ kind: 'failed', fault, chunk, reason });
  const stream = new FrameStream({
    dispatcher: options.dispatcher,
    url,
    path: objectPath(object.facts.key, run, member),
    headers: options.headers,
    now,
    onBytes: () => void stall.refresh(),
  });
  const onAbort = (): void => stream.destroy(new Error('The transfer was called off.'));
  const both = AbortSignal.any([signal, stalled.signal]);
  both.addEventListener('abort', onAbort, { once: true });
  if (both.aborted) onAbort();
  try {
    for (let next = await stream.next(); next !== undefined; next = await stream.next()) {
      const { frame, startedMs } = next;
      if (frame.kind === 'alive') {
        object.touch();
        continue;
      }
      try {
        if (chunk >= run.end) return failed('damaged', 'it sent more chunks than it was asked for');
        if ((await writing(object.write(chunk, frame))) === 'damaged')
          return failed('damaged', `chunk ${chunk} is not what its digest says`);
        onChunk(chunk, frame.memory.bytes.byteLength, now() - startedMs);
      } finally {
        frame.memory.release();
      }
      chunk += 1;
      stall.refresh();
    }
    return chunk === run.end ? { kind: 'received' } : failed('broken-off', 'the stream ended early');
  } catch (error) {
    if (error instanceof LocalFailure) throw error.cause;
    signal.throwIfAborted();
    if (stalled.signal.aborted) return failed('stalled', `nothing came for ${stallMs / 1000} s`);
    if (error instanceof RefusedBySource) return failed('refused', error.message);
    if (error instanceof HoneError) return failed('damaged', error.message);
    return failed(stream.isAnswered ? 'broken-off' : 'unreachable', reasonOf(error));
  } finally {
    clearTimeout(stall);
    both.removeEventListener('abort', onAbort);
    stream.destroy(new Error('The transfer is over.'));
  }
}

interface TimedFrame {
  readonly frame: Frame;
  /** When its first byte came. */
  readonly startedMs: number;
}

/** Frames that wait before the socket is not read any more. */
const MOST_WAITING = 2;
const LONGEST_REFUSAL_BYTES = 300;

/** The answer of the source, cut into frames as the bytes come. */
class FrameStream {
  readonly #now: () => number;
  readonly #reader = new FrameReader();
  readonly #waiting: TimedFrame[] = [];
  #frameStartedMs: number;
  #exchange: Dispatcher.DispatchController | undefined;
  #status = 0;
  #refusal = '';
  #end: { readonly error: Error | undefined } | undefined;
  #changed = Promise.withResolvers<void>();

  constructor(options: {
    readonly dispatcher: Dispatcher;
    readonly url: string;
    readonly path: string;
    readonly headers: Record<string, string>;
    readonly now: () => number;
    readonly onBytes: () => void;
  }) {
    const { dispatcher, url, path, headers, now, onBytes } = options;
    this.#now = now;
    this.#frameStartedMs = now();
    dispatcher.dispatch(
      { origin: url, method: 'GET', path, headers, headersTimeout: 0, bodyTimeout: 0 },
      {
        onRequestStart: (exchange) => {
          this.#exchange = exchange;
          if (this.#end !== undefined) exchange.abort(this.#end.error ?? new Error('The transfer is over.'));
        },
        onResponseStart: (_exchange, status) => {
          this.#status = status;
        },
        onResponseData: (exchange, bytes) => {
          onBytes();
          this.#take(exchange, bytes);
        },
        onResponseEnd: () =>
          this.#finish(
            this.#status === 200
              ? undefined
              : new RefusedBySource(`it answered ${this.#status}: ${this.#refusal.slice(0, LONGEST_REFUSAL_BYTES)}`),
          ),
        onResponseError: (_exchange, error) => this.#finish(error),
      },
    );
  }

  get isAnswered(): boolean {
    return this.#status !== 0;
  }

  /** Undefined at the end of a stream that ended well. */
  async next(): Promise<TimedFrame | undefined> {
    for (;;) {
      const frame = this.#waiting.shift();
      if (frame !== undefined) {
        if (this.#waiting.length < MOST_WAITING && this.#exchange?.paused === true) this.#exchange.resume();
        return frame;
      }
      if (this.#end !== undefined) {
        if (this.#end.error === undefined) return undefined;
        throw this.#end.error;
      }
      await this.#changed.promise;
    }
  }

  destroy(reason: Error): void {
    if (this.#end === undefined) {
      this.#finish(reason);
      this.#exchange?.abort(reason);
    }
    for (const { frame } of this.#waiting.splice(0)) if (frame.kind === 'chunk') frame.memory.release();
  }

  #take(exchange: Dispatcher.DispatchController, bytes: Uint8Array): void {
    if (this.#end !== undefined) return;
    if (this.#status !== 200) {
      if (this.#refusal.length < LONGEST_REFUSAL_BYTES) this.#refusal += Buffer.from(bytes).toString('utf8');
      return;
    }
    if (this.#reader.isBetweenFrames) this.#frameStartedMs = this.#now();
    try {
      for (const frame of this.#reader.push(bytes)) {
        this.#waiting.push({ frame, startedMs: this.#frameStartedMs });
        this.#frameStartedMs = this.#now();
        this.#notify();
      }
    } catch (error) {
      // The reader throws HoneErrors alone.
      this.#finish(error as HoneError);
      exchange.abort(error as HoneError);
      return;
    }
    if (this.#waiting.length >= MOST_WAITING) exchange.pause();
  }

  #finish(error: Error | undefined): void {
    this.#end ??= { error };
    this.#notify();
  }

  #notify(): void {
    const changed = this.#changed;
    this.#changed = Promise.withResolvers<void>();
    changed.resolve();
  }
}

class RefusedBySource extends Error {}

/** A failure of this machine's disk, kept apart from those of the source. */
class LocalFailure extends Error {}

async function writing<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw new LocalFailure('the chunk could not be kept', { cause: error });
  }
}

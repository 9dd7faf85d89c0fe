/**
 * Receives one run of chunks of an object from one source, parent or controller, and puts each into the object once it is verified.
 * Invariant: what is not right is dropped here and ends the transfer; whatever the source does, the call ends: a source from which
 * neither a chunk nor a sign of life comes for `stallMs` is given up.
 */
import type { Dispatcher } from 'undici';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { objectPath, type ParentFault } from './cluster-protocol.ts';
import { FrameReader } from './object-frames.ts';
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
  const { dispatcher, url, member, stallMs, now, signal, onChunk } = options;
  const { key } = object.facts;
  const stalled = new AbortController();
  const stall = setTimeout(() => stalled.abort(), stallMs);
  let chunk = run.start;
  let isAnswered = false;
  const failed = (fault: ParentFault, reason: string): ReceiveOutcome => ({ kind: 'failed', fault, chunk, reason });
  let body: Dispatcher.ResponseData['body'] | undefined;
  try {
    const answer = await dispatcher.request({
      origin: url,
      method: 'GET',
      path: objectPath(key, run, member),
      headers: options.headers,
      headersTimeout: 0,
      bodyTimeout: 0,
      signal: AbortSignal.any([signal, stalled.signal]),
    });
    isAnswered = true;
    body = answer.body;
    body.on('error', () => undefined);
    if (answer.statusCode !== 200)
      return failed('refused', `it answered ${answer.statusCode}: ${(await body.text()).slice(0, 300)}`);
    const reader = new FrameReader();
    let frameStartedMs = now();
    // A body without an encoding gives buffers.
    for await (const bytes of body as AsyncIterable<Buffer>) {
      stall.refresh();
      if (reader.isBetweenFrames) frameStartedMs = now();
      for (const frame of reader.push(bytes)) {
        if (frame.kind === 'alive') {
          object.touch();
          continue;
        }
        if (chunk >= run.end) return failed('damaged', 'it sent more chunks than it was asked for');
        if ((await writing(object.write(chunk, frame))) === 'damaged')
          return failed('damaged', `chunk ${chunk} is not what its digest says`);
        onChunk(chunk, frame.bytes.byteLength, now() - frameStartedMs);
        chunk += 1;
        frameStartedMs = now();
        stall.refresh();
      }
    }
    return chunk === run.end ? { kind: 'received' } : failed('broken-off', 'the stream ended early');
  } catch (error) {
    if (error instanceof LocalFailure) throw error.cause;
    signal.throwIfAborted();
    if (stalled.signal.aborted) return failed('stalled', `nothing came for ${stallMs / 1000} s`);
    if (error instanceof HoneError) return failed('damaged', error.message);
    return failed(isAnswered ? 'broken-off' : 'unreachable', reasonOf(error));
  } finally {
    clearTimeout(stall);
    body?.destroy();
  }
}

/** A failure of this machine's disk, kept apart from those of the source. */
class LocalFailure extends Error {}

async function writing<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw new LocalFailure('the chunk could not be kept', { cause: error });
  }
}

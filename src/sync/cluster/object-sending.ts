/**
 * Sends an object to one child: frames over HTTP, each chunk as soon as it is verified here. Owns back-pressure: one chunk at a time waits
 * in the response, and a child that takes nothing for too long is cut off. Invariant: a response that ends without an error had every
 * chunk of the range; one that cannot go on is destroyed, so that the child notices.
 */
import type { ServerResponse } from 'node:http';

import { ALIVE_FRAME, frameHeader } from './object-frames.ts';
import type { RelayObject } from './object-relay.ts';

export interface SendObjectOptions {
  /** Half-open range of chunks. */
  readonly start: number;
  readonly end: number;
  /** A child that takes no byte for this long is cut off. */
  readonly stallMs: number;
  readonly signal: AbortSignal;
  readonly onSent?: (sizeBytes: number) => void;
}

/** Never rejects: what breaks a transfer is for the child to notice and to mend. */
export async function sendObject(
  object: RelayObject,
  response: ServerResponse,
  options: SendObjectOptions,
): Promise<void> {
  const { start, end, stallMs, onSent } = options;
  const gone = new AbortController();
  const onClose = (): void => gone.abort();
  response.once('close', onClose);
  const signal = AbortSignal.any([options.signal, gone.signal]);
  try {
    response.writeHead(200, { 'content-type': 'application/octet-stream' });
    response.flushHeaders();
    for await (const part of object.follow(start, end, signal)) {
      let isTaken: boolean;
      if (part.kind === 'alive') isTaken = response.write(ALIVE_FRAME);
      else {
        const { memory, digest } = part;
        response.cork();
        response.write(frameHeader(memory.bytes.byteLength, digest));
        isTaken = response.write(memory.bytes, (error) => {
          // After an error nobody knows whether the socket still reads from it.
          if (error === null || error === undefined) memory.release();
        });
        response.uncork();
      }
      if (!isTaken) await drained(response, stallMs, signal);
      if (part.kind === 'chunk') onSent?.(part.memory.bytes.byteLength);
    }
    response.end();
  } catch {
    response.destroy();
  } finally {
    response.removeListener('close', onClose);
  }
}

async function drained(response: ServerResponse, stallMs: number, signal: AbortSignal): Promise<void> {
  if (response.writableNeedDrain === false) return;
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const onAbort = (): void => reject(new Error('the child is gone'));
  const timer = setTimeout(() => reject(new Error('the child takes nothing')), stallMs);
  response.once('drain', resolve);
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    await promise;
  } finally {
    clearTimeout(timer);
    response.removeListener('drain', resolve);
    signal.removeEventListener('abort', onAbort);
  }
}

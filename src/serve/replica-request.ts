/**
 * What a client sends with `POST /generate`: the id of the request and its body, read within bounds of size and time. What the body
 * says is for the wire's decoder. Invariant: a body that is too large is answered, and never held whole.
 */
import type { IncomingMessage } from 'node:http';

import { HoneError } from '../domain/errors.ts';
import { REQUEST_ID_HEADER } from './wire/generate-wire.ts';

/** Reading a body must end. */
const BODY_DEADLINE_MS = 30_000;
const REQUEST_ID = /^[\w.:-]{1,128}$/u;

/** The client's own id; undefined where it gave none. Throws `invalid-config` for one that names nothing. */
export function requestId(request: IncomingMessage): string | undefined {
  const id = request.headers[REQUEST_ID_HEADER];
  if (id === undefined) return undefined;
  if (typeof id === 'string' && REQUEST_ID.test(id)) return id;
  throw new HoneError('invalid-config', `${REQUEST_ID_HEADER} is ${JSON.stringify(id)}, not the name of a request.`, {
    cure: 'Use 1 to 128 letters, digits, dots, colons, hyphens or underscores.',
  });
}

/** Throws `invalid-config` when it is larger. */
export async function readBody(request: IncomingMessage, maxBytes: number): Promise<Buffer> {
  const declared = Number(request.headers['content-length'] ?? 0);
  const chunks: Buffer[] = [];
  let bytes = 0;
  const timer = setTimeout(() => request.destroy(), BODY_DEADLINE_MS);
  try {
    if (declared <= maxBytes)
      // Whoever sends too much still gets its answer.
      for await (const chunk of request.iterator({ destroyOnReturn: false })) {
        // Without an encoding chunks of a request are buffers.
        chunks.push(chunk as Buffer);
        bytes += (chunk as Buffer).length;
        if (bytes > maxBytes) break;
      }
  } finally {
    clearTimeout(timer);
  }
  if (declared > maxBytes || bytes > maxBytes)
    throw new HoneError(
      'invalid-config',
      `The body has more than ${maxBytes} bytes, more than a request of this model can.`,
      {
        cure: 'Send a prompt that fits into the context.',
      },
    );
  return chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks);
}

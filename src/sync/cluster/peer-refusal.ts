/** How a controller or a member says no to a peer that asks for bytes: a status, and one sentence as JSON. */
import type { ServerResponse } from 'node:http';

import { reasonOf } from '../../domain/errors.ts';

export function refusePeer(response: ServerResponse, status: number, reason: unknown): void {
  if (response.headersSent || response.destroyed) {
    response.destroy();
    return;
  }
  const body = JSON.stringify({
    error: { type: status === 404 ? 'not_found' : 'unavailable', message: reasonOf(reason) },
  });
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) });
  response.end(body);
}

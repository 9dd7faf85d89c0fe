/**
 * The control side of a service: a hono app behind one bearer token, with `/health` open to all. It owns listening, the token and
 * the end of connections; routes belong to the service. Invariant: no route but `GET /health` answers without the token.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

import { getRequestListener } from '@hono/node-server';
import { Hono } from 'hono';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { requireTokenBeyondLoopback, type BearerToken } from './bearer-token.ts';

export interface ControlServerOptions {
  /** For messages: `replica`, `router`, `controller`. */
  readonly service: string;
  readonly host: string;
  /** 0 = any free port. */
  readonly port: number;
  readonly token: BearerToken | undefined;
  /** 200, or 503 with the reason. */
  readonly health: () => { readonly ready: boolean; readonly reason?: string };
  readonly routes: (app: Hono) => void;
  /** Told of each request that is refused for its token. */
  readonly onUnauthorized?: (request: IncomingMessage) => void;
  /** Takes a request before hono, token already checked; false = not its path. For bodies of many bytes. */
  readonly raw?: (request: IncomingMessage, response: ServerResponse) => boolean;
}

export interface ControlServer extends AsyncDisposable {
  readonly url: string;
  close(): Promise<void>;
}

export async function startControlServer(options: ControlServerOptions): Promise<ControlServer> {
  const { service, host, port, token, health, raw } = options;
  requireTokenBeyondLoopback(service, host, token);
  const app = new Hono();
  app.get('/health', (context) => {
    const { ready, reason } = health();
    return context.json(ready ? { status: 'ok' } : { status: 'unavailable', reason }, ready ? 200 : 503);
  });
  options.routes(app);
  app.notFound((context) => context.json(errorBody('not_found', `The ${service} has no ${context.req.path}.`), 404));
  app.onError((error, context) => context.json(errorBody(errorType(error), reasonOf(error)), 500));
  const listener = getRequestListener(app.fetch, { overrideGlobalObjects: false });
  const server = createServer((request, response) => {
    const isOpen = request.method === 'GET' && request.url === '/health';
    if (!isOpen && token?.accepts(request.headers.authorization) === false) {
      const body = JSON.stringify(errorBody('unauthorized', `The ${service} does not know this bearer token.`));
      response.writeHead(401, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) });
      response.end(body);
      options.onUnauthorized?.(request);
      return;
    }
    if (raw?.(request, response) !== true) void listener(request, response);
  });
  const url = await listen(server, { service, host, port });
  const close = async (): Promise<void> => {
    await new Promise<void>((resolve) => {
      server.close(() => resolve());
      server.closeAllConnections();
    });
  };
  return { url, close, [Symbol.asyncDispose]: close };
}

/** Listens and returns the base URL. A port that is taken is `invalid-config` with its number. */
export async function listen(
  server: Server,
  { service, host, port }: { service: string; host: string; port: number },
): Promise<string> {
  await new Promise<void>((resolve, reject) => {
    const fail = (error: Error): void =>
      reject(
        new HoneError('invalid-config', `The ${service} cannot listen on ${host}:${port}: ${error.message}.`, {
          cure: 'Choose a free port of this machine, or 0 for any.',
          cause: error,
        }),
      );
    server.once('error', fail);
    server.listen(port, host, () => {
      server.removeListener('error', fail);
      resolve();
    });
  });
  // A listening TCP server's address is never a string or null.
  const address = server.address() as AddressInfo;
  return `http://${host.includes(':') ? `[${host}]` : host}:${address.port}`;
}

/** The one shape of errors on control and data routes. */
export function errorBody(type: string, message: string): { error: { type: string; message: string } } {
  return { error: { type, message } };
}

function errorType(error: Error): string {
  return error instanceof HoneError ? error.code : 'internal_error';
}

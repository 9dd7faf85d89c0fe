/**
 * The router's data port: what agents and recorders can reach. Invariants: it has `/generate` and, with a hosted recorder, that
 * recorder's chat routes, compared as they were written and in no other spelling; whoever may not use a route is refused before
 * the body is read; a client that goes away stops what samples for it.
 */
import { createServer } from 'node:http';
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { errorBody, listen } from '../service/control-server.ts';
import { decodeGenerateRequest } from '../wire/generate-request.ts';
import type { DecodedGenerateRequest } from '../wire/generate-request.ts';
import {
  AVOID_HEADER,
  GENERATE_PATH,
  GENERATE_STATUS,
  MOST_AVOIDED,
  REPLICA_HEADER,
  REQUEST_ID_HEADER,
} from '../wire/generate-wire.ts';

import type { AnswerHeaders, AnswerReceiver, GenerateInFlight, ServedModel } from './generate-transport.ts';
import type { Relay } from './relay.ts';
import { isChatPath, unservedSentence } from './session-request.ts';
import type { Access, SessionSecrets } from './session-secrets.ts';

/** What the data port needs of a hosted recorder. */
export interface ChatRoutes {
  /** False = not a path of its; it answers the others itself, with its own secrets. */
  handle(request: IncomingMessage, response: ServerResponse): boolean;
}

export interface DataServerOptions {
  readonly host: string;
  readonly port: number;
  readonly relay: Relay;
  readonly secrets: SessionSecrets;
  readonly chat?: ChatRoutes | undefined;
  readonly known: () => { readonly version: number | undefined; readonly contextLength: number | undefined };
  readonly servedModels: () => readonly ServedModel[];
  readonly newRequestId: () => string;
  readonly maxBodyBytes?: number;
  /** A client that takes no byte for this long is cut off; two minutes by default. */
  readonly readerTimeoutMs?: number | undefined;
}

export interface DataServer {
  readonly url: string;
  /** Refuses new requests from here on; those under way go on. */
  drain(): void;
  /** Answers under way. */
  readonly active: number;
  close(): Promise<void>;
}

const READER_TIMEOUT_MS = 120_000;
const REQUEST_ID = /^[\w.:-]{1,128}$/u;

export async function startDataServer(options: DataServerOptions): Promise<DataServer> {
  const { host, port } = options;
  const routes = new DataRoutes(options);
  const server: Server = createServer({ keepAliveTimeout: 120_000, noDelay: true }, (request, response) => {
    routes.handle(request, response);
  });
  // Nothing here speaks another protocol; left alone, node would close such a socket without a word.
  server.on('connect', (_request, socket) => socket.end('HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n'));
  const url = await listen(server, { service: 'router', host, port });
  return {
    url,
    drain: () => routes.drain(),
    get active() {
      return routes.active;
    },
    close: async () => {
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      });
    },
  };
}

class DataRoutes {
  readonly #options: DataServerOptions;
  #isDraining = false;
  active = 0;

  constructor(options: DataServerOptions) {
    this.#options = options;
  }

  drain(): void {
    this.#isDraining = true;
  }

  handle(request: IncomingMessage, response: ServerResponse): void {
    if (this.#isDraining) return this.#refuse(response, GENERATE_STATUS.unavailable, 'closing', 'The router closes.');
    if (request.url !== GENERATE_PATH) return this.#handleOthers(request, response);
    const access = this.#options.secrets.access(request.headers.authorization);
    if (access.kind === 'refused' || (access.kind === 'session' && access.use !== 'generate'))
      return this.#refuse(
        response,
        GENERATE_STATUS.unauthorized,
        'unauthorized',
        'This bearer token is not known here.',
      );
    if (request.method === 'GET') return this.#tellKnown(response);
    if (request.method !== 'POST')
      return this.#refuse(response, 405, 'method_not_allowed', `Ask for tokens with POST ${GENERATE_PATH}.`);
    this.#generate(request, response, access);
  }

  #handleOthers(request: IncomingMessage, response: ServerResponse): void {
    const { chat, secrets } = this.#options;
    const path = request.url ?? '';
    const session = secrets.sessionOf(request.headers.authorization);
    // A recorder would say no more than that it does not know the secret.
    const isOfGenerate = session?.use === 'generate' && isChatPath(path);
    if (!isOfGenerate && chat?.handle(request, response) === true) return;
    const sentence = unservedSentence({ path, session, hasRecorder: chat !== undefined });
    this.#refuse(response, 404, 'not_found', sentence);
  }

  /** What a client must know before it asks: the context's length, and what is served. */
  #tellKnown(response: ServerResponse): void {
    const { version, contextLength } = this.#options.known();
    if (version === undefined || contextLength === undefined)
      return this.#refuse(response, GENERATE_STATUS.unavailable, 'no_replica', 'No replica serves now.');
    sendJson(response, 200, { version, contextLength, serves: this.#options.servedModels() });
  }

  #generate(request: IncomingMessage, response: ServerResponse, access: Access): void {
    const { maxBodyBytes = 64 * 1024 * 1024 } = this.#options;
    const chunks: Buffer[] = [];
    let sizeBytes = 0;
    request.on('data', (chunk: Buffer) => {
      sizeBytes += chunk.length;
      if (sizeBytes <= maxBodyBytes) chunks.push(chunk);
      else if (!response.headersSent) {
        response.setHeader('connection', 'close');
        this.#refuse(response, 413, 'body_too_large', `The body passes ${maxBodyBytes} bytes.`);
      }
    });
    request.on('end', () => {
      if (sizeBytes > maxBodyBytes || response.destroyed) return;
      const [only] = chunks;
      const body = chunks.length === 1 && only !== undefined ? only : Buffer.concat(chunks);
      const decoded = this.#read(body, access, response);
      if (decoded !== undefined) this.#relay(decoded, { body, request, response });
    });
  }

  #read(body: Buffer, access: Access, response: ServerResponse): DecodedGenerateRequest | undefined {
    let decoded: DecodedGenerateRequest;
    try {
      decoded = decodeGenerateRequest(body);
    } catch (error) {
      const type = error instanceof HoneError ? error.code : 'invalid-config';
      const cure = error instanceof HoneError && error.cure !== undefined ? ` ${error.cure}` : '';
      this.#refuse(response, GENERATE_STATUS.invalid, type, `${reasonOf(error)}${cure}`);
      return undefined;
    }
    if (access.kind !== 'session' || decoded.session === access.id) return decoded;
    const message = 'This bearer token is good for its own session alone.';
    this.#refuse(response, GENERATE_STATUS.unauthorized, 'unauthorized', message);
    return undefined;
  }

  #relay(
    decoded: DecodedGenerateRequest,
    { body, request, response }: { body: Buffer; request: IncomingMessage; response: ServerResponse },
  ): void {
    const given = request.headers[REQUEST_ID_HEADER];
    const requestId = typeof given === 'string' && REQUEST_ID.test(given) ? given : this.#options.newRequestId();
    this.active += 1;
    const receiver = new ResponseReceiver(response, this.#options.readerTimeoutMs ?? READER_TIMEOUT_MS);
    const inFlight = this.#options.relay.send({ requestId, body, avoid: readAvoid(request) }, decoded, receiver);
    receiver.attach(inFlight);
    response.once('close', () => {
      this.active -= 1;
      if (!response.writableFinished) inFlight.abort();
    });
  }

  #refuse(response: ServerResponse, status: number, type: string, message: string): void {
    sendJson(response, status, errorBody(type, message));
  }
}

/**
 * A relayed answer on its way into an HTTP response. Frames of chunks go to the socket as they came from the replica's, past
 * node's own framing, which writes the head before them and the last chunk behind them.
 */
class ResponseReceiver implements AnswerReceiver {
  readonly #response: ServerResponse;
  readonly #readerTimeoutMs: number;
  /** Where frames are written; undefined where the answer waits behind another one, or its client takes no chunks. */
  #socket: Socket | undefined;
  #hasFrames = false;

  constructor(response: ServerResponse, readerTimeoutMs: number) {
    this.#response = response;
    this.#readerTimeoutMs = readerTimeoutMs;
  }

  attach(inFlight: GenerateInFlight): void {
    const { socket } = this.#response;
    const resume = (): void => {
      socket?.setTimeout(0);
      inFlight.resume();
    };
    this.#response.on('drain', resume);
    if (socket === null) return;
    socket.on('drain', resume);
    this.#response.once('close', () => socket.off('drain', resume));
  }

  onStart(status: number, { contentType, replica, retryAfterSeconds }: AnswerHeaders): void {
    const headers = ['content-type', contentType, 'cache-control', 'no-cache'];
    if (replica !== undefined) headers.push(REPLICA_HEADER, replica);
    if (retryAfterSeconds !== undefined) headers.push('retry-after', String(retryAfterSeconds));
    const response = this.#response;
    response.writeHead(status, headers);
    if (response.chunkedEncoding && response.socket !== null && response.writableLength === 0)
      this.#socket = response.socket;
  }

  get takesFrames(): boolean {
    return this.#socket !== undefined;
  }

  onData(chunk: Buffer): boolean {
    return this.#response.write(chunk) || this.#waitForReader();
  }

  onFrames(frames: Buffer, isLast: boolean): boolean {
    const socket = this.#socket;
    if (socket === undefined || socket.destroyed) return true;
    const isWhole = !isLast && this.#hasFrames;
    // One system call for the head, the frames and the last chunk, whichever of them go out now. `end` uncorks.
    if (!isWhole) socket.cork();
    if (!this.#hasFrames) this.#response.flushHeaders();
    this.#hasFrames = true;
    const isDrained = socket.write(frames);
    if (!isWhole && !isLast) socket.uncork();
    return isDrained || this.#waitForReader();
  }

  /** The server breaks a connection off whose time is over, and the replica's request with it. */
  #waitForReader(): false {
    this.#response.socket?.setTimeout(this.#readerTimeoutMs);
    return false;
  }

  onEnd(): void {
    this.#response.end();
    // What is left is taken in time, or never; a finished answer gets the time of an idle connection.
    if (this.#response.writableLength > 0) this.#waitForReader();
  }

  /** A half answer must not look whole: the connection is broken off, behind what came. */
  onError(): void {
    this.#response.destroy();
  }
}

/** Names that no replica has match none. */
function readAvoid({ headers }: IncomingMessage): readonly string[] {
  const given = headers[AVOID_HEADER];
  return typeof given === 'string' ? given.split(',', MOST_AVOIDED).map((name) => name.trim()) : [];
}

function sendJson(response: ServerResponse, status: number, body: object): void {
  if (response.headersSent || response.destroyed) return;
  const text = JSON.stringify(body);
  response.writeHead(status, {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(text),
    ...(status === GENERATE_STATUS.unavailable ? { 'retry-after': '1' } : {}),
  });
  response.end(text);
}

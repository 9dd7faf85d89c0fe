/**
 * The recorder: an OpenAI-compatible server, one base URL and bearer secret a rollout, in front of a Policy; on a server of its own
 * or mounted on another one. It owns the HTTP side only (routes, secrets, limits, disconnects); sessions own the tokens.
 * Invariant: a session is reachable with its own secret alone, and answers 409 for good once it is sealed.
 */
import { hash, timingSafeEqual } from 'node:crypto';
import { createServer } from 'node:http';
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

import { HoneError, reasonOf } from '../domain/errors.ts';
import type { Policy } from '../domain/policy.ts';
import type { ChatTemplate } from '../model/chat-template.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import { ReplyStream, completionJson, errorJson } from './chat-reply.ts';
import { ChatError, readChatRequest } from './chat-request.ts';
import { createPromptRenderer } from './prompt-text.ts';
import { RecordingSession } from './session.ts';
import type { SealedSession, SessionOptions } from './session.ts';

export interface RecorderOptions {
  readonly policy: Policy;
  readonly tokenizer: Tokenizer;
  readonly template: ChatTemplate;
  /** The model's name in replies. */
  readonly model: string;
  readonly host?: string;
  /** 0 = any free port. */
  readonly port?: number;
  readonly maxBodyBytes?: number;
  /** Monotone milliseconds. */
  readonly now?: () => number;
  /** Seconds since 1970, for `created`. */
  readonly wallSeconds?: () => number;
}

export interface OpenSession extends SessionOptions {
  /** Bearer secret that the harness must present. */
  readonly secret: string;
}

interface Entry {
  readonly secretDigest: Buffer;
  /** Undefined once sealed: only the refusal is left. */
  session: RecordingSession | undefined;
}

/** Sealed sessions that are still known, so that a late turn gets 409 rather than 404. */
const TOMBSTONES = 4096;
const ROUTE = /^\/sessions\/([^/]+)\/v1\/(chat\/completions|models)$/;

interface Route {
  readonly id: string;
  readonly endpoint: string;
}

/** The session id and endpoint that a request is for; undefined when the path is not one of ours. */
function readRoute(url: string): Route | undefined {
  const [, encodedId, endpoint] = ROUTE.exec(url.split('?', 1)[0] ?? '') ?? [];
  if (encodedId === undefined || endpoint === undefined) return undefined;
  try {
    return { id: decodeURIComponent(encodedId), endpoint };
  } catch {
    return undefined;
  }
}

const digest = (text: string): Buffer => hash('sha256', text, 'buffer');

export class Recorder {
  readonly #options: RecorderOptions;
  readonly #renderPrompt: ReturnType<typeof createPromptRenderer>;
  /** Undefined when it is mounted on a server of someone else's. */
  #server: Server | undefined;
  readonly #entries = new Map<string, Entry>();
  readonly #sealedIds: string[] = [];
  readonly #now: () => number;
  readonly #wallSeconds: () => number;
  readonly #maxBodyBytes: number;
  #origin = '';

  private constructor(options: RecorderOptions) {
    this.#options = options;
    this.#renderPrompt = createPromptRenderer(options.template, options.tokenizer);
    this.#now = options.now ?? (() => performance.now());
    this.#wallSeconds = options.wallSeconds ?? (() => Math.floor(Date.now() / 1000));
    this.#maxBodyBytes = options.maxBodyBytes ?? 64 * 1024 * 1024;
  }

  static async start(options: RecorderOptions): Promise<Recorder> {
    const recorder = new Recorder(options);
    const host = options.host ?? '127.0.0.1';
    const server = createServer({ keepAliveTimeout: 120_000 }, (request, response) => {
      if (!recorder.handle(request, response))
        sendError(
          response,
          new ChatError(
            404,
            'not_found',
            'Only /sessions/<id>/v1/chat/completions and /sessions/<id>/v1/models are served here.',
          ),
        );
    });
    recorder.#server = server;
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen(options.port ?? 0, host, () => {
        server.removeListener('error', reject);
        resolve();
      });
    });
    // A listening TCP server's address is never a string or null.
    const { port } = server.address() as AddressInfo;
    recorder.#origin = `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
    return recorder;
  }

  /** Without a server: whoever has one passes requests to `handle`. */
  static mounted(options: Omit<RecorderOptions, 'host' | 'port'>): Recorder {
    return new Recorder(options);
  }

  /** False when the path is not one of a recorder's; else the request is answered here. */
  handle(request: IncomingMessage, response: ServerResponse): boolean {
    const route = readRoute(request.url ?? '');
    if (route === undefined) return false;
    void this.#handle(route, request, response);
    return true;
  }

  /** `path` is that of the base URL, below wherever the recorder is mounted. */
  openSession({ secret, ...session }: OpenSession): { baseUrl: string; path: string; apiKey: string } {
    if (this.#entries.has(session.id))
      throw new HoneError('invalid-rollout', `The session ${session.id} is already open or sealed.`, {
        cure: 'Give every attempt of a rollout its own session id.',
      });
    const { policy, tokenizer } = this.#options;
    this.#entries.set(session.id, {
      secretDigest: digest(secret),
      session: new RecordingSession(session, { policy, tokenizer, renderPrompt: this.#renderPrompt, now: this.#now }),
    });
    const path = `/sessions/${encodeURIComponent(session.id)}/v1`;
    return { baseUrl: `${this.#origin}${path}`, path, apiKey: secret };
  }

  async seal(id: string): Promise<SealedSession> {
    const entry = this.#entries.get(id);
    if (entry?.session === undefined)
      throw new HoneError('invalid-rollout', `The session ${id} is not open.`, {
        cure: 'Seal each session once, after its harness has ended.',
      });
    const { session } = entry;
    entry.session = undefined;
    this.#sealedIds.push(id);
    if (this.#sealedIds.length > TOMBSTONES) this.#entries.delete(this.#sealedIds.shift() ?? '');
    return session.seal();
  }

  /** Aborts what is in flight and closes every connection. */
  async close(): Promise<void> {
    const open = [...this.#entries.values()].flatMap((entry) => entry.session ?? []);
    this.#entries.clear();
    await Promise.allSettled(open.map((session) => session.seal()));
    const server = this.#server;
    if (server === undefined) return;
    await new Promise<void>((resolve) => {
      server.close(() => resolve());
      server.closeAllConnections();
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #handle(route: Route, request: IncomingMessage, response: ServerResponse): Promise<void> {
    try {
      const session = this.#authorize(route.id, request.headers.authorization);
      if (route.endpoint === 'models') {
        if (request.method !== 'GET') throw new ChatError(405, 'method_not_allowed', 'List models with GET.');
        const model = { id: this.#options.model, object: 'model', created: this.#wallSeconds(), owned_by: 'hone' };
        send(response, 200, JSON.stringify({ object: 'list', data: [model] }));
        return;
      }
      if (request.method !== 'POST')
        throw new ChatError(405, 'method_not_allowed', 'Ask for a chat completion with POST.');
      await this.#complete(route.id, session, request, response);
    } catch (error) {
      sendError(response, error);
    }
  }

  #authorize(id: string, header: string | undefined): RecordingSession {
    const entry = this.#entries.get(id);
    const presented = digest(header?.replace(/^Bearer +/i, '') ?? '');
    // Both refusals look alike, so that session ids cannot be probed without a secret.
    if (entry === undefined || !timingSafeEqual(presented, entry.secretDigest))
      throw new ChatError(401, 'invalid_api_key', 'The session or its bearer secret is not known here.');
    if (entry.session === undefined)
      throw new ChatError(409, 'session_sealed', 'This session is sealed; no turn can be added to it.');
    return entry.session;
  }

  async #complete(
    id: string,
    session: RecordingSession,
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const gone = new AbortController();
    response.once('close', () => {
      if (!response.writableFinished) gone.abort();
    });
    const body = await readBody(request, this.#maxBodyBytes);
    let parsed: unknown;
    try {
      parsed = JSON.parse(body.toString('utf8'));
    } catch {
      throw new ChatError(400, 'invalid_json', 'The body is not valid JSON.');
    }
    const chat = readChatRequest(parsed, { supportsTools: this.#options.template.supportsTools });
    const identity = { session: id, model: this.#options.model, createdSeconds: this.#wallSeconds() };
    const stream = chat.stream ? new ReplyStream(response, identity, chat) : undefined;
    const turn = {
      bodyHash: hash('sha256', body, 'hex'),
      isRetry: Number(request.headers['x-stainless-retry-count'] ?? 0) > 0,
      signal: gone.signal,
    };
    try {
      const reply = await session.turn(
        chat,
        stream === undefined ? turn : { ...turn, onText: (text) => stream.push(text) },
      );
      if (stream === undefined) send(response, 200, completionJson(identity, reply));
      else stream.finish(reply, chat);
    } catch (error) {
      if (stream === undefined || !(error instanceof ChatError) || !stream.fail(error)) throw error;
    }
  }
}

async function readBody(request: IncomingMessage, limitBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let sizeBytes = 0;
  for await (const chunk of request) {
    // Without an encoding set, a request yields Buffers.
    const piece = chunk as Buffer;
    sizeBytes += piece.length;
    if (sizeBytes > limitBytes)
      throw new ChatError(413, 'body_too_large', `The body is over ${limitBytes} bytes; shorten the messages.`);
    chunks.push(piece);
  }
  return chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks);
}

function send(response: ServerResponse, status: number, body: string, headers: Record<string, string> = {}): void {
  response.writeHead(status, {
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(body),
    ...headers,
  });
  response.end(body);
}

/** Only a policy failure is worth another try: SDKs are told so in the header that they honour. */
function sendError(response: ServerResponse, error: unknown): void {
  if (response.destroyed || response.writableEnded) return;
  const refusal = error instanceof ChatError ? error : new ChatError(500, 'internal_error', reasonOf(error));
  if (response.headersSent) {
    response.destroy();
    return;
  }
  const headers: Record<string, string> =
    refusal.status === 503 ? { 'retry-after': '1' } : { 'x-should-retry': 'false' };
  if (refusal.status === 413) headers['connection'] = 'close';
  send(response, refusal.status, errorJson(refusal), headers);
}

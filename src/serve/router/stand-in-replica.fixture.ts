/**
 * A stand-in for a replica, for tests and for measuring what the router itself costs: real HTTP on both ports and the real wire,
 * with tokens from a hash of (all tokens before, seed, draw number, version) where a replica has a model. Faults on demand.
 */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { IncomingMessage, Server, ServerResponse } from 'node:http';

import { deriveSeed, policyVersion } from '../../domain/ids.ts';
import type { Generation } from '../../domain/policy.ts';
import type { VersionSpan } from '../../domain/rollout.ts';
import { errorBody, listen } from '../service/control-server.ts';
import { EventWriter } from '../wire/event-writer.ts';
import { decodeGenerateRequest } from '../wire/generate-request.ts';
import type { DecodedGenerateRequest } from '../wire/generate-request.ts';
import { GENERATE_PATH, REPLICA_HEADER, REQUEST_ID_HEADER } from '../wire/generate-wire.ts';
import { encodeKeptRows } from '../wire/kept-set-code.ts';
import { keepRegistered } from './registration.ts';
import type { Registration, RegistrationOptions, ReplicaDescription } from './registration.ts';

/** What goes wrong with one request. */
export type Fault =
  /** The connection breaks before this token of the stream, 0 = before the first byte. */
  | { readonly kind: 'die'; readonly atToken: number }
  /** The connection breaks after so many bytes of the body, wherever that is. */
  | { readonly kind: 'cut'; readonly atByte: number }
  /** Nothing more comes, and the connection stays. */
  | { readonly kind: 'hang'; readonly atToken: number }
  /** `code`: engine-failed if left out. */
  | { readonly kind: 'error'; readonly atToken: number; readonly code?: string }
  | { readonly kind: 'refuse'; readonly status: number; readonly type: string; readonly served?: number }
  /** Another version from this token on: the weights moved, or the replica lies when it is lower. */
  | { readonly kind: 'version'; readonly atToken: number; readonly version: number }
  /** The stream ends as if it were whole, without its last event. */
  | { readonly kind: 'no-end' };

export interface StandInOptions {
  readonly id: string;
  readonly bootId?: string;
  readonly version?: number;
  readonly slots?: number;
  readonly contextLength?: number;
  readonly vocabSize?: number;
  /** Tokens of one event. */
  readonly tokensPerEvent?: number;
  /** Asked before each event; a promise holds the stream until it resolves. */
  readonly beforeEvent?: (token: number, request: DecodedGenerateRequest) => Promise<void> | undefined;
}

export class StandInReplica {
  readonly #options: StandInOptions;
  readonly #data: Server;
  readonly #control: Server;
  readonly #writer = new EventWriter();
  readonly #registrations: Registration[] = [];
  readonly faults: Fault[] = [];
  /** Requests that came, in order; `isGone` once their client went away before the end. */
  readonly requests: {
    readonly request: DecodedGenerateRequest;
    readonly requestId: string;
    readonly authorization: string | undefined;
    isGone: boolean;
  }[] = [];
  version: number;
  bootId: string;
  state: ReplicaDescription['state'] = 'serving';
  model = '0123456789abcdef';
  imageChecksum = '0123456789abcdef0123456789abcdef';
  /** What `/health` does. */
  health: 'ok' | 'unready' | 'hang' = 'ok';
  running = 0;
  /** What it says of others' requests in its description. */
  foreignLoad = 0;
  wakes = 0;
  /** Of all streams. */
  sentBytes = 0;
  /** Streams whose reader is slower than they are. */
  heldBack = 0;
  probes = 0;
  url = '';
  controlUrl = '';

  private constructor(options: StandInOptions) {
    this.#options = options;
    this.version = options.version ?? 0;
    this.bootId = options.bootId ?? 'boot-1';
    this.#data = createServer({ keepAliveTimeout: 60_000 }, (request, response) => this.#take(request, response));
    this.#control = createServer((request, response) => this.#answerControl(request, response));
  }

  static async start(options: StandInOptions): Promise<StandInReplica> {
    const replica = new StandInReplica(options);
    const place = { service: 'stand-in', host: '127.0.0.1', port: 0 };
    replica.url = await listen(replica.#data, place);
    replica.controlUrl = await listen(replica.#control, place);
    return replica;
  }

  get id(): string {
    return this.#options.id;
  }

  describe(): ReplicaDescription {
    const { id, slots = 8, contextLength = 4096 } = this.#options;
    const { bootId, url, controlUrl, version, state, running } = this;
    const load = { running: running + this.foreignLoad, waiting: 0, slots };
    const { model, imageChecksum } = this;
    const served = { runId: 'run', version, model, weights: { version, imageChecksum }, contextLength };
    return { id, bootId, cluster: 'test', url, controlUrl, state, ...load, ...served };
  }

  register(routers: readonly string[], options: Partial<RegistrationOptions> = {}): Registration {
    const registration = keepRegistered({ routers, describe: () => this.describe(), ...options });
    this.#registrations.push(registration);
    return registration;
  }

  /** What an uncut reply to this request is, at the version of now. */
  expected(request: DecodedGenerateRequest): Generation {
    const ids: number[] = [];
    const logprobs: number[] = [];
    const rows: Int32Array[] = [];
    for (const drawn of this.#draw(request, () => this.version)) {
      ids.push(drawn.id);
      logprobs.push(drawn.logprob);
      rows.push(drawn.row);
    }
    const offsets = new Int32Array(rows.length + 1);
    for (const [index, row] of rows.entries()) offsets[index + 1] = (offsets[index] ?? 0) + row.length;
    const span: VersionSpan = { version: policyVersion(this.version), start: 0, end: ids.length };
    return {
      tokens: Int32Array.from(ids),
      logprobs: Float32Array.from(logprobs),
      kept: { ids: Int32Array.from(rows.flatMap((row) => [...row])), offsets },
      versions: [span],
      finish: request.sampling.stopIds.includes(ids.at(-1) ?? -1) ? 'stop' : 'length',
    };
  }

  /** As kill -9 does it: every connection breaks, nobody says goodbye. */
  async kill(): Promise<void> {
    // Renewals stop without a goodbye because nothing answers them any more: the routers' leases end by themselves.
    for (const server of [this.#data, this.#control]) {
      server.closeAllConnections();
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      });
    }
  }

  async close(): Promise<void> {
    await Promise.all(this.#registrations.map((registration) => registration.close()));
    await this.kill();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #answerControl(request: IncomingMessage, response: ServerResponse): void {
    if (request.url === '/status') {
      const { runId, url: _url, controlUrl: _controlUrl, ...rest } = this.describe();
      response.end(JSON.stringify({ service: 'stand-in', ...rest, sync: { runId } }));
      return;
    }
    if (request.url === '/wake') this.wakes += 1;
    if (request.url === '/health') {
      this.probes += 1;
      if (this.health === 'hang') return;
      if (this.health === 'unready') response.statusCode = 503;
    }
    response.end('{}');
  }

  #take(request: IncomingMessage, response: ServerResponse): void {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      if (request.url !== GENERATE_PATH || request.method !== 'POST') {
        refuse(response, 404, 'not_found');
        return;
      }
      void this.#generate(Buffer.concat(chunks), request, response);
    });
  }

  async #generate(body: Buffer, incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const request = decodeGenerateRequest(body);
    const seen = {
      request,
      requestId: String(incoming.headers[REQUEST_ID_HEADER]),
      authorization: incoming.headers.authorization,
      isGone: false,
    };
    this.requests.push(seen);
    response.on('close', () => {
      seen.isGone = !response.writableFinished;
    });
    const fault = this.faults.shift();
    const { minVersion = 0, exactVersion } = request;
    if (fault?.kind === 'refuse') return refuse(response, fault.status, fault.type, fault.served);
    if (this.version < minVersion || (exactVersion !== undefined && exactVersion !== this.version))
      return refuse(response, 409, 'WeightVersionNotReady', this.version);
    if (request.tokens.length >= (this.#options.contextLength ?? 4096))
      return refuse(response, 400, 'context-too-small');
    if (fault?.kind === 'die' && fault.atToken === 0) {
      response.destroy();
      return;
    }
    this.running += 1;
    try {
      response.writeHead(200, {
        'content-type': 'text/event-stream',
        [REPLICA_HEADER]: `${this.#options.id}/${this.bootId}`,
      });
      await this.#stream(request, response, fault);
    } finally {
      this.running -= 1;
    }
  }

  async #stream(request: DecodedGenerateRequest, response: ServerResponse, fault: Fault | undefined): Promise<void> {
    const { tokensPerEvent = 1, beforeEvent } = this.#options;
    const at = fault !== undefined && 'atToken' in fault ? fault.atToken : undefined;
    let sentBytes = 0;
    const gone = closed(response);
    /** False when the stream is over. */
    const write = async (bytes: Buffer): Promise<boolean> => {
      if (fault?.kind === 'cut' && sentBytes + bytes.length > fault.atByte) {
        const part = bytes.subarray(0, fault.atByte - sentBytes);
        if (part.length > 0) await new Promise((resolve) => response.write(part, resolve));
        response.destroy();
        return false;
      }
      sentBytes += bytes.length;
      this.sentBytes += bytes.length;
      if (!response.write(bytes) && !response.destroyed) {
        this.heldBack += 1;
        await Promise.race([new Promise((resolve) => response.once('drain', resolve)), gone]);
        this.heldBack -= 1;
      }
      return !response.destroyed;
    };
    let count = 0;
    let lastId = -1;
    let version = this.version;
    const versionStart = policyVersion(version);
    const event = { ids: [] as number[], logprobs: [] as number[], rows: [] as Int32Array[] };
    const flush = async (): Promise<boolean> => {
      if (event.ids.length === 0) return true;
      const bytes = this.#writer.tokens(event, encodeKeptRows(event.rows), policyVersion(version));
      event.ids.length = event.logprobs.length = event.rows.length = 0;
      return write(bytes);
    };
    const versionNow = (): number => (fault?.kind === 'version' && count >= (at ?? 0) ? fault.version : this.version);
    for (const { id, logprob, row, version: drawnBy } of this.#draw(request, versionNow)) {
      const isFull = event.ids.length >= tokensPerEvent || (event.ids.length > 0 && drawnBy !== version);
      if (isFull && !(await flush())) return;
      if (count === at) {
        if (!(await flush())) return;
        if (fault?.kind === 'hang') await gone;
        if (fault?.kind === 'die') response.destroy();
        if (response.destroyed) return;
        if (fault?.kind === 'error') {
          await write(
            this.#writer.last({ type: 'error', code: fault.code ?? 'engine-failed', message: 'told to fail' }),
          );
          response.end();
          return;
        }
      }
      const held = beforeEvent?.(count, request);
      if (held !== undefined) await Promise.race([held, gone]);
      if (response.destroyed) return;
      version = drawnBy;
      event.ids.push(id);
      event.logprobs.push(logprob);
      event.rows.push(row);
      count += 1;
      lastId = id;
    }
    if (!(await flush())) return;
    if (fault?.kind !== 'no-end') {
      const finish = request.sampling.stopIds.includes(lastId) ? 'stop' : 'length';
      const end = { versionStart, versionEnd: policyVersion(version), tokens: count, cachedTokens: 0 };
      if (!(await write(this.#writer.last({ type: 'end', finish, ...end })))) return;
    }
    response.end();
  }

  *#draw(
    { tokens, sampling, seed, drawnBefore }: DecodedGenerateRequest,
    versionNow: () => number,
  ): Generator<{ id: number; logprob: number; row: Int32Array; version: number }> {
    const { vocabSize = 1000, contextLength = 4096 } = this.#options;
    let state = 0x811c9dc5;
    for (const token of tokens) state = Math.imul(state ^ token, 0x01000193);
    const most = Math.min(sampling.maxTokens, contextLength - tokens.length);
    for (let index = 0; index < most; index++) {
      const version = versionNow();
      const draw = deriveSeed(seed, state, drawnBefore + index, version);
      const id = draw % vocabSize;
      const row = Int32Array.from(new Set([id, (id + 7) % vocabSize, (id + 400) % vocabSize])).sort();
      yield { id, logprob: Math.fround(-(draw >>> 8) / 2 ** 22), row, version };
      if (sampling.stopIds.includes(id)) return;
      state = Math.imul(state ^ id, 0x01000193);
    }
  }
}

async function closed(response: ServerResponse): Promise<void> {
  if (!response.destroyed) await once(response, 'close');
}

function refuse(response: ServerResponse, status: number, type: string, served?: number): void {
  const { error } = errorBody(type, `refused with ${status}`);
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify({ error: { ...error, ...(served === undefined ? {} : { served }) } }));
}

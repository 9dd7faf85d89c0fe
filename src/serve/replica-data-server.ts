/**
 * The data port of a replica: `POST /generate` and nothing else. It owns admission at the door (token, gate, queue bound, request
 * ids) and the life of each reply. Invariants: a refusal comes before the first event and says what to do; a request whose client
 * has gone is aborted in the engine within a step; two requests of one id never run at once; after a failure no token leaves.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';

import { HoneError, reasonOf } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { SideDataStore } from '../sync/side-data.ts';
import type { EmbeddedPolicy, ReplicaStream, StreamEnd } from './embedded-policy.ts';
import { storeKeptSets } from './replica-kept-sets.ts';
import type { ReplicaMetrics } from './replica-metrics.ts';
import { Refusal, refusalOf } from './replica-refusal.ts';
import { ReplicaReply } from './replica-reply.ts';
import { readBody, requestId } from './replica-request.ts';
import { requireTokenBeyondLoopback, type BearerToken } from './service/bearer-token.ts';
import { errorBody, listen } from './service/control-server.ts';
import type { ServiceLog } from './service/service-log.ts';
import { EventWriter } from './wire/event-writer.ts';
import { decodeGenerateRequest, type DecodedGenerateRequest } from './wire/generate-request.ts';
import { GENERATE_PATH, GENERATE_STATUS, REPLICA_HEADER } from './wire/generate-wire.ts';

export interface DataServerOptions {
  readonly policy: EmbeddedPolicy;
  /** The value of the replica's header: its id and boot id. */
  readonly name: string;
  readonly host: string;
  readonly port: number;
  readonly token: BearerToken | undefined;
  /** Whether requests are taken now, and why not. */
  readonly gate: () => { readonly ready: boolean; readonly reason?: string };
  /** Requests that are sampled or wait, at most; more are told to come back. */
  readonly maxActive: number;
  readonly maxPendingBytes?: number;
  readonly stallMs?: number;
  /** A request asked for a version that is not served yet. */
  readonly onVersionMissing: () => void;
  /** Where kept sets go that a request wants stored; undefined = such requests are refused. */
  readonly sideData: () => SideDataStore | undefined;
  readonly metrics: ReplicaMetrics;
  readonly log: ServiceLog;
  /** Milliseconds of a clock that only goes forward. */
  readonly now: () => number;
  readonly newRequestId: () => string;
}

const VERSION_NOT_READY = 'WeightVersionNotReady';
/** Storing the side data of a reply must end. */
const SIDE_DATA_DEADLINE_MS = 60_000;
/** For last words. */
const CLOSE_GRACE_MS = 2000;
const CONFLICT = 409;
const HEADER_VERSION = 'x-hone-version';

/** A request in the engine. */
interface ActiveRequest {
  abort(): void;
  /** Ends the reply with the error now, whatever the engine says later. */
  fail(error: HoneError): void;
}

export class ReplicaDataServer {
  readonly url: string;
  readonly #options: DataServerOptions;
  readonly #server: Server;
  readonly #writer = new EventWriter();
  readonly #active = new Map<string, ActiveRequest | undefined>();
  #onIdle: (() => void) | undefined;
  #isCut = false;
  #failure: HoneError | undefined;

  private constructor(server: Server, url: string, options: DataServerOptions) {
    this.#server = server;
    this.url = url;
    this.#options = options;
    server.on('request', (request, response) => void this.#answer(request, response));
    // Routers keep connections for long; whoever closes first must not be us in the middle of their next request.
    server.keepAliveTimeout = 120_000;
  }

  static async start(options: DataServerOptions): Promise<ReplicaDataServer> {
    const { host, port, token } = options;
    requireTokenBeyondLoopback('replica', host, token);
    const server = createServer();
    return new ReplicaDataServer(server, await listen(server, { service: 'replica', host, port }), options);
  }

  /** Requests that are sampled or wait. */
  get active(): number {
    return this.#active.size;
  }

  /** Resolves when no request is left, or when the signal fires. The gate must be closed. */
  async drained(signal: AbortSignal): Promise<void> {
    if (this.#active.size === 0 || signal.aborted) return;
    await new Promise<void>((resolve) => {
      this.#onIdle = resolve;
      signal.addEventListener('abort', () => resolve(), { once: true });
    });
  }

  /** What the engine draws from now on is of unknown weights: every reply ends with the error, at once. */
  fail(error: HoneError): void {
    this.#failure ??= error;
    for (const request of this.#active.values()) request?.fail(this.#failure);
  }

  /**
   * Ends what is left with an error, so that no reply looks whole, and closes the port. Readers that do not take their last event
   * within the grace, and an engine that does not answer, are cut.
   */
  async close({ graceMs = CLOSE_GRACE_MS }: { readonly graceMs?: number } = {}): Promise<void> {
    const grace = AbortSignal.timeout(graceMs);
    this.#isCut = true;
    for (const request of this.#active.values()) request?.abort();
    await this.drained(grace);
    await new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
      this.#server.closeIdleConnections();
      const cut = (): void => this.#server.closeAllConnections();
      if (grace.aborted) cut();
      else grace.addEventListener('abort', cut, { once: true });
    });
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { metrics, name, gate } = this.#options;
    try {
      await this.#generate(request, response);
    } catch (error) {
      const refusal = error instanceof Refusal ? error : refusalOf(error);
      metrics.ended(refusal.outcome);
      if (response.headersSent || response.destroyed) {
        response.destroy();
        return;
      }
      const body = JSON.stringify(refusal.body);
      response.writeHead(refusal.status, {
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(body),
        [REPLICA_HEADER]: name,
        ...(refusal.status === GENERATE_STATUS.busy || refusal.status === GENERATE_STATUS.unavailable
          ? { 'retry-after': '1' }
          : {}),
        // A body that was not read to its end would be taken for the next request.
        ...(request.complete && gate().ready ? {} : { connection: 'close' }),
      });
      response.end(body);
    }
  }

  async #generate(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { token, maxActive, newRequestId, policy, sideData } = this.#options;
    if (token?.accepts(request.headers.authorization) === false)
      throw new Refusal(
        GENERATE_STATUS.unauthorized,
        'unauthorized',
        errorBody('unauthorized', 'The replica does not know this bearer token.'),
      );
    if (request.url !== GENERATE_PATH || request.method !== 'POST')
      throw new Refusal(404, 'invalid', errorBody('not_found', `The replica serves only POST ${GENERATE_PATH} here.`));
    this.#refuseUnlessOpen();
    if (this.#active.size >= maxActive)
      throw new Refusal(
        GENERATE_STATUS.busy,
        'busy',
        errorBody('busy', `The replica has ${this.#active.size} requests, as many as it may.`),
      );
    const id = requestId(request) ?? newRequestId();
    if (this.#active.has(id))
      throw new Refusal(
        CONFLICT,
        'duplicate',
        errorBody('RequestRunning', `Request ${id} is running; an id names one request.`),
      );
    this.#active.set(id, undefined);
    this.#options.metrics.active.set(this.#active.size);
    try {
      const body = decodeGenerateRequest(await readBody(request, policy.contextLength * 6 + 65_536));
      if (body.keptSets === 'store' && sideData() === undefined)
        throw new HoneError(
          'invalid-config',
          'request.keptSets is "store", and this replica has no store, or knows of no run, to put them under.',
          {
            cure: 'Ask for keptSets: "inline", or start the replica with --store and --run.',
          },
        );
      if (response.destroyed) throw new HoneError('aborted', 'The client has gone.');
      // The gate may have closed while the body came.
      this.#refuseUnlessOpen();
      await this.#sample(id, body, response);
    } finally {
      this.#active.delete(id);
      this.#options.metrics.active.set(this.#active.size);
      if (this.#active.size === 0) this.#onIdle?.();
    }
  }

  #refuseUnlessOpen(): void {
    const { ready, reason } = this.#options.gate();
    if (ready) return;
    throw new Refusal(
      GENERATE_STATUS.unavailable,
      'unavailable',
      errorBody('unavailable', `The replica takes no requests: ${reason ?? 'it is not ready'}.`),
    );
  }

  async #sample(id: string, body: DecodedGenerateRequest, response: ServerResponse): Promise<void> {
    const { policy, name, metrics, now, log, maxPendingBytes = 16 << 20, stallMs = 60_000 } = this.#options;
    const started = now();
    let lastTokenMs: number | undefined;
    let versionStart: PolicyVersion | undefined;
    let lost: string | undefined;
    let stream: ReplicaStream | undefined;
    const reply = new ReplicaReply({
      response,
      writer: this.#writer,
      keptSets: body.keptSets,
      maxPendingBytes,
      stallMs,
      onLost: (reason) => {
        lost = reason;
        stream?.abort();
      },
    });
    const { tokens, sampling, seed, drawnBefore, minVersion, exactVersion } = body;
    stream = policy.stream(
      {
        tokens,
        sampling,
        seed,
        drawnBefore,
        ...(minVersion === undefined ? {} : { minVersion }),
        ...(exactVersion === undefined ? {} : { exactVersion }),
      },
      {
        admitted: (version) => {
          versionStart = version;
          response.writeHead(200, {
            'content-type': 'text/event-stream',
            'cache-control': 'no-store',
            [REPLICA_HEADER]: name,
            [HEADER_VERSION]: String(version),
          });
          response.flushHeaders();
        },
        token: (drawn) => {
          if (this.#failure !== undefined) return;
          const at = now();
          if (lastTokenMs === undefined) metrics.firstToken.observe((at - started) / 1000);
          else metrics.tokenGap.observe((at - lastTokenMs) / 1000);
          lastTokenMs = at;
          reply.token(drawn);
        },
      },
    );
    const failed = Promise.withResolvers<never>();
    const inEngine = stream;
    this.#active.set(id, {
      abort: () => inEngine.abort(),
      fail: (error) => {
        inEngine.abort();
        failed.reject(error);
      },
    });
    if (lost !== undefined) inEngine.abort();
    let end: StreamEnd;
    try {
      end = await Promise.race([inEngine.ended, failed.promise]);
      if (this.#isCut && lost === undefined && end.kind === 'ended' && end.finish === 'abort') throw closing();
    } catch (error) {
      if (versionStart === undefined) throw error;
      // The status line is out: what came is good, and the last event says that no more comes.
      reply.end({
        type: 'error',
        code: error instanceof HoneError ? error.code : 'engine-failed',
        message: reasonOf(error),
      });
      this.#ended(id, body, { reply, finish: 'failed', started });
      return;
    }
    if (end.kind === 'refused') {
      if (versionStart === undefined) throw this.#versionRefusal(end, body);
      reply.end({ type: 'error', code: 'version-not-ready', message: versionSentence(end, body) });
      this.#ended(id, body, { reply, finish: 'failed', started });
      return;
    }
    const { finish, cachedTokens, versionEnd } = end;
    metrics.cachedTokens.inc(cachedTokens);
    if (lost === undefined) {
      const keptObject = await this.#storeKept(reply, body, versionEnd);
      if (keptObject instanceof Error)
        reply.end({
          type: 'error',
          code: 'store-failed',
          message: `The kept sets were not stored: ${keptObject.message}`,
        });
      else
        reply.end({
          type: 'end',
          finish,
          versionStart: versionStart ?? versionEnd,
          versionEnd,
          tokens: reply.tokens,
          cachedTokens,
          ...(keptObject === undefined ? {} : { keptObject }),
        });
    } else log.append({ event: 'client-lost', request: id, reason: lost });
    this.#ended(id, body, { reply, finish, started });
  }

  async #storeKept(
    reply: ReplicaReply,
    { keptSets }: DecodedGenerateRequest,
    version: PolicyVersion,
  ): Promise<string | Error | undefined> {
    const sideData = keptSets === 'store' ? this.#options.sideData() : undefined;
    if (sideData === undefined || reply.tokens === 0) return undefined;
    try {
      const signal = AbortSignal.timeout(SIDE_DATA_DEADLINE_MS);
      return await storeKeptSets(sideData, { version, coded: reply.gatheredKept, signal });
    } catch (error) {
      return error instanceof Error ? error : new Error(String(error));
    }
  }

  #ended(
    id: string,
    { tokens, session }: DecodedGenerateRequest,
    {
      reply,
      finish,
      started,
    }: { reply: ReplicaReply; finish: 'stop' | 'length' | 'abort' | 'failed'; started: number },
  ): void {
    const { metrics, now, log } = this.#options;
    metrics.ended(finish);
    metrics.tokens.inc(reply.tokens);
    metrics.promptTokens.inc(tokens.length);
    metrics.request.observe((now() - started) / 1000);
    log.append({
      event: 'generate-end',
      request: id,
      session,
      promptTokens: tokens.length,
      tokens: reply.tokens,
      versions: reply.versions,
      finish,
      ms: now() - started,
    });
  }

  #versionRefusal(end: Extract<StreamEnd, { kind: 'refused' }>, body: DecodedGenerateRequest): Refusal {
    if (end.reason === 'not-ready') this.#options.onVersionMissing();
    const { error } = errorBody(VERSION_NOT_READY, versionSentence(end, body));
    const named = { error: { ...error, served: end.served } };
    return new Refusal(GENERATE_STATUS.versionNotReady, 'version', named);
  }
}

function closing(): HoneError {
  return new HoneError('no-replica', 'The replica is closing.', {
    cure: 'Ask another one, from the tokens that came.',
  });
}

function versionSentence(
  { reason, served }: Extract<StreamEnd, { kind: 'refused' }>,
  { minVersion, exactVersion }: DecodedGenerateRequest,
): string {
  const asked = exactVersion === undefined ? `Version ${minVersion} or newer` : `Version ${exactVersion}`;
  return reason === 'passed'
    ? `${asked} was asked for and version ${served} is served; versions never go back.`
    : `${asked} was asked for and version ${served} is served; the replica looks for a newer one now.`;
}

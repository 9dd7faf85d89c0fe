/**
 * Requests on their way to replicas: each is sent to the replica that the choice names, and its answer is passed on byte by byte
 * as it comes, with back-pressure both ways. Invariants: a replica that fails before its first byte is replaced by another one
 * unnoticed, a bounded number of times; once a byte went out the answer is this replica's to its end, or is cut; whoever asked and
 * went away leaves nothing running behind.
 */
import { errorBody } from '../service/control-server.ts';
import type { DecodedGenerateRequest } from '../wire/generate-request.ts';
import { GENERATE_PATH, GENERATE_STATUS, REPLICA_HEADER, REQUEST_ID_HEADER } from '../wire/generate-wire.ts';
import type { AnswerHeaders, AnswerReceiver, GenerateCall, GenerateInFlight } from './generate-transport.ts';
import { readRetryAfter } from './generate-transport.ts';
import { hashBlocks } from './prefix-index.ts';
import type { ReplicaEntry, ReplicaRegistry } from './replica-registry.ts';
import { chooseRoute } from './route-choice.ts';
import type { RouteCandidate } from './route-choice.ts';
import { SessionAffinity } from './session-affinity.ts';
import type { ResponseHead } from './response-head.ts';
import { UpstreamPool } from './upstream-pool.ts';
import type { BodyPiece, UpstreamExchange, UpstreamReceiver } from './upstream-pool.ts';

export interface RelayOptions {
  readonly registry: ReplicaRegistry;
  /** The fleet's secret, which replicas ask for. */
  readonly token: string | undefined;
  /** Monotone milliseconds. */
  readonly now: () => number;
  /** Replicas that one request is sent to, at most. */
  readonly mostAttempts?: number;
  /** Requests that may wait at one replica beyond those that it samples. */
  readonly mostWaiting?: number;
  /** Without a first byte for so long a replica counts as failed. */
  readonly firstByteTimeoutMs?: number;
  /** Without a further byte for so long an answer is cut. */
  readonly stallTimeoutMs?: number;
  readonly onEnd?: (report: RelayReport) => void;
  /** A replica failed a request: reason to look at it now. */
  readonly onTrouble?: (entry: ReplicaEntry) => void;
  /** Nobody serves the version that a request asks for. */
  readonly onVersionMissing?: () => void;
}

export interface RelayReport {
  readonly requestId: string;
  readonly session: string | undefined;
  /** The replica that answered last; undefined when none was asked. */
  readonly replica: string | undefined;
  readonly status: number;
  readonly end: 'whole' | 'cut' | 'client-gone' | 'refused';
  /** Why each try before the last one failed. */
  readonly retries: readonly RetryReason[];
  readonly firstByteMs: number | undefined;
  readonly totalMs: number;
  readonly bytes: number;
}

export type RetryReason = 'unreachable' | 'status' | 'version' | 'busy' | 'unavailable' | 'empty';

/** A dead replica's answer that has been silent for so long is given up. */
const SILENT_MS = 1_000;
const REFUSAL_BYTES = 64 * 1024;
/** Replicas that may refuse one request for good before that is believed. */
const MOST_MISFITS = 32;

interface Refusal {
  readonly status: number;
  readonly headers: AnswerHeaders;
  readonly body: Buffer;
}

interface ReplicaConnection {
  readonly pool: UpstreamPool;
  readonly path: string;
}

export class Relay {
  readonly #options: RelayOptions;
  readonly #connections = new Map<string, ReplicaConnection>();
  readonly #affinity = new SessionAffinity();
  readonly #attempts = new Map<string, Set<Attempt>>();
  #isClosed = false;

  constructor(options: RelayOptions) {
    this.#options = options;
  }

  get options(): RelayOptions {
    return this.#options;
  }

  get affinity(): SessionAffinity {
    return this.#affinity;
  }

  send(call: GenerateCall, request: DecodedGenerateRequest, receiver: AnswerReceiver): GenerateInFlight {
    const relayed = new RelayedRequest(this, { call, request, receiver });
    relayed.next();
    return relayed;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Kept alive between requests, one pool a replica. */
  connection(url: string): ReplicaConnection {
    let connection = this.#connections.get(url);
    if (connection === undefined) {
      const { origin, pathname } = new URL(url);
      const pool = new UpstreamPool({ origin, now: this.#options.now });
      connection = { pool, path: `${pathname.replace(/\/$/u, '')}${GENERATE_PATH}` };
      this.#connections.set(url, connection);
    }
    return connection;
  }

  /** Ends the connections to a replica that nobody sends to any more. */
  forget(url: string): void {
    const connection = this.#connections.get(url);
    this.#connections.delete(url);
    connection?.pool.destroy();
  }

  began(attempt: Attempt): void {
    const { entry } = attempt;
    entry.inFlight += 1;
    entry.counts.requests += 1;
    let attempts = this.#attempts.get(entry.id);
    if (attempts === undefined) this.#attempts.set(entry.id, (attempts = new Set()));
    attempts.add(attempt);
  }

  ended(attempt: Attempt): void {
    const { entry } = attempt;
    entry.inFlight -= 1;
    const attempts = this.#attempts.get(entry.id);
    attempts?.delete(attempt);
    if (attempts?.size === 0) this.#attempts.delete(entry.id);
  }

  /** Gives up what a dead replica, or one that was forgotten, has not answered for a while. Call it now and then. */
  sweep(): void {
    const { registry, now } = this.#options;
    for (const { pool } of this.#connections.values()) pool.sweep();
    for (const [id, attempts] of this.#attempts) {
      const state = registry.get(id)?.health.state ?? 'DEAD';
      if (state !== 'DEAD' && state !== 'RETIRED') continue;
      for (const attempt of attempts)
        if (attempt.silentMs(now()) >= SILENT_MS || attempt.entry !== registry.get(id))
          attempt.giveUp(new Error(`the replica ${id} is dead`));
    }
  }

  /** Cuts what is under way. */
  close(): void {
    this.#isClosed = true;
    for (const attempts of this.#attempts.values())
      for (const attempt of attempts) attempt.giveUp(new Error('the router closes'));
    for (const { pool } of this.#connections.values()) pool.destroy();
  }
}

interface RelayedParts {
  readonly call: GenerateCall;
  readonly request: DecodedGenerateRequest;
  readonly receiver: AnswerReceiver;
}

/** One request over all its tries. */
class RelayedRequest implements GenerateInFlight {
  readonly #relay: Relay;
  readonly #parts: RelayedParts;
  readonly #tried = new Set<string>();
  readonly #retries: RetryReason[] = [];
  /** Those that say that nobody could answer this: believed once all say so. */
  readonly #misfits = new Map<ReplicaEntry, Refusal>();
  readonly #blocks: Float64Array;
  readonly #startMs: number;
  #attempt: Attempt | undefined;
  #refusal: Refusal | undefined;
  #firstByteMs: number | undefined;
  #bytes = 0;
  #isOver = false;

  constructor(relay: Relay, parts: RelayedParts) {
    this.#relay = relay;
    this.#parts = parts;
    this.#startMs = relay.options.now();
    this.#blocks = hashBlocks(parts.request.tokens);
  }

  abort(): void {
    if (this.#isOver) return;
    const attempt = this.#attempt;
    this.#finish('client-gone', attempt === undefined ? 0 : 499);
    attempt?.abandon();
  }

  resume(): void {
    this.#attempt?.resume();
  }

  /** Sends the request to the next replica, or answers it here when there is none. */
  next(): void {
    const { options, affinity } = this.#relay;
    const { registry, mostAttempts = 4, now } = options;
    const { call, request } = this.#parts;
    const session = request.session === undefined ? undefined : affinity.get(request.session);
    const nowMs = now();
    const choice = chooseRoute(this.#candidates(nowMs), {
      key: request.session ?? call.requestId,
      promptTokens: request.tokens.length,
      minVersion: request.minVersion,
      exactVersion: request.exactVersion,
      session,
      tried: this.#tried,
    });
    const isLastWord = this.#refusal !== undefined && (choice.kind !== 'replica' || !choice.isCertain);
    const isOutOfTries = this.#tried.size - this.#misfits.size >= mostAttempts || this.#misfits.size >= MOST_MISFITS;
    if (isOutOfTries || isLastWord || this.#relay.isClosed) {
      this.#refuse(this.#refusal ?? this.#lastWord('No replica could answer.'));
      return;
    }
    switch (choice.kind) {
      case 'replica': {
        const entry = registry.get(choice.id);
        if (entry === undefined) return this.#refuse(refusal(503, 'no_replica', 'The replica is gone.'));
        this.#tried.add(entry.id);
        if (!choice.isCertain) options.onVersionMissing?.();
        const { version } = entry.description;
        entry.prefixes.add(this.#blocks, version);
        if (request.session !== undefined) affinity.set(request.session, { replica: entry.id, version });
        entry.breaker.admit(nowMs);
        this.#attempt = new Attempt(this.#relay, entry, this);
        this.#attempt.send(call);
        return;
      }
      case 'full':
        this.#refuse(refusal(GENERATE_STATUS.busy, 'busy', 'Every replica that may answer has all that it can queue.'));
        return;
      case 'version':
        options.onVersionMissing?.();
        this.#refuse(versionRefusal(choice.newest, request));
        return;
      case 'none':
        this.#refuse(this.#lastWord('No replica serves now.'));
        return;
      default:
        choice satisfies never;
    }
  }

  onFirstByte(headers: AnswerHeaders): void {
    const nowMs = this.#relay.options.now();
    this.#firstByteMs = nowMs - this.#startMs;
    // What one takes and another refuses is not the request's fault.
    for (const [{ breaker }, answer] of this.#misfits)
      breaker.condemn(nowMs, { kind: 'misfit', reason: `refuses what others take: ${refusalText(answer)}` });
    this.#parts.receiver.onStart(200, headers);
  }

  onPiece(piece: BodyPiece): boolean {
    this.#bytes += piece.payloadBytes;
    const { receiver } = this.#parts;
    if (piece.isChunked && receiver.takesFrames === true && receiver.onFrames !== undefined)
      return receiver.onFrames(piece.bytes, piece.isLast);
    const payload = piece.payload();
    const [only] = payload;
    return receiver.onData(payload.length === 1 && only !== undefined ? only : Buffer.concat(payload));
  }

  onWhole(): void {
    if (this.#isOver) return;
    this.#finish('whole', 200);
    this.#parts.receiver.onEnd();
  }

  onCut(error: Error): void {
    if (this.#isOver) return;
    this.#finish('cut', 200);
    this.#parts.receiver.onError(error);
  }

  /** A try failed before its first byte. */
  onFailed(reason: RetryReason, answer?: Refusal): void {
    if (this.#isOver) return;
    this.#attempt = undefined;
    this.#retries.push(reason);
    this.#refusal = answer ?? this.#refusal;
    this.next();
  }

  /** The replica says that nobody could answer this: the others are asked all the same. */
  onMisfit(entry: ReplicaEntry, answer: Refusal): void {
    if (this.#isOver) return;
    this.#misfits.set(entry, answer);
    this.onFailed('status');
  }

  /** The replica refused, and so would any other. */
  onRefused(answer: Refusal): void {
    if (!this.#isOver) this.#refuse(answer);
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  /** What is answered when no replica is left: for good only where every one that serves says that it is for good. */
  #lastWord(message: string): Refusal {
    const unauthorized: string[] = [];
    let isForGood = true;
    for (const entry of this.#relay.options.registry.entries()) {
      if (!isServing(entry) || this.#misfits.has(entry)) continue;
      if (entry.breaker.condemned?.kind === 'unauthorized') unauthorized.push(entry.id);
      else isForGood = false;
    }
    const [answer] = this.#misfits.values();
    if (isForGood && answer !== undefined) return answer;
    if (!isForGood || unauthorized.length === 0) return refusal(GENERATE_STATUS.unavailable, 'no_replica', message);
    const names = unauthorized.join(', ');
    return refusal(GENERATE_STATUS.unauthorized, 'unauthorized', `No replica takes the router’s token: ${names}.`);
  }

  #refuse({ status, headers, body }: Refusal): void {
    this.#finish('refused', status);
    const { receiver } = this.#parts;
    receiver.onStart(status, headers);
    receiver.onData(body);
    receiver.onEnd();
  }

  #finish(end: RelayReport['end'], status: number): void {
    this.#isOver = true;
    const { onEnd, now } = this.#relay.options;
    onEnd?.({
      requestId: this.#parts.call.requestId,
      session: this.#parts.request.session,
      replica: this.#attempt?.entry.id ?? [...this.#tried].at(-1),
      status,
      end,
      retries: this.#retries,
      firstByteMs: this.#firstByteMs,
      totalMs: now() - this.#startMs,
      bytes: this.#bytes,
    });
  }

  *#candidates(nowMs: number): Generator<RouteCandidate> {
    const { registry, mostWaiting = 64 } = this.#relay.options;
    for (const entry of registry.entries()) {
      const { id, state, version, slots } = entry.description;
      yield {
        id,
        health: entry.health.state,
        isOpen: state === 'serving' && entry.breaker.allows(nowMs),
        version,
        load: entry.load,
        slots,
        mostLoad: slots + mostWaiting,
        cachedTokens: entry.prefixes.cachedTokens(this.#blocks, version),
      };
    }
  }
}

/** One try at one replica: what comes of it, turned into what it means. */
class Attempt implements UpstreamReceiver {
  readonly entry: ReplicaEntry;
  readonly #relay: Relay;
  readonly #request: RelayedRequest;
  #exchange: UpstreamExchange | undefined;
  #head: ResponseHead | undefined;
  /** An answer other than 200, collected. */
  #refused: { readonly status: number; readonly chunks: Buffer[]; bytes: number } | undefined;
  /** The size of the first chunk, while none of the chunk has come. */
  #beginning: Buffer | undefined;
  #hasData = false;
  #isOver = false;
  #chunks = 0;
  /** As of the last look. */
  #seen: { readonly chunks: number; readonly atMs: number };

  constructor(relay: Relay, entry: ReplicaEntry, request: RelayedRequest) {
    this.#relay = relay;
    this.entry = entry;
    this.#request = request;
    this.#seen = { chunks: 0, atMs: relay.options.now() };
  }

  /** How long nothing came, to the grain of the looks: no clock is read for each event. */
  silentMs(nowMs: number): number {
    if (this.#chunks !== this.#seen.chunks) this.#seen = { chunks: this.#chunks, atMs: nowMs };
    return nowMs - this.#seen.atMs;
  }

  send({ requestId, body }: GenerateCall): void {
    const { token, firstByteTimeoutMs = 120_000, stallTimeoutMs = 60_000 } = this.#relay.options;
    this.#relay.began(this);
    const { pool, path } = this.#relay.connection(this.entry.description.url);
    const headers = new Map([
      ['content-type', 'application/json'],
      [REQUEST_ID_HEADER, requestId],
    ]);
    if (token !== undefined) headers.set('authorization', `Bearer ${token}`);
    this.#exchange = pool.send({ path, headers, body, firstByteTimeoutMs, stallTimeoutMs }, this);
  }

  /** Whoever asked is gone: nothing is told to anybody. */
  abandon(): void {
    if (this.#isOver) return;
    this.#over();
    this.entry.breaker.abandoned();
    this.#exchange?.abort();
  }

  /** As if the replica had failed now. */
  giveUp(error: Error): void {
    if (this.#isOver) return;
    this.#exchange?.abort();
    this.#fail(error);
  }

  resume(): void {
    this.#exchange?.resume();
  }

  onHead(head: ResponseHead): void {
    this.#head = head;
    if (head.status !== 200) this.#refused = { status: head.status, chunks: [], bytes: 0 };
  }

  onPiece(piece: BodyPiece): void {
    if (this.#isOver) return;
    this.#chunks += 1;
    if (this.#refused !== undefined) {
      this.#refused.bytes += piece.payloadBytes;
      if (this.#refused.bytes > REFUSAL_BYTES) this.giveUp(new Error('a refusal without end'));
      else this.#refused.chunks.push(...piece.payload());
      return;
    }
    const { bytes } = piece;
    if (!this.#hasData) {
      const whole = this.#beginning === undefined ? bytes : Buffer.concat([this.#beginning, bytes]);
      if (piece.payloadBytes === 0) {
        this.#beginning = whole;
        return;
      }
      this.#beginning = undefined;
      this.#hasData = true;
      this.entry.breaker.succeeded();
      this.#request.onFirstByte(answerHeaders(this.#head));
      this.#pass({ ...piece, bytes: whole });
      return;
    }
    this.#pass(piece);
  }

  #pass(piece: BodyPiece): void {
    if (!this.#request.onPiece(piece) && !this.#isOver) this.#exchange?.pause();
  }

  onEnd(): void {
    if (this.#isOver) return;
    if (this.#refused !== undefined) {
      this.#readRefusal(this.#refused.status, Buffer.concat(this.#refused.chunks));
    } else if (this.#hasData) {
      this.#over();
      this.#request.onWhole();
    } else {
      this.#failed('empty');
    }
  }

  onError(error: Error): void {
    if (!this.#isOver) this.#fail(error);
  }

  #fail(error: Error): void {
    if (!this.#hasData) return this.#failed('unreachable');
    this.#over();
    this.#trouble();
    this.#request.onCut(error);
  }

  #failed(reason: RetryReason, answer?: Refusal): void {
    this.#over();
    this.#trouble();
    this.#request.onFailed(reason, answer);
  }

  #trouble(): void {
    const { now, onTrouble } = this.#relay.options;
    this.entry.counts.failures += 1;
    this.entry.breaker.failed(now());
    onTrouble?.(this.entry);
  }

  #over(): void {
    this.#isOver = true;
    this.#relay.ended(this);
  }

  #readRefusal(status: number, body: Buffer): void {
    const headers = answerHeaders(this.#head);
    const answer = { status, headers, body };
    const { registry, now } = this.#relay.options;
    if (status === GENERATE_STATUS.unavailable) {
      registry.noteUnavailable(this.entry);
      this.#over();
      this.entry.breaker.abandoned();
      this.#request.onFailed('unavailable');
      return;
    }
    if (status >= 500) return this.#failed('status');
    const { breaker } = this.entry;
    if (status === GENERATE_STATUS.unauthorized) {
      // Its own token and the fleet's differ: nothing that the client could mend, nor another try here.
      breaker.condemn(now(), { kind: 'unauthorized', reason: 'does not take the router’s token; compare HONE_TOKEN' });
      return this.#failed('status');
    }
    if (status === GENERATE_STATUS.invalid && refusalType(answer) !== 'context-too-small') {
      // The router has read the request and found it good.
      this.#over();
      if (breaker.condemned === undefined) breaker.abandoned();
      else breaker.condemn(now(), breaker.condemned);
      this.#request.onMisfit(this.entry, answer);
      return;
    }
    this.#over();
    this.entry.breaker.succeeded();
    if (status === GENERATE_STATUS.busy) return this.#request.onFailed('busy', answer);
    const served = status === GENERATE_STATUS.versionNotReady ? servedVersion(body) : undefined;
    if (served === undefined) return this.#request.onRefused(answer);
    registry.noteServed(this.entry, served);
    this.#request.onFailed('version', answer);
  }
}

const NO_HEADERS: AnswerHeaders = {
  contentType: 'application/json',
  replica: undefined,
  retryAfterSeconds: undefined,
};

function answerHeaders(head: ResponseHead | undefined): AnswerHeaders {
  if (head === undefined) return NO_HEADERS;
  return {
    contentType: head.headers.get('content-type') ?? 'text/event-stream',
    replica: head.headers.get(REPLICA_HEADER),
    retryAfterSeconds: readRetryAfter(head.headers.get('retry-after')),
  };
}

function isServing({ health, description }: ReplicaEntry): boolean {
  return (health.state === 'HEALTHY' || health.state === 'SUSPECT') && description.state === 'serving';
}

function errorOf(body: Buffer | string): ErrorFields | undefined {
  try {
    // Any key may be read of an object; what is not there is undefined.
    return (JSON.parse(body.toString()) as { readonly error?: ErrorFields } | null)?.error;
  } catch {
    return undefined;
  }
}

interface ErrorFields {
  readonly type?: unknown;
  readonly message?: unknown;
  readonly served?: unknown;
}

function refusalType({ body }: Refusal): unknown {
  return errorOf(body)?.type;
}

/** For people. */
function refusalText({ body }: Refusal): string {
  const message = errorOf(body)?.message;
  return (typeof message === 'string' ? message : body.toString()).slice(0, 200);
}

/** The version that a refusal for its version names; undefined where it is another one. */
export function servedVersion(body: Buffer | string): number | undefined {
  const error = errorOf(body);
  return error?.type === VERSION_NOT_READY && typeof error.served === 'number' ? error.served : undefined;
}

const VERSION_NOT_READY = 'WeightVersionNotReady';

function versionRefusal(served: number, { minVersion, exactVersion }: DecodedGenerateRequest): Refusal {
  const asked = exactVersion === undefined ? `at least ${minVersion}` : `exactly ${exactVersion}`;
  const { error } = errorBody(VERSION_NOT_READY, `Version ${served} is served; ${asked} is asked for.`);
  return {
    status: GENERATE_STATUS.versionNotReady,
    headers: { ...NO_HEADERS, retryAfterSeconds: 1 },
    body: Buffer.from(JSON.stringify({ error: { ...error, served } })),
  };
}

function refusal(status: number, type: string, message: string): Refusal {
  return {
    status,
    headers: { ...NO_HEADERS, retryAfterSeconds: 1 },
    body: Buffer.from(JSON.stringify(errorBody(type, message))),
  };
}

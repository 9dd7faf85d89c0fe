/**
 * One try of a relayed request at one replica: what comes of it, turned into what it means for the request, for the replica's breaker
 * and for what is known of it. Whether another replica is tried is the request's to decide. Invariant: a try ends once, and nothing
 * is told after its end.
 */
import { GENERATE_STATUS, REQUEST_ID_HEADER } from '../wire/generate-wire.ts';
import type { AnswerHeaders, GenerateCall } from './generate-transport.ts';
import { answerHeaders, readError, servedVersion } from './refusal.ts';
import type { Refusal } from './refusal.ts';
import type { ReplicaEntry, ReplicaRegistry } from './replica-registry.ts';
import type { ResponseHead } from './response-head.ts';
import type { BodyPiece, UpstreamExchange, UpstreamPool, UpstreamReceiver } from './upstream-pool.ts';

export type RetryReason = 'unreachable' | 'status' | 'version' | 'busy' | 'unavailable' | 'empty';

const REFUSAL_BYTES = 64 * 1024;

export interface ReplicaConnection {
  readonly pool: UpstreamPool;
  readonly path: string;
}

/** What a try needs of the relay that it belongs to. */
export interface AttemptHost {
  readonly options: {
    readonly registry: ReplicaRegistry;
    readonly token: string | undefined;
    readonly now: () => number;
    readonly firstByteTimeoutMs?: number;
    readonly stallTimeoutMs?: number;
    readonly onTrouble?: (entry: ReplicaEntry) => void;
  };
  connection(url: string): ReplicaConnection;
  began(attempt: RelayAttempt): void;
  ended(attempt: RelayAttempt): void;
}

/** What is told of a try. */
export interface AttemptListener {
  onFirstByte(headers: AnswerHeaders): void;
  /** False = no more until `resume`. */
  onPiece(piece: BodyPiece): boolean;
  onWhole(): void;
  /** It failed behind its first byte. */
  onCut(error: Error): void;
  /** It failed before its first byte. */
  onFailed(reason: RetryReason, answer?: Refusal): void;
  /** The replica says that nobody could answer this; it may be the replica that is set up wrong. */
  onMisfit(entry: ReplicaEntry, answer: Refusal): void;
  /** The replica refused, and so would any other. */
  onRefused(answer: Refusal): void;
}

/** One try at one replica: what comes of it, turned into what it means. */
export class RelayAttempt implements UpstreamReceiver {
  readonly entry: ReplicaEntry;
  readonly #relay: AttemptHost;
  readonly #request: AttemptListener;
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

  constructor(relay: AttemptHost, entry: ReplicaEntry, request: AttemptListener) {
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
    if (status === GENERATE_STATUS.invalid && readError(body).type !== 'context-too-small') {
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

/**
 * Connections to one replica: plain sockets, kept between requests, one request on each at a time. Bodies are handed on as they
 * came off the socket, frames and all, as reading and writing every frame anew costs more than all else that a router does.
 * Invariants: a connection is used again only if its last answer ended exactly at its end and the request was written whole;
 * whoever asked hears one end and nothing after it; a request that met a connection which the replica had just closed is sent
 * once more, on a new one.
 */
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';

import { HoneError } from '../../domain/errors.ts';
import { ChunkScanner } from './chunk-scanner.ts';
import { MOST_HEAD_BYTES, malformed, parseResponseHead } from './response-head.ts';
import type { ResponseHead } from './response-head.ts';

export interface UpstreamPoolOptions {
  /** Where the replica listens; http or https. */
  readonly origin: string;
  /** Monotone milliseconds. */
  readonly now: () => number;
  readonly connectTimeoutMs?: number;
}

export interface UpstreamRequest {
  readonly path: string;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: string | Buffer;
  readonly firstByteTimeoutMs: number;
  readonly stallTimeoutMs: number;
}

/** One piece of a body. */
export interface BodyPiece {
  /** As it came: with the frames of its chunks where the body has such, and without the last, empty one. */
  readonly bytes: Buffer;
  readonly isChunked: boolean;
  readonly payloadBytes: number;
  /** The body ends with it. */
  readonly isLast: boolean;
  /** Its bytes without frames, for whoever asks: most pieces are passed on as they came. */
  payload(): readonly Buffer[];
}

export interface UpstreamReceiver {
  onHead(head: ResponseHead): void;
  onPiece(piece: BodyPiece): void;
  onEnd(): void;
  onError(error: Error): void;
}

/** Idle connections that are kept; what is more is closed after its answer. */
const MOST_IDLE = 256;
/** Closed by us this much before the replica would. */
const IDLE_MARGIN_MS = 1_000;
const IDLE_MS = 4_000;
const MOST_IDLE_MS = 60_000;
const HEADER_VALUE = /^[\t\x20-\x7e]*$/u;
const HEAD_END = Buffer.from('\r\n\r\n');

export class UpstreamPool {
  readonly #options: UpstreamPoolOptions;
  readonly #host: string;
  /** The one that was used last is used next. */
  readonly #idle: UpstreamConnection[] = [];
  readonly #all = new Set<UpstreamConnection>();
  #isClosed = false;

  constructor(options: UpstreamPoolOptions) {
    this.#options = options;
    this.#host = new URL(options.origin).host;
  }

  /** Connections, those that are idle among them. */
  get size(): number {
    return this.#all.size;
  }

  send(request: UpstreamRequest, receiver: UpstreamReceiver): UpstreamExchange {
    const exchange = new UpstreamExchange(request, receiver);
    this.dispatch(exchange);
    return exchange;
  }

  dispatch(exchange: UpstreamExchange): void {
    if (this.#isClosed) {
      // Not before whoever asked has the exchange in hand.
      queueMicrotask(() => exchange.fail(new HoneError('aborted', 'The connections to the replica are closed.')));
      return;
    }
    let bytes: ReturnType<typeof requestBytes>;
    try {
      bytes = requestBytes(this.#host, exchange.request);
    } catch (error) {
      queueMicrotask(() => exchange.fail(error instanceof Error ? error : new Error(String(error))));
      return;
    }
    const nowMs = this.#options.now();
    let connection = exchange.isSecondTry ? undefined : this.#idle.pop();
    while (connection !== undefined && connection.idleUntilMs <= nowMs) {
      connection.destroy();
      connection = this.#idle.pop();
    }
    connection ??= this.#connect();
    connection.begin(exchange, bytes);
  }

  release(connection: UpstreamConnection, keepAliveSeconds: number | undefined): void {
    const hintMs = keepAliveSeconds === undefined ? IDLE_MS : keepAliveSeconds * 1000 - IDLE_MARGIN_MS;
    if (this.#isClosed || hintMs <= 0 || this.#idle.length >= MOST_IDLE) return connection.destroy();
    connection.idleUntilMs = this.#options.now() + Math.min(hintMs, MOST_IDLE_MS);
    this.#idle.push(connection);
  }

  gone(connection: UpstreamConnection): void {
    this.#all.delete(connection);
    const index = this.#idle.lastIndexOf(connection);
    if (index >= 0) this.#idle.splice(index, 1);
  }

  /** Closes what has been idle for long. Call it now and then. */
  sweep(): void {
    const nowMs = this.#options.now();
    for (const connection of this.#idle.filter(({ idleUntilMs }) => idleUntilMs <= nowMs)) connection.destroy();
  }

  destroy(): void {
    this.#isClosed = true;
    for (const connection of this.#all)
      connection.fail(new HoneError('aborted', 'The connections to the replica are closed.'));
  }

  #connect(): UpstreamConnection {
    const { origin, connectTimeoutMs = 5_000 } = this.#options;
    const { hostname, port, protocol } = new URL(origin);
    const isTls = protocol === 'https:';
    const host = hostname.replace(/^\[|\]$/gu, '');
    const standardPort = isTls ? 443 : 80;
    const place = { host, port: port === '' ? standardPort : Number(port), noDelay: true };
    const socket = isTls
      ? connectTls({ ...place, servername: host, ALPNProtocols: ['http/1.1'] })
      : connect({ ...place, keepAlive: true });
    const connection = new UpstreamConnection(this, socket, { connectTimeoutMs, isTls });
    this.#all.add(connection);
    return connection;
  }
}

function requestBytes(host: string, { path, headers, body }: UpstreamRequest): { head: string; body: string | Buffer } {
  let head = `POST ${path} HTTP/1.1\r\nhost: ${host}\r\n`;
  for (const [name, value] of headers) {
    if (!HEADER_VALUE.test(value))
      throw new HoneError('invalid-config', `The header ${name} has a character that no header may have.`, {
        cure: 'Use printable ASCII in tokens and request ids.',
      });
    head += `${name}: ${value}\r\n`;
  }
  return { head: `${head}content-length: ${Buffer.byteLength(body)}\r\n\r\n`, body };
}

/** One request and its answer, over the one or two connections that it takes. */
export class UpstreamExchange {
  readonly request: UpstreamRequest;
  readonly receiver: UpstreamReceiver;
  connection: UpstreamConnection | undefined;
  isSecondTry = false;
  isOver = false;

  constructor(request: UpstreamRequest, receiver: UpstreamReceiver) {
    this.request = request;
    this.receiver = receiver;
  }

  /** Nothing is told any more, and the connection is broken off. */
  abort(): void {
    if (this.isOver) return;
    this.isOver = true;
    this.connection?.destroy();
  }

  pause(): void {
    this.connection?.pause();
  }

  resume(): void {
    this.connection?.resume();
  }

  end(): void {
    if (this.isOver) return;
    this.isOver = true;
    this.receiver.onEnd();
  }

  fail(error: Error): void {
    if (this.isOver) return;
    this.isOver = true;
    this.receiver.onError(error);
  }
}

class UpstreamConnection {
  readonly #pool: UpstreamPool;
  readonly #socket: Socket;
  #exchange: UpstreamExchange | undefined;
  idleUntilMs = 0;
  #isConnected = false;
  #isUsed = false;
  /** Anything of this answer has come. */
  #hasBytes = false;
  #headBytes: Buffer | undefined;
  #head: ResponseHead | undefined;
  #scanner: ChunkScanner | undefined;
  #bytesLeft = 0;
  #isPaused = false;

  constructor(pool: UpstreamPool, socket: Socket, options: { connectTimeoutMs: number; isTls: boolean }) {
    this.#pool = pool;
    this.#socket = socket;
    socket.setTimeout(options.connectTimeoutMs);
    socket.once(options.isTls ? 'secureConnect' : 'connect', () => {
      this.#isConnected = true;
      socket.setTimeout(this.#exchange?.request.firstByteTimeoutMs ?? 0);
    });
    socket.on('data', (bytes: Buffer) => this.#take(bytes));
    socket.on('error', (error) => this.fail(error));
    socket.on('end', () => this.fail(new Error('the replica closed the connection')));
    socket.on('close', () => this.fail(new Error('the connection to the replica broke')));
    socket.on('timeout', () => this.#timedOut());
  }

  begin(exchange: UpstreamExchange, { head, body }: { head: string; body: string | Buffer }): void {
    const socket = this.#socket;
    this.#exchange = exchange;
    exchange.connection = this;
    this.#hasBytes = false;
    this.#headBytes = this.#head = this.#scanner = undefined;
    if (this.#isConnected) socket.setTimeout(exchange.request.firstByteTimeoutMs);
    if (typeof body === 'string') socket.write(head + body);
    else {
      socket.cork();
      socket.write(head, 'latin1');
      socket.write(body);
      socket.uncork();
    }
  }

  pause(): void {
    this.#isPaused = true;
    this.#socket.pause();
  }

  resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    // A timer that ran out meanwhile would not start again by itself.
    this.#socket.setTimeout(this.#socket.timeout ?? 0);
    this.#socket.resume();
  }

  destroy(): void {
    this.#exchange = undefined;
    this.#pool.gone(this);
    this.#socket.destroy();
  }

  fail(error: Error): void {
    const exchange = this.#exchange;
    const isStale = this.#isUsed && !this.#hasBytes;
    this.destroy();
    if (exchange === undefined || exchange.isOver) return;
    if (!isStale || exchange.isSecondTry) return exchange.fail(error);
    exchange.isSecondTry = true;
    this.#pool.dispatch(exchange);
  }

  #timedOut(): void {
    // Who reads slowly is not the replica's fault.
    if (this.#isPaused || this.#exchange === undefined) return;
    this.#hasBytes = true;
    this.fail(
      new Error(this.#isConnected ? 'nothing came from the replica for too long' : 'the replica took no connection'),
    );
  }

  #take(bytes: Buffer): void {
    // Something on a connection where nothing was asked.
    if (this.#exchange === undefined) return this.destroy();
    this.#hasBytes = true;
    try {
      const rest = this.#head === undefined ? this.#takeHead(bytes) : bytes;
      if (rest === undefined || this.#exchange === undefined) return;
      if (this.#scanner === undefined) this.#takeSized(rest);
      else this.#takeChunks(rest, this.#scanner);
    } catch (error) {
      // Thrown where the answer is not what a replica writes.
      this.fail(error instanceof Error ? error : new Error(String(error)));
    }
  }

  /** What follows the head, once that is whole. */
  #takeHead(bytes: Buffer): Buffer | undefined {
    const whole = this.#headBytes === undefined ? bytes : Buffer.concat([this.#headBytes, bytes]);
    const end = whole.indexOf(HEAD_END);
    if (end > MOST_HEAD_BYTES || (end < 0 && whole.length > MOST_HEAD_BYTES))
      throw malformed(`its head passes ${MOST_HEAD_BYTES} bytes`);
    if (end < 0) {
      this.#headBytes = whole;
      return undefined;
    }
    this.#headBytes = undefined;
    const head = parseResponseHead(whole.toString('latin1', 0, end));
    this.#head = head;
    if (head.body.kind === 'chunked') this.#scanner = new ChunkScanner();
    else this.#bytesLeft = head.body.sizeBytes;
    const exchange = this.#exchange;
    this.#socket.setTimeout(exchange?.request.stallTimeoutMs ?? 0);
    exchange?.receiver.onHead(head);
    return whole.subarray(end + HEAD_END.length);
  }

  #takeSized(bytes: Buffer): void {
    const body = bytes.length > this.#bytesLeft ? bytes.subarray(0, this.#bytesLeft) : bytes;
    this.#bytesLeft -= body.length;
    const isLast = this.#bytesLeft === 0;
    const payload = (): Buffer[] => [body];
    if (body.length > 0)
      this.#exchange?.receiver.onPiece({ bytes: body, isChunked: false, payloadBytes: body.length, isLast, payload });
    if (isLast) this.#ended(bytes.length === body.length);
  }

  #takeChunks(bytes: Buffer, scanner: ChunkScanner): void {
    const before = scanner.payloadBytes;
    const position = scanner.position();
    const frames = scanner.scan(bytes);
    const isLast = scanner.isDone;
    if (frames > 0) {
      const framed = bytes.subarray(0, frames);
      this.#exchange?.receiver.onPiece({
        bytes: framed,
        isChunked: true,
        payloadBytes: scanner.payloadBytes - before,
        isLast,
        payload: () => ChunkScanner.payloadOf(framed, position),
      });
    }
    if (isLast) this.#ended(scanner.taken === bytes.length);
  }

  /** The answer is whole. The connection is of use only if it ended where its bytes did. */
  #ended(isClean: boolean): void {
    const exchange = this.#exchange;
    const head = this.#head;
    if (exchange === undefined || head === undefined) return;
    this.#exchange = undefined;
    const socket = this.#socket;
    if (isClean && head.isKeptAlive && socket.writableLength === 0 && !socket.destroyed) {
      this.#isUsed = true;
      this.resume();
      socket.setTimeout(0);
      const seconds = Number(/^timeout=(\d{1,6})/u.exec(head.headers.get('keep-alive') ?? '')?.[1] ?? Number.NaN);
      this.#pool.release(this, Number.isNaN(seconds) ? undefined : seconds);
    } else this.destroy();
    // Last: whoever hears it may ask anew at once.
    exchange.connection = undefined;
    exchange.end();
  }
}

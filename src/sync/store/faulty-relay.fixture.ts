/**
 * A real HTTP relay in front of an object store that breaks things on purpose, by a plan that a seed decides: storms of 503, lost
 * answers, broken and slow and flipped bodies, lists of yesterday, clocks that disagree, conditions that are not kept.
 * It counts what it injected. What it does not break passes byte for byte.
 */
import { Agent, createServer, request, type IncomingMessage, type ServerResponse } from 'node:http';
import { once } from 'node:events';

import type { Random } from '../../domain/ids.ts';

export type FaultKind =
  | 'slow-down'
  | 'reset'
  | 'lost-answer'
  | 'truncated-body'
  | 'flipped-body'
  | 'slow-body'
  | 'stale-list'
  | 'clock-skew'
  | 'ignored-condition';

/** Shares of the requests that a fault applies to, 0 to 1. At most one fault hits a request; the shares of one request add up. */
export interface Faults {
  /** 503 SlowDown, with `Retry-After` when given. */
  readonly slowDown?: number;
  readonly retryAfterSeconds?: number;
  /** The connection breaks before the store heard of the request. */
  readonly reset?: number;
  /** The store does what was asked, then the connection breaks. */
  readonly lostAnswer?: number;
  /** The body of an answer ends in the middle although its length was announced. */
  readonly truncatedBody?: number;
  /** One bit of an object's body is another. */
  readonly flippedBody?: number;
  /** The body stands still for `stallMs` in the middle. */
  readonly slowBody?: number;
  readonly stallMs?: number;
  /** A list is answered as the first time that it was asked for. */
  readonly staleList?: number;
  /** 403 RequestTimeTooSkewed with a clock that is `skewMs` ahead. */
  readonly clockSkew?: number;
  readonly skewMs?: number;
  /** Conditional writes pass without their conditions. The bucket must let everyone write: the signature goes as well. */
  readonly ignoredCondition?: number;
}

export interface FaultyRelayOptions {
  /** Where the store is, for example `http://127.0.0.1:8000`. */
  readonly target: string;
  readonly random: Random;
  readonly faults?: Faults;
  readonly port?: number;
  /** Faults hit only requests that this lets through; all by default. */
  readonly applies?: (request: { readonly method: string; readonly path: string }) => boolean;
}

export interface FaultyRelay extends AsyncDisposable {
  readonly endpoint: string;
  readonly requests: number;
  /** How many of each kind were injected. */
  readonly injected: Readonly<Record<FaultKind, number>>;
  readonly totalInjected: number;
  /** From the next request on; `{}` lets everything pass. */
  setFaults(faults: Faults): void;
  close(): Promise<void>;
}

export async function startFaultyRelay(options: FaultyRelayOptions): Promise<FaultyRelay> {
  const target = new URL(options.target);
  const applies = options.applies ?? (() => true);
  const agent = new Agent({ keepAlive: true });
  const injected: Record<FaultKind, number> = {
    'slow-down': 0,
    reset: 0,
    'lost-answer': 0,
    'truncated-body': 0,
    'flipped-body': 0,
    'slow-body': 0,
    'stale-list': 0,
    'clock-skew': 0,
    'ignored-condition': 0,
  };
  const firstLists = new Map<string, { readonly headers: IncomingMessage['headers']; readonly body: Buffer }>();
  let faults = options.faults ?? {};
  let requests = 0;

  const decide = (incoming: IncomingMessage): FaultKind | undefined => {
    const method = incoming.method ?? 'GET';
    const path = incoming.url ?? '/';
    if (!applies({ method, path })) return undefined;
    const isList = method === 'GET' && path.includes('list-type=2');
    const isConditionalWrite =
      (method === 'PUT' || method === 'POST') &&
      (incoming.headers['if-match'] !== undefined || incoming.headers['if-none-match'] !== undefined);
    const shares: readonly (readonly [FaultKind, number | undefined, boolean])[] = [
      ['slow-down', faults.slowDown, true],
      ['reset', faults.reset, true],
      ['lost-answer', faults.lostAnswer, true],
      ['truncated-body', faults.truncatedBody, method === 'GET'],
      ['flipped-body', faults.flippedBody, method === 'GET' && !isList],
      ['slow-body', faults.slowBody, method === 'GET'],
      ['stale-list', faults.staleList, isList && firstLists.has(path)],
      ['clock-skew', faults.clockSkew, true],
      ['ignored-condition', faults.ignoredCondition, isConditionalWrite],
    ];
    let drawn = options.random.next();
    for (const [kind, share = 0, isPossible] of shares) {
      if (!isPossible) continue;
      if (drawn < share) return kind;
      drawn -= share;
    }
    return undefined;
  };

  const relay = async (incoming: IncomingMessage, answer: ServerResponse): Promise<void> => {
    requests += 1;
    const fault = decide(incoming);
    if (fault === 'reset') {
      injected.reset += 1;
      incoming.socket.destroy();
      return;
    }
    if (fault === 'slow-down' || fault === 'clock-skew') {
      injected[fault] += 1;
      incoming.resume();
      await once(incoming, 'end');
      if (fault === 'slow-down') refuse(answer, 503, 'SlowDown', retryAfter(faults.retryAfterSeconds));
      else
        refuse(answer, 403, 'RequestTimeTooSkewed', {
          date: new Date(Date.now() + (faults.skewMs ?? 0)).toUTCString(),
        });
      return;
    }
    const list = fault === 'stale-list' ? firstLists.get(incoming.url ?? '/') : undefined;
    if (list !== undefined) {
      injected['stale-list'] += 1;
      answer.writeHead(200, list.headers).end(list.body);
      return;
    }
    const headers = { ...incoming.headers };
    if (fault === 'ignored-condition') {
      injected['ignored-condition'] += 1;
      for (const name of ['if-match', 'if-none-match', 'authorization', 'x-amz-date', 'x-amz-content-sha256'])
        delete headers[name];
    }
    const outgoing = request(target, { method: incoming.method, path: incoming.url, headers, agent });
    incoming.pipe(outgoing);
    incoming.on('error', () => outgoing.destroy());
    answer.on('close', () => outgoing.destroy());
    const [reply] = (await once(outgoing, 'response')) as [IncomingMessage]; // What the event carries.
    outgoing.on('error', () => answer.destroy());
    if (fault === 'lost-answer') {
      reply.resume();
      await once(reply, 'end');
      injected['lost-answer'] += 1;
      incoming.socket.destroy();
      return;
    }
    answer.writeHead(reply.statusCode ?? 502, reply.headers);
    await passBody(reply, answer, {
      fault,
      path: incoming.url ?? '/',
      isList: incoming.url?.includes('list-type=2') === true,
    });
  };

  const passBody = async (
    reply: IncomingMessage,
    answer: ServerResponse,
    { fault, path, isList }: { fault: FaultKind | undefined; path: string; isList: boolean },
  ): Promise<void> => {
    const length = Number(reply.headers['content-length'] ?? 0);
    const at = length > 0 ? options.random.below(length) : 0;
    const isBroken = length > 0 && (reply.statusCode ?? 0) < 300;
    const kept: Buffer[] = [];
    let passed = 0;
    for await (const piece of reply as AsyncIterable<Buffer>) {
      const isHere = isBroken && passed <= at && at < passed + piece.byteLength;
      passed += piece.byteLength;
      if (isList) kept.push(piece);
      if (isHere && fault === 'truncated-body') {
        injected[fault] += 1;
        const before = piece.subarray(0, at - (passed - piece.byteLength));
        // Only what left may be cut off: ending the socket at once would take the bytes before it along.
        await new Promise<void>((resolve) => answer.write(before, () => resolve()));
        answer.socket?.end();
        return;
      }
      if (isHere && fault === 'slow-body') {
        injected[fault] += 1;
        await stall(faults.stallMs ?? 1000, answer);
      }
      let written = piece;
      if (isHere && fault === 'flipped-body') {
        injected[fault] += 1;
        written = Buffer.from(piece);
        const index = at - (passed - piece.byteLength);
        written[index] = (written[index] ?? 0) ^ (1 << options.random.below(8));
      }
      if (answer.destroyed) return;
      if (!answer.write(written)) await drained(answer);
    }
    if (isList && reply.statusCode === 200 && !firstLists.has(path))
      firstLists.set(path, { headers: reply.headers, body: Buffer.concat(kept) });
    answer.end();
  };

  const server = createServer((incoming, answer) => {
    relay(incoming, answer).catch(() => {
      // The store or the client went away in the middle: the other side sees a broken connection.
      incoming.socket.destroy();
    });
  });
  server.listen(options.port ?? 0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('A listening server has no port.');
  const close = async (): Promise<void> => {
    server.closeAllConnections();
    agent.destroy();
    await new Promise<void>((resolve) => server.close(() => resolve()));
  };
  return {
    endpoint: `http://127.0.0.1:${address.port}`,
    get requests() {
      return requests;
    },
    injected,
    get totalInjected() {
      return Object.values(injected).reduce((sum, count) => sum + count, 0);
    },
    setFaults: (next) => {
      faults = next;
    },
    close,
    [Symbol.asyncDispose]: close,
  };
}

function refuse(answer: ServerResponse, status: number, code: string, headers: Record<string, string>): void {
  const body = `<?xml version="1.0" encoding="UTF-8"?><Error><Code>${code}</Code><Message>${code}</Message></Error>`;
  answer.writeHead(status, { 'content-type': 'application/xml', 'content-length': body.length, ...headers }).end(body);
}

function retryAfter(seconds: number | undefined): Record<string, string> {
  return seconds === undefined ? {} : { 'retry-after': String(seconds) };
}

/** Or closed; neither wait leaves a listener behind. */
async function drained(answer: ServerResponse): Promise<void> {
  const settled = new AbortController();
  const { signal } = settled;
  try {
    await Promise.race([once(answer, 'drain', { signal }), once(answer, 'close', { signal })]);
  } finally {
    settled.abort();
  }
}

/** Ends early when the client goes away. */
async function stall(durationMs: number, answer: ServerResponse): Promise<void> {
  await new Promise<void>((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      answer.off('close', end);
      resolve();
    };
    const timer = setTimeout(end, durationMs);
    answer.on('close', end);
  });
}

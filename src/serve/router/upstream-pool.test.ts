import { once } from 'node:events';
import { createServer } from 'node:net';
import type { AddressInfo, Socket } from 'node:net';

import { afterEach, describe, expect, test } from 'vitest';

import { ChunkScanner } from './chunk-scanner.ts';
import { parseResponseHead } from './response-head.ts';
import { UpstreamPool } from './upstream-pool.ts';

const closers: (() => void)[] = [];
afterEach(() => {
  for (const close of closers.splice(0).toReversed()) close();
});

const HEAD = 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n';

interface Asked {
  readonly text: string;
  readonly error: string | undefined;
}

/** A server that answers the n-th request with the n-th of these pieces, each in a write of its own; `close` then ends it. */
async function start(answers: readonly (readonly string[])[]) {
  let served = 0;
  let connections = 0;
  const server = createServer((socket: Socket) => {
    connections += 1;
    closers.push(() => socket.destroy());
    socket.on('error', () => socket.destroy());
    socket.on('data', (bytes) => {
      if (!bytes.toString('latin1').endsWith('{}')) return;
      void (async () => {
        for (const piece of answers[served++] ?? []) {
          if (piece === 'close') socket.end();
          else await new Promise((resolve) => socket.write(Buffer.from(piece, 'latin1'), resolve));
          await new Promise((resolve) => setImmediate(resolve));
        }
      })();
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  closers.push(() => server.close());
  // A listening TCP server's address is never a string or null.
  const pool = new UpstreamPool({
    origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    now: () => performance.now(),
  });
  closers.push(() => pool.destroy());
  const ask = (): Promise<Asked> =>
    new Promise((resolve) => {
      let text = '';
      const request = { path: '/generate', headers: new Map<string, string>(), body: '{}' };
      pool.send(
        { ...request, firstByteTimeoutMs: 20_000, stallTimeoutMs: 20_000 },
        {
          onHead: () => undefined,
          onPiece: (piece) => void (text += Buffer.concat(piece.payload()).toString('latin1')),
          onEnd: () => resolve({ text, error: undefined }),
          onError: (error) => resolve({ text, error: error.message }),
        },
      );
    });
  return { ask, connections: () => connections, pool };
}

describe('answers of a replica', () => {
  test('whole ones leave their connection for the next request, whatever their framing and cuts', async () => {
    const { ask, connections } = await start([
      [...(HEAD.match(/.|[\r\n]/gu) ?? []), '3\r', '\nab', 'c\r\na\r\n', '0123456789\r\n', '0', '\r', '\n\r', '\n'],
      ['HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nbu', 'sy'],
      ['HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n'],
    ]);
    expect(await ask()).toEqual({ text: 'abc0123456789', error: undefined });
    expect(await ask()).toEqual({ text: 'busy', error: undefined });
    expect(await ask()).toEqual({ text: '', error: undefined });
    expect(connections()).toBe(1);
  });

  test('what follows an answer is never the next one’s', async () => {
    const forged = 'HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged';
    const { ask, connections } = await start([
      [`${HEAD}1\r\na\r\n0\r\n\r\n${forged}`],
      [`HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nb${forged}`],
      [`HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nc`],
      [`HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nd`],
    ]);
    const texts: string[] = [];
    for (let count = 0; count < 4; count++) texts.push((await ask()).text);
    expect(texts).toEqual(['a', 'b', 'c', 'd']);
    expect(connections()).toBe(4);
  });

  test.each([
    ['an extension', `${HEAD}3;x=y\r\nabc\r\n0\r\n\r\n`],
    ['a size with a leading zero', `${HEAD}03\r\nabc\r\n0\r\n\r\n`],
    ['no size', `${HEAD}\r\nabc`],
    ['a huge size', `${HEAD}fffffffff\r\n`],
    ['a negative size', `${HEAD}-1\r\n`],
    ['a bare line end', `${HEAD}3\nabc\r\n0\r\n\r\n`],
    ['a chunk that is too long', `${HEAD}3\r\nabcd\r\n0\r\n\r\n`],
    ['an event that is too long', `${HEAD}10\r\n0123456789abcdefg\r\n0\r\n\r\n`],
    ['an event that is too short', `${HEAD}10\r\n0123456789abcde\r\n0\r\n\r\n`],
    ['an event with a bare line end', `${HEAD}10\n0123456789abcdef\r\n0\r\n\r\n`],
    ['an event with a size of other characters', `${HEAD}1\x10\r\n0123456789abcdef\r\n0\r\n\r\n`],
    ['an event that ends in half a line end', `${HEAD}10\r\n0123456789abcdefg\n0\r\n\r\n`],
    ['trailers', `${HEAD}1\r\na\r\n0\r\nx: y\r\n\r\n`],
    ['two framings', 'HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n'],
    ['two lengths', 'HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\nabc'],
    ['a signed length', 'HTTP/1.1 200 OK\r\ncontent-length: +3\r\n\r\nabc'],
    ['no framing', 'HTTP/1.1 200 OK\r\n\r\nabc'],
    ['another coding', 'HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n'],
    ['an interim answer', `HTTP/1.1 100 Continue\r\n\r\n${HEAD}0\r\n\r\n`],
    ['a folded line', 'HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 0\r\n\r\n'],
    ['a space before the colon', 'HTTP/1.1 200 OK\r\ncontent-length : 0\r\n\r\n'],
    ['a bare line end in a value', 'HTTP/1.1 200 OK\r\nx: a\nb: c\r\ncontent-length: 0\r\n\r\n'],
    ['another protocol', 'HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n'],
    ['a head without end', `HTTP/1.1 200 OK\r\nx: ${'a'.repeat(20_000)}`],
  ])('%s is refused', async (_name, answer) => {
    const { ask } = await start([[answer]]);
    expect((await ask()).error).toContain('not one that a replica writes');
  });

  test('one that ends early is an error, at every byte', async () => {
    const whole = `${HEAD}3\r\nabc\r\n0\r\n\r\n`;
    const cuts = Array.from({ length: whole.length }, (_, length) => [whole.slice(0, length), 'close']);
    const { ask } = await start(cuts);
    for (const [cut] of cuts) expect((await ask()).error, JSON.stringify(cut)).toBeDefined();
  });

  test('one that stalls is given up, also where its reader paused for longer than that', async () => {
    const { pool } = await start([[`${HEAD}1\r\na\r\n`]]);
    const request = { path: '/generate', headers: new Map<string, string>(), body: '{}' };
    const stallTimeoutMs = 40;
    const error = await new Promise<Error | undefined>((resolve) => {
      const exchange = pool.send(
        { ...request, firstByteTimeoutMs: 20_000, stallTimeoutMs },
        {
          onHead: () => undefined,
          onPiece: () => {
            exchange.pause();
            setTimeout(() => exchange.resume(), 3 * stallTimeoutMs);
          },
          onEnd: () => resolve(undefined),
          onError: resolve,
        },
      );
    });
    expect(error?.message).toContain('nothing came from the replica for too long');
  });

  test('a connection that was closed between two requests costs nobody anything', async () => {
    const answer = 'HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na';
    const { ask, connections } = await start([[answer], ['close'], [answer]]);
    await ask();
    expect(await ask()).toEqual({ text: 'a', error: undefined });
    expect(connections()).toBe(2);
  });
});

test('frames are passed on without the last chunk, and hold their payload, however they are cut', () => {
  const long = 'x'.repeat(0x123);
  const frames = `3\r\nabc\r\n10\r\n0123456789abcdef\r\n123\r\n${long}\r\nA\r\n0123456789\r\n`;
  const whole = Buffer.from(`${frames}0\r\n\r\n`);
  for (let cut = 0; cut <= whole.length; cut++) {
    const scanner = new ChunkScanner();
    const payload: Buffer[] = [];
    const passed = [whole.subarray(0, cut), whole.subarray(cut)].map((part) => {
      const position = scanner.position();
      const taken = part.subarray(0, scanner.scan(part));
      payload.push(...ChunkScanner.payloadOf(taken, position));
      return taken.toString();
    });
    expect(passed.join(''), `cut at ${cut}`).toBe(frames);
    expect(Buffer.concat(payload).toString(), `cut at ${cut}`).toBe(`abc0123456789abcdef${long}0123456789`);
    expect([scanner.isDone, scanner.payloadBytes]).toEqual([true, 29 + long.length]);
  }
});

test('a head as node writes it is read', () => {
  const head = parseResponseHead('HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked');
  expect(head).toMatchObject({ status: 200, body: { kind: 'chunked' }, isKeptAlive: true });
});

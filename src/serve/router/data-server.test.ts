import { connect } from 'node:net';

import { expect, test } from 'vitest';

import { encodeGenerateRequest } from '../wire/generate-request.ts';
import { requestOf, startFleet, until } from './router.fixture.ts';

/** All that a server sends for these bytes, until it looks whole. */
async function exchange(url: string, bytes: string, isWhole: (text: string) => boolean): Promise<string> {
  const { hostname, port } = new URL(url);
  const socket = connect({ host: hostname, port: Number(port) });
  let text = '';
  socket.on('data', (piece) => (text += piece.toString('latin1')));
  socket.on('error', () => undefined);
  socket.write(bytes);
  try {
    await until(() => isWhole(text));
  } finally {
    socket.destroy();
  }
  return text;
}

function post(number: number, protocol: string): string {
  const body = encodeGenerateRequest(requestOf(number));
  return `POST /generate ${protocol}\r\nhost: x\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
}

const count = (text: string, part: string): number => text.split(part).length - 1;

test('requests sent one behind the other on one connection are answered whole and in order', async () => {
  await using fleet = await startFleet({ replicas: [{ id: 'a' }] });
  const sent = [1, 2, 3].map((number) => post(number, 'HTTP/1.1')).join('');
  const text = await exchange(fleet.router.url, sent, (seen) => count(seen, '\r\n0\r\n\r\n') === 3);
  expect(count(text, 'HTTP/1.1 200 OK\r\n')).toBe(3);
  // Three streams of the same length, each from its head to its last chunk.
  const [first = '', ...others] = text.split('HTTP/1.1 200 OK\r\n').slice(1);
  expect(count(first, '"type":"tokens"')).toBe(24);
  for (const other of others) expect(count(other, '"type":"tokens"')).toBe(24);
  for (const part of [first, ...others]) expect(part.endsWith('\r\n0\r\n\r\n')).toBe(true);
});

test('a client that takes no chunks gets none', async () => {
  await using fleet = await startFleet({ replicas: [{ id: 'a' }] });
  const text = await exchange(fleet.router.url, post(1, 'HTTP/1.0'), (seen) => seen.includes('"type":"end"'));
  expect(text).not.toContain('transfer-encoding');
  expect(text.slice(text.indexOf('\r\n\r\n') + 4)).toMatch(/^data: /u);
  expect(count(text, '"type":"tokens"')).toBe(24);
});

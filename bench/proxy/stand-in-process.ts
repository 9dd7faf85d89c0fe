/**
 * A stand-in replica in a process of its own, at full speed: what a router would have in front of it if sampling cost nothing. One
 * event a decode step and stream, all streams in step, written by a bare socket server; the events are made once and have the sizes
 * of real ones. Prints its ports as JSON.
 */
import { createServer } from 'node:net';
import type { Socket } from 'node:net';
import { createServer as createHttpServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import process from 'node:process';

import { policyVersion } from '../../src/domain/ids.ts';
import { EventWriter } from '../../src/serve/wire/event-writer.ts';
import { encodeKeptRows } from '../../src/serve/wire/kept-set-code.ts';

const KEPT_IDS = 40;
const writer = new EventWriter();
const kept = encodeKeptRows([Int32Array.from({ length: KEPT_IDS }, (_, index) => 20 + index * 5)]);
const version = policyVersion(3);
const token = chunked(writer.tokens({ ids: [100], logprobs: [-1.25] }, kept, version));
const headers = Buffer.from(
  'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-hone-replica: stand-in/boot\r\ntransfer-encoding: chunked\r\n\r\n',
);

interface Stream {
  readonly socket: Socket;
  readonly end: Buffer;
  left: number;
}

const streams = new Set<Stream>();
const wholeAnswers = new Map<number, Buffer>();
let isStepping = false;

/** Milliseconds of a decode step; 0 = as fast as it goes: a whole reply in one write, each event in a frame of its own. */
const stepMs = Number(process.argv[2] ?? 0);

function next(): void {
  setTimeout(step, stepMs);
}

function step(): void {
  for (const stream of streams) {
    if (stream.left > 0) stream.socket.write(token);
    else {
      stream.socket.write(stream.end);
      streams.delete(stream);
    }
    stream.left -= 1;
  }
  isStepping = streams.size > 0;
  if (isStepping) next();
}

const data = createServer({ noDelay: true }, (socket) => {
  let received = '';
  socket.on('error', () => socket.destroy());
  socket.on('close', () => {
    for (const stream of streams) if (stream.socket === socket) streams.delete(stream);
  });
  socket.on('data', (bytes) => {
    received += bytes.toString('latin1');
    const headEnd = received.indexOf('\r\n\r\n');
    const length = Number(/content-length: (\d+)/iu.exec(received)?.[1] ?? 0);
    if (headEnd < 0 || received.length < headEnd + 4 + length) return;
    const tokens = Number(/"maxTokens":(\d+)/u.exec(received)?.[1] ?? 1);
    received = '';
    if (stepMs === 0) {
      socket.write(wholeAnswer(tokens));
      return;
    }
    socket.write(headers);
    streams.add({ socket, end: endOf(tokens), left: tokens });
    if (!isStepping) {
      isStepping = true;
      next();
    }
  });
});

const control = createHttpServer((request, response) => {
  const state = { running: streams.size, waiting: 0, slots: 256, contextLength: 65_536 };
  const served = { version, model: '0'.repeat(16), weights: { version, imageChecksum: '0'.repeat(32) } };
  response.end(
    request.url === '/status'
      ? JSON.stringify({ id: 'stand-in', bootId: 'boot', cluster: 'bench', state: 'serving', ...state, ...served })
      : '{}',
  );
});

data.listen(0, '127.0.0.1', () =>
  control.listen(0, '127.0.0.1', () =>
    process.stdout.write(`${JSON.stringify({ url: urlOf(data.address()), controlUrl: urlOf(control.address()) })}\n`),
  ),
);

/** Made once for each length: this process must never be what a proxy waits for. */
function wholeAnswer(tokens: number): Buffer {
  let answer = wholeAnswers.get(tokens);
  if (answer === undefined) {
    answer = Buffer.concat([headers, ...Array.from({ length: tokens }, () => token), endOf(tokens)]);
    wholeAnswers.set(tokens, answer);
  }
  return answer;
}

function endOf(tokens: number): Buffer {
  const last = { type: 'end', finish: 'length', versionStart: version, versionEnd: version, tokens } as const;
  return Buffer.concat([chunked(writer.last({ ...last, cachedTokens: 0 })), Buffer.from('0\r\n\r\n')]);
}

function chunked(body: Buffer): Buffer {
  return Buffer.concat([Buffer.from(`${body.length.toString(16)}\r\n`), body, Buffer.from('\r\n')]);
}

function urlOf(address: string | AddressInfo | null): string {
  // A listening TCP server's address is never a string or null.
  return `http://127.0.0.1:${(address as AddressInfo).port}`;
}

/**
 * A proxy as it is mostly written by hand: node's HTTP server, the global fetch, and a loop that reads the answer and writes it.
 * Prints its port as JSON.
 */
import { createServer } from 'node:http';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import process from 'node:process';

const [, , target = ''] = process.argv;

async function pass(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer); // A request without an encoding yields buffers.
  const stop = new AbortController();
  response.on('close', () => stop.abort());
  const answer = await fetch(`${target}${request.url}`, {
    method: request.method ?? 'GET',
    headers: { 'content-type': 'application/json' },
    body: Buffer.concat(chunks),
    signal: stop.signal,
  });
  response.writeHead(answer.status, { 'content-type': answer.headers.get('content-type') ?? 'text/event-stream' });
  const reader = answer.body?.getReader();
  for (let read = await reader?.read(); read?.value !== undefined; read = await reader?.read())
    if (!response.write(read.value)) await new Promise((resolve) => response.once('drain', resolve));
  response.end();
}

const server = createServer((request, response) => {
  pass(request, response).catch(() => response.destroy());
});
server.listen(0, '127.0.0.1', () => {
  // A listening TCP server's address is never a string or null.
  const { port } = server.address() as AddressInfo;
  process.stdout.write(`${JSON.stringify({ url: `http://127.0.0.1:${port}` })}\n`);
});

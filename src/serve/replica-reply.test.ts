import { once } from 'node:events';
import { createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

import { expect, test } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import { ReplicaReply } from './replica-reply.ts';
import { decodeTokensEvent, EventReader } from './wire/event-reader.ts';
import { EventWriter } from './wire/event-writer.ts';
import { encodeKeptRows } from './wire/kept-set-code.ts';

test('what waits for a slow reader is its own: the memory of a step is free again at once', async () => {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    const asked = once(server, 'request');
    // A listening TCP server's address is never a string or null.
    const sent = httpRequest({ port: (server.address() as AddressInfo).port, agent: false }).end();
    const answered = once(sent, 'response');
    const [, response] = (await asked) as [IncomingMessage, ServerResponse]; // What a server's event carries.
    const reply = new ReplicaReply({
      response,
      writer: new EventWriter(),
      keptSets: 'inline',
      maxPendingBytes: 64 << 20,
      stallMs: 60_000,
      onLost: (reason) => expect.fail(reason),
    });
    response.writeHead(200);
    response.flushHeaders();
    const [answer] = (await answered) as [IncomingMessage]; // What a request's event carries.
    answer.pause();
    // One buffer for the rows of each step, as a step has it; the next step writes over it.
    const row = Int32Array.from({ length: 4000 }, (_, index) => 2 * index);
    const coded = encodeKeptRows([row]);
    const step = new Uint8Array(coded.length + 1000);
    let tokens = 0;
    const draw = (): void => {
      step.set(coded, 1000);
      reply.token({
        id: row[tokens % row.length] ?? 0,
        logprob: -1,
        kept: step.subarray(1000),
        version: policyVersion(3),
      });
      step.fill(0xff);
      tokens++;
    };
    // In one turn of the loop nothing is read, so most of it waits.
    for (let index = 0; index < 1000; index++) draw();
    expect(response.writableNeedDrain).toBe(true);
    reply.end({ type: 'error', code: 'engine-failed', message: 'over' });
    let read = 0;
    const reader = new EventReader();
    for await (const chunk of answer)
      // Chunks of a response without an encoding are buffers.
      for (const event of reader.push(chunk as Buffer)) {
        if (event.type !== 'tokens') continue;
        const { ids, kept, version } = decodeTokensEvent(event);
        for (const [index, id] of ids.entries()) {
          expect(id).toBe(row[read++ % row.length]);
          expect(Buffer.from(kept?.[index]?.buffer ?? new ArrayBuffer(0)).equals(Buffer.from(row.buffer))).toBe(true);
        }
        expect(version).toBe(3);
      }
    expect(read).toBe(tokens);
  } finally {
    server.closeAllConnections();
    await new Promise<void>((resolve) => server.close(() => resolve()));
  }
});

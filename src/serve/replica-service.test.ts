import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, request as httpRequest, type ClientRequest, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, describe, expect, test } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { policyVersion, type PolicyVersion } from '../domain/ids.ts';
import { parameterShapes, parseModelConfig } from '../model/config.ts';
import { CodecPool } from '../sync/delta/codec-pool.ts';
import { Publisher } from '../sync/publisher.ts';
import { FileStore } from '../sync/store/file-store.ts';
import { writeModelFolder } from '../tensor/hugging-face-folder.ts';
import type { ReplicaServiceOptions } from './replica-options.ts';
import { startReplica, type ReplicaService } from './replica-service.ts';
import { placesOf, promptOf, samplingOf, SMALL_CONFIG, smallWeights } from './small-replica.fixture.ts';
import { EventReader } from './wire/event-reader.ts';
import { encodeGenerateRequest } from './wire/generate-request.ts';
import type { GenerateWireEvent } from './wire/generate-wire.ts';

const closers: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

function newDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), 'hone-replica-service-'));
  closers.push(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

async function start(options: Partial<ReplicaServiceOptions> = {}): Promise<ReplicaService> {
  const directory = newDirectory();
  const shapes = parameterShapes(parseModelConfig(SMALL_CONFIG));
  await writeModelFolder(join(directory, 'model'), {
    config: SMALL_CONFIG,
    tokenizerJson: {},
    tokenizerConfig: {},
    tensors: new Map(
      [...smallWeights(1)].map(([name, bytes]) => [name, { dtype: 'BF16', shape: shapes.get(name) ?? [], bytes }]),
    ),
  });
  let ids = 0;
  const replica = await startReplica({
    model: join(directory, 'model'),
    dataDirectory: join(directory, 'data'),
    routers: [],
    id: 'r',
    bootId: 'b',
    cluster: 'c',
    slots: 4,
    threads: 1,
    build: 'plain',
    commitMode: 'in-place',
    inFlight: 'keep',
    verifyServed: false,
    pollEveryMs: 60_000,
    host: '127.0.0.1',
    port: 0,
    controlPort: 0,
    drainMs: 60_000,
    now: () => performance.now(),
    wallMs: () => 0,
    random: () => 0,
    newRequestId: () => `made-${++ids}`,
    ...options,
  });
  closers.push(() => replica.close());
  await replica.ready;
  return replica;
}

const bodyOf = (maxTokens: number, exactVersion?: PolicyVersion): string =>
  encodeGenerateRequest({
    tokens: promptOf(6),
    sampling: samplingOf(maxTokens),
    seed: 1,
    ...(exactVersion === undefined ? {} : { exactVersion }),
  });

interface Asked {
  readonly sent: ClientRequest;
  readonly answer: Promise<IncomingMessage>;
}

/** The head goes out; the body is the caller's to send. */
function begin(url: string, headers: Record<string, string> = {}): Asked {
  const sent = httpRequest(`${url}/generate`, { method: 'POST', agent: false, headers });
  const answer = new Promise<IncomingMessage>((resolve, reject) => {
    sent.on('response', resolve);
    sent.on('error', reject);
  });
  return { sent, answer };
}

async function ask(url: string, body: string): Promise<IncomingMessage> {
  const { sent, answer } = begin(url);
  sent.end(body);
  return answer;
}

async function eventsOf(response: IncomingMessage): Promise<GenerateWireEvent[]> {
  const reader = new EventReader();
  const events: GenerateWireEvent[] = [];
  // Chunks of a response without an encoding are buffers.
  for await (const chunk of response) events.push(...reader.push(chunk as Buffer));
  return events;
}

async function textOf(response: IncomingMessage): Promise<string> {
  let text = '';
  for await (const chunk of response) text += String(chunk);
  return text;
}

const unknownWeights = (): HoneError => new HoneError('engine-failed', 'What it serves is unknown.');

describe('a replica whose weights are unknown', () => {
  test('ends its replies at once: no token that it draws later is sent', async () => {
    const replica = await start();
    const response = await ask(replica.url, bodyOf(4000));
    const events = eventsOf(response);
    await expect.poll(async () => (await replica.policy.stats()).sampledTokens, { timeout: 20_000 }).toBeGreaterThan(5);
    replica.server.fail(unknownWeights());
    const all = await events;
    expect(all.at(-1)).toEqual({ type: 'error', code: 'engine-failed', message: 'What it serves is unknown.' });
    expect(all.length).toBeLessThan(3000);
    expect(replica.server.load()).toEqual({ running: 0, waiting: 0 });
  });

  test('refuses a request that came in at the door before, and whose body comes after', async () => {
    const replica = await start();
    const body = bodyOf(5);
    const { sent, answer } = begin(replica.url, { 'content-length': String(body.length) });
    sent.write(body.slice(0, 20));
    await expect.poll(() => replica.server.load().running, { timeout: 20_000 }).toBe(1);
    replica.server.fail(unknownWeights());
    sent.end(body.slice(20));
    const response = await answer;
    expect([response.statusCode, await textOf(response)]).toEqual([503, expect.stringContaining('is unknown')]);
    expect((await replica.policy.stats()).sampledTokens).toBe(0);
  });
});

describe('a replica that follows a store', () => {
  test('waits for requests bound to its version as long as it was told to, however little a commit itself may take', async () => {
    const store = await FileStore.open(join(newDirectory(), 'store'));
    const replica = await start({ openSource: () => Promise.resolve(store), commitMs: 100, drainMs: 120_000 });
    await using codec = await CodecPool.start({ threads: 1 });
    await using publisher = await Publisher.open(store, {
      runId: 'run',
      bootVersion: policyVersion(0),
      bootWeights: placesOf(smallWeights(1)),
      codec,
      anchorEvery: 1,
    });
    await publisher.publish(placesOf(smallWeights(2)));
    const bound = eventsOf(await ask(replica.url, bodyOf(4000, policyVersion(0))));
    await fetch(`${replica.controlUrl}/wake`, { method: 'POST' });
    const events = await bound;
    expect(events.at(-1)).toMatchObject({ type: 'end', tokens: 4000, versionStart: 0, versionEnd: 0 });
    await expect.poll(() => replica.policy.version, { timeout: 60_000 }).toBe(1);
    const after = await eventsOf(await ask(replica.url, bodyOf(3)));
    expect(after.at(-1)).toMatchObject({ type: 'end', versionEnd: 1 });
    expect(replica.server.state).toBe('serving');
  }, 180_000);
});

test('routers are told the name that others know the machine by', async () => {
  const told = Promise.withResolvers<{ url: string; controlUrl: string }>();
  const router = createServer((request, response) => {
    void textOf(request).then((text) => {
      // What a replica sends: its description.
      if (request.method === 'POST') told.resolve(JSON.parse(text) as { url: string; controlUrl: string });
      response.end(JSON.stringify({ leaseMs: 60_000 }));
    });
  });
  await new Promise<void>((resolve) => router.listen(0, '127.0.0.1', resolve));
  closers.push(() => new Promise<void>((resolve) => router.close(() => resolve())));
  // A listening TCP server's address is never a string or null.
  const { port } = router.address() as AddressInfo;
  const replica = await start({ routers: [`http://127.0.0.1:${port}`], advertisedHost: 'replica-7.example' });
  const { url, controlUrl } = await told.promise;
  expect([url, controlUrl]).toEqual([
    replica.url.replace('127.0.0.1', 'replica-7.example'),
    replica.controlUrl.replace('127.0.0.1', 'replica-7.example'),
  ]);
  await replica.close();
});

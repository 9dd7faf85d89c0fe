import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, describe, expect, test } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import type { GenerateRequest } from '../domain/policy.ts';
import { SideDataStore } from '../sync/side-data.ts';
import { FileStore } from '../sync/store/file-store.ts';
import type { EmbeddedPolicy, EmbeddedPolicyOptions } from './embedded-policy.ts';
import { loadKeptSets } from './replica-kept-sets.ts';
import { startReplicaServer, type ReplicaServer, type ReplicaServerOptions } from './replica-server.ts';
import { BearerToken } from './service/bearer-token.ts';
import { ServiceLog } from './service/service-log.ts';
import { promptOf, samplingOf, smallWeights, startSmallPolicy, WIDE_CONFIG } from './small-replica.fixture.ts';
import { decodeTokensEvent, EventReader } from './wire/event-reader.ts';
import { encodeGenerateRequest } from './wire/generate-request.ts';
import { GENERATE_PATH, REPLICA_HEADER, REQUEST_ID_HEADER, type GenerateWireEvent } from './wire/generate-wire.ts';

const closers: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

interface Started {
  readonly policy: EmbeddedPolicy;
  readonly server: ReplicaServer;
  readonly events: () => Record<string, unknown>[];
}

async function start(
  options: Partial<ReplicaServerOptions> = {},
  engine: Partial<EmbeddedPolicyOptions> = {},
): Promise<Started> {
  const directory = mkdtempSync(join(tmpdir(), 'hone-replica-'));
  closers.push(() => rmSync(directory, { recursive: true, force: true }));
  const policy = await startSmallPolicy(engine);
  closers.push(() => policy.close());
  const path = join(directory, 'events.jsonl');
  const log = new ServiceLog({ path, service: 'replica', id: 'r', wallMs: () => 0 });
  closers.push(() => log.close());
  let ids = 0;
  const server = await startReplicaServer({
    served: () => ({ model: '0'.repeat(16), weights: { version: 0, imageChecksum: '0'.repeat(32) } }),
    policy,
    id: 'r',
    bootId: 'b',
    cluster: 'c',
    slots: engine.slots ?? 4,
    log,
    now: () => performance.now(),
    newRequestId: () => `made-${++ids}`,
    ...options,
  });
  closers.push(() => server.close({ drainMs: 0 }));
  server.serve();
  const events = (): Record<string, unknown>[] =>
    readFileSync(path, 'utf8')
      .trim()
      .split('\n')
      .filter((line) => line !== '')
      // Lines that the log wrote: objects.
      .map((line) => JSON.parse(line) as Record<string, unknown>);
  return { policy, server, events };
}

type Asked = Partial<Omit<GenerateRequest, 'onToken' | 'signal'>> & { keptSets?: 'store'; maxTokens?: number };
const bodyOf = ({ maxTokens = 5, ...asked }: Asked = {}): string =>
  encodeGenerateRequest({ tokens: promptOf(6), sampling: samplingOf(maxTokens), seed: 1, ...asked });

interface Opened {
  readonly status: number;
  readonly headers: IncomingMessage['headers'];
  readonly response: IncomingMessage;
  /** Cuts the connection. */
  destroy(): void;
}

/** Sends a request and resolves with the head of the answer, its body not yet read. */
function open(
  url: string,
  {
    body,
    headers = {},
    path = GENERATE_PATH,
    method = 'POST',
  }: {
    body: string;
    headers?: Record<string, string>;
    path?: string;
    method?: string;
  },
): Promise<Opened> {
  return new Promise((resolve, reject) => {
    const sent = httpRequest(url + path, { method, agent: false, headers }, (response) =>
      resolve({
        status: response.statusCode ?? 0,
        headers: response.headers,
        response,
        destroy: () => sent.destroy(),
      }),
    );
    sent.on('error', reject);
    sent.end(body);
  });
}

async function textOf(response: IncomingMessage): Promise<string> {
  let text = '';
  for await (const chunk of response) text += String(chunk);
  return text;
}

/** Everything that the answer says; `onEvents` sees each batch. */
async function eventsOf(response: IncomingMessage): Promise<GenerateWireEvent[]> {
  const reader = new EventReader();
  const events: GenerateWireEvent[] = [];
  // Chunks of a response without an encoding are buffers.
  for await (const chunk of response) events.push(...reader.push(chunk as Buffer));
  expect(reader.isBetweenEvents).toBe(true);
  return events;
}

async function firstEvents(response: IncomingMessage): Promise<void> {
  await new Promise<void>((resolve) => {
    response.once('data', () => resolve());
  });
}

const drawnIn = (events: readonly GenerateWireEvent[]): ReturnType<typeof decodeTokensEvent>[] =>
  events.flatMap((event) => (event.type === 'tokens' ? [decodeTokensEvent(event)] : []));

describe('POST /generate', () => {
  test('streams what the engine draws, an event a token, and ends with what to expect', async () => {
    const { policy, server, events } = await start();
    const asked = { tokens: promptOf(6), sampling: samplingOf(20), seed: 7 };
    const { status, headers, response } = await open(server.url, {
      body: encodeGenerateRequest({ ...asked, session: 's1' }),
      headers: { [REQUEST_ID_HEADER]: 'request-1' },
    });
    expect(status).toBe(200);
    expect(headers).toMatchObject({
      'content-type': 'text/event-stream',
      [REPLICA_HEADER]: 'r/b',
      'x-hone-version': '0',
    });
    const got = await eventsOf(response);
    const whole = await policy.generate(asked);
    const drawn = drawnIn(got);
    expect(drawn.length).toBe(20);
    expect(drawn.flatMap(({ ids }) => [...ids])).toEqual([...whole.tokens]);
    expect(drawn.flatMap(({ logprobs }) => [...logprobs])).toEqual([...whole.logprobs]);
    expect(drawn.flatMap(({ kept }) => (kept ?? []).flatMap((row) => [...row]))).toEqual([...whole.kept.ids]);
    expect(got.at(-1)).toEqual({
      type: 'end',
      finish: 'length',
      versionStart: 0,
      versionEnd: 0,
      tokens: 20,
      cachedTokens: 0,
    });
    expect(events()).toMatchObject([
      {
        event: 'generate-end',
        request: 'request-1',
        session: 's1',
        tokens: 20,
        versions: [{ version: 0, start: 0, end: 20 }],
        finish: 'length',
      },
    ]);
  });

  test.each([
    ['GET', GENERATE_PATH, 404],
    ['POST', '/status', 404],
    ['POST', '/generate/', 404],
    ['POST', '//generate', 404],
    ['POST', '/%67enerate', 404],
    ['GET', '/metrics', 404],
    ['POST', '/wake', 404],
  ])('is all that the data port has: %s %s is %d', async (method, path, expected) => {
    const { server } = await start();
    const { status, response } = await open(server.url, { body: method === 'GET' ? '' : bodyOf(), path, method });
    expect(status).toBe(expected);
    await textOf(response);
  });

  test('refuses in a sentence, and the connection and the replica go on', async () => {
    const { server } = await start();
    const ask = async (body: string, headers: Record<string, string> = {}): Promise<[number, string]> => {
      const { status, response } = await open(server.url, { body, headers });
      return [status, await textOf(response)];
    };
    expect(await ask('{')).toMatchObject([400, expect.stringContaining('not JSON')]);
    expect(await ask(bodyOf({ tokens: Int32Array.of(5000) }))).toMatchObject([400, expect.stringContaining('5000')]);
    expect(await ask(bodyOf({ tokens: new Int32Array(4096) }))).toMatchObject([
      400,
      expect.stringContaining('context-too-small'),
    ]);
    expect(await ask(bodyOf({ keptSets: 'store' }))).toMatchObject([400, expect.stringContaining('no store')]);
    expect(await ask(bodyOf(), { [REQUEST_ID_HEADER]: 'a b' })).toMatchObject([400, expect.stringContaining('a b')]);
    expect(await ask('x'.repeat(200_000))).toMatchObject([400, expect.stringContaining('more than')]);
    expect((await ask(bodyOf()))[0]).toBe(200);
  });

  test('wants the token of the fleet where there is one, and does not start on an open address without', async () => {
    const secret = 'a secret of the whole fleet';
    const { server } = await start({ token: new BearerToken(secret) });
    const status = async (authorization?: string): Promise<number> => {
      const headers = authorization === undefined ? {} : { authorization };
      const opened = await open(server.url, { body: bodyOf(), headers });
      opened.response.resume();
      return opened.status;
    };
    expect(await status()).toBe(401);
    expect(await status('Bearer another secret of 16')).toBe(401);
    expect(await status(`Bearer ${secret}`)).toBe(200);
    expect((await fetch(`${server.controlUrl}/status`)).status).toBe(401);
    expect((await fetch(`${server.controlUrl}/health`)).status).toBe(200);
    await expect(start({ host: '0.0.0.0' })).rejects.toThrow(/without a token/u);
  });

  test('a version that is not there yet is 409 with the served one, and wakes the replica; an older one does not', async () => {
    let wakes = 0;
    const { server } = await start({ wake: () => wakes++ }, { version: policyVersion(4) });
    const ask = async (asked: Asked): Promise<[number, unknown]> => {
      const { status, response } = await open(server.url, { body: bodyOf(asked) });
      return [status, JSON.parse(await textOf(response))];
    };
    expect(await ask({ minVersion: policyVersion(5) })).toMatchObject([
      409,
      { error: { type: 'WeightVersionNotReady', served: 4 } },
    ]);
    expect(wakes).toBe(1);
    expect(await ask({ exactVersion: policyVersion(3) })).toMatchObject([
      409,
      { error: { type: 'WeightVersionNotReady', served: 4, message: expect.stringContaining('never go back') } },
    ]);
    expect(wakes).toBe(1);
  });

  test('an id names one request at a time; more requests than may wait are told to come back', async () => {
    const { server } = await start({ maxWaiting: 1 }, { slots: 1 });
    const headers = { [REQUEST_ID_HEADER]: 'one' };
    const first = await open(server.url, { body: bodyOf({ maxTokens: 4000 }), headers });
    await firstEvents(first.response);
    const second = await open(server.url, { body: bodyOf(), headers });
    expect([second.status, await textOf(second.response)]).toMatchObject([
      409,
      expect.stringContaining('Request one is running'),
    ]);
    const waits = await open(server.url, { body: bodyOf({ maxTokens: 4000 }) });
    const third = await open(server.url, { body: bodyOf() });
    expect([third.status, third.headers['retry-after']]).toEqual([429, '1']);
    await textOf(third.response);
    first.destroy();
    waits.destroy();
    await expect.poll(() => server.load(), { timeout: 20_000 }).toEqual({ running: 0, waiting: 0 });
    const again = await open(server.url, { body: bodyOf(), headers });
    expect((await eventsOf(again.response)).at(-1)).toMatchObject({ type: 'end', tokens: 5 });
  });

  test('a client that goes away ends its request in the engine, running or waiting', async () => {
    const { policy, server, events } = await start({}, { slots: 1 });
    const running = await open(server.url, { body: bodyOf({ maxTokens: 4000 }) });
    await firstEvents(running.response);
    const waiting = await open(server.url, { body: bodyOf({ maxTokens: 4000, seed: 2 }) });
    waiting.destroy();
    running.destroy();
    await expect.poll(() => policy.stats(), { timeout: 20_000 }).toMatchObject({ running: 0, waiting: 0 });
    const { sampledTokens } = await policy.stats();
    expect(sampledTokens).toBeLessThan(4000);
    await expect
      .poll(() => events().filter(({ event }) => event === 'client-lost').length, { timeout: 20_000 })
      .toBe(2);
  });

  /** Replies of some 16 MB, more than the sockets between take. */
  const WIDE = { configJson: WIDE_CONFIG, served: smallWeights(1, WIDE_CONFIG), contextLength: 3100 };
  const wide = (seed: number): GenerateRequest => ({
    tokens: promptOf(6),
    sampling: samplingOf(3000, { topK: 4000 }),
    seed,
  });

  test('a slow reader gets every token in the end and holds up nobody', async () => {
    const { server, policy } = await start({}, WIDE);
    const slow = await open(server.url, { body: encodeGenerateRequest(wide(3)) });
    slow.response.pause();
    const quick = await open(server.url, { body: encodeGenerateRequest(wide(4)) });
    let tokens = 0;
    const reader = new EventReader();
    for await (const chunk of quick.response)
      for (const { ids } of drawnIn(reader.push(chunk as Buffer))) tokens += ids.length; // No encoding is set: a buffer.
    expect(tokens).toBe(3000);
    // The slow one's tokens are drawn as well, whoever reads them.
    await expect.poll(async () => (await policy.stats()).running, { timeout: 60_000 }).toBe(0);
    const events = await eventsOf(slow.response);
    const drawn = drawnIn(events);
    const whole = await policy.generate(wide(3));
    expect(drawn.flatMap(({ ids }) => [...ids])).toEqual([...whole.tokens]);
    const rows = drawn.flatMap(({ kept }) => kept ?? []);
    const { ids, offsets } = whole.kept;
    expect(
      rows.every((row, place) =>
        Buffer.from(row.buffer).equals(Buffer.from(ids.slice(offsets[place], offsets[place + 1]).buffer)),
      ),
    ).toBe(true);
    // Some steps went together, or it was never slow.
    expect(drawn.length).toBeLessThan(3000);
    expect(events.at(-1)).toMatchObject({ type: 'end', tokens: 3000 });
  });

  test.each([
    [{ maxPendingBytes: 20_000 }, /the reader is \d+ bytes behind/u],
    [{ stallMs: 50 }, /took nothing for 50 ms/u],
  ])('a reader that passes %j is given up, and its request ends', async (limits, reason) => {
    const { server, policy, events } = await start(limits, WIDE);
    const stuck = await open(server.url, { body: encodeGenerateRequest(wide(5)) });
    stuck.response.on('error', () => undefined);
    stuck.response.pause();
    const lost = (): unknown => events().find(({ event }) => event === 'client-lost')?.['reason'] ?? '';
    await expect.poll(lost, { timeout: 60_000 }).toMatch(reason);
    await expect.poll(() => server.load().running, { timeout: 60_000 }).toBe(0);
    expect((await policy.stats()).running).toBe(0);
    stuck.destroy();
  });

  test('kept sets go to the store when asked, and the last event names the object', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'hone-side-'));
    closers.push(() => rmSync(directory, { recursive: true, force: true }));
    const sideData = new SideDataStore(await FileStore.open(directory), { runId: 'run' });
    const { server, policy } = await start({ sideData: () => sideData });
    const asked = { tokens: promptOf(6), sampling: samplingOf(30), seed: 3 };
    const { response } = await open(server.url, { body: encodeGenerateRequest({ ...asked, keptSets: 'store' }) });
    const events = await eventsOf(response);
    for (const { kept } of drawnIn(events)) expect(kept).toBeUndefined();
    const end = events.at(-1);
    if (end?.type !== 'end' || end.keptObject === undefined) throw new Error('the reply names no object');
    const stored = await loadKeptSets(sideData, { key: end.keptObject, tokens: end.tokens });
    expect(stored).toEqual((await policy.generate(asked)).kept);
    await expect(loadKeptSets(sideData, { key: end.keptObject, tokens: 29 })).rejects.toThrow(/30 kept sets for 29/u);
  });

  test('a reply that crosses commits says which version drew each token, and its end says the last', async () => {
    const { server, policy } = await start();
    const { headers, response } = await open(server.url, { body: bodyOf({ maxTokens: 2000 }) });
    const reader = new EventReader();
    const events: GenerateWireEvent[] = [];
    let version = 0;
    for await (const chunk of response) {
      events.push(...reader.push(chunk as Buffer)); // No encoding is set: a buffer.
      const newest = drawnIn(events.slice(-1))[0]?.version;
      if (newest === version && version < 3) {
        for (const [name, bytes] of smallWeights(version + 2)) await policy.stage(name, bytes);
        await policy.commit(policyVersion(++version));
      }
    }
    expect(headers['x-hone-version']).toBe('0');
    const versions = drawnIn(events).flatMap(({ ids, version: drawn }) => Array.from(ids, () => drawn as number));
    expect(versions.length).toBe(2000);
    expect(versions).toEqual(versions.toSorted((left, right) => left - right));
    expect(new Set(versions)).toEqual(new Set([0, 1, 2, 3]));
    expect(events.at(-1)).toMatchObject({ type: 'end', versionStart: 0, versionEnd: 3 });
  });
});

describe('the gate', () => {
  test('is closed until the first catch-up, with the reason; so is /health', async () => {
    let reason: string | undefined = 'the store does not answer';
    const policy = await startSmallPolicy();
    closers.push(() => policy.close());
    const log = new ServiceLog({ path: undefined, service: 'replica', id: 'r', wallMs: () => 0 });
    const server = await startReplicaServer({
      served: () => ({ model: '0'.repeat(16), weights: { version: 0, imageChecksum: '0'.repeat(32) } }),
      policy,
      id: 'r',
      bootId: 'b',
      cluster: 'c',
      slots: 1,
      log,
      now: () => 0,
      newRequestId: () => 'x',
      startingReason: () => reason,
    });
    closers.push(() => server.close({ drainMs: 0 }));
    const health = await fetch(`${server.controlUrl}/health`);
    expect([health.status, await health.json()]).toMatchObject([
      503,
      { reason: expect.stringContaining('the store does not answer') },
    ]);
    const refused = await open(server.url, { body: bodyOf() });
    expect([refused.status, refused.headers['retry-after']]).toEqual([503, '1']);
    await textOf(refused.response);
    expect(await (await fetch(`${server.controlUrl}/status`)).json()).toMatchObject({
      state: 'starting',
      ready: false,
    });
    reason = undefined;
    server.serve();
    expect((await fetch(`${server.controlUrl}/health`)).status).toBe(200);
    expect((await (await fetch(`${server.controlUrl}/metrics`)).text()).split('\n')).toContain(
      'hone_replica_ready_state 1',
    );
  });

  test('closes before the end: what runs is finished, what comes is refused', async () => {
    const { server } = await start();
    const running = await open(server.url, { body: bodyOf({ maxTokens: 500 }) });
    await firstEvents(running.response);
    const rest = eventsOf(running.response);
    const closing = server.close({ drainMs: 60_000 });
    const refused = await open(server.url, { body: bodyOf() });
    expect(refused.status).toBe(503);
    expect(await textOf(refused.response)).toContain('closing');
    expect((await rest).at(-1)).toMatchObject({ type: 'end', tokens: 500 });
    await closing;
    await expect(open(server.url, { body: bodyOf() })).rejects.toThrow();
  });

  test('at the deadline cuts what is left, so that no reply looks whole', async () => {
    const { server } = await start();
    const running = await open(server.url, { body: bodyOf({ maxTokens: 4000 }) });
    running.response.pause();
    const chunks: Buffer[] = [];
    running.response.on('data', (chunk: Buffer) => chunks.push(chunk));
    const cut = new Promise<void>((resolve) => {
      running.response.on('error', () => resolve());
      running.response.on('close', () => resolve());
    });
    await server.close({ drainMs: 1 });
    running.response.resume();
    await cut;
    expect(Buffer.concat(chunks).toString()).not.toContain('"type":"end"');
  });

  test('closes for good when the engine breaks, and running replies end with the cause', async () => {
    const { server, policy } = await start();
    const running = await open(server.url, { body: bodyOf({ maxTokens: 4000 }) });
    await firstEvents(running.response);
    const rest = eventsOf(running.response);
    const broken = smallWeights(1);
    for (const bytes of broken.values()) new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2).fill(0x7fc0);
    for (const [name, bytes] of broken) await policy.stage(name, bytes);
    await policy.commit(policyVersion(1)).catch(() => undefined);
    expect((await rest).at(-1)).toMatchObject({ type: 'error', code: 'engine-failed' });
    const refused = await open(server.url, { body: bodyOf() });
    expect([refused.status, await textOf(refused.response)]).toMatchObject([
      503,
      expect.stringContaining('not finite'),
    ]);
    expect((await fetch(`${server.controlUrl}/health`)).status).toBe(503);
  });
});

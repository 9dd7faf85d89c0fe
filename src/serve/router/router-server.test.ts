import { once } from 'node:events';
import { connect } from 'node:net';

import { describe, expect, test } from 'vitest';

import { checkSegment } from '../../domain/rollout.ts';
import { openChatTemplate } from '../../model/chat-template.ts';
import { CHATML, byteTokenizerFiles } from '../../model/tokenizer.fixture.ts';
import { openTokenizer } from '../../model/tokenizer.ts';
import { encodeGenerateRequest } from '../wire/generate-request.ts';
import { decodedOf, requestOf, startFleet, until } from './router.fixture.ts';
import { readSealedSession } from './sealed-session-code.ts';

const TOKEN = 'a-token-of-the-whole-fleet';
const files = byteTokenizerFiles();
const tokenizer = openTokenizer(files.json, files.config);
const model = { name: 'bytes', tokenizer, template: openChatTemplate(CHATML, { bos: '', eos: '<|im_end|>' }) };

interface Sent {
  readonly status: number;
  readonly text: string;
  readonly headers: Headers;
}

async function send(url: string, method: string, body?: unknown, token?: string): Promise<Sent> {
  const answer = await fetch(url, {
    method,
    headers: token === undefined ? {} : { authorization: `Bearer ${token}` },
    ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
  });
  return { status: answer.status, text: await answer.text(), headers: answer.headers };
}

const generate = (number: number, more: Parameters<typeof requestOf>[1] = {}): string =>
  encodeGenerateRequest(requestOf(number, more));

/** A request as it is written, for what no client library would send. */
async function raw(url: string, text: string): Promise<string> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  socket.on('error', () => undefined);
  socket.write(text);
  let answer = '';
  socket.on('data', (bytes) => (answer += String(bytes)));
  await once(socket, 'close');
  return answer;
}

async function stateOf(controlUrl: string, id: string): Promise<string | undefined> {
  const { text } = await send(`${controlUrl}/status`, 'GET');
  const { replicas } = JSON.parse(text) as { replicas: { id: string; state: string }[] };
  return replicas.find((replica) => replica.id === id)?.state;
}

describe('the data port', () => {
  test('has no control route in any spelling', async () => {
    await using fleet = await startFleet({ replicas: [{ id: 'a' }], token: TOKEN, model });
    const { url, controlUrl } = fleet.router;
    const paths = [
      '/replicas',
      '/replicas/a',
      '/sessions',
      '/sessions/s/seal',
      '/wake',
      '/status',
      '/metrics',
      '/health',
    ];
    const host = new URL(url).host;
    const answers = await Promise.all(
      paths.flatMap((path) =>
        [
          path,
          `/${path}`,
          `${path}/`,
          `/generate/..${path}`,
          `/generate%2f..${path}`,
          `${path.replace('s', '%73')}`,
          `${controlUrl}${path}`,
          `http://${host}${path}`,
          `/generate?${path}`,
          `/sessions/x/v1/models/../../../..${path}`,
        ].flatMap((target) =>
          ['GET', 'POST', 'DELETE'].map((method) =>
            raw(
              url,
              `${method} ${target} HTTP/1.1\r\nhost: ${host}\r\nauthorization: Bearer ${TOKEN}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n`,
            ),
          ),
        ),
      ),
    );
    for (const answer of answers) expect(answer).toMatch(/^HTTP\/1.1 404 /);
    expect(fleet.replicas[0]?.wakes).toBe(0);
    const head = `host: ${host}\r\nauthorization: Bearer ${TOKEN}\r\n`;
    expect(await raw(url, `CONNECT ${new URL(controlUrl).host} HTTP/1.1\r\n${head}\r\n`)).toMatch(/^HTTP\/1.1 404 /);
    const upgrade = `GET /status HTTP/1.1\r\n${head}connection: upgrade\r\nupgrade: websocket\r\n\r\n`;
    expect(await raw(url, upgrade.replace('upgrade\r\n', 'close, upgrade\r\n'))).toMatch(/^HTTP\/1.1 404 /);
  });

  test('asks for a token: the fleet’s for all, a session’s for its own requests, until it ends', async () => {
    await using fleet = await startFleet({ replicas: [{ id: 'a' }], token: TOKEN });
    const { url, controlUrl } = fleet.router;
    const opened = await send(`${controlUrl}/sessions`, 'POST', { id: 's1' }, TOKEN);
    expect(opened.status).toBe(201);
    const { secret } = JSON.parse(opened.text) as { secret: string };
    const ask = async (session: string | undefined, token?: string): Promise<number> =>
      (await send(`${url}/generate`, 'POST', generate(1, session === undefined ? {} : { session }), token)).status;
    expect(await ask('s1')).toBe(401);
    expect(await ask('s1', 'wrong')).toBe(401);
    expect(await ask('s1', secret)).toBe(200);
    expect(await ask('s2', secret)).toBe(401);
    expect(await ask(undefined, secret)).toBe(401);
    expect(await ask('s2', TOKEN)).toBe(200);
    expect((await send(`${controlUrl}/status`, 'GET', undefined, secret)).status).toBe(401);
    expect((await send(`${controlUrl}/sessions`, 'POST', { id: 's1' }, TOKEN)).status).toBe(400);
    expect((await send(`${controlUrl}/sessions/s1`, 'DELETE', undefined, TOKEN)).status).toBe(200);
    expect(await ask('s1', secret)).toBe(401);
    expect(fleet.replicas[0]?.requests.every(({ authorization }) => authorization === `Bearer ${TOKEN}`)).toBe(true);
  });

  test('refuses what is no request in one sentence', async () => {
    await using fleet = await startFleet({ replicas: [{ id: 'a' }] });
    const answer = await send(`${fleet.router.url}/generate`, 'POST', { tokens: '!' });
    expect(answer.status).toBe(400);
    expect(JSON.parse(answer.text)).toMatchObject({ error: { type: 'invalid-config' } });
    expect(fleet.replicas[0]?.requests).toHaveLength(0);
  });
});

describe('the relay', () => {
  test('passes bytes on as they are, event by event', async () => {
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    await using fleet = await startFleet({
      replicas: [{ id: 'a', beforeEvent: (token) => (token === 2 ? held : undefined) }],
    });
    const answer = await fetch(`${fleet.router.url}/generate`, { method: 'POST', body: generate(1, { maxTokens: 4 }) });
    expect(answer.headers.get('x-hone-replica')).toBe('a/boot-1');
    let text = '';
    const decoder = new TextDecoder();
    for await (const bytes of answer.body ?? []) {
      text += decoder.decode(bytes, { stream: true });
      // Two events came while the third is still held back.
      if (text.split('\n\n').length > 2) release();
    }
    const direct = await send(`${fleet.replicas[0]?.url}/generate`, 'POST', generate(1, { maxTokens: 4 }));
    expect(text).toBe(direct.text);
  });

  test('replaces one that fails before its first byte, within bounds; answers 503 when none is left', async () => {
    await using fleet = await startFleet({ replicas: [{ id: 'a' }, { id: 'b' }, { id: 'c' }] });
    const [a, b, c] = fleet.replicas;
    a?.faults.push({ kind: 'die', atToken: 0 });
    b?.faults.push({ kind: 'refuse', status: 503, type: 'closing' });
    await c?.kill();
    const answer = await send(`${fleet.router.url}/generate`, 'POST', generate(1));
    const again = await send(`${fleet.router.url}/generate`, 'POST', generate(1));
    expect([answer.status, again.status].filter((status) => status === 200).length).toBeGreaterThan(0);
    expect((await send(`${fleet.router.controlUrl}/metrics`, 'GET')).text).toMatch(
      /hone_router_retries_total\{.*\} \d/,
    );
    await a?.kill();
    await b?.kill();
    const none = await send(`${fleet.router.url}/generate`, 'POST', generate(1));
    expect([none.status, none.headers.get('retry-after')]).toEqual([503, '1']);
  });

  test('one that refuses what others take is avoided, and its status says why; for good is what all of them say', async () => {
    await using fleet = await startFleet({ replicas: [{ id: 'a' }, { id: 'b' }] });
    const [a, b] = fleet.replicas;
    const ask = (number: number): Promise<Sent> => send(`${fleet.router.url}/generate`, 'POST', generate(number));
    const breakers = async (): Promise<[string, string, string | undefined][]> => {
      const { text } = await send(`${fleet.router.controlUrl}/status`, 'GET');
      const page = JSON.parse(text) as { replicas: { id: string; breaker: string; breakerReason?: string }[] };
      return page.replicas.map(({ id, breaker, breakerReason }) => [id, breaker, breakerReason]);
    };
    for (const [status, type, reason] of [
      [401, 'unauthorized', 'token'],
      [400, 'invalid-config', 'refuses what others take'],
    ] as const) {
      const refused = { kind: 'refuse', status, type } as const;
      for (const replica of [a, b]) replica?.faults.splice(0);
      a?.faults.push(...Array.from({ length: 10_000 }, () => refused));
      // Whoever is asked first: the answer is that of the one that works.
      for (let number = 0; number < 8; number++) expect((await ask(number)).status).toBe(200);
      const [first] = await breakers();
      expect([first?.[0], first?.[1] === 'closed', first?.[2]]).toEqual(['a', false, expect.stringContaining(reason)]);
      b?.faults.push(...Array.from({ length: 10_000 }, () => refused));
      await until(async () => (await ask(1)).status === status);
      for (const replica of [a, b]) replica?.faults.splice(0);
      await until(async () => {
        await ask(1);
        return (await breakers()).every(([, state, why]) => state === 'closed' && why === undefined);
      });
    }
  });

  test('a client that goes away stops what samples, at once', async () => {
    const never = new Promise<void>(() => undefined);
    await using fleet = await startFleet({
      replicas: [{ id: 'a', beforeEvent: (token) => (token === 3 ? never : undefined) }],
    });
    const gone = new AbortController();
    const answer = await fetch(`${fleet.router.url}/generate`, {
      method: 'POST',
      body: generate(1),
      signal: gone.signal,
    });
    await answer.body?.getReader().read();
    gone.abort();
    await until(() => fleet.replicas[0]?.requests[0]?.isGone === true && fleet.replicas[0].running === 0);
  });

  test('a slow reader slows its replica down, and nobody else', async () => {
    await using fleet = await startFleet({ replicas: [{ id: 'a', contextLength: 1_000_000, tokensPerEvent: 500 }] });
    const [a] = fleet.replicas;
    const { hostname, port } = new URL(fleet.router.url);
    const socket = connect(Number(port), hostname);
    const body = generate(1, { maxTokens: 900_000 });
    socket.pause();
    socket.write(`POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: ${body.length}\r\n\r\n${body}`);
    let seen = -1;
    let still = 0;
    await until(() => {
      const sent = a?.sentBytes ?? 0;
      still = a?.heldBack === 1 && sent === seen ? still + 1 : 0;
      seen = sent;
      return still > 20;
    });
    expect((await send(`${fleet.router.url}/generate`, 'POST', generate(2))).status).toBe(200);
    // The whole reply has over twenty megabytes; what is under way is what sockets hold.
    expect(a?.running).toBe(1);
    expect(seen).toBeLessThan(15e6);
    socket.destroy();
    await until(() => a?.running === 0);
  });

  test('a reader that takes nothing any more is cut off, and what was sampled for it stops', async () => {
    await using fleet = await startFleet({
      replicas: [{ id: 'a', contextLength: 1_000_000, tokensPerEvent: 500 }],
      readerTimeoutMs: 300,
    });
    const [a] = fleet.replicas;
    const { hostname, port } = new URL(fleet.router.url);
    const socket = connect(Number(port), hostname);
    const body = generate(1, { maxTokens: 900_000 });
    socket.pause();
    socket.write(`POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: ${body.length}\r\n\r\n${body}`);
    await until(() => a?.heldBack === 1);
    await until(() => a?.requests[0]?.isGone === true && a.running === 0);
    socket.destroy();
    expect((await send(`${fleet.router.url}/generate`, 'POST', generate(2))).status).toBe(200);
  });

  test('409 where nobody serves the version, others where one does; full ones answer 429', async () => {
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    await using fleet = await startFleet({
      replicas: [
        { id: 'a', version: 3, slots: 1 },
        { id: 'b', version: 5, slots: 1, beforeEvent: () => held },
      ],
      mostWaiting: 0,
    });
    const ask = (more: object): Promise<Sent> => send(`${fleet.router.url}/generate`, 'POST', generate(1, more));
    const missing = await ask({ minVersion: 9 });
    expect(missing.status).toBe(409);
    expect(JSON.parse(missing.text)).toMatchObject({ error: { type: 'WeightVersionNotReady', served: 5 } });
    await until(() => fleet.replicas.every(({ wakes }) => wakes > 0));
    const running = ask({ minVersion: 4 });
    await until(() => fleet.replicas[1]?.running === 1);
    expect((await ask({ minVersion: 4 })).status).toBe(429);
    expect((await ask({ exactVersion: 3 })).status).toBe(200);
    release();
    expect((await running).status).toBe(200);
  });

  test('turns of a session meet the replica that has their prefix', async () => {
    await using fleet = await startFleet({ replicas: [{ id: 'a' }, { id: 'b' }, { id: 'c' }] });
    for (let turn = 0; turn < 6; turn++)
      await send(`${fleet.router.url}/generate`, 'POST', generate(turn, { session: 's1' }));
    expect(fleet.replicas.map(({ requests }) => requests.length).toSorted()).toEqual([0, 0, 6]);
  });
});

describe('health', () => {
  const probe = { everyMs: 20, timeoutMs: 60 };

  test('one that hangs is found by probes and left out, its streams are given up', async () => {
    const never = new Promise<void>(() => undefined);
    await using fleet = await startFleet({
      replicas: [{ id: 'a', beforeEvent: (token) => (token === 3 ? never : undefined) }],
      probe,
    });
    const [a] = fleet.replicas;
    const reply = send(`${fleet.router.url}/generate`, 'POST', generate(1)).catch(() => 'cut');
    await until(() => a?.running === 1);
    if (a !== undefined) a.health = 'hang';
    await until(async () => (await stateOf(fleet.router.controlUrl, 'a')) === 'DEAD');
    expect(await reply).toBe('cut');
    expect((await send(`${fleet.router.controlUrl}/health`, 'GET')).status).toBe(503);
  });

  test('one that was dead takes no request before it has the weights that the fleet has', async () => {
    await using fleet = await startFleet({
      replicas: [
        { id: 'a', version: 4 },
        { id: 'b', version: 4 },
      ],
      probe,
    });
    const [a, b] = fleet.replicas;
    if (a === undefined || b === undefined) throw new Error('no replicas');
    a.bootId = 'boot-2';
    a.version = 0;
    const register = (): Promise<Sent> => send(`${fleet.router.controlUrl}/replicas`, 'POST', a.describe());
    await register();
    expect(await stateOf(fleet.router.controlUrl, 'a')).toBe('STALE');
    for (let index = 0; index < 8; index++) await send(`${fleet.router.url}/generate`, 'POST', generate(index));
    expect(a.requests).toHaveLength(0);
    a.version = 4;
    await register();
    expect(await stateOf(fleet.router.controlUrl, 'a')).toBe('HEALTHY');
    a.version = 3;
    await register();
    expect(await stateOf(fleet.router.controlUrl, 'a')).toBe('STALE');
  });

  test('one that was restarted too often is left out; its status says why, and how it is freed', async () => {
    await using fleet = await startFleet({ replicas: [{ id: 'a', version: 4 }] });
    const [a] = fleet.replicas;
    if (a === undefined) throw new Error('no replica');
    const { controlUrl } = fleet.router;
    const register = (): Promise<Sent> => send(`${controlUrl}/replicas`, 'POST', a.describe());
    for (let boot = 2; boot <= 7; boot++) {
      a.bootId = `boot-${boot}`;
      await register();
    }
    const status = JSON.parse((await send(`${controlUrl}/status`, 'GET')).text) as { replicas: object[] };
    expect(status.replicas).toMatchObject([
      { state: 'RETIRED', restarts: 6, restartsBorne: 5, reason: expect.stringContaining('DELETE /replicas/<id>') },
    ]);
    expect((await send(`${controlUrl}/replicas/a`, 'DELETE')).status).toBe(200);
    await register();
    expect(await stateOf(controlUrl, 'a')).toBe('HEALTHY');
  });

  test('a lease ends by the monotone clock, a goodbye at once; a wrong description is refused with its field', async () => {
    let nowMs = 0;
    await using fleet = await startFleet({
      replicas: [{ id: 'a' }, { id: 'b' }],
      probe,
      leaseMs: 1e6,
      now: () => nowMs,
    });
    const { controlUrl } = fleet.router;
    const bad = await send(`${controlUrl}/replicas`, 'POST', { ...fleet.replicas[0]?.describe(), slots: 0 });
    expect(bad.status).toBe(400);
    expect(bad.text).toContain('slots is 0');
    await fleet.replicas[1]?.close();
    expect(await stateOf(controlUrl, 'b')).toBe('DEAD');
    // In steps: a router that stood still for longer than a lease counts that time against nobody.
    const { probes = 0 } = fleet.replicas[0] ?? {};
    nowMs = 2e6;
    await until(() => (fleet.replicas[0]?.probes ?? 0) > probes + 2);
    expect(await stateOf(controlUrl, 'a')).toBe('HEALTHY');
    await until(async () => {
      nowMs += 1e5;
      return (await stateOf(controlUrl, 'a')) === 'DEAD';
    });
    expect(nowMs).toBeGreaterThanOrEqual(3e6);
  });
});

test('a hosted recorder: agents chat with their own secret, and what is sealed is what was drawn', async () => {
  await using fleet = await startFleet({ replicas: [{ id: 'a', vocabSize: 200 }], token: TOKEN, model });
  const { controlUrl, url } = fleet.router;
  const record = { sampling: { maxTokens: 12, stopIds: [] }, seed: 5 };
  const opened = await send(`${controlUrl}/sessions`, 'POST', { id: 'r1', record }, TOKEN);
  const { secret, baseUrl } = JSON.parse(opened.text) as { secret: string; baseUrl: string };
  const chat = { model: 'x', messages: [{ role: 'user', content: 'hello' }] };
  expect((await send(`${baseUrl}/chat/completions`, 'POST', chat, 'wrong')).status).toBe(401);
  expect((await send(`${url}/generate`, 'POST', generate(1, { session: 'r1' }), secret)).status).toBe(401);
  fleet.replicas[0]?.faults.push({ kind: 'die', atToken: 4 });
  const answer = await send(`${baseUrl}/chat/completions`, 'POST', chat, secret);
  expect(answer.status).toBe(200);
  const sealed = await send(`${controlUrl}/sessions/r1/seal`, 'POST', undefined, TOKEN);
  const { segments, cost } = readSealedSession(sealed.text);
  expect(cost.sampledTokens).toBe(12);
  const [segment] = segments;
  if (segment === undefined) throw new Error('no segment');
  checkSegment(segment);
  const first = fleet.replicas[0]?.requests[0]?.request;
  const { sampling, seed = 0, tokens = new Int32Array() } = first ?? {};
  if (sampling === undefined) throw new Error('no request');
  const expected = fleet.replicas[0]?.expected(decodedOf({ tokens, sampling, seed }));
  expect(segment.tokens.slice(-12)).toEqual(expected?.tokens);
  expect(segment.logprobs.slice(-12)).toEqual(expected?.logprobs);
  expect((await send(`${baseUrl}/chat/completions`, 'POST', chat, secret)).status).toBe(409);
});

test('a router that others can reach does not start without a token', async () => {
  await expect(startFleet({ replicas: [], host: '0.0.0.0' })).rejects.toMatchObject({ code: 'invalid-config' });
});

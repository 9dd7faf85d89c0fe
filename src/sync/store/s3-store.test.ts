import { execFile } from 'node:child_process';
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempDisposable, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { createRandom } from '../../domain/ids.ts';
import { startFaultyRelay, type FaultyRelay, type Faults } from './faulty-relay.fixture.ts';
import { missingRadosgw, startRadosgw, type Radosgw } from './radosgw.fixture.ts';
import { DEFAULT_RETRY_POLICY, sleepFor, type RetryPolicy } from './retry.ts';
import { S3Connection } from './s3-connection.ts';
import { judgeS3Error } from './s3-errors.ts';
import { parseS3Location } from './s3-location.ts';
import { S3Store, type S3StoreOptions } from './s3-store.ts';
import { abortAbandonedUploads } from './s3-upload.ts';
import { describeWeightStore } from './store-conformance.ts';
import { bodyOf, readWhole } from './weight-store.ts';

const missing = missingRadosgw();
if (missing !== undefined) process.stderr.write(`Tests of the S3 store are skipped: ${missing}.\n`);

const PART_BYTES = 5 << 20;

describe.skipIf(missing !== undefined)('over a real S3 server', () => {
  let server: Radosgw;
  beforeAll(async () => {
    server = await startRadosgw({ publicBuckets: ['everyone'] });
  });
  afterAll(() => server.stop());

  const openStore = (location = server.location(randomUUID()), options: Partial<S3StoreOptions> = {}): S3Store =>
    new S3Store(parseS3Location(location, {}), {
      environment: server.environment,
      parts: { partBytes: PART_BYTES, partsInFlight: 3 },
      pageSize: 3,
      ...options,
    });

  describeWeightStore(
    'an S3 bucket',
    async () => {
      const location = server.location(`run-${randomUUID()}`);
      const store = openStore(location);
      const other = openStore(location);
      return {
        store,
        other,
        [Symbol.asyncDispose]: async () => {
          for (const { key } of await store.list('')) await store.remove(key);
          for (const one of [store, other]) one[Symbol.dispose]();
        },
      };
    },
    { describe, expect, it },
  );

  /** A store whose waits take no time, behind a relay with faults; what it waited for is written down. */
  const openFaulty = async (
    faults: Faults,
    {
      retry,
      location = server.location(randomUUID()),
      seed = 1,
    }: { retry?: Partial<RetryPolicy>; location?: string; seed?: number } = {},
  ): Promise<{ store: S3Store; relay: FaultyRelay; waits: number[]; direct: S3Store } & AsyncDisposable> => {
    const relay = await startFaultyRelay({ target: server.endpoint, random: createRandom(seed), faults });
    const url = new URL(location);
    url.searchParams.set('endpoint', relay.endpoint);
    const waits: number[] = [];
    const store = openStore(url.href, {
      ...(retry === undefined ? {} : { retry }),
      clockwork: {
        random: createRandom(2),
        sleep: async (durationMs, signal) => {
          waits.push(durationMs);
          await sleepFor(0, signal);
        },
      },
    });
    const direct = openStore(location);
    return {
      store,
      relay,
      waits,
      direct,
      [Symbol.asyncDispose]: async () => {
        store[Symbol.dispose]();
        direct[Symbol.dispose]();
        await relay.close();
      },
    };
  };

  it('does what it promises through a storm of failures', async () => {
    await using opened = await openFaulty(
      {
        slowDown: 0.1,
        retryAfterSeconds: 1,
        reset: 0.08,
        lostAnswer: 0.08,
        truncatedBody: 0.2,
        slowBody: 0.3,
        stallMs: 5,
      },
      { retry: { attempts: 30, totalTimeoutMs: Infinity } },
    );
    const { store, relay, direct, waits } = opened;
    await store.probeConditionalWrites();
    const large = randomBytes(3 * PART_BYTES + 5);
    for (let round = 0; round < 6; round++) {
      expect(await store.putObject(`run/${round}`, bodyOf(randomBytes(1000 + round)))).toBe('created');
      const next = String(round + 1);
      expect(await store.compareAndSwapPointer('latest', (await store.readPointer('latest'))?.tag, next)).toBe(
        'swapped',
      );
    }
    expect(await store.putObject('run/large', bodyOf(large))).toBe('created');
    expect(await store.putObject('run/large', bodyOf(large))).toBe('identical');
    expect(await store.putObject('run/large', bodyOf(randomBytes(large.byteLength)))).toBe('different');
    for (let round = 0; round < 8; round++)
      expect(Buffer.compare((await readWhole(store, 'run/large')) ?? Buffer.alloc(0), large)).toBe(0);
    expect((await store.list('run/')).map(({ key }) => key)).toEqual(
      [0, 1, 2, 3, 4, 5, 'large'].map((name) => `run/${name}`),
    );
    expect((await direct.readPointer('latest'))?.value).toBe('6');
    for (const kind of ['slow-down', 'reset', 'lost-answer', 'truncated-body', 'slow-body'] as const)
      expect(relay.injected[kind], kind).toBeGreaterThan(0);
    expect(waits.some((waitMs) => waitMs >= 1000)).toBe(true);
  });

  it('waits with growing, drawn and bounded patience, then says that the store is unavailable', async () => {
    await using opened = await openFaulty({ slowDown: 1 }, { retry: { attempts: 6, baseMs: 100, capMs: 500 } });
    const { store, relay, waits } = opened;
    await expect(store.readPointer('latest')).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(
        /^Could not read pointer latest at s3:\/\/weights\/.*: the server answers 503 SlowDown \(6 tries/,
      ),
      cure: expect.stringContaining(relay.endpoint),
    });
    expect(relay.requests).toBe(6);
    expect(waits).toHaveLength(5);
    expect(new Set(waits).size).toBe(5);
    for (const [index, waitMs] of waits.entries()) expect(waitMs).toBeLessThan(Math.min(500, 100 * 2 ** index));
    waits.length = 0;
    relay.setFaults({ slowDown: 1, retryAfterSeconds: 7 });
    await expect(store.statObject('run/a')).rejects.toMatchObject({ code: 'store-unavailable' });
    expect(waits.every((waitMs) => waitMs === 7000)).toBe(true);
    const before = relay.requests;
    relay.setFaults({ slowDown: 1, retryAfterSeconds: 10_000 });
    await expect(store.list('')).rejects.toMatchObject({ code: 'store-unavailable' });
    expect(relay.requests).toBe(before + 1);
  });

  it('goes on with its tries when the clock is set forward by a day in between', async () => {
    await using relay = await startFaultyRelay({
      target: server.endpoint,
      random: createRandom(1),
      faults: { slowDown: 1 },
    });
    const url = new URL(server.location(randomUUID()));
    url.searchParams.set('endpoint', relay.endpoint);
    let tries = 0;
    const store = openStore(url.href, {
      retry: { attempts: 3, baseMs: 1 },
      clockwork: { now: () => Date.now() + 86_400_000 * tries++, random: createRandom(2) },
    });
    await expect(store.readPointer('latest')).rejects.toThrow(/503 SlowDown \(3 tries in 0\.\d s\)/u);
    store[Symbol.dispose]();
  });

  it("knows a swap whose answer was lost for its own, and others' for theirs", async () => {
    await using opened = await openFaulty({});
    const { store, relay, direct } = opened;
    for (let round = 0; round < 4; round++) {
      const isOthers = round === 2;
      relay.setFaults({});
      const tag = (await direct.readPointer('latest'))?.tag;
      if (isOthers) await direct.compareAndSwapPointer('latest', tag, 'theirs');
      relay.setFaults({ lostAnswer: 1 });
      const swap = store.compareAndSwapPointer('latest', tag, `ours ${round}`);
      const lost = relay.injected['lost-answer'];
      while (relay.injected['lost-answer'] === lost) await sleepFor(1, undefined);
      relay.setFaults({});
      expect(await swap).toBe(isOthers ? 'conflict' : 'swapped');
      expect((await direct.readPointer('latest'))?.value).toBe(isOthers ? 'theirs' : `ours ${round}`);
    }
  });

  it('goes on where a stream broke off or stands still', async () => {
    await using opened = await openFaulty({}, { retry: { attempts: 40, attemptTimeoutMs: 400 } });
    const { store, relay, direct } = opened;
    const bytes = randomBytes(4 << 20);
    await direct.putObject('run/a', bodyOf(bytes));
    relay.setFaults({ truncatedBody: 0.7 });
    for (let round = 0; round < 5; round++)
      expect(Buffer.compare((await readWhole(store, 'run/a')) ?? Buffer.alloc(0), bytes)).toBe(0);
    expect(relay.injected['truncated-body']).toBeGreaterThan(2);
    relay.setFaults({ slowBody: 0.5, stallMs: 60_000 });
    const range = { start: 1_000_001, end: 3_000_003 };
    for (let round = 0; round < 3; round++)
      expect(
        Buffer.compare(
          (await readWhole(store, 'run/a', { range })) ?? Buffer.alloc(0),
          bytes.subarray(range.start, range.end),
        ),
      ).toBe(0);
    expect(relay.injected['slow-body']).toBeGreaterThan(0);
  });

  it('gives up on a stream that breaks again and again, and never goes on with another object', async () => {
    await using opened = await openFaulty({}, { retry: { attempts: 3 } });
    const { store, relay, direct } = opened;
    await direct.putObject('run/a', bodyOf(randomBytes(100_000)));
    relay.setFaults({ truncatedBody: 1 });
    const endless = await store.readObject('run/a');
    await expect(readAll(endless)).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/^Could not read run\/a .*3 tries/),
    });
    for (const what of ['replaced', 'removed'] as const) {
      relay.setFaults({ truncatedBody: 1 });
      const broken = await store.readObject('run/a');
      relay.setFaults({});
      await direct.remove('run/a');
      if (what === 'replaced') await direct.putObject('run/a', bodyOf(randomBytes(100_000)));
      await expect(readAll(broken)).rejects.toMatchObject({
        code: 'store-failed',
        message: expect.stringContaining(`run/a was ${what} while it was read`),
      });
    }
  });

  it('finds out a server that ignores conditions', async () => {
    await using opened = await openFaulty(
      { ignoredCondition: 1 },
      { location: server.location(randomUUID()).replace('weights', 'everyone') },
    );
    await expect(opened.store.probeConditionalWrites()).rejects.toMatchObject({
      code: 'store-failed',
      message: expect.stringMatching(/does not keep the conditions of writes: it let 8 of 8 writers create/),
      cure: expect.stringContaining('If-None-Match'),
    });
    expect(opened.relay.injected['ignored-condition']).toBe(8);
  });

  it('names both clocks when they are too far apart', async () => {
    await using opened = await openFaulty({ clockSkew: 1, skewMs: 7_200_000 });
    const hour = new Date(Date.now() + 7_200_000).toISOString().slice(0, 13);
    await expect(opened.store.readPointer('latest')).rejects.toMatchObject({
      code: 'store-denied',
      message: expect.stringMatching(new RegExp(`this machine says \\S+, the store's ${hour}`)),
    });
    expect(opened.relay.requests).toBe(1);
  });

  it('says what is wrong with bucket and credentials, and never the secret', async () => {
    const bad = { AWS_ACCESS_KEY_ID: server.accessKeyId, AWS_SECRET_ACCESS_KEY: 'not-the-secret-0123456789' };
    using refused = openStore(undefined, { environment: bad });
    const error: unknown = await refused.readPointer('latest').catch((failure: unknown) => failure);
    expect(error).toMatchObject({ code: 'store-denied', message: expect.stringContaining('SignatureDoesNotMatch') });
    expect(String(error)).not.toContain('not-the-secret');
    using nobody = openStore(undefined, { environment: { ...bad, AWS_ACCESS_KEY_ID: 'NOBODY' } });
    await expect(nobody.list('')).rejects.toMatchObject({ code: 'store-denied' });
    using elsewhere = openStore(server.location('run').replace('weights', 'no-such-bucket'));
    for (const call of [
      () => elsewhere.readPointer('latest'),
      () => elsewhere.list(''),
      () => elsewhere.statObject('run/a'),
      () => elsewhere.putObject('run/a', bodyOf(Buffer.from('x'))),
    ])
      await expect(call(), call.toString()).rejects.toMatchObject({
        code: 'store-failed',
        message: expect.stringContaining('there is no bucket no-such-bucket at http://'),
      });
  });

  it('frees a key whose writer died between claim and object for the same bytes, and by removal for all', async () => {
    using store = openStore();
    const bytes = randomBytes(PART_BYTES + 1);
    const death = new AbortController();
    await expect(
      store.putObject(
        'run/a',
        {
          sizeBytes: bytes.byteLength,
          chunks: (() => {
            let calls = 0;
            return function* () {
              calls += 1;
              // The first pass takes the checksum; the second one is the upload, the claim is made by then.
              if (calls === 2) death.abort(new Error('killed'));
              yield bytes;
            };
          })(),
        },
        { signal: death.signal },
      ),
    ).rejects.toThrow('killed');
    expect(await store.list('')).toEqual([]);
    expect(await store.statObject('run/a')).toBeUndefined();
    expect(await store.readObject('run/a')).toBeUndefined();
    expect(await store.readObject('run/a', { range: { start: 0, end: 5000 } })).toBeUndefined();
    expect(await store.putObject('run/a', bodyOf(randomBytes(10)))).toBe('different');
    expect(await store.putObject('run/a', bodyOf(randomBytes(PART_BYTES + 1)))).toBe('different');
    expect(await store.putObject('run/a', bodyOf(bytes))).toBe('identical');
    expect(Buffer.compare((await readWhole(store, 'run/a')) ?? Buffer.alloc(0), bytes)).toBe(0);
    await store.remove('run/a');
    expect(await store.putObject('run/a', bodyOf(randomBytes(10)))).toBe('created');
  });

  it('aborts uploads that were left behind, of its own prefix only', async () => {
    const { S3 } = await import('@aws-sdk/client-s3');
    const location = parseS3Location(server.location(randomUUID()), {});
    const { accessKeyId, secretAccessKey, endpoint, bucket } = server;
    const s3 = new S3({
      endpoint,
      region: 'default',
      forcePathStyle: true,
      credentials: { accessKeyId, secretAccessKey },
    });
    try {
      for (const Key of ['a', 'b', 'c', 'd'].map((name) => `${location.prefix}${name}`))
        await s3.createMultipartUpload({ Bucket: bucket, Key });
      const clockwork = {
        now: Date.now,
        monotonicMs: () => performance.now(),
        sleep: sleepFor,
        random: createRandom(1),
      };
      const connection = new S3Connection(location, {
        environment: server.environment,
        retry: DEFAULT_RETRY_POLICY,
        clockwork,
      });
      const { prefix } = location;
      expect(await abortAbandonedUploads(connection, { prefix, beforeMs: Date.now() - 3_600_000 })).toBe(0);
      expect(await abortAbandonedUploads(connection, { prefix: `${prefix}x`, beforeMs: Date.now() + 3_600_000 })).toBe(
        0,
      );
      expect(await abortAbandonedUploads(connection, { prefix, beforeMs: Date.now() + 3_600_000 })).toBe(4);
      connection.close();
    } finally {
      s3.destroy();
    }
  });

  it('holds a few parts of an object of any size, never all of it', async () => {
    const script = `
      import { openWeightStore } from ${JSON.stringify(new URL('./open-weight-store.ts', import.meta.url).href)};
      const store = await openWeightStore(${JSON.stringify(server.location(randomUUID()))}, { environment: ${JSON.stringify(server.environment)} });
      const chunk = Buffer.alloc(1 << 20, 7);
      const count = 240;
      const body = { sizeBytes: count * chunk.byteLength, *chunks() { for (let index = 0; index < count; index++) yield chunk; } };
      let peak = 0;
      const look = () => { gc(); peak = Math.max(peak, process.memoryUsage().rss); };
      await store.putObject('warm', { sizeBytes: 1, chunks: () => [new Uint8Array(1)] });
      look();
      const before = peak;
      const timer = setInterval(look, 100);
      console.log(await store.putObject('run/a', body));
      let read = 0;
      for await (const piece of await store.readObject('run/a')) read += piece.byteLength;
      clearInterval(timer);
      console.log(read === body.sizeBytes, Math.round((peak - before) / 2 ** 20));`;
    const { stdout } = await promisify(execFile)(process.execPath, [
      '--expose-gc',
      '--input-type=module',
      '-e',
      script,
    ]);
    const [put, rest = ''] = stdout.trim().split('\n');
    expect(put).toBe('created');
    const [isWhole, grownMiB] = rest.split(' ');
    expect(isWhole).toBe('true');
    // The object has 240 MiB, four parts of 16 MiB are under way and one is being filled.
    expect(Number(grownMiB)).toBeLessThan(170);
  });
});

describe('what a server says', () => {
  /** A server that answers everything alike: what Amazon would say cannot be had from the real one here. */
  const answering = async (
    status: number,
    code: string,
    { headers = {}, fields = '' }: { headers?: Record<string, string>; fields?: string } = {},
  ): Promise<{ store: S3Store; count: () => number } & AsyncDisposable> => {
    let count = 0;
    const http = createServer((request, response) => {
      count += 1;
      request.resume();
      const body = `<?xml version="1.0" encoding="UTF-8"?><Error><Code>${code}</Code><Message>No.</Message>${fields}</Error>`;
      const contentLength = Buffer.byteLength(body);
      response
        .writeHead(status, { 'content-type': 'application/xml', 'content-length': contentLength, ...headers })
        .end(body);
    });
    http.listen(0, '127.0.0.1');
    await once(http, 'listening');
    const { port } = http.address() as AddressInfo; // It listens on a port.
    const store = new S3Store(
      parseS3Location(`s3://weights/run?region=eu-west-1&pathStyle=true&endpoint=http://127.0.0.1:${port}`, {}),
      {
        environment: {
          AWS_ACCESS_KEY_ID: 'ID',
          AWS_SECRET_ACCESS_KEY: 'SECRETSECRET',
          AWS_SESSION_TOKEN: 'TOKENTOKEN',
        },
      },
    );
    return {
      store,
      count: () => count,
      [Symbol.asyncDispose]: async () => {
        store[Symbol.dispose]();
        http.closeAllConnections();
        await new Promise((resolve) => http.close(resolve));
      },
    };
  };

  it.each([
    [400, 'AuthorizationHeaderMalformed', { fields: '<Region>ap-south-1</Region>' }],
    [301, 'PermanentRedirect', { headers: { 'x-amz-bucket-region': 'ap-south-1' } }],
  ])('about a wrong region is passed on with the right one: %s %s', async (status, code, reply) => {
    await using opened = await answering(status, code, reply);
    await expect(opened.store.readPointer('latest')).rejects.toMatchObject({
      code: 'store-denied',
      message: expect.stringContaining('bucket weights is in region ap-south-1, the location says eu-west-1'),
      cure: expect.stringContaining('region=ap-south-1'),
    });
    expect(opened.count()).toBe(1);
  });

  it('about expired credentials is believed after they were asked for once more', async () => {
    await using opened = await answering(400, 'ExpiredToken');
    const error: unknown = await opened.store.list('').catch((failure: unknown) => failure);
    expect(error).toMatchObject({
      code: 'store-denied',
      message: expect.stringContaining('the credentials have expired'),
    });
    expect(JSON.stringify(error) + String(error)).not.toMatch(/SECRETSECRET|TOKENTOKEN/);
    expect(opened.count()).toBe(2);
  });

  it.each([
    [400, 'ExpiredToken', 'the credentials have expired'],
    [403, 'RequestTimeTooSkewed', 'the clock of this machine says'],
    [400, 'AuthorizationHeaderMalformed', 'bucket weights is in another region'],
  ])('is found out where the answer has no words: %s %s', async (status, code, words) => {
    await using opened = await answering(status, code);
    await expect(opened.store.statObject('run/a')).rejects.toMatchObject({
      code: 'store-denied',
      message: expect.stringContaining(words),
    });
  });

  it('about ranges by the whole object is noticed, not taken for the bytes that were asked for', async () => {
    await using opened = await answering(200, 'whole', { headers: { etag: '"a"' } });
    await expect(opened.store.readObject('run/a', { range: { start: 10, end: 20 } })).rejects.toMatchObject({
      code: 'store-failed',
      message: expect.stringContaining('Bytes from 10 on were asked of run/a, the answer begins at byte 0.'),
    });
    expect(await readAll(await opened.store.readObject('run/a', { range: { start: 0, end: 20 } }))).toBe(20);
  });

  it('about rights is passed on at once', async () => {
    await using opened = await answering(403, 'AccessDenied');
    await expect(opened.store.putObject('run/a', bodyOf(Buffer.from('x')))).rejects.toMatchObject({
      code: 'store-denied',
      message: expect.stringMatching(
        /^Could not write run\/run\/a at s3:\/\/weights\/run: the store denies it \(AccessDenied\)/,
      ),
    });
    expect(opened.count()).toBe(1);
  });
});

it('passes on what a source of credentials says of itself', () => {
  const location = parseS3Location('s3://weights/run?region=eu-west-1', {});
  const judge = (message: string): unknown =>
    judgeS3Error(Object.assign(new Error(message), { name: 'CredentialsProviderError' }), {
      action: 'read a',
      location,
      now: Date.now,
    });
  expect(judge('Could not load credentials from any providers')).toMatchObject({
    error: { code: 'store-denied', message: 'Could not read a at s3://weights/run: there are no credentials.' },
  });
  expect(judge('The SSO session of profile work has expired.')).toMatchObject({
    error: {
      message:
        'Could not read a at s3://weights/run: there are no credentials (The SSO session of profile work has expired).',
    },
  });
});

it('gives up on credentials that never come, by the deadline of a try and by the signal', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'hone-aws-'));
  const config = join(folder.path, 'config');
  // The chain of the AWS client runs this and waits for what it says.
  await writeFile(config, '[default]\ncredential_process = sleep 4\n');
  const moduleUrl = JSON.stringify(new URL('./s3-store.ts', import.meta.url).href);
  const locationUrl = JSON.stringify(new URL('./s3-location.ts', import.meta.url).href);
  const { stdout } = await promisify(execFile)(
    process.execPath,
    [
      '--input-type=module',
      '--eval',
      `const { S3Store } = await import(${moduleUrl});
      const { parseS3Location } = await import(${locationUrl});
      const location = parseS3Location('s3://weights/run?endpoint=http://127.0.0.1:9', {});
      const store = new S3Store(location, { environment: {}, retry: { attempts: 2, baseMs: 1, attemptTimeoutMs: 200 } });
      console.log(await store.readPointer('latest').catch((error) => error.message));
      const slow = new S3Store(location, { environment: {} });
      console.log(await slow.readPointer('latest', { signal: AbortSignal.timeout(200) }).catch((error) => error.name));
      process.exit();`,
    ],
    {
      env: {
        ...process.env,
        AWS_CONFIG_FILE: config,
        AWS_SHARED_CREDENTIALS_FILE: join(folder.path, 'none'),
        ...NO_KEYS,
      },
    },
  );
  expect(stdout).toMatch(/no answer within 200 ms \(2 tries in [01]\.\d s\)\.\nTimeoutError\n$/u);
});

/** What would come before the configured process. */
const NO_KEYS = { AWS_ACCESS_KEY_ID: '', AWS_SECRET_ACCESS_KEY: '', AWS_PROFILE: 'default' };

async function readAll(stream: AsyncIterable<Uint8Array> | undefined): Promise<number> {
  let sizeBytes = 0;
  for await (const chunk of stream ?? []) sizeBytes += chunk.byteLength;
  return sizeBytes;
}

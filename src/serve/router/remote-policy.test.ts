import { describe, expect, test } from 'vitest';

import { policyVersion } from '../../domain/ids.ts';
import type { GenerateRequest } from '../../domain/policy.ts';
import { decodedOf, requestOf, startFleet, until } from './router.fixture.ts';
import { HttpTransport } from './http-transport.ts';
import { RemotePolicy } from './remote-policy.ts';
import { StandInReplica } from './stand-in-replica.fixture.ts';

const two = [{ id: 'a' }, { id: 'b' }];

/** Told tokens beside the reply: each position once, in order. */
function telling(request: GenerateRequest): { request: GenerateRequest; told: number[] } {
  const told: number[] = [];
  return { told, request: { ...request, onToken: (id) => told.push(id) } };
}

/** The fault strikes whoever is asked first, and nobody after. */
function once(replicas: readonly StandInReplica[], fault: StandInReplica['faults'][number]): void {
  for (const replica of replicas) replica.faults.length = 0;
  let isSpent = false;
  for (const replica of replicas)
    Object.defineProperty(replica.faults, 'shift', {
      configurable: true,
      value: () => (isSpent ? undefined : ((isSpent = true), fault)),
    });
}

describe('a reply that is cut goes on elsewhere, to the same bits', () => {
  test('at every token: broken off, refused by its engine, and ended without a last event', async () => {
    await using fleet = await startFleet({ replicas: two });
    const policy = fleet.policy();
    const plain = requestOf(1);
    const expected = fleet.replicas[0]?.expected(decodedOf(plain));
    for (const kind of ['die', 'error'] as const)
      for (let atToken = 0; atToken <= 23; atToken++) {
        once(fleet.replicas, { kind, atToken });
        const { request, told } = telling(plain);
        const reply = await policy.generate(request);
        expect(reply, `${kind} at ${atToken}`).toEqual(expected);
        expect(told).toEqual([...reply.tokens]);
      }
    once(fleet.replicas, { kind: 'no-end' });
    expect(await policy.generate(plain)).toEqual(expected);
    expect(fleet.resumed.map(({ at }) => at)).toContain(11);
  });

  test('at every byte of a stream', async () => {
    await using fleet = await startFleet({ replicas: two });
    const policy = fleet.policy({ backoffMs: { first: 0, most: 0 } });
    const plain = requestOf(2, { maxTokens: 5 });
    const expected = fleet.replicas[0]?.expected(decodedOf(plain));
    const size = (
      await (
        await fetch(`${fleet.replicas[0]?.url}/generate`, { method: 'POST', body: await bodyOf(plain) })
      ).arrayBuffer()
    ).byteLength;
    expect(size).toBeGreaterThan(400);
    for (let atByte = 0; atByte < size; atByte++) {
      once(fleet.replicas, { kind: 'cut', atByte });
      const { request, told } = telling(plain);
      expect(await policy.generate(request), `byte ${atByte}`).toEqual(expected);
      expect(told).toEqual([...(expected?.tokens ?? [])]);
    }
  });

  test('spans tell which version drew what; versions of a reply never go back', async () => {
    await using fleet = await startFleet({ replicas: two });
    const [a, b] = fleet.replicas as [StandInReplica, StandInReplica];
    const policy = fleet.policy();
    once([a, b], { kind: 'die', atToken: 10 });
    const first = policy.generate(requestOf(3));
    a.version = b.version = 0;
    expect((await first).versions).toEqual([{ version: 0, start: 0, end: 24 }]);
    // The weights move in the reply, then the stream breaks at a replica that lies about the past.
    once([a, b], { kind: 'version', atToken: 8, version: 4 });
    const moved = policy.generate(requestOf(4));
    expect((await moved).versions).toEqual([
      { version: 0, start: 0, end: 8 },
      { version: 4, start: 8, end: 24 },
    ]);
    a.version = b.version = 6;
    once([a, b], { kind: 'version', atToken: 8, version: 2 });
    const { versions } = await policy.generate(requestOf(5));
    expect(versions).toEqual([{ version: 6, start: 0, end: 24 }]);
    const resumed = [...a.requests, ...b.requests].filter(({ request }) => request.drawnBefore > 0).at(-1);
    expect(resumed?.request.minVersion).toBeGreaterThanOrEqual(0);
    expect(policy.version).toBe(6);
  });

  test('one that stalls is left, and what it was at is stopped', async () => {
    await using fleet = await startFleet({ replicas: two });
    const policy = fleet.policy({ stallTimeoutMs: 100 });
    const plain = requestOf(6);
    once(fleet.replicas, { kind: 'hang', atToken: 7 });
    expect(await policy.generate(plain)).toEqual(fleet.replicas[0]?.expected(decodedOf(plain)));
    const all = fleet.replicas.flatMap(({ requests }) => requests);
    await until(() => all.some(({ isGone }) => isGone));
    expect(all.map(({ request }) => request.drawnBefore).toSorted()).toEqual([0, 7]);
  });

  test('another router takes over when one is gone', async () => {
    await using fleet = await startFleet({ replicas: two });
    await using other = await startFleet({ replicas: two });
    const policy = fleet.policy({ routers: [other.router.url, fleet.router.url] });
    let drawn = 0;
    const plain = requestOf(7);
    const reply = await policy.generate({
      ...plain,
      onToken: () => {
        if (++drawn === 5) void other.router.close();
      },
    });
    expect(reply).toEqual(fleet.replicas[0]?.expected(decodedOf(plain)));
    expect(await policy.generate(plain)).toEqual(reply);
  });
});

describe('what a client must know', () => {
  test('a router that does not know the token is left for one that does; where none does the reply ends at once', async () => {
    await using other = await startFleet({ replicas: [{ id: 'b' }], token: 'another-token-of-a-fleet' });
    await using fleet = await startFleet({ replicas: [{ id: 'a' }], token: 'the-token-of-this-fleet' });
    const routers = [other.router.url, fleet.router.url];
    const reply = await fleet.policy({ routers, backoffMs: { first: 1, most: 2 } }).generate(requestOf(1));
    expect(reply.tokens.length).toBe(24);
    await expect(fleet.policy({ routers, token: 'a-token-of-nobody' }).generate(requestOf(1))).rejects.toMatchObject({
      code: 'unauthorized',
    });
  });

  test('a replica whose store refuses it is left out for the rest of the reply and for those after it', async () => {
    await using fleet = await startFleet({ replicas: two });
    const [a, b] = fleet.replicas as [StandInReplica, StandInReplica];
    const policy = fleet.policy();
    const counts = (): number[] => [a.requests.length, b.requests.length];
    const deny = (replica: StandInReplica): unknown =>
      replica.faults.push(
        ...Array.from({ length: 100 }, () => ({ kind: 'error', atToken: 3, code: 'store-denied' }) as const),
      );
    await policy.generate(requestOf(1, { session: 'one' }));
    // The session is at home there.
    const [home, other] = a.requests.length === 1 ? [a, b] : [b, a];
    deny(home);
    const plain = requestOf(2, { session: 'one' });
    expect(await policy.generate(plain)).toEqual(other.expected(decodedOf(plain)));
    for (let number = 3; number < 9; number++) await policy.generate(requestOf(number, { session: `s${number}` }));
    expect([home.requests.length, other.requests.length]).toEqual([2, 7]);
    // What others met is hearsay: it is asked itself before the reply ends.
    deny(other);
    const before = counts();
    await expect(policy.generate(requestOf(9))).rejects.toMatchObject({
      code: 'store-denied',
      message: expect.stringMatching(/refuses the replica [ab]\/boot-1: told to fail/),
    });
    expect(counts()).toEqual(before.map((count) => count + 1));
    // Another boot is another replica.
    home.faults.length = 0;
    home.bootId = 'boot-2';
    await fetch(`${fleet.router.controlUrl}/replicas`, { method: 'POST', body: JSON.stringify(home.describe()) });
    expect((await policy.generate(requestOf(9))).tokens).toHaveLength(24);
  });

  test('a fleet whose replicas are all refused leaves the reply to the next router’s', async () => {
    await using refused = await startFleet({ replicas: [{ id: 'a' }] });
    await using fleet = await startFleet({ replicas: [{ id: 'b' }] });
    refused.replicas[0]?.faults.push({ kind: 'error', atToken: 3, code: 'unauthorized' });
    const reply = await fleet.policy({ routers: [refused.router.url, fleet.router.url] }).generate(requestOf(1));
    expect(reply).toEqual(fleet.replicas[0]?.expected(decodedOf(requestOf(1))));
    expect(refused.replicas[0]?.requests).toHaveLength(1);
  });

  test('an abort stops the replica and gives what was drawn', async () => {
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    await using fleet = await startFleet({
      replicas: [{ id: 'a', beforeEvent: (token) => (token === 5 ? held : undefined) }],
    });
    const stop = new AbortController();
    const reply = await fleet.policy().generate({
      ...requestOf(8),
      signal: stop.signal,
      onToken: () => queueMicrotask(() => (fleet.replicas[0]?.running === 1 ? setImmediate(() => stop.abort()) : 0)),
    });
    expect(reply.finish).toBe('abort');
    expect(reply.tokens.length).toBeGreaterThan(0);
    await until(() => fleet.replicas[0]?.requests[0]?.isGone === true);
    release();
  });

  test('a version that is not there yet is waited for, one that is past is refused at once', async () => {
    await using fleet = await startFleet({ replicas: two });
    const [a, b] = fleet.replicas as [StandInReplica, StandInReplica];
    const waiting = fleet.policy().generate({ ...requestOf(9), minVersion: policyVersion(3) });
    await until(() => a.wakes + b.wakes > 0);
    a.version = 3;
    expect((await waiting).versions[0]?.version).toBe(3);
    b.version = 3;
    await expect(
      fleet.policy({ deadlineMs: 20_000 }).generate({ ...requestOf(9), exactVersion: policyVersion(1) }),
    ).rejects.toMatchObject({ code: 'version-not-ready' });
  });

  test('tries and time are bounded, and the failure says why', async () => {
    await using fleet = await startFleet({ replicas: [{ id: 'a' }] });
    const [a] = fleet.replicas;
    a?.faults.push(...Array.from({ length: 50 }, () => ({ kind: 'refuse', status: 500, type: 'broken' }) as const));
    await expect(fleet.policy({ deadlineMs: 300 }).generate(requestOf(1))).rejects.toMatchObject({
      code: 'no-replica',
    });
    a?.faults.splice(0);
    await expect(
      fleet
        .policy({ token: 'x', deadlineMs: 300 })
        .generate({ ...requestOf(1), tokens: new Int32Array(5_000).fill(1) }),
    ).rejects.toMatchObject({ code: 'context-too-small' });
  });

  test('greedy stops, full contexts end in length', async () => {
    await using fleet = await startFleet({
      replicas: [
        { id: 'a', contextLength: 20 },
        { id: 'b', contextLength: 20 },
      ],
    });
    const plain = requestOf(3);
    const expected = fleet.replicas[0]?.expected(decodedOf(plain));
    expect(expected?.tokens).toHaveLength(11);
    once(fleet.replicas, { kind: 'no-end' });
    expect(await fleet.policy().generate(plain)).toEqual(expected);
    const stopIds = [expected?.tokens[4] ?? 0];
    const stopping = { ...plain, sampling: { ...plain.sampling, stopIds } };
    once(fleet.replicas, { kind: 'no-end' });
    expect((await fleet.policy().generate(stopping)).finish).toBe('stop');
  });
});

async function bodyOf(request: GenerateRequest): Promise<string> {
  return (await import('../wire/generate-request.ts')).encodeGenerateRequest(request);
}

describe('connecting', () => {
  const connect = async (url: string, onWait: (reason: string) => void): Promise<RemotePolicy> =>
    RemotePolicy.connect(new HttpTransport({ routers: [url] }), {
      now: () => performance.now(),
      random: () => 0,
      newRequestId: () => 'request',
      deadlineMs: 20_000,
      waitMs: 20_000,
      onWait,
    });

  test('a control port is no data port: said at once, with what to name instead', async () => {
    await using fleet = await startFleet({ replicas: [{ id: 'a' }] });
    const waits: string[] = [];
    await expect(connect(fleet.router.controlUrl, (reason) => waits.push(reason))).rejects.toMatchObject({
      code: 'invalid-config',
      message: expect.stringContaining("it is no router's data port"),
      cure: expect.stringContaining('hone serve router says that it answers'),
    });
    expect(waits).toEqual([]);
  });

  test('while no replica serves, it waits and says why, once', async () => {
    await using fleet = await startFleet({ replicas: [] });
    const waits: string[] = [];
    await using policy = await (async () => {
      const connecting = connect(fleet.router.url, (reason) => waits.push(reason));
      await until(() => waits.length > 0);
      await using replica = await StandInReplica.start({ id: 'late' });
      await replica.register([fleet.router.controlUrl]).renew();
      return await connecting;
    })();
    expect(policy.contextLength).toBe(4096);
    expect(waits).toEqual([expect.stringContaining('No replica serves now')]);
  });
});

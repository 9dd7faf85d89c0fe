import { mkdir, readFile, statfs, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import { describe, expect, it } from 'vitest';

import { RelayCache } from '../sync/cluster/relay-cache.ts';
import { chunkDigest } from '../sync/cluster/chunk-digest.ts';
import { ChunkMemory } from '../sync/cluster/chunk-memory.ts';
import { mountSmallDisk } from '../sync/store/small-disk.fixture.ts';
import { readReplicaLeases } from '../sync/replica-leases.ts';
import { INDEX_FILE, LATEST_POINTER } from '../sync/version-directory.ts';
import { gateReads, noise, publishBytes, readAll, sha256, TestCluster, until } from './cluster.fixture.ts';
import { BearerToken } from './service/bearer-token.ts';
import { startControlServer } from './service/control-server.ts';

const KIB = 1024;

async function point(cluster: TestCluster, value: string): Promise<void> {
  const present = await cluster.store.readPointer(LATEST_POINTER);
  expect(await cluster.store.compareAndSwapPointer(LATEST_POINTER, present?.tag, value)).toBe('swapped');
}

describe('cluster controller', () => {
  it.each([
    ['a foreign run', 'other/weight_v000009', /now belongs to run other.*--run other/],
    ['a rewind', 'run/weight_v000001', /went back from run\/weight_v000002/],
    ['an unreadable pointer', 'nonsense', /nonsense/],
  ])('refuses %s, says so once, and goes on with what it had', async (_what, pointer, reason) => {
    await using cluster = await TestCluster.open();
    await publishBytes(cluster.store, { runId: 'run', version: 2 }, noise(1, 30 * KIB));
    const { controller } = await cluster.startController();
    const { member } = await cluster.addMember('m0');
    await until(() => controller.status().version === 'run/weight_v000002');
    await point(cluster, pointer);
    for (const polls of [controller.counts.polls + 1, controller.counts.polls + 2]) {
      controller.wake();
      await until(() => controller.counts.polls >= polls && controller.status().refusals.length > 0);
    }
    const refused = cluster.events.filter(({ event }) => event === 'version-refused');
    expect(refused.length).toBe(1);
    expect(controller.status().refusals[0]?.reason).toMatch(reason);
    expect(controller.status().version).toBe('run/weight_v000002');
    await until(() => member.parentId !== undefined);
    expect((await member.readPointer(LATEST_POINTER))?.value).toBe('run/weight_v000002');
  });

  it('leases in the store what its slowest member holds', async () => {
    await using cluster = await TestCluster.open();
    await publishBytes(cluster.store, { runId: 'run', version: 7 }, noise(1, KIB));
    await cluster.startController();
    const { member } = await cluster.addMember('m0');
    member.report({ kind: 'holding', runId: 'run', version: 5 });
    const oldest = async (): Promise<number | undefined> =>
      (await readReplicaLeases(cluster.store, { nowMs: Date.now() })).find(({ cluster: name }) => name === 'east')
        ?.oldestVersion;
    let found = await oldest();
    for (const endMs = performance.now() + 20_000; found !== 5 && performance.now() < endMs; found = await oldest())
      await new Promise((resolve) => setTimeout(resolve, 10));
    expect(found).toBe(5);
  });

  it('forgets a member whose lease ended and one that leaves, and tells a stranger apart', async () => {
    await using cluster = await TestCluster.open();
    let nowMs = 0;
    const { controller, url } = await cluster.startController({ now: () => nowMs, memberLeaseMs: 3_000 });
    const counts = { receivedBytes: 0, sentBytes: 0, receivedChunks: 0, hopSeconds: 0, damagedChunks: 0 };
    const heartbeat = (id: string): void =>
      void controller.heartbeat({ id, bootId: 'b', url: 'http://127.0.0.1:1', progress: [], received: [], counts });
    heartbeat('one');
    nowMs = 2_000;
    heartbeat('two');
    nowMs = 3_500;
    expect(controller.status().members.map(({ id }) => id)).toEqual(['two']);
    expect(cluster.events).toContainEqual({ event: 'member-lost', member: 'one', reason: 'lease-ended' });
    expect((await fetch(`${url}/members/two`, { method: 'DELETE' })).status).toBe(200);
    expect((await fetch(`${url}/members/two`, { method: 'DELETE' })).status).toBe(404);
    expect(controller.status().members).toEqual([]);
    expect(cluster.events).toContainEqual({ event: 'member-lost', member: 'two', reason: 'left' });
  });

  it('gives no byte and no word to a peer without the token', async () => {
    await using cluster = await TestCluster.open();
    const { key } = await publishBytes(cluster.store, { runId: 'run', version: 1 }, noise(1, KIB));
    const token = 'a-token-of-the-fleet-that-is-long-enough';
    const { url } = await cluster.startController({ token: new BearerToken(token) });
    const paths = [`/cluster/objects/${key}?from=0&to=1&member=x`, `/cluster/facts?key=${key}`, '/pointer', '/members'];
    for (const path of paths) {
      expect((await fetch(url + path)).status, path).toBe(401);
      const wrong = { authorization: `Bearer ${token}x` };
      expect((await fetch(url + path, { headers: wrong })).status, path).toBe(401);
    }
    const right = { headers: { authorization: `Bearer ${token}` } };
    expect((await fetch(url + (paths[0] ?? ''), right)).status).toBe(200);
  });

  it('sends a small version along with its announcement: the member asks for nothing', async () => {
    await using cluster = await TestCluster.open();
    await cluster.startController();
    const { member } = await cluster.addMember('m0');
    await until(() => member.parentId !== undefined);
    const published = await publishBytes(cluster.store, { runId: 'run', version: 1 }, noise(4, 30 * KIB));
    cluster.server?.controller.wake();
    await until(() => member.localPath(published.key) !== undefined);
    await cluster.stopController();
    expect(sha256(await readAll(member, published.key))).toBe(sha256(published.bytes));
    const index = await readAll(member, published.key.replace(/[^/]+$/, INDEX_FILE));
    expect(JSON.parse(index.toString('utf8'))).toHaveProperty('weight_map');
    expect(member.counts.receivedChunks).toBe(0);
  });

  it.each([
    ['cannot be read', (text: string) => `}${text.slice(1)}`],
    ['reads well but names another checksum', (text: string) => text.replace(/"checksum":\s*"(.)/, flipFirstDigit)],
  ])('reads an index again that came damaged from the store and %s', async (_how, damage) => {
    await using cluster = await TestCluster.open();
    const published = await publishBytes(cluster.store, { runId: 'run', version: 1 }, noise(4, 30 * KIB));
    let damaged = 0;
    const store = gateReads(cluster.store, async function* (key, chunks) {
      for await (const chunk of chunks) {
        const isHit = key.endsWith(INDEX_FILE) && damaged++ === 0;
        const text = Buffer.from(chunk).toString('utf8');
        if (isHit) expect(damage(text)).not.toBe(text);
        yield isHit ? Buffer.from(damage(text)) : chunk;
      }
    });
    const { controller } = await cluster.startController({ store });
    await until(() => damaged > 0 && cluster.events.some(({ event }) => event === 'store-retry'));
    const { member } = await cluster.addMember('m0');
    controller.wake();
    await until(() => controller.status().version === 'run/weight_v000001' && controller.status().isFetched);
    await member.makeLocal(published.key);
    expect(sha256(await readAll(member, published.key))).toBe(sha256(published.bytes));
    expect(damaged).toBe(2);
  });
});

function flipFirstDigit(found: string, digit: string): string {
  return `${found.slice(0, -1)}${digit === '0' ? '1' : '0'}`;
}

describe('relay cache', () => {
  const directoryOf = (cluster: TestCluster): string => join(cluster.directory, 'cache');

  async function store(cache: RelayCache, version: number, bytes: Buffer): Promise<string> {
    const key = `run/weight_v${String(version).padStart(6, '0')}/file`;
    const object = await cache.use({ key, sizeBytes: bytes.byteLength, checksum: chunkDigest(bytes) });
    try {
      await object.write(0, { digest: chunkDigest(bytes), memory: ChunkMemory.of(bytes) });
      await object.seal();
    } finally {
      await cache.release(object);
    }
    return key;
  }

  it('stays within its bound: the oldest version goes first, what is used or wanted stays', async () => {
    await using cluster = await TestCluster.open();
    const wanted = 'run/weight_v000001/file';
    const cache = await RelayCache.open({
      directory: directoryOf(cluster),
      maxBytes: 250 * KIB,
      onDamage: () => undefined,
      isWanted: (key) => key === wanted,
    });
    const keys: string[] = [];
    for (const version of [1, 2, 3]) keys.push(await store(cache, version, noise(version, 100 * KIB)));
    expect(keys.map((key) => cache.localPath(key) !== undefined)).toEqual([true, false, true]);
    expect(cache.sizeBytes).toBe(200 * KIB);
    await cache.close();
  });

  it('gives up the oldest that nobody uses or holds when the disk is smaller than its bound', async ({ skip }) => {
    await using cluster = await TestCluster.open();
    const directory = directoryOf(cluster);
    await mkdir(directory);
    using disk = mountSmallDisk(directory) ?? skip('no disk can be mounted here');
    disk.grow();
    const cache = await RelayCache.open({ directory, maxBytes: 2 ** 30, onDamage: () => undefined });
    const first = await store(cache, 1, noise(1, 600 * KIB));
    cache.hold(first);
    // 9 MB in all, on a disk of 8.
    for (let version = 2; version <= 15; version++)
      expect(cache.localPath(await store(cache, version, noise(version, 600 * KIB)))).toBeDefined();
    expect(cache.localPath('run/weight_v000002/file')).toBeUndefined();
    expect(await readFile(cache.localPath(first) ?? '')).toEqual(noise(1, 600 * KIB));
    const { bavail, bsize } = await statfs(directory);
    expect(bavail * bsize, 'left for others who write to the disk').toBeGreaterThan((KIB * KIB) / 2);
    cache.letGo(first);
    await store(cache, 16, noise(16, 600 * KIB));
    expect(cache.localPath(first)).toBeUndefined();
    await cache.close();
  });

  it('takes what another process left on a full disk, and makes room again', async ({ skip }) => {
    await using cluster = await TestCluster.open();
    const directory = directoryOf(cluster);
    await mkdir(directory);
    using _ = mountSmallDisk(directory) ?? skip('no disk can be mounted here');
    const options = { directory, maxBytes: 2 ** 30, onDamage: () => undefined };
    const before = await RelayCache.open(options);
    for (let version = 1; version <= 3; version++) await store(before, version, noise(version, 250 * KIB));
    await before.close();
    await writeFile(join(directory, 'filler'), noise(1, 200 * KIB));
    const after = await RelayCache.open(options);
    expect(after.sizeBytes).toBeLessThanOrEqual(500 * KIB);
    expect(after.localPath(await store(after, 9, noise(9, 300 * KIB)))).toBeDefined();
    await after.close();
  });

  it('names a full disk and goes on when there is room', async ({ skip }) => {
    await using cluster = await TestCluster.open();
    const directory = directoryOf(cluster);
    await mkdir(directory);
    using disk = mountSmallDisk(directory) ?? skip('no disk can be mounted here');
    const cache = await RelayCache.open({ directory, maxBytes: 2 ** 30, onDamage: () => undefined });
    await writeFile(join(directory, 'filler'), noise(1, 900 * KIB));
    await expect(store(cache, 1, noise(2, 500 * KIB))).rejects.toThrow(/the disk is full/);
    disk.grow();
    expect(cache.localPath(await store(cache, 1, noise(2, 500 * KIB)))).toBeDefined();
    await cache.close();
  });
});

it('a member whose controller is another service says so at each try, and tries no faster than it would any other', async () => {
  await using cluster = await TestCluster.open();
  let requests = 0;
  await using other = await startControlServer({
    service: 'router',
    host: '127.0.0.1',
    port: 0,
    token: undefined,
    health: () => ({ ready: true }),
    routes: () => undefined,
    raw: () => {
      requests += 1;
      return false;
    },
  });
  const { events } = await cluster.addMember('m0', { controllerUrl: other.url, random: () => 1 });
  await until(() => events.length >= 4);
  expect(requests).toBeLessThanOrEqual(events.length + 2);
  for (const event of events)
    expect(event).toMatchObject({
      event: 'controller-unheard',
      error: {
        message: `${other.url} is no cluster controller.`,
        cure: expect.stringContaining('hone serve controller'),
      },
    });
});

import { createServer } from 'node:http';
import { open, readFile, truncate } from 'node:fs/promises';
import { once } from 'node:events';
import { join } from 'node:path';
import type { AddressInfo } from 'node:net';

import { describe, expect, it } from 'vitest';

import { CHUNK_BYTES, chunkDigest } from '../sync/cluster/chunk-digest.ts';
import { frameHeader } from '../sync/cluster/object-frames.ts';
import { gateReads, Gate, noise, publishBytes, readAll, sha256, TestCluster, until } from './cluster.fixture.ts';
import { startLink } from './link.fixture.ts';

const MIB = 2 ** 20;

/** A store of which one object comes as far as the gate is open. */
async function gatedCluster(sizeBytes: number, options: { readonly fanOut?: number } = {}) {
  const cluster = await TestCluster.open();
  const published = await publishBytes(cluster.store, { runId: 'run', version: 1 }, noise(5, sizeBytes));
  const gate = new Gate();
  let storeBytes = 0;
  const store = gateReads(cluster.store, async function* (key, chunks, start) {
    let at = start;
    for await (const chunk of chunks) {
      if (key !== published.key) {
        yield chunk;
        continue;
      }
      for (let offset = 0; offset < chunk.byteLength; offset += CHUNK_BYTES) {
        const piece = chunk.subarray(offset, offset + CHUNK_BYTES);
        await gate.passed(at + piece.byteLength);
        at += piece.byteLength;
        yield piece;
        // Not reached for a piece that nobody took any more.
        storeBytes += piece.byteLength;
      }
    }
  });
  const start = async (): Promise<void> => {
    await cluster.startController({ store, ...options });
  };
  await start();
  return { cluster, published, gate, start, storeBytes: () => storeBytes };
}

describe('cluster under faults', () => {
  it('passes each chunk on as it comes: the last of a chain has all that the source gave, while the source stands still', async () => {
    const { cluster, published, gate } = await gatedCluster(24 * MIB, { fanOut: 1 });
    await using _ = cluster;
    const members = await cluster.addMembers(3);
    expect(members.map(({ member }) => member.parentId)).toEqual([null, 'm0', 'm1']);
    const last = members[2]?.member;
    const reading = readAll(last ?? members[0]!.member, published.key);
    for (let chunks = 1; chunks <= 8; chunks++) {
      gate.open(chunks * CHUNK_BYTES);
      await until(() => last?.counts.receivedChunks === chunks);
    }
    gate.open(Infinity);
    expect(sha256(await reading)).toBe(sha256(published.bytes));
  });

  it('replaces a parent whose sockets die in the middle of a transfer, and its children go on where they were', async () => {
    const { cluster, published, gate, storeBytes } = await gatedCluster(32 * MIB);
    await using _ = cluster;
    const members = await cluster.addMembers(6);
    const children = members.filter(({ member }) => member.parentId === 'm0');
    expect(children.length).toBe(2);
    const readings = members.slice(1).map(async ({ member }) => readAll(member, published.key));
    gate.open(5 * CHUNK_BYTES);
    await until(() => members.slice(1).every(({ member }) => member.counts.receivedChunks === 5));
    await members[0]?.close();
    gate.open(Infinity);
    for (const reading of readings) expect(sha256(await reading)).toBe(sha256(published.bytes));
    for (const { member, events } of children) {
      expect(member.parentId).not.toBe('m0');
      expect(events).toContainEqual(expect.objectContaining({ event: 'parent-failed', parent: 'm0', chunk: 5 }));
      expect(member.counts.receivedBytes).toBe(32 * MIB);
    }
    expect(storeBytes()).toBe(32 * MIB);
    expect(cluster.events).toContainEqual(expect.objectContaining({ event: 'parent-replaced', from: 'm0' }));
  });

  it('drops chunks that are damaged on a link, and fetches them from another parent', async () => {
    const { cluster, published, gate } = await gatedCluster(16 * MIB, { fanOut: 1 });
    await using _ = cluster;
    const links: AsyncDisposable[] = [];
    await cluster.addMember('m0', {
      through: async (url) => {
        const link = await startLink(url, {
          back: (bytes, offset) => {
            const at = 3 * MIB - offset;
            const damaged = Buffer.from(bytes);
            if (at >= 0 && at < bytes.byteLength) damaged[at] = (damaged[at] ?? 0) ^ 1;
            return damaged;
          },
        });
        links.push(link);
        return link.url;
      },
    });
    const child = await cluster.addMember('m1');
    await until(() => child.member.parentId === 'm0');
    gate.open(Infinity);
    expect(sha256(await readAll(child.member, published.key))).toBe(sha256(published.bytes));
    expect(child.events).toContainEqual(
      expect.objectContaining({ event: 'parent-failed', parent: 'm0', fault: 'damaged' }),
    );
    expect(child.member.counts.receivedBytes).toBe(16 * MIB);
    expect(cluster.events).toContainEqual(expect.objectContaining({ event: 'chunk-damaged', by: 'm0' }));
    for (const link of links) await link[Symbol.asyncDispose]();
  });

  it('finds out a member that sends wrong chunks with digests that fit, and fetches only those again', async () => {
    const { cluster, published, gate } = await gatedCluster(8 * MIB, { fanOut: 1 });
    await using _ = cluster;
    gate.open(Infinity);
    const wrong = Buffer.from(published.bytes);
    wrong.fill(7, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 100);
    const liar = createServer((request, response) => {
      const from = Number(new URL(request.url ?? '', 'http://liar').searchParams.get('from'));
      for (let at = from * CHUNK_BYTES; at < wrong.byteLength; at += CHUNK_BYTES) {
        const chunk = wrong.subarray(at, at + CHUNK_BYTES);
        response.write(frameHeader(chunk.byteLength, chunkDigest(chunk)));
        response.write(chunk);
      }
      response.end();
    }).listen(0, '127.0.0.1');
    await once(liar, 'listening');
    const counts = { receivedBytes: 0, sentBytes: 0, receivedChunks: 0, hopSeconds: 0, damagedChunks: 0 };
    cluster.server?.controller.heartbeat({
      id: 'liar',
      bootId: 'one',
      url: `http://127.0.0.1:${(liar.address() as AddressInfo).port}`,
      progress: [],
      received: [],
      counts,
    });
    const victim = await cluster.addMember('victim');
    await until(() => victim.member.parentId === 'liar');
    expect(sha256(await readAll(victim.member, published.key))).not.toBe(sha256(published.bytes));
    await victim.member.makeLocal(published.key);
    expect(sha256(await readAll(victim.member, published.key))).toBe(sha256(published.bytes));
    expect(victim.events).toContainEqual(
      expect.objectContaining({ event: 'parent-failed', parent: 'liar', fault: 'damaged', chunk: 3 }),
    );
    expect(victim.member.counts.receivedBytes).toBe(9 * MIB);
    liar.closeAllConnections();
    liar.close();
  });

  it('mends a chunk that its own disk damaged before a child sees it', async () => {
    const { cluster, published, gate } = await gatedCluster(16 * MIB, { fanOut: 1 });
    await using _ = cluster;
    gate.open(Infinity);
    const parent = await cluster.addMember('m0');
    await parent.member.makeLocal(published.key);
    const file = await open(parent.member.localPath(published.key) ?? '', 'r+');
    await file.write(Buffer.from('damage'), 0, 6, 2 * MIB + 17);
    await file.close();
    const child = await cluster.addMember('m1');
    await until(() => child.member.parentId === 'm0');
    expect(sha256(await readAll(child.member, published.key))).toBe(sha256(published.bytes));
    expect(parent.events).toContainEqual({ event: 'chunk-damaged', key: published.key, chunk: 2 });
    expect(parent.member.counts.receivedBytes).toBe(17 * MIB);
    expect(child.member.counts).toMatchObject({ receivedBytes: 16 * MIB, damagedChunks: 0 });
  });

  it.each(['changed', 'cut'])(
    'mends a file that its disk %s after it was proven, once its reader says so, and asks for the damaged chunks alone',
    async (how) => {
      const { cluster, published, gate } = await gatedCluster(16 * MIB);
      await using _ = cluster;
      gate.open(Infinity);
      const { member, events } = await cluster.addMember('m0');
      await member.makeLocal(published.key);
      const path = member.localPath(published.key) ?? '';
      if (how === 'cut') await truncate(path, 14 * MIB + 5);
      else {
        const file = await open(path, 'r+');
        await file.write(Buffer.from('damage'), 0, 6, 15 * MIB + 17);
        await file.close();
      }
      await member.letGo(published.key, 'damaged');
      expect(member.localPath(published.key)).toBeUndefined();
      await member.makeLocal(published.key);
      expect(sha256(await readFile(member.localPath(published.key) ?? ''))).toBe(sha256(published.bytes));
      const damaged = how === 'cut' ? [14, 15] : [15];
      expect(events.filter(({ event }) => event === 'chunk-damaged')).toEqual(
        damaged.map((chunk) => ({ event: 'chunk-damaged', key: published.key, chunk })),
      );
      expect(member.counts.receivedBytes).toBe((16 + damaged.length) * MIB);
      await member.letGo(published.key, 'used');
    },
  );

  it('reads again what the store sent damaged, and members replace the chunk that was wrong', async () => {
    await using cluster = await TestCluster.open();
    const published = await publishBytes(cluster.store, { runId: 'run', version: 1 }, noise(6, 6 * MIB));
    let isDamaging = true;
    const store = gateReads(cluster.store, async function* (key, chunks, start) {
      let at = start;
      for await (const chunk of chunks) {
        const bytes = Buffer.from(chunk);
        if (key === published.key && isDamaging && at === 0) {
          isDamaging = false;
          bytes[5] = (bytes[5] ?? 0) ^ 4;
        }
        at += chunk.byteLength;
        yield bytes;
      }
    });
    await cluster.startController({ store });
    const [one] = await cluster.addMembers(1);
    await one?.member.makeLocal(published.key);
    expect(sha256(await readAll(one!.member, published.key))).toBe(sha256(published.bytes));
    expect(one?.member.localPath(published.key)).toBe(join(cluster.directory, 'm0', 'whole', published.key));
  });

  it('does not let a slow child hold up the others', async () => {
    const { cluster, published, gate } = await gatedCluster(32 * MIB);
    await using _ = cluster;
    const released = Promise.withResolvers<void>();
    const links: AsyncDisposable[] = [];
    await cluster.addMember('m0', {
      through: async (url) => {
        const link = await startLink(url, {
          back: async (bytes, offset) => {
            if (offset > 2 * MIB) await released.promise;
            return bytes;
          },
        });
        links.push(link);
        return link.url;
      },
    });
    await cluster.addMember('m1');
    await until(() => cluster.members.every(({ member }) => member.parentId === null));
    const slow = await cluster.addMember('m2', { stallMs: 60_000 });
    await until(() => slow.member.parentId === 'm0');
    gate.open(Infinity);
    const slowly = readAll(slow.member, published.key);
    for (const { member } of cluster.members.slice(0, 2))
      expect(sha256(await readAll(member, published.key))).toBe(sha256(published.bytes));
    expect(slow.member.counts.receivedChunks).toBeLessThan(32);
    released.resolve();
    expect(sha256(await slowly)).toBe(sha256(published.bytes));
    for (const link of links) await link[Symbol.asyncDispose]();
  });

  it('gives up a parent from which nothing comes, but not one that waits for the source itself', async () => {
    const { cluster, published, gate } = await gatedCluster(8 * MIB, { fanOut: 1 });
    await using _ = cluster;
    let isHeld = false;
    const links: AsyncDisposable[] = [];
    await cluster.addMember('m0', {
      through: async (url) => {
        const link = await startLink(url, {
          back: async (bytes) => {
            if (isHeld) await new Promise(() => undefined);
            return bytes;
          },
        });
        links.push(link);
        return link.url;
      },
    });
    const child = await cluster.addMember('m1', { stallMs: 1_000 });
    await until(() => child.member.parentId === 'm0');
    const reading = readAll(child.member, published.key);
    gate.open(2 * CHUNK_BYTES);
    await until(() => child.member.counts.receivedChunks === 2);
    // Longer than the stall: signs of life keep the parent.
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    expect(child.events.filter(({ event }) => event === 'parent-failed')).toEqual([]);
    isHeld = true;
    gate.open(Infinity);
    expect(sha256(await reading)).toBe(sha256(published.bytes));
    expect(child.events).toContainEqual(
      expect.objectContaining({ event: 'parent-failed', parent: 'm0', fault: 'stalled', chunk: 2 }),
    );
    for (const link of links) await link[Symbol.asyncDispose]();
  });

  it('goes on after the controller is started again in the middle of a transfer, and reads nothing twice from the store', async () => {
    const { cluster, published, gate, start, storeBytes } = await gatedCluster(32 * MIB);
    await using _ = cluster;
    const members = await cluster.addMembers(4);
    const parents = members.map(({ member }) => member.parentId);
    const readings = members.map(async ({ member }) => readAll(member, published.key));
    gate.open(6 * CHUNK_BYTES);
    await until(() => members.every(({ member }) => member.counts.receivedChunks === 6));
    await cluster.stopController();
    expect((await members[0]?.member.readPointer('latest'))?.value).toBe('run/weight_v000001');
    await start();
    gate.open(Infinity);
    for (const reading of readings) expect(sha256(await reading)).toBe(sha256(published.bytes));
    expect(storeBytes()).toBe(32 * MIB);
    // Who registers first decides which of the places that members claim are still free.
    expect(members.filter(({ member }) => member.parentId === null).length).toBe(
      parents.filter((parent) => parent === null).length,
    );
  });

  it('takes a joiner in while a version is on its way', async () => {
    const { cluster, published, gate, storeBytes } = await gatedCluster(16 * MIB);
    await using _ = cluster;
    const members = await cluster.addMembers(3);
    const readings = members.map(async ({ member }) => readAll(member, published.key));
    gate.open(4 * CHUNK_BYTES);
    await until(() => members.every(({ member }) => member.counts.receivedChunks === 4));
    const joiner = await cluster.addMember('late');
    readings.push(readAll(joiner.member, published.key));
    await until(() => joiner.member.counts.receivedChunks === 4);
    gate.open(Infinity);
    for (const reading of readings) expect(sha256(await reading)).toBe(sha256(published.bytes));
    expect(storeBytes()).toBe(16 * MIB);
    expect(joiner.member.counts.receivedBytes).toBe(16 * MIB);
  });
});

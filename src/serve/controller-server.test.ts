import { describe, expect, it } from 'vitest';

import { gateReads, noise, publishBytes, readAll, sha256, TestCluster, until } from './cluster.fixture.ts';

const MIB = 2 ** 20;

describe('cluster', () => {
  it('reads a version from the store once and relays it to six members, over each edge once', async () => {
    await using cluster = await TestCluster.open();
    const published = await publishBytes(cluster.store, { runId: 'run', version: 1 }, noise(1, 32 * MIB));
    let storeBytes = 0;
    const counted = gateReads(cluster.store, async function* (key, chunks) {
      for await (const chunk of chunks) {
        if (key === published.key) storeBytes += chunk.byteLength;
        yield chunk;
      }
    });
    const { controller } = await cluster.startController({ store: counted });
    const members = await cluster.addMembers(6);
    const copies = await Promise.all(members.map(async ({ member }) => readAll(member, published.key)));
    for (const copy of copies) expect(sha256(copy)).toBe(sha256(published.bytes));
    expect(storeBytes).toBe(32 * MIB);
    const status = controller.status();
    expect(status.members.filter(({ parent }) => parent === null).length).toBe(2);
    expect(Math.max(...status.members.map(({ depth }) => depth))).toBe(2);
    for (const { member } of members) expect(member.counts.receivedBytes).toBe(32 * MIB);
    const relayed = members.reduce((sum, { member }) => sum + member.counts.sentBytes, 0);
    expect(relayed + status.sentBytes).toBe(6 * 32 * MIB);
    expect(status.sentBytes).toBe(2 * 32 * MIB);
    await until(
      () =>
        Object.values(controller.timeline()[0]?.members ?? {}).filter(({ receivedMs }) => receivedMs !== undefined)
          .length === 6,
    );
  });
});

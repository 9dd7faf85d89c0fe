/** The publisher, the tools and side data on a real S3 server: what the tests on files show must hold there too. */
import { mkdtemp, rm } from 'node:fs/promises';
import { randomUUID } from 'node:crypto';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import { CodecPool } from './delta/codec-pool.ts';
import { prune } from './prune.ts';
import { Publisher, type PublisherOptions } from './publisher.ts';
import { bytesOf, publisherOptions, weightsOf } from './publishing-process.fixture.ts';
import { readReplicaLeases, writeReplicaLease } from './replica-leases.ts';
import { restoreVersion, withCache } from './restore-version.ts';
import { SideDataStore } from './side-data.ts';
import { CLAIM_BODY } from './store/s3-stored-object.ts';
import { openWeightStore } from './store/open-weight-store.ts';
import { missingRadosgw, startRadosgw, type Radosgw } from './store/radosgw.fixture.ts';
import type { WeightStore } from './store/weight-store.ts';
import { LATEST_POINTER, parseIdentity } from './version-directory.ts';
import { verifyVersions } from './verify-version.ts';
import { listVersions } from './version-listing.ts';

const missing = missingRadosgw();
if (missing !== undefined) process.stderr.write(`Tests of publishing to S3 are skipped: ${missing}.\n`);

describe.skipIf(missing !== undefined)('on S3', () => {
  let server: Radosgw;
  let codec: CodecPool;
  let cache: string;
  beforeAll(async () => {
    server = await startRadosgw();
    codec = await CodecPool.start({ threads: 1 });
    cache = await mkdtemp(join(tmpdir(), 'hone-publisher-s3-'));
  });
  afterAll(async () => {
    await codec.close();
    await server.stop();
    await rm(cache, { recursive: true, force: true });
  });

  const openStore = (location: string): Promise<WeightStore> =>
    openWeightStore(location, { environment: server.environment });
  const open = (store: WeightStore, options: Partial<PublisherOptions> = {}): Promise<Publisher> =>
    Publisher.open(store, { ...publisherOptions(codec), ...options });
  const publish = (publisher: Publisher, salt = 1): ReturnType<Publisher['publish']> =>
    publisher.publish(weightsOf(salt, publisher.version + 1));
  async function expectVisible(store: WeightStore, salt: number, version: number): Promise<void> {
    const identity = parseIdentity((await store.readPointer(LATEST_POINTER))?.value ?? '', 'latest');
    expect(identity.version).toBe(version);
    const weights = await withCache(undefined, (cacheDirectory) =>
      restoreVersion(store, identity, { codec, cacheDirectory }),
    );
    expect(bytesOf(weights.tensors)).toEqual(bytesOf(weightsOf(salt, version)));
  }

  it('a run is published, resumed elsewhere, verified and pruned', async () => {
    const location = server.location(`run-${randomUUID()}`);
    const store = await openStore(location);
    const publisher = await open(store, { shardBytes: 4000 });
    for (let version = 1; version <= 6; version++) await publish(publisher);
    await expectVisible(store, 1, 6);
    const elsewhere = await openStore(location);
    const resumed = await open(elsewhere);
    expect(resumed.version).toBe(6);
    expect(bytesOf(resumed.tensors)).toEqual(bytesOf(weightsOf(1, 6)));
    await publish(resumed);
    await expect(publish(publisher)).rejects.toMatchObject({
      code: 'pointer-conflict',
      message: expect.stringContaining('run/weight_v000007'),
    });
    const indexes = (await listVersions(store)).versions.flatMap(({ index }) => index ?? []);
    const verified = await verifyVersions(store, indexes, { codec, cacheDirectory: cache });
    expect(verified.map(({ kind }) => kind)).toEqual(Array.from({ length: 7 }, () => 'good'));
    await writeReplicaLease(store, {
      cluster: 'eu',
      runId: 'run',
      oldestVersion: policyVersion(6),
      nowMs: 1000,
      ttlMs: 60_000,
    });
    expect(await readReplicaLeases(elsewhere, { nowMs: 2000 })).toMatchObject([{ cluster: 'eu', isLive: true }]);
    expect((await prune(elsewhere, { keep: 1, nowMs: 2000 })).removed).toHaveLength(3);
    await expectVisible(store, 1, 7);
    await store.removePointer('leases/eu');
    await publish(resumed);
    expect((await prune(store, { keep: 1, nowMs: 2000 })).kept).toMatchObject([{ directory: 'run/weight_v000008' }]);
    await expectVisible(store, 1, 8);
  });

  /** A writer that is killed once it has claimed the key for its parts. */
  async function claim(store: WeightStore, key: string): Promise<void> {
    const bytes = new Uint8Array((16 << 20) + 1);
    const death = new AbortController();
    let passes = 0;
    const body = {
      sizeBytes: bytes.byteLength,
      chunks: function* (): Generator<Uint8Array> {
        if (++passes === 2) death.abort(new Error('killed')); // The first pass takes the checksum.
        yield bytes;
      },
    };
    await expect(store.putObject(key, body, { signal: death.signal })).rejects.toThrow('killed');
  }

  it('the keys that killed writers claimed are freed, by the publisher and by pruning, unless an upload may go on', async () => {
    const store = await openStore(server.location(`run-${randomUUID()}`));
    const claims = async (): Promise<string[]> => {
      const all = await store.list('', { withClaims: true });
      return all.flatMap(({ key, sizeBytes }) => (sizeBytes === CLAIM_BODY.byteLength ? [key] : []));
    };
    const publisher = await open(store);
    const file = 'model-00001-of-00001.safetensors';
    await claim(store, `run/weight_v000001/${file}`);
    expect((await publish(publisher)).identity).toMatchObject({ version: 1, attempt: 1 });
    expect(await claims()).toEqual([]);
    await publish(publisher);
    const [forked, past, ahead] = ['fork/weight_v000001', 'run/weight_v000001-r7', 'run/weight_v000003'].map(
      (directory) => `${directory}/${file}`,
    );
    for (const key of [forked, past, ahead]) await claim(store, key ?? '');
    expect(await claims()).toEqual([forked, past, ahead]);
    expect((await store.list('')).some(({ key }) => [forked, past, ahead].includes(key))).toBe(false);
    const nowMs = Date.now();
    expect((await prune(store, { keep: 2, nowMs })).removed).toMatchObject([
      { directory: 'run/weight_v000001-r7', reason: 'unfinished', sizeBytes: CLAIM_BODY.byteLength },
    ]);
    expect(await claims()).toEqual([forked, ahead]);
    await prune(store, { keep: 2, nowMs: nowMs + 2 * 86_400_000 });
    expect(await claims()).toEqual([ahead]);
    await expectVisible(store, 1, 2);
  });

  it('of two publishers one wins, round after round', async () => {
    const location = server.location(`run-${randomUUID()}`);
    const store = await openStore(location);
    for (let version = 1; version <= 3; version++) {
      const publishers = await Promise.all([open(store), open(await openStore(location))]);
      const results = await Promise.allSettled(publishers.map((publisher, salt) => publish(publisher, salt + 1)));
      const winner = results.findIndex(({ status }) => status === 'fulfilled');
      expect(results[1 - winner]).toMatchObject({ status: 'rejected', reason: { code: 'pointer-conflict' } });
      await expectVisible(store, winner + 1, version);
      expect((await listVersions(store)).versions).toHaveLength(version);
    }
  });

  it('side data comes back from another process', async () => {
    const location = server.location(`run-${randomUUID()}`);
    const side = new SideDataStore(await openStore(location), { runId: 'run' });
    const arrays = new Map([['kept/ids', { values: Int32Array.of(1, 2, 3), shape: [3] }]]);
    const key = await side.put(policyVersion(1), arrays);
    expect(await side.put(policyVersion(1), arrays)).toBe(key);
    expect(await new SideDataStore(await openStore(location), { runId: 'run' }).get(key)).toEqual(arrays);
  });
});

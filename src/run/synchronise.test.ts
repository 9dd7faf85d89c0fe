import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { servedPlaces } from './served-places.ts';
import { synchronise } from './synchronise.ts';
import type { SyncRetry } from './synchronise.ts';
import { policyVersion } from '../domain/ids.ts';
import { CodecPool } from '../sync/delta/codec-pool.ts';
import { MemoryWeights } from '../sync/memory-weights.ts';
import { FileStore } from '../sync/store/file-store.ts';
import { Publisher } from '../sync/publisher.ts';
import { ReplicaReconciler } from '../sync/reconciler.ts';
import type { TensorPlaces } from '../sync/tensor-place.ts';

let directory = '';
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'hone-synchronise-'));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const shapes = new Map([['w', [64]]]);
const weights = (value: number): Map<string, Uint8Array> => new Map([['w', new Uint8Array(128).fill(value)]]);
const placed = (value: number): TensorPlaces => servedPlaces(weights(value), shapes);

test('a published version reaches the replica; one that is damaged ends with the cause, and the replica keeps what it had', async () => {
  const store = await FileStore.open(directory);
  await using codec = await CodecPool.start({ threads: 1 });
  const boot = {
    runId: 'r',
    bootVersion: policyVersion(0),
    bootWeights: placed(0),
    codec,
    encoding: 'sparse' as const,
    anchorEvery: 9,
  };
  const publisher = await Publisher.open(store, boot);
  const replica = {
    version: policyVersion(0),
    stage: () => undefined,
    commit: async (version: typeof boot.bootVersion) => {
      replica.version = version;
      return { pauseMs: 0.5 };
    },
  };
  const reconciler = new ReplicaReconciler(store, replica, {
    codec,
    weights: await MemoryWeights.copyOf(placed(0), { runId: undefined, version: boot.bootVersion }, { codec }),
    cacheDirectory: join(directory, '.fetched'),
    runId: 'r',
  });
  const retries: SyncRetry[] = [];
  const bring = (): Promise<number | undefined> =>
    synchronise({
      reconciler,
      published: publisher.version,
      served: () => replica.version,
      onRetry: (retry) => retries.push(retry),
    });

  await publisher.publish(placed(1));
  expect(await bring()).toBe(0.5);
  expect(await bring()).toBeUndefined();
  expect(retries).toEqual([]);

  await publisher.publish(placed(2));
  const folder = join(directory, 'r', 'weight_v000002');
  const file = readdirSync(folder).find((name) => name.endsWith('.safetensors')) ?? '';
  const bytes = readFileSync(join(folder, file));
  bytes[bytes.length - 1] = (bytes.at(-1) ?? 0) ^ 0xff;
  writeFileSync(join(folder, file), bytes);
  await expect(bring()).rejects.toMatchObject({
    code: 'store-failed',
    message: expect.stringMatching(/serves version 1 and could not take version 2: ./u),
  });
  expect(retries).toHaveLength(3);
  expect(replica.version).toBe(1);
});

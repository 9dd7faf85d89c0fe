import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import { CodecPool } from './delta/codec-pool.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { FileStore } from './store/file-store.ts';
import { bodyOf } from './store/weight-store.ts';
import { planChain, readIndex, type HeldIdentity } from './version-chain.ts';
import { INDEX_FILE, parseIdentity } from './version-directory.ts';
import { VersionWriter, weightsOf } from './version-writer.fixture.ts';

let codec: TensorCodec;
beforeAll(async () => {
  codec = await CodecPool.start({ threads: 1 });
});
afterAll(() => codec.close());

let root: string;
let store: FileStore;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-chain-'));
  store = await FileStore.open(root);
  // Versions 1 and 2 are deltas, 3 is an anchor, 4 to 6 are deltas; 5 was published at the third attempt.
  const writer = new VersionWriter(store, codec);
  for (let version = 1; version <= 6; version++)
    await writer.write(weightsOf(version), { anchor: version === 3, attempt: version === 5 ? 2 : 0 });
});
afterEach(() => rm(root, { recursive: true, force: true }));

const target = (text: string): ReturnType<typeof parseIdentity> => parseIdentity(`run/${text}`, 'target');
const held = (version: number, runId: string | undefined = 'run'): HeldIdentity => ({
  runId,
  version: policyVersion(version),
});
const plan = async (text: string, from: HeldIdentity | undefined, maxLinks?: number): Promise<number[]> =>
  (await planChain(store, target(text), from, maxLinks === undefined ? {} : { maxLinks })).map(
    ({ identity }) => identity.version,
  );
async function lose(directory: string): Promise<void> {
  for (const { key } of await store.list(`run/${directory}/`)) await store.remove(key);
}

it('starts after what is held, or at the newest anchor at or before the target', async () => {
  expect(await plan('weight_v000006', held(4))).toEqual([5, 6]);
  expect(await plan('weight_v000006', held(6))).toEqual([]);
  expect(await plan('weight_v000006', held(1))).toEqual([3, 4, 5, 6]);
  expect(await plan('weight_v000006', undefined)).toEqual([3, 4, 5, 6]);
  expect(await plan('weight_v000003', held(2))).toEqual([3]);
  expect(await plan('weight_v000002', { version: policyVersion(0) })).toEqual([1, 2]);
  // Held is newer than what is asked for, or another run's: only an anchor will do.
  expect(await plan('weight_v000004', held(6))).toEqual([3, 4]);
  expect(await plan('weight_v000006', held(5, 'other'))).toEqual([3, 4, 5, 6]);
  // The boot model's number may be any: it is never taken for a published version of that number.
  expect(await plan('weight_v000004', { version: policyVersion(4) })).toEqual([3, 4]);
});

describe('a gap', () => {
  it('where the anchor was pruned, or never was, is named with both of its sides', async () => {
    await expect(plan('weight_v000002', undefined)).rejects.toMatchObject({
      code: 'delta-base-mismatch',
      message: expect.stringMatching(
        /^run\/weight_v000002 cannot be rebuilt: run\/weight_v000001 builds on run\/weight_v000000, which .*nothing usable is held/,
      ),
    });
    await lose('weight_v000003');
    await expect(plan('weight_v000006', held(1))).rejects.toMatchObject({
      code: 'delta-base-mismatch',
      message: expect.stringMatching(
        /weight_v000004 builds on run\/weight_v000003, which the store does not have; held here is version 1 of run run/,
      ),
    });
    expect(await plan('weight_v000006', held(3))).toEqual([4, 5, 6]);
  });

  it('at the target itself is a missing object', async () => {
    await lose('weight_v000006');
    await expect(plan('weight_v000006', held(3))).rejects.toMatchObject({
      code: 'store-failed',
      message: expect.stringContaining(`run/weight_v000006/${INDEX_FILE}`),
    });
  });

  it('is what another attempt of the base leaves', async () => {
    await lose('weight_v000005-r2');
    await store.putObject(
      `run/weight_v000005/${INDEX_FILE}`,
      bodyOf(Buffer.from('{"metadata":{"version":"000005","checksum_format":"xxh3-128"},"weight_map":{}}')),
    );
    await expect(plan('weight_v000006', held(3))).rejects.toMatchObject({
      message: expect.stringContaining('builds on run/weight_v000005-r2, which the store does not have'),
    });
  });
});

it('is bounded, and no index can make it go in circles', async () => {
  expect(await plan('weight_v000006', held(2), 4)).toEqual([3, 4, 5, 6]);
  await expect(plan('weight_v000006', held(2), 3)).rejects.toMatchObject({
    code: 'delta-base-mismatch',
    message: expect.stringContaining('more than 3 versions'),
  });
  const index = (version: number, base: number): Promise<string> =>
    store.putObject(
      `loop/weight_v00000${version}/${INDEX_FILE}`,
      bodyOf(
        Buffer.from(
          JSON.stringify({
            metadata: {
              version: `00000${version}`,
              base_version: `00000${base}`,
              delta_encoding: 'xor',
              compression_format: 'zstd',
              checksum_format: 'xxh3-128',
            },
            weight_map: {},
          }),
        ),
      ),
    );
  await index(1, 2);
  await index(2, 1);
  await expect(planChain(store, parseIdentity('loop/weight_v000002', 'x'), undefined)).rejects.toMatchObject({
    message: expect.stringContaining('not older'),
  });
});

it('reads one index, or says that there is none', async () => {
  expect(await readIndex(store, target('weight_v000005-r2'))).toMatchObject({ encoding: 'sparse' });
  await expect(readIndex(store, target('weight_v000005'))).rejects.toMatchObject({ code: 'store-failed' });
});

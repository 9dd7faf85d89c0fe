import { mkdtemp, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { constants, zstdCompressSync, zstdDecompressSync } from 'node:zlib';
import fc from 'fast-check';
import { afterEach, beforeEach, expect, it } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import { SideDataStore, type SideArrays } from './side-data.ts';
import { FileStore } from './store/file-store.ts';

let root: string;
let store: FileStore;
let side: SideDataStore;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-side-'));
  store = await FileStore.open(root);
  side = new SideDataStore(store, { runId: 'run' });
});
afterEach(() => rm(root, { recursive: true, force: true }));

const arrays: SideArrays = new Map([
  ['kept/ids', { values: Int32Array.of(5, -1, 2 ** 31 - 1), shape: [3] }],
  ['kept/offsets', { values: Int16Array.of(0, -32_768), shape: [1, 2] }],
  ['experts', { values: Uint8Array.of(255, 0, 7, 8, 9, 10), shape: [2, 3] }],
  ['logprobs', { values: Float32Array.of(-0.1, Number.NaN, -Infinity), shape: [3] }],
  ['none', { values: new Int32Array(), shape: [0, 4] }],
]);

it('gives back names, types, shapes and values, wherever they lay in memory', async () => {
  const buffer = new Int32Array([9, 5, -1, 2 ** 31 - 1, 9]);
  const view = new Map([...arrays, ['kept/ids', { values: buffer.subarray(1, 4), shape: [3] }]]);
  const key = await side.put(policyVersion(7), view);
  expect(key).toMatch(/^run\/side\/v000007\/[0-9a-f]{64}$/u);
  const found = await new SideDataStore(store, { runId: 'run' }).get(key);
  expect(new Map([...(found ?? [])].toSorted())).toEqual(new Map([...arrays].toSorted()));
});

it('stores the same content once a version, in whatever order it was named', async () => {
  const key = await side.put(policyVersion(7), arrays);
  expect(await side.put(policyVersion(7), new Map([...arrays].toReversed()))).toBe(key);
  expect(await side.put(policyVersion(8), arrays)).not.toBe(key);
  expect(await store.list('run/side/')).toHaveLength(2);
  // Another build of zstd makes other bytes of the same content.
  const path = join(root, key);
  const content = zstdDecompressSync(await readFile(path));
  await writeFile(path, zstdCompressSync(content, { params: { [constants.ZSTD_c_compressionLevel]: 19 } }));
  expect(await side.put(policyVersion(7), arrays)).toBe(key);
});

it('says that an object is damaged, and undefined of one that is not there', async () => {
  const key = await side.put(policyVersion(7), arrays);
  const path = join(root, key);
  const whole = await readFile(path);
  for (const bytes of [
    whole.subarray(0, whole.length - 3),
    Buffer.from('not zstd'),
    zstdCompressSync(Buffer.from('other content')),
    Buffer.alloc(0),
  ]) {
    await writeFile(path, bytes);
    await expect(side.get(key)).rejects.toMatchObject({
      code: 'checksum-mismatch',
      message: expect.stringContaining(key),
    });
  }
  await expect(side.put(policyVersion(7), arrays)).rejects.toMatchObject({ code: 'checksum-mismatch' });
  await rm(path);
  expect(await side.get(key)).toBeUndefined();
});

it('holds and gives no more than it may, neither expanded nor as it is stored', async () => {
  const small = new SideDataStore(store, { runId: 'run', maxBytes: 2000 });
  const zeros = new Map([['a', { values: new Int32Array(1000), shape: [1000] }]]);
  await expect(small.put(policyVersion(7), zeros)).rejects.toMatchObject({ code: 'store-failed' });
  await expect(small.get(await side.put(policyVersion(7), zeros))).rejects.toMatchObject({ code: 'checksum-mismatch' });
  const key = await small.put(policyVersion(7), arrays);
  await truncate(join(root, key), 2 ** 33);
  await expect(small.get(key)).rejects.toMatchObject({
    code: 'store-failed',
    message: `${key} has more than 1050576 bytes, which none of its kind needs.`,
  });
});

it('refuses what is no key of this run, and a shape that does not fit', async () => {
  const key = await side.put(policyVersion(7), arrays);
  await expect(new SideDataStore(store, { runId: 'other' }).get(key)).rejects.toMatchObject({ code: 'store-failed' });
  await expect(side.get('run/weight_v000007/model.safetensors.index.json')).rejects.toMatchObject({
    code: 'store-failed',
  });
  await expect(
    side.put(policyVersion(7), new Map([['a', { values: new Int32Array(3), shape: [2, 2] }]])),
  ).rejects.toMatchObject({ message: 'Side data a has 3 values, its shape [2, 2] takes 4.' });
});

it('returns any arrays bit for bit', async () => {
  const values = fc.oneof(
    fc.int32Array({ maxLength: 50 }),
    fc.int16Array({ maxLength: 50 }),
    fc.uint8Array({ maxLength: 50 }),
    fc.float32Array({ maxLength: 50 }),
  );
  await fc.assert(
    fc.asyncProperty(fc.dictionary(fc.string({ minLength: 1 }), values, { maxKeys: 4 }), async (record) => {
      const given: SideArrays = new Map(
        Object.entries(record)
          .filter(([name]) => name !== '__metadata__')
          .map(([name, array]) => [name, { values: array, shape: [array.length] }]),
      );
      const found = await side.get(await side.put(policyVersion(1), given));
      expect(new Map([...(found ?? [])].toSorted())).toEqual(new Map([...given].toSorted()));
    }),
    { numRuns: 60 },
  );
});

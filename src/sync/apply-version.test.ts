import { copyFile, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import { encodeSafetensors, type TensorData } from '../tensor/safetensors.ts';
import { applyVersion, type AppliedVersion } from './apply-version.ts';
import { catchUp } from './catch-up.ts';
import { CodecPool } from './delta/codec-pool.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { fetchVersion } from './fetch-version.ts';
import { FIRST_FORMAT_OBJECTS, firstFormatWeights } from './first-format.fixture.ts';
import { MemoryWeights } from './memory-weights.ts';
import { FileStore } from './store/file-store.ts';
import { bodyOf, readWhole, type ObjectSource } from './store/weight-store.ts';
import type { TensorPlaces } from './tensor-place.ts';
import { readIndex } from './version-chain.ts';
import { formatIdentity, parseIdentity, type VersionIdentity, type VersionIndex } from './version-directory.ts';
import { bytesOf, VersionWriter, weightsOf, type WriteOptions } from './version-writer.fixture.ts';

let codec: TensorCodec;
beforeAll(async () => {
  codec = await CodecPool.start({ threads: 2 });
});
afterAll(() => codec.close());

let root: string;
let store: FileStore;
let writer: VersionWriter;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-apply-'));
  store = await FileStore.open(join(root, 'store'));
  writer = new VersionWriter(store, codec);
});
afterEach(() => rm(root, { recursive: true, force: true }));

const bootWeights = (tensors: TensorPlaces = weightsOf(0)): Promise<MemoryWeights> =>
  MemoryWeights.copyOf(tensors, { runId: undefined, version: policyVersion(0) }, { codec });

async function apply(weights: MemoryWeights, identity: VersionIdentity): Promise<AppliedVersion> {
  const index = await readIndex(store, identity);
  const { paths } = await fetchVersion(store, index, { cacheDirectory: join(root, 'cache'), codec });
  return applyVersion(codec, { index, paths, weights });
}

/** One version written and applied with what `damage` did to it in between; it must be refused and leave the weights alone. */
async function refusal(
  options: WriteOptions,
  damage: (version: {
    index: VersionIndex;
    paths: Map<string, string>;
    weights: MemoryWeights;
  }) => Promise<VersionIndex | void>,
): Promise<unknown> {
  const identity = await writer.write(weightsOf(1), options);
  const weights = await bootWeights();
  const index = await readIndex(store, identity);
  const { paths } = await fetchVersion(store, index, { cacheDirectory: join(root, 'cache'), codec });
  // The store's own files are never touched.
  const copies = new Map<string, string>();
  for (const [file, path] of paths) {
    copies.set(file, join(root, file));
    await copyFile(path, join(root, file));
  }
  const changed = (await damage({ index, paths: copies, weights })) ?? index;
  const error: unknown = await applyVersion(codec, { index: changed, paths: copies, weights }).then(
    () => expect.fail('it was applied'),
    (reason: unknown) => reason,
  );
  expect(await bytesOf(weights.tensors)).toEqual(await bytesOf(weightsOf(0)));
  expect(weights.held.version).toBe(0);
  // And the version itself is as good as before.
  expect(await apply(weights, identity)).toMatchObject({ held: { version: 1 } });
  return error;
}

it.each<WriteOptions>([
  { encoding: 'sparse' },
  { encoding: 'xor' },
  { encoding: 'overwrite' },
  { anchor: true },
  { shardBytes: 1 << 20 },
])('brings weights to exactly the version: %j', async (options) => {
  const weights = await bootWeights();
  for (const seed of [1, 2]) {
    const identity = await writer.write(weightsOf(seed), options);
    const applied = await apply(weights, identity);
    expect(applied).toMatchObject({ writtenTensors: 4, imageChecksum: writer.checksums.get(seed) });
    expect(applied.held).toBe(weights.held);
    expect(await bytesOf(weights.tensors)).toEqual(await bytesOf(weightsOf(seed)));
  }
});

it('writes of an anchor only what differs, and of a version in which nothing changed nothing', async () => {
  const weights = await bootWeights();
  const identity = await writer.write(weightsOf(1, ['model.norm.weight']), { anchor: true });
  expect(await apply(weights, identity)).toMatchObject({ writtenTensors: 1, writtenBytes: 202 });
  const same = await writer.write(weightsOf(1, ['model.norm.weight']));
  expect(await apply(weights, same)).toMatchObject({ writtenTensors: 0, held: { version: 2 } });
});

it('reads what the first form of Hone wrote', async () => {
  for (const [key, base64] of FIRST_FORMAT_OBJECTS) await store.putObject(key, bodyOf(Buffer.from(base64, 'base64')));
  for (const [text, anchors] of [
    ['run/weight_v000001', 0],
    ['run/weight_v000002-r1', 1],
    ['run/weight_v000003', 1],
  ] as const) {
    const weights = await bootWeights(firstFormatWeights(0));
    const identity = parseIdentity(text, 'fixture');
    const options = { codec, weights, cacheDirectory: join(root, 'cache'), now: () => 0 };
    expect(await catchUp(store, identity, options)).toMatchObject({ anchors });
    expect(await bytesOf(weights.tensors)).toEqual(await bytesOf(firstFormatWeights(identity.version)));
  }
});

it('fetches anew what turned out damaged only when it was applied', async () => {
  for (const [key, base64] of FIRST_FORMAT_OBJECTS) await store.putObject(key, bodyOf(Buffer.from(base64, 'base64')));
  let damages = 1;
  const source: ObjectSource = {
    localPath: () => undefined,
    statObject: (key) => store.statObject(key),
    readPointer: (name) => store.readPointer(name),
    readObject: async (key, options) => {
      const bytes = await readWhole(store, key, options);
      if (bytes === undefined) return undefined;
      const copy = Buffer.from(bytes);
      // The first form tells no checksum of a whole file, so nothing notices before the tensors do.
      if (key.endsWith('.safetensors') && damages-- > 0) copy[copy.byteLength - 20]! ^= 1;
      return Readable.from([copy]);
    },
  };
  const weights = await bootWeights(firstFormatWeights(0));
  const options = { codec, weights, cacheDirectory: join(root, 'cache'), now: () => 0 };
  const identity = parseIdentity('run/weight_v000002-r1', 'fixture');
  await expect(catchUp(source, identity, options)).rejects.toMatchObject({
    code: 'checksum-mismatch',
    message: expect.stringContaining('run/weight_v000002-r1'),
  });
  await catchUp(source, identity, options);
  expect(await bytesOf(weights.tensors)).toEqual(await bytesOf(firstFormatWeights(2)));
});

it('reads checksums in adler32, and keeps its own', async () => {
  const tensors = weightsOf(5);
  const bytes = await bytesOf(tensors);
  const stored = new Map<string, TensorData>();
  const checksums: Record<string, string> = {};
  for (const [name, { dtype, shape, place }] of tensors) {
    stored.set(name, { dtype, shape, bytes: bytes.get(name) ?? Buffer.alloc(0) });
    checksums[name] = await codec.checksum(place, { format: 'adler32' });
  }
  const path = join(root, 'foreign.safetensors');
  await writeFile(path, Buffer.concat(encodeSafetensors(stored, checksums)));
  const index: VersionIndex = {
    identity: { runId: 'foreign', version: policyVersion(9), attempt: 0 },
    encoding: undefined,
    checksumFormat: 'adler32',
    weightMap: new Map([...stored.keys()].map((name) => [name, 'foreign.safetensors'])),
  };
  const weights = await bootWeights();
  await applyVersion(codec, { index, paths: new Map([['foreign.safetensors', path]]), weights });
  const own = await MemoryWeights.copyOf(tensors, { runId: 'x', version: policyVersion(1) }, { codec });
  expect(weights.held).toEqual({ runId: 'foreign', version: 9, checksums: own.held.checksums });
});

describe('refuses, with the weights as they were,', () => {
  it('bytes that are damaged, wherever the bit flips', async () => {
    for (const anchor of [false, true])
      for (let try_ = 0; try_ < 12; try_++) {
        writer = new VersionWriter(store, codec, { runId: `run${anchor}${try_}` });
        const error = await refusal({ anchor, shardBytes: 1 << 20 }, async ({ paths }) => {
          const [path = ''] = paths.values();
          const bytes = await readFile(path);
          const position = Math.floor((bytes.byteLength * (try_ + 0.5)) / 12);
          bytes[position]! ^= 1 << (try_ % 8);
          await writeFile(path, bytes);
        });
        expect(error).toMatchObject({
          code: expect.stringMatching(/^(checksum-mismatch|invalid-safetensors|delta-base-mismatch)$/),
        });
      }
  });

  it('files that are cut, by any length', async () => {
    for (const share of [0, 0.01, 0.5, 0.99]) {
      writer = new VersionWriter(store, codec, { runId: `run${share * 100}` });
      const error = await refusal({ shardBytes: 1 << 20 }, async ({ paths }) => {
        const [path = ''] = paths.values();
        const bytes = await readFile(path);
        await writeFile(path, bytes.subarray(0, Math.floor(bytes.byteLength * share)));
      });
      expect(error).toMatchObject({ code: 'invalid-safetensors' });
    }
  });

  it('a base that is not the held one, by number, run or bytes', async () => {
    const first = await writer.write(weightsOf(1), { anchor: true });
    const second = await writer.write(weightsOf(2));
    const boot = await bootWeights();
    await expect(apply(boot, second)).rejects.toMatchObject({
      code: 'delta-base-mismatch',
      message: 'run/weight_v000002 changes run/weight_v000001, but held here is version 0 of the boot model.',
    });
    const other = new VersionWriter(store, codec, { runId: 'other' });
    await apply(boot, await other.write(weightsOf(1), { anchor: true }));
    await expect(apply(boot, second)).rejects.toThrow(/held here is version 1 of other/);
    const wrong = await MemoryWeights.copyOf(weightsOf(3), { runId: 'run', version: first.version }, { codec });
    await expect(apply(wrong, second)).rejects.toMatchObject({
      code: 'delta-base-mismatch',
      message: expect.stringContaining(`the base's is ${writer.checksums.get(1)}`),
    });
    expect(await bytesOf(wrong.tensors)).toEqual(await bytesOf(weightsOf(3)));
  });

  it('a base that only the whole image gives away', async () => {
    // The change is in one tensor, the difference in another, and the index of another system names no base image.
    const identity = await writer.write(weightsOf(1, ['model.norm.weight']));
    const index = { ...(await readIndex(store, identity)), baseImageChecksum: undefined };
    const { paths } = await fetchVersion(store, index, { cacheDirectory: join(root, 'cache'), codec });
    const weights = await bootWeights(weightsOf(9, ['model.layers.0.weight']));
    await expect(applyVersion(codec, { index, paths, weights })).rejects.toMatchObject({
      code: 'checksum-mismatch',
      message: expect.stringContaining('the base differs'),
    });
    expect(await bytesOf(weights.tensors)).toEqual(await bytesOf(weightsOf(9, ['model.layers.0.weight'])));
  });

  it('tensors that are unknown, missing, of another type or shape, all in one message', async () => {
    const identity = await writer.write(weightsOf(1), { anchor: true });
    const tensors = new Map(weightsOf(0));
    const norm = tensors.get('model.norm.weight')!;
    const embedding = tensors.get('model.embed_tokens.weight')!;
    tensors.set('model.norm.weight', { ...norm, dtype: 'F16' });
    tensors.set('model.embed_tokens.weight', { ...embedding, shape: [50, 60] });
    tensors.delete('model.layers.0.weight');
    tensors.set('model.layers.2.weight', norm);
    const weights = await bootWeights(tensors);
    await expect(apply(weights, identity)).rejects.toMatchObject({
      code: 'delta-base-mismatch',
      message: expect.stringMatching(
        /^(?=.*embed_tokens.weight is BF16 \[60, 50\], here BF16 \[50, 60\])(?=.*layers.0.weight is unknown)(?=.*norm.weight is BF16 \[101\], here F16)(?=.*layers.2.weight is missing)/,
      ),
    });
    const delta = await writer.write(weightsOf(2));
    await expect(
      apply(await MemoryWeights.copyOf(tensors, { runId: 'run', version: identity.version }, { codec }), delta),
    ).rejects.toMatchObject({ code: 'delta-base-mismatch' });
  });

  it('a file that holds what the index does not place there, or lacks what it does, or proves nothing', async () => {
    const unplaced = await refusal({ shardBytes: 1 << 20 }, ({ index }) =>
      Promise.resolve({ ...index, weightMap: new Map([...index.weightMap].slice(1)) }),
    );
    expect(unplaced).toMatchObject({ code: 'checksum-mismatch', message: expect.stringContaining('in no file') });
    writer = new VersionWriter(store, codec, { runId: 'lacking' });
    const lacking = await refusal({ shardBytes: 1 << 20 }, ({ index }) => {
      const [file = ''] = index.weightMap.values();
      return Promise.resolve({ ...index, weightMap: new Map([...index.weightMap, ['extra', file]]) });
    });
    expect(lacking).toMatchObject({ message: expect.stringContaining('tensor extra is missing from it') });
    writer = new VersionWriter(store, codec, { runId: 'bare' });
    const bare = await refusal({ anchor: true, shardBytes: 1 << 20 }, async ({ paths }) => {
      const bytes = await bytesOf(weightsOf(1));
      const stored = new Map<string, TensorData>();
      for (const [name, { dtype, shape }] of weightsOf(1))
        stored.set(name, { dtype, shape, bytes: bytes.get(name) ?? Buffer.alloc(0) });
      for (const path of paths.values()) await writeFile(path, Buffer.concat(encodeSafetensors(stored)));
    });
    expect(bare).toMatchObject({ message: expect.stringContaining('nothing would prove it') });
  });

  it('the work when its signal fires', async () => {
    const identity = await writer.write(weightsOf(1));
    const weights = await bootWeights();
    const index = await readIndex(store, identity);
    const { paths } = await fetchVersion(store, index, { cacheDirectory: join(root, 'cache'), codec });
    await expect(applyVersion(codec, { index, paths, weights, signal: AbortSignal.abort() })).rejects.toMatchObject({
      code: 'aborted',
    });
    expect(formatIdentity(identity)).toBe('run/weight_v000001');
    expect(await apply(weights, identity)).toMatchObject({ held: { version: 1 } });
  });
});

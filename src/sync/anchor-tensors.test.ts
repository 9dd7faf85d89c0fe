/** Anchors of other writers: without an image checksum, and with another checksum format, what they hold is proven all the same. */
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import { encodeSafetensors, type TensorData } from '../tensor/safetensors.ts';
import { CodecPool } from './delta/codec-pool.ts';
import type { ChecksumFormat } from './delta/delta-codec.ts';
import { pullVersion } from './pull-version.ts';
import { restoreVersion } from './restore-version.ts';
import { FileStore } from './store/file-store.ts';
import { bytesOf, weightsOf, writeBootModel } from './version-writer.fixture.ts';

let codec: CodecPool;
beforeAll(async () => {
  codec = await CodecPool.start({ threads: 1 });
});
afterAll(() => codec.close());

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-anchor-'));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const identity = { runId: 'run', version: policyVersion(3), attempt: 0 };
const FILE = 'model-00001-of-00001.safetensors';
const DAMAGED = 'model.layers.1.weight';

async function writeForeignAnchor(format: ChecksumFormat): Promise<{ file: string; index: string }> {
  const places = weightsOf(5);
  const bytes = await bytesOf(places);
  const metadata: Record<string, string> = {};
  const tensors = new Map<string, TensorData>();
  for (const [name, { dtype, shape, place }] of places) {
    metadata[name] = await codec.checksum(place, { format });
    tensors.set(name, { dtype, shape, bytes: bytes.get(name) ?? Buffer.alloc(0) });
  }
  const directory = join(root, 'store/run/weight_v000003');
  const [file, index] = [join(directory, FILE), join(directory, 'model.safetensors.index.json')];
  await mkdir(directory, { recursive: true });
  await writeFile(file, Buffer.concat(encodeSafetensors(tensors, metadata)));
  const weightMap = Object.fromEntries([...tensors.keys()].map((name) => [name, FILE]));
  await writeFile(
    index,
    JSON.stringify({ metadata: { version: '000003', checksum_format: format }, weight_map: weightMap }),
  );
  return { file, index };
}

const rebuild = async (): Promise<Map<string, Buffer>> => {
  const store = await FileStore.open(join(root, 'store'));
  return bytesOf((await restoreVersion(store, identity, { codec, cacheDirectory: join(root, 'cache') })).tensors);
};
const pull = async (): Promise<unknown> =>
  pullVersion(await FileStore.open(join(root, 'store')), identity, {
    directory: join(root, 'pulled'),
    bootModel: await writeBootModel(join(root, 'boot')),
    codec,
  });

describe.each(['adler32', 'xxh3-128'] as const)('an anchor of another writer, in %s', (format) => {
  it('is rebuilt, and pulled into a folder', async () => {
    await writeForeignAnchor(format);
    expect(await rebuild()).toEqual(await bytesOf(weightsOf(5)));
    expect(await pull()).toMatchObject({ applied: [identity], tensors: 4 });
  });

  it('with one wrong bit is refused, naming the tensor, and the next pull begins anew', async () => {
    const { file } = await writeForeignAnchor(format);
    const good = await readFile(file);
    const bad = Buffer.from(good);
    const needle = (await bytesOf(weightsOf(5))).get(DAMAGED) ?? Buffer.alloc(1);
    bad[bad.indexOf(needle) + 20]! ^= 1;
    await writeFile(file, bad);
    const refusal = {
      code: 'checksum-mismatch',
      message: expect.stringContaining(
        `run/weight_v000003 is damaged: the bytes of ${DAMAGED} in ${FILE} are not those`,
      ),
    };
    await expect(rebuild()).rejects.toMatchObject(refusal);
    await expect(pull()).rejects.toMatchObject(refusal);
    await writeFile(file, good);
    expect(await pull()).toMatchObject({ applied: [identity] });
  });

  it('whose index names a tensor that no file holds is refused', async () => {
    const { index } = await writeForeignAnchor(format);
    const text = await readFile(index, 'utf8');
    await writeFile(index, text.replace('"weight_map":{', `"weight_map":{"lost.weight":"${FILE}",`));
    const refusal = { code: 'checksum-mismatch', message: expect.stringContaining('no file of it holds lost.weight') };
    await expect(rebuild()).rejects.toMatchObject(refusal);
    await expect(pull()).rejects.toMatchObject(refusal);
  });
});

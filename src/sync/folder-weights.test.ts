import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, open, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import { readModelFolder } from '../tensor/hugging-face-folder.ts';
import { catchUp, type CaughtUp } from './catch-up.ts';
import { CodecPool } from './delta/codec-pool.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { FolderWeights, type FolderOptions } from './folder-weights.ts';
import { imageChecksum } from './image-checksum.ts';
import { RecordingReplica } from './recording-replica.fixture.ts';
import { ReplicaReconciler, type ReconcilerEvent } from './reconciler.ts';
import { FileStore } from './store/file-store.ts';
import { mountSmallDisk } from './store/small-disk.fixture.ts';
import { LATEST_POINTER, parseIdentity } from './version-directory.ts';
import { bytesOf, VersionWriter, weightsOf, writeBootModel } from './version-writer.fixture.ts';

let codec: TensorCodec;
beforeAll(async () => {
  codec = await CodecPool.start({ threads: 1 });
});
afterAll(() => codec.close());

let root: string;
let folder: string;
let bootModel: string;
let store: FileStore;
let writer: VersionWriter;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-folder-'));
  folder = join(root, 'data');
  bootModel = await writeBootModel(join(root, 'boot'));
  store = await FileStore.open(join(root, 'store'));
  writer = new VersionWriter(store, codec);
});
afterEach(() => rm(root, { recursive: true, force: true }));

const openFolder = (options: Partial<FolderOptions> = {}): Promise<FolderWeights> =>
  FolderWeights.open(folder, { bootModel, codec, ...options });

async function catchUpTo(weights: FolderWeights): Promise<CaughtUp> {
  const pointer = await store.readPointer(LATEST_POINTER);
  return catchUp(store, parseIdentity(pointer?.value ?? '', LATEST_POINTER), {
    codec,
    weights,
    cacheDirectory: join(root, 'cache'),
    now: () => performance.now(),
  });
}

/** Held, and the bytes that say so. */
async function expectWhole(weights: FolderWeights, version: number): Promise<void> {
  expect(weights.held?.version).toBe(version);
  const truth = version === 0 ? undefined : writer.checksums.get(version);
  const found = new Map<string, string>();
  for (const [name, { place }] of weights.tensors) found.set(name, await codec.checksum(place));
  expect(found).toEqual(new Map(weights.held?.checksums));
  if (truth === undefined) expect(await bytesOf(weights.tensors)).toEqual(await bytesOf(weightsOf(0)));
  else expect(imageChecksum(found)).toBe(truth);
}

/** Makes an in-place change that writes the first tensor only, and leaves it at that. */
async function breakOff(weights: FolderWeights): Promise<void> {
  const change = await weights.beginChange({ whole: false });
  const [name = ''] = weights.tensors.keys();
  const place = change.target(name);
  if (place.kind !== 'file') throw new Error('not a file');
  await using handle = await open(place.path, 'r+');
  await handle.write(Buffer.alloc(100, 0xee), 0, 100, place.offset);
  await change.abandon();
}

it('is made from the boot model, follows versions in place, and opens again where it was', async () => {
  {
    await using weights = await openFolder();
    await expectWhole(weights, 0);
    expect([weights.openedFrom, weights.held?.runId]).toEqual(['boot', undefined]);
    await writer.write(weightsOf(1));
    await writer.write(weightsOf(2), { encoding: 'overwrite' });
    expect(await catchUpTo(weights)).toMatchObject({ versions: 2, anchors: 0, reseededFrom: undefined });
    await expectWhole(weights, 2);
  }
  const files = await readdir(folder);
  await using again = await openFolder();
  expect([again.openedFrom, again.held?.runId]).toEqual(['folder', 'run']);
  await expectWhole(again, 2);
  await writer.write(weightsOf(3), { anchor: true });
  expect(await catchUpTo(again)).toMatchObject({ versions: 1, anchors: 1 });
  await expectWhole(again, 3);
  expect((await readdir(folder)).filter((name) => name !== 'weights.lock').sort()).toEqual(files.sort());
});

it('is a Hugging Face folder, in shards when it is large', async () => {
  await using weights = await openFolder({ maxShardBytes: 5000 });
  await writer.write(weightsOf(1));
  await catchUpTo(weights);
  const model = await readModelFolder(folder);
  expect([model.config, model.chatTemplate]).toEqual([{ model_type: 'test' }, 'Hello']);
  expect(new Map([...model.tensors].map(([name, { bytes }]) => [name, Buffer.from(bytes)]))).toEqual(
    await bytesOf(weightsOf(1)),
  );
  expect((await readdir(folder)).filter((name) => name.endsWith('.safetensors'))).toHaveLength(3);
});

it('takes the boot tensors in the form in which they are served', async () => {
  const served = new Map([...weightsOf(0)].slice(0, 2));
  await using weights = await openFolder({ bootTensors: served, bootVersion: policyVersion(7) });
  expect(await bytesOf(weights.tensors)).toEqual(await bytesOf(served));
  expect(weights.held?.version).toBe(7);
});

describe('a change that breaks off', () => {
  it('leaves the folder dirty: deltas are refused, and the newest anchor makes it whole', async () => {
    await writer.write(weightsOf(1), { anchor: true });
    await writer.write(weightsOf(2));
    await using weights = await openFolder();
    await catchUpTo(weights);
    await breakOff(weights);
    expect(weights.held).toBeUndefined();
    await expect(weights.beginChange({ whole: false })).rejects.toMatchObject({ code: 'delta-base-mismatch' });
    expect(await catchUpTo(weights)).toMatchObject({ versions: 2, anchors: 1, reseededFrom: 'anchor' });
    await expectWhole(weights, 2);
  });

  it('is found at the next start, and healed from the boot model when there is no anchor', async () => {
    await writer.write(weightsOf(1));
    {
      await using weights = await openFolder();
      await breakOff(weights);
    }
    await using again = await openFolder({ verify: 'sizes' });
    expect(again.held).toBeUndefined();
    expect(again.dirtyReason).toContain('broke off');
    expect(await catchUpTo(again)).toMatchObject({ versions: 1, reseededFrom: 'boot' });
    await expectWhole(again, 1);
  });

  it('before anything was written leaves the folder as it was', async () => {
    await using weights = await openFolder();
    await (await weights.beginChange({ whole: false })).abandon();
    await expectWhole(weights, 0);
    await weights.close();
    await using again = await openFolder();
    await expectWhole(again, 0);
  });

  it('with a tensor left out does not count as whole', async () => {
    await using weights = await openFolder();
    await breakOff(weights);
    const change = await weights.beginChange({ whole: true });
    change.target('model.norm.weight');
    await expect(
      change.finish({ runId: 'run', version: policyVersion(1), checksums: new Map() }),
    ).rejects.toMatchObject({ message: expect.stringContaining('1 of 4 tensors') });
    expect(weights.held).toBeUndefined();
  });

  it(
    'by kill -9 in the middle of any tensor is found by the next process, which reaches the version',
    { timeout: 120_000 },
    async () => {
      await writer.write(weightsOf(1), { anchor: true });
      const run = promisify(execFile);
      const apply = (...args: string[]): Promise<{ stdout: string }> =>
        run(process.execPath, [
          fileURLToPath(new URL('./applying-process.fixture.ts', import.meta.url)),
          join(root, 'store'),
          folder,
          bootModel,
          ...args,
        ]);
      expect((await apply()).stdout).toBe('held 0\nheld 1\n');
      let version = 1;
      for (const killAt of ['1', '3']) {
        await writer.write(weightsOf(++version));
        const killed = await apply(killAt).catch((error: unknown) => error);
        expect(killed).toMatchObject({ signal: 'SIGKILL', stdout: `held ${version - 1}\n` });
        // Killed again while it starts over from the anchor, which writes every tensor.
        expect(await apply('2').catch((error: unknown) => error)).toMatchObject({
          signal: 'SIGKILL',
          stdout: 'held nothing\n',
        });
        expect((await apply()).stdout).toBe(`held nothing\nheld ${version}\n`);
      }
      await using weights = await openFolder();
      await expectWhole(weights, version);
    },
  );
});

describe('at opening', () => {
  it('bytes that are not what was written make it dirty, unless only sizes are looked at', async () => {
    await (await openFolder()).close();
    const path = join(folder, 'model.safetensors');
    const bytes = await readFile(path);
    bytes[bytes.byteLength - 7]! ^= 16;
    await writeFile(path, bytes);
    const trusting = await openFolder({ verify: 'sizes' });
    expect(trusting.held?.version).toBe(0);
    await trusting.close();
    const checking = await openFolder();
    expect([checking.held, checking.dirtyReason]).toEqual([
      undefined,
      expect.stringContaining('model.layers.1.weight are not'),
    ]);
    await checking.close();
    // From then on everybody knows.
    await using again = await openFolder({ verify: 'sizes' });
    expect(again.held).toBeUndefined();
  });

  it.each([
    ['a weight file that is cut', (): Promise<void> => truncate(join(folder, 'model.safetensors'), 5000)],
    ['a weight file that is gone', (): Promise<void> => rm(join(folder, 'model.safetensors'))],
    ['a state that cannot be read', (): Promise<void> => writeFile(join(folder, 'state.json'), '{"format":')],
    [
      'seeding that broke off',
      (): Promise<void> => writeFile(join(folder, 'state.json'), '{"format":1,"state":"seeding"}'),
    ],
    ['a boot model that was exchanged', async (): Promise<void> => void (await writeBootModel(bootModel))],
  ])('%s leads back to the boot model', async (_, damage) => {
    await (await openFolder()).close();
    await damage();
    await using weights = await openFolder();
    expect(weights.openedFrom).toBe('boot');
    await expectWhole(weights, 0);
  });

  it('a folder of somebody else, or of another model, is refused and not touched', async () => {
    await expect(FolderWeights.open(bootModel, { bootModel, codec })).rejects.toMatchObject({
      code: 'invalid-config',
      message: expect.stringContaining('no state.json'),
    });
    await (await openFolder()).close();
    const other = await writeBootModel(join(root, 'other'), new Map([...weightsOf(0)].slice(1)));
    await expect(openFolder({ bootModel: other })).rejects.toMatchObject({
      code: 'delta-base-mismatch',
      message: expect.stringContaining('model.embed_tokens.weight is unexpected'),
    });
    await using weights = await openFolder();
    await expectWhole(weights, 0);
  });

  it('a folder that another one has open is refused, until it is closed or its process is dead', async () => {
    const first = await openFolder();
    await expect(openFolder()).rejects.toMatchObject({
      code: 'run-locked',
      message: expect.stringContaining(`process ${process.pid}`),
    });
    await first.close();
    const child = new URL('./folder-weights.ts', import.meta.url).href;
    const pool = new URL('./delta/codec-pool.ts', import.meta.url).href;
    const script = `
      import { FolderWeights } from ${JSON.stringify(child)};
      import { CodecPool } from ${JSON.stringify(pool)};
      const codec = await CodecPool.start({ threads: 1 });
      await FolderWeights.open(${JSON.stringify(folder)}, { bootModel: ${JSON.stringify(bootModel)}, codec });
      process.kill(process.pid, 'SIGKILL');`;
    await writeFile(join(root, 'holder.mjs'), script);
    await expect(promisify(execFile)(process.execPath, [join(root, 'holder.mjs')])).rejects.toMatchObject({
      signal: 'SIGKILL',
    });
    expect(await readdir(folder)).toContain('weights.lock');
    await using weights = await openFolder();
    await expectWhole(weights, 0);
  });
});

it('on a disk that is full stays dirty with the cause, the replica serves on, and it heals when there is room', async (context) => {
  const small = join(root, 'small');
  await mkdir(small);
  using disk = mountSmallDisk(small);
  if (disk === undefined) return context.skip('this process may not mount a small disk');
  folder = join(small, 'data');
  const weights = await openFolder();
  const replica = new RecordingReplica(0, await bytesOf(weightsOf(0)));
  const events: ReconcilerEvent[] = [];
  const reconciler = new ReplicaReconciler(store, replica, {
    codec,
    weights,
    cacheDirectory: join(root, 'cache'),
    onEvent: (event) => events.push(event),
    verifyServed: true,
  });
  await writer.write(weightsOf(1), { anchor: true });
  await reconciler.poll();
  await writer.write(weightsOf(2));
  await fillDisk(join(small, 'ballast'));
  // The change in place needs no room, the state beside it does.
  expect(await reconciler.poll()).toMatchObject({
    kind: 'retry',
    error: { code: 'store-failed', message: expect.stringContaining('disk is full') },
  });
  expect([replica.version, await replica.servedImage()]).toEqual([1, writer.checksums.get(1)]);
  // Dirty and full: seeding anew does not work either, and says so.
  await rm(join(small, 'ballast'));
  await breakOff(weights);
  await fillDisk(join(small, 'ballast'));
  expect(await reconciler.poll()).toMatchObject({ kind: 'retry', error: { code: 'store-failed' } });
  expect(reconciler.status()).toMatchObject({ heldVersion: undefined, servedVersion: 1 });
  disk.grow();
  expect(await reconciler.poll()).toMatchObject({ kind: 'committed', from: 1, version: 2 });
  expect(await replica.servedImage()).toBe(writer.checksums.get(2));
  expect(events.findLast(({ type }) => type === 'weights-reseeded')).toMatchObject({
    source: 'anchor',
    reason: expect.stringContaining('disk is full'),
  });
  await weights.close();
});

async function fillDisk(path: string): Promise<void> {
  await using handle = await open(path, 'w');
  for (const sizeBytes of [65_536, 4096, 512, 1])
    try {
      for (;;) await handle.write(Buffer.alloc(sizeBytes));
    } catch {
      // Full at this size; smaller pieces may still fit.
    }
}

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { createRandom, policyVersion } from '../domain/ids.ts';
import { FileStore } from './store/file-store.ts';
import { LATEST_POINTER, Publisher } from './publisher.ts';
import { PUBLISHER_OPTIONS, SHAPES, weightsOf } from './publishing-process.fixture.ts';
import { mountSmallDisk } from './store/small-disk.fixture.ts';
import { loadVersion } from './version-chain.ts';
import { parseIdentity } from './version-directory.ts';
import { imageOf } from './weight-image.ts';
import { watchStore, type StoreCall } from './store/watched-store.fixture.ts';
import { bodyOf, type WeightStore } from './store/weight-store.ts';

let root: string;
let store: FileStore;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-publisher-'));
  store = await FileStore.open(root);
});
afterEach(() => rm(root, { recursive: true, force: true }));

const open = (on: WeightStore = store): Promise<Publisher> => Publisher.open(on, PUBLISHER_OPTIONS);
const publish = (publisher: Publisher, salt = 1): ReturnType<Publisher['publish']> =>
  publisher.publish(weightsOf(salt, publisher.version + 1), SHAPES);

/** What a replica that only has the boot weights gets to see. */
async function visible(): Promise<{ text: string; version: number; tensors: ReadonlyMap<string, Uint8Array> }> {
  const text = (await store.readPointer(LATEST_POINTER))?.value;
  if (text === undefined) return { text: '', version: 0, tensors: PUBLISHER_OPTIONS.bootWeights };
  const identity = parseIdentity(text, 'latest');
  const image = await loadVersion(store, identity, {
    version: policyVersion(0),
    image: imageOf(PUBLISHER_OPTIONS.bootWeights),
  });
  return { text, version: identity.version, tensors: image.tensors };
}

/** Every value that the pointer ever had, and every version directory there is. */
const history = (): Promise<string[]> =>
  readdir(join(root, '.pointers/latest')).then((files) =>
    Promise.all(files.sort().map((file) => readFile(join(root, '.pointers/latest', file), 'utf8'))),
  );
const directories = async (): Promise<string[]> => [
  ...new Set((await store.list('run/')).map(({ key }) => key.slice(0, key.lastIndexOf('/')))),
];

it('publishes deltas with an anchor at every fourth version, each visible when its report is there', async () => {
  const publisher = await open();
  expect(publisher.version).toBe(0);
  for (let version = 1; version <= 9; version++) {
    const report = await publish(publisher);
    expect(report).toMatchObject({ version, anchor: version % 4 === 0, totalElements: 6103 });
    expect(report.changedElements).toBeGreaterThan(200);
    expect(report.changedElements).toBeLessThan(700);
    if (report.anchor) expect(report.bytes).toBeGreaterThan(12_206);
    else expect(report.bytes).toBeLessThan(6000);
    const seen = await visible();
    expect(seen.text).toBe(`run/weight_v00000${version}`);
    expect(seen.tensors).toEqual(weightsOf(1, version));
    expect(publisher.tensors).toEqual(weightsOf(1, version));
  }
});

it('copies the tensors before the first wait: the trainer may go on at once', async () => {
  const publisher = await open();
  const tensors = weightsOf(1, 1);
  const published = publisher.publish(tensors, SHAPES);
  for (const bytes of tensors.values()) bytes.fill(255);
  await published;
  expect((await visible()).tensors).toEqual(weightsOf(1, 1));
});

it('takes views into shared memory', async () => {
  const publisher = await open();
  const shared = new Map(
    [...weightsOf(1, 1)].map(([name, bytes]) => {
      const view = new Uint8Array(new SharedArrayBuffer(bytes.byteLength + 2), 2, bytes.byteLength);
      view.set(bytes);
      return [name, view];
    }),
  );
  await publisher.publish(shared, SHAPES);
  expect((await visible()).tensors).toEqual(weightsOf(1, 1));
});

it('refuses other tensors than the run has, all problems at once, and a second publish during one', async () => {
  const publisher = await open();
  const tensors = weightsOf(1, 1);
  tensors.delete('model.norm.weight');
  tensors.set('extra', new Uint8Array(2)).set('salt', new Uint8Array(2));
  await expect(publisher.publish(tensors, new Map([...SHAPES, ['model.layers.0.weight', [1]]]))).rejects.toMatchObject({
    code: 'delta-base-mismatch',
    message: expect.stringMatching(
      /model\.norm\.weight is missing; .*salt has 2 bytes.*; model\.layers\.0\.weight has 6000 bytes of bf16, its shape is \[1\].*; extra is new/,
    ),
  });
  const first = publish(publisher);
  await expect(publish(publisher)).rejects.toMatchObject({
    code: 'pointer-conflict',
    message: expect.stringContaining('still being published'),
  });
  await first;
  expect(await publish(publisher)).toMatchObject({ version: 2 });
});

describe('resumed', () => {
  it('goes on from the published version, whatever the distance to the last anchor', async () => {
    for (let version = 1; version <= 10; version++) {
      const publisher = await open();
      expect(publisher.version).toBe(version - 1);
      expect(publisher.tensors).toEqual(version === 1 ? PUBLISHER_OPTIONS.bootWeights : weightsOf(1, version - 1));
      await publish(publisher);
      expect((await visible()).tensors).toEqual(weightsOf(1, version));
    }
  });

  it('boots from a later version when its weights are those that were published, and only then', async () => {
    const publisher = await open();
    for (let count = 0; count < 3; count++) await publish(publisher);
    const at = (version: number, salt: number): Promise<Publisher> =>
      Publisher.open(store, {
        ...PUBLISHER_OPTIONS,
        bootVersion: policyVersion(version),
        bootWeights: weightsOf(salt, version),
      });
    expect((await at(3, 1)).version).toBe(3);
    expect((await at(2, 1)).version).toBe(3);
    await expect(at(3, 2)).rejects.toMatchObject({ code: 'checksum-mismatch' });
    await expect(at(2, 2)).rejects.toMatchObject({ code: 'checksum-mismatch' });
    await expect(at(5, 1)).rejects.toMatchObject({ code: 'pointer-rewind' });
  });

  it('refuses a foreign run, a pointer that names no version, and a broken chain', async () => {
    const publisher = await open();
    for (let count = 0; count < 6; count++) await publish(publisher);
    await expect(Publisher.open(store, { ...PUBLISHER_OPTIONS, runId: 'other' })).rejects.toMatchObject({
      code: 'pointer-conflict',
      message: expect.stringContaining('belongs to run run'),
    });
    await expect(Publisher.open(store, { ...PUBLISHER_OPTIONS, anchorEvery: 0 })).rejects.toMatchObject({
      code: 'invalid-config',
    });
    const weights = join(root, 'run/weight_v000005/model-00001-of-00001.safetensors');
    const whole = await readFile(weights);
    await truncate(weights, whole.byteLength - 1);
    await expect(open()).rejects.toMatchObject({
      code: 'invalid-safetensors',
      message: expect.stringContaining('weight_v000005'),
    });
    await writeFile(weights, whole.fill(0, whole.byteLength - 9, whole.byteLength - 5));
    await expect(open()).rejects.toMatchObject({ code: 'checksum-mismatch' });
    await rm(join(root, 'run/weight_v000005'), { recursive: true });
    await expect(open()).rejects.toMatchObject({
      code: 'store-failed',
      message: expect.stringContaining('run/weight_v000005/model.safetensors.index.json'),
    });
    await store.compareAndSwapPointer(
      LATEST_POINTER,
      (await store.readPointer(LATEST_POINTER))?.tag,
      'latest and greatest',
    );
    await expect(open()).rejects.toMatchObject({
      code: 'store-failed',
      message: expect.stringContaining('latest and greatest'),
    });
  });

  it('needs an anchor when the boot weights are not at hand', async () => {
    const publisher = await open();
    for (let count = 0; count < 3; count++) await publish(publisher);
    const identity = parseIdentity((await visible()).text, 'latest');
    const local = { version: policyVersion(2), image: imageOf(weightsOf(1, 2)) };
    expect((await loadVersion(store, identity, local)).tensors).toEqual(weightsOf(1, 3));
    await publish(publisher);
    await publish(publisher);
    const later = parseIdentity((await visible()).text, 'latest');
    expect((await loadVersion(store, later, { version: policyVersion(1), image: imageOf(new Map()) })).tensors).toEqual(
      weightsOf(1, 5),
    );
    await expect(loadVersion(store, identity, { version: policyVersion(4), image: local.image })).rejects.toMatchObject(
      {
        code: 'delta-base-mismatch',
        message: 'Version 3 of run builds on version 2, local is 4, and no full anchor lies between.',
      },
    );
    await rm(join(root, 'run/weight_v000004'), { recursive: true });
    await expect(loadVersion(store, later, local)).rejects.toMatchObject({
      code: 'store-failed',
      message: expect.stringContaining('weight_v000004'),
    });
  });
});

describe('when the store fails', () => {
  const calls: [string, (call: StoreCall) => boolean][] = [
    [
      'before the weights',
      ({ operation, name, when }) => operation === 'putObject' && name.endsWith('.safetensors') && when === 'before',
    ],
    [
      'after the weights',
      ({ operation, name, when }) => operation === 'putObject' && name.endsWith('.safetensors') && when === 'after',
    ],
    [
      'after the index',
      ({ operation, name, when }) => operation === 'putObject' && name.endsWith('.json') && when === 'after',
    ],
    ['before the swap', ({ operation, when }) => operation === 'compareAndSwapPointer' && when === 'before'],
    [
      'after the swap, without an answer',
      ({ operation, when }) => operation === 'compareAndSwapPointer' && when === 'after',
    ],
  ];
  it.each(calls)('%s, the next publish is right', async (_, fails) => {
    let isFailing = false;
    const publisher = await open(
      watchStore(store, (call) => {
        if (isFailing && fails(call)) throw new HoneError('store-failed', 'The store went away.');
      }),
    );
    await publish(publisher, 1);
    isFailing = true;
    await expect(publisher.publish(weightsOf(2, 2), SHAPES)).rejects.toMatchObject({ code: 'store-failed' });
    expect(publisher.version).toBe(1);
    const landed = (await visible()).version;
    isFailing = false;
    const { version } = await publisher.publish(weightsOf(3, 9), SHAPES);
    expect(version).toBe(landed + 1);
    expect((await visible()).tensors).toEqual(weightsOf(3, 9));
    expect(await publish(publisher, 4)).toMatchObject({ version: landed + 2 });
    expect((await visible()).tensors).toEqual(weightsOf(4, landed + 2));
    // What the failed publish left behind is gone; what any pointer named is there.
    expect(await directories()).toEqual((await history()).sort());
    expect((await open()).tensors).toEqual(weightsOf(4, landed + 2));
  });
});

it('on a full disk says so and publishes on once there is room', async (context) => {
  using disk = mountSmallDisk(root);
  if (disk === undefined) return context.skip('this process may not mount a small disk');
  store = await FileStore.open(root);
  await store.putObject('filler/a', bodyOf(new Uint8Array(850_000)));
  const publisher = await open();
  let failure: unknown;
  for (let count = 0; count < 60 && failure === undefined; count++) {
    try {
      await publish(publisher);
    } catch (error) {
      failure = error;
    }
  }
  expect(failure).toMatchObject({
    code: 'store-failed',
    message: expect.stringMatching(/^The disk is full: could not write .*weight_v0000\d\d\/model/),
  });
  const reached = publisher.version;
  expect(await visible()).toMatchObject({ version: reached, tensors: weightsOf(1, reached) });
  await expect(publish(publisher)).rejects.toMatchObject({ code: 'store-failed' });
  disk.grow();
  expect(await publish(publisher)).toMatchObject({ version: reached + 1 });
  expect((await visible()).tensors).toEqual(weightsOf(1, reached + 1));
});

describe('two publishers', () => {
  it('race for one version: exactly one wins, its bytes are what is seen, and the other stays out', async () => {
    for (let round = 0; round < 3; round++) {
      const version = round + 1;
      const publishers = await Promise.all([open(), open()]);
      const results = await Promise.allSettled(publishers.map((publisher, salt) => publish(publisher, salt)));
      const winner = results.findIndex((result) => result.status === 'fulfilled');
      expect(results[1 - winner]).toMatchObject({ status: 'rejected', reason: { code: 'pointer-conflict' } });
      expect(await visible()).toMatchObject({ version, tensors: weightsOf(winner, version) });
      const loser = publishers[1 - winner] ?? expect.fail('no loser');
      expect(loser.version).toBe(version - 1);
      await expect(publish(loser)).rejects.toMatchObject({
        code: 'pointer-conflict',
        cure: expect.stringContaining('Stop one of the two'),
      });
    }
  });

  it('do not damage each other when one sleeps just before its swap', async () => {
    let wakeUp = (): void => undefined;
    const asleep = new Promise<void>((resolve) => (wakeUp = resolve));
    let reached = (): void => undefined;
    const reachedSwap = new Promise<void>((resolve) => (reached = resolve));
    const sleeper = await open(
      watchStore(store, async ({ operation, when }) => {
        if (operation !== 'compareAndSwapPointer' || when === 'after') return;
        reached();
        await asleep;
      }),
    );
    const sleeping = publish(sleeper, 1);
    await reachedSwap;
    const other = await open();
    await publish(other, 2);
    await publish(other, 2);
    wakeUp();
    await expect(sleeping).rejects.toMatchObject({ code: 'pointer-conflict' });
    expect(await visible()).toMatchObject({ version: 2, tensors: weightsOf(2, 2) });
    expect(await history()).toEqual(['run/weight_v000001-r1', 'run/weight_v000002']);
    expect(await directories()).toEqual(await history());
  });
});

describe('a killed publisher', () => {
  const script = fileURLToPath(new URL('./publishing-process.fixture.ts', import.meta.url));

  /** The visible version is whole, belongs to one of the processes, and publishing goes on from it. */
  async function expectWhole(salts: readonly number[], atLeast: number): Promise<void> {
    const seen = await visible();
    expect(seen.version).toBeGreaterThanOrEqual(atLeast);
    const stamp = seen.tensors.get('salt') ?? new Uint8Array(4);
    const salt = (stamp[0] ?? 0) + 256 * (stamp[1] ?? 0);
    if (seen.version > 0) expect(salts).toContain(salt);
    expect(seen.tensors).toEqual(weightsOf(salt, seen.version));
    const publisher = await open();
    expect(publisher.tensors).toEqual(seen.tensors);
    expect(await publish(publisher, 999)).toMatchObject({ version: seen.version + 1 });
    expect((await visible()).tensors).toEqual(weightsOf(999, seen.version + 1));
  }

  it('before each of its calls to the store, leaves a store that the next one goes on from', async () => {
    // A publish makes four calls: read the pointer, put weights, put the index, swap.
    for (const call of [1, 2, 3, 4, 8]) {
      const { version: before } = await visible();
      expect(() =>
        execFileSync(process.execPath, [script, root, String(call), String(call)], {
          stdio: ['ignore', 'pipe', 'inherit'],
        }),
      ).toThrow();
      const published = call > 4 ? 1 : 0;
      expect((await visible()).version).toBe(before + published);
      await expectWhole([call, 999], before + published);
    }
    expect((await directories()).length).toBe((await history()).length);
  });

  it('at any moment, loses nothing that it had reported', async () => {
    const random = createRandom(Number(process.hrtime.bigint() % 1_000_000n));
    const salts = [999];
    for (let round = 0; round < 4; round++) {
      const salt = 100 + round;
      salts.push(salt);
      const child = spawn(process.execPath, [script, root, String(salt)], { stdio: ['ignore', 'pipe', 'inherit'] });
      let output = '';
      child.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()));
      await once(child.stdout, 'data');
      const killAfterMs = random.below(60);
      await new Promise((resolve) => setTimeout(resolve, killAfterMs));
      child.kill('SIGKILL');
      await once(child, 'close');
      const reported = Number(/(\d+)\n[^\n]*$/.exec(output)?.[1] ?? 0);
      await expectWhole(salts, reported);
    }
  });
});

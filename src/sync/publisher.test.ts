import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { createRandom, policyVersion } from '../domain/ids.ts';
import { CodecPool } from './delta/codec-pool.ts';
import { Publisher, type PublisherEvent, type PublisherOptions } from './publisher.ts';
import {
  bytesOf,
  publisherOptions,
  TOTAL_BYTES,
  TOTAL_ELEMENTS,
  weightsOf as placesOf,
} from './publishing-process.fixture.ts';
import { restoreVersion } from './restore-version.ts';
import { FileStore } from './store/file-store.ts';
import { mountSmallDisk } from './store/small-disk.fixture.ts';
import { watchStore, type StoreCall } from './store/watched-store.fixture.ts';
import { bodyOf, type WeightStore } from './store/weight-store.ts';
import type { TensorPlace } from './tensor-place.ts';
import { formatIdentity, LATEST_POINTER, parseIdentity } from './version-directory.ts';

let codec: CodecPool;
beforeAll(async () => {
  codec = await CodecPool.start({ threads: 2 });
});
afterAll(() => codec.close());

let root: string;
let store: FileStore;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-publisher-'));
  store = await FileStore.open(root);
});
afterEach(() => rm(root, { recursive: true, force: true }));

const open = (on: WeightStore = store, options: Partial<PublisherOptions> = {}): Promise<Publisher> =>
  Publisher.open(on, { ...publisherOptions(codec), ...options });
const publish = (publisher: Publisher, salt = 1): ReturnType<Publisher['publish']> =>
  publisher.publish(placesOf(salt, publisher.version + 1));
const weightsOf = (salt: number, version: number): Map<string, Uint8Array> => bytesOf(placesOf(salt, version));

/** What someone who has nothing but the store gets to see. */
async function visible(): Promise<{ text: string; version: number; tensors: ReadonlyMap<string, Uint8Array> }> {
  const text = (await store.readPointer(LATEST_POINTER))?.value;
  if (text === undefined) return { text: '', version: 0, tensors: weightsOf(0, 0) };
  const identity = parseIdentity(text, 'latest');
  const weights = await restoreVersion(store, identity, { codec, cacheDirectory: join(root, '.cache') });
  return { text, version: identity.version, tensors: bytesOf(weights.tensors) };
}

/** Every version directory there is, by run and name. */
const directories = async (prefix = 'run/'): Promise<string[]> => [
  ...new Set((await store.list(prefix)).map(({ key }) => key.slice(0, key.lastIndexOf('/')))),
];

it('publishes an anchor first and at every fourth version, deltas between, each visible when its report is there', async () => {
  const publisher = await open();
  expect(publisher.version).toBe(0);
  for (let version = 1; version <= 9; version++) {
    const report = await publish(publisher);
    expect(report).toMatchObject({
      version,
      anchor: version === 1 || version % 4 === 0,
      totalElements: TOTAL_ELEMENTS,
      changedTensors: 4,
    });
    expect(report.changedElements).toBeGreaterThan(200);
    expect(report.changedElements).toBeLessThan(700);
    if (report.anchor) expect(report.bytes).toBeGreaterThan(TOTAL_BYTES);
    else expect(report.bytes).toBeLessThan(TOTAL_BYTES / 3);
    const seen = await visible();
    expect(seen.text).toBe(`run/weight_v00000${version}`);
    expect(seen.tensors).toEqual(weightsOf(1, version));
    expect(bytesOf(publisher.tensors)).toEqual(weightsOf(1, version));
  }
});

it.each(['sparse', 'xor', 'overwrite'] as const)('publishes deltas as %s', async (encoding) => {
  const publisher = await open(store, { encoding });
  for (let version = 1; version <= 3; version++) await publish(publisher);
  expect((await visible()).tensors).toEqual(weightsOf(1, 3));
  const index = JSON.parse(await readFile(join(root, 'run/weight_v000003/model.safetensors.index.json'), 'utf8'));
  expect(index.metadata).toMatchObject({ delta_encoding: encoding, base_version: '000002' });
});

it('writes no weight file when nothing changed, and only tensors that did', async () => {
  const publisher = await open();
  await publish(publisher);
  const same = await publisher.publish(placesOf(1, 1));
  expect(same).toMatchObject({ version: 2, changedTensors: 0, changedElements: 0, anchor: false });
  expect((await store.list('run/weight_v000002/')).map(({ key }) => key)).toEqual([
    'run/weight_v000002/model.safetensors.index.json',
  ]);
  const tensors = placesOf(1, 1);
  const norm = tensors.get('model.norm.weight');
  if (norm?.place.kind === 'memory') norm.place.bytes[5] = (norm.place.bytes[5] ?? 0) ^ 1;
  expect(await publisher.publish(tensors)).toMatchObject({ version: 3, changedTensors: 1, changedElements: 1 });
  expect((await visible()).tensors).toEqual(bytesOf(tensors));
});

it('spreads a version over files of bounded size, whose sizes and checksums stand in the index', async () => {
  const publisher = await open(store, { shardBytes: 3200 });
  await publish(publisher);
  await publish(publisher);
  for (const [version, files] of [
    [1, 3],
    [2, 1],
  ] as const) {
    const directory = `run/weight_v00000${version}`;
    const index = JSON.parse(await readFile(join(root, directory, 'model.safetensors.index.json'), 'utf8'));
    expect(Object.keys(index.metadata.files)).toHaveLength(files);
    for (const [file, { size_bytes: sizeBytes, checksum }] of Object.entries<{ size_bytes: number; checksum: string }>(
      index.metadata.files,
    )) {
      const path = join(root, directory, file);
      expect((await readFile(path)).byteLength).toBe(sizeBytes);
      expect(await codec.checksum({ kind: 'file', path, offset: 0, sizeBytes })).toBe(checksum);
    }
  }
  expect((await visible()).tensors).toEqual(weightsOf(1, 2));
});

it('takes tensors from files and from shared memory, and reads an anchor from where it lies', async () => {
  const publisher = await open();
  const file = join(root, 'tensors.bin');
  const shared = new Map<string, TensorPlace>();
  const inFile = new Map<string, TensorPlace>();
  const chunks: Uint8Array[] = [new Uint8Array(3)];
  let offset = 3;
  for (const [name, tensor] of placesOf(1, 1)) {
    const bytes = bytesOf(new Map([[name, tensor]])).get(name) ?? new Uint8Array();
    const view = new Uint8Array(new SharedArrayBuffer(bytes.byteLength + 2), 2, bytes.byteLength);
    view.set(bytes);
    shared.set(name, { ...tensor, place: { kind: 'memory', bytes: view } });
    inFile.set(name, { ...tensor, place: { kind: 'file', path: file, offset, sizeBytes: bytes.byteLength } });
    chunks.push(bytes);
    offset += bytes.byteLength;
  }
  await writeFile(file, Buffer.concat(chunks));
  await publisher.publish(inFile);
  expect((await visible()).tensors).toEqual(weightsOf(1, 1));
  expect(await publisher.publish(shared)).toMatchObject({ changedElements: 0 });
});

it('lets the trainer go on as soon as the tensors are copied', async () => {
  let release = (): void => undefined;
  const held = new Promise<void>((resolve) => (release = resolve));
  const publisher = await open(
    watchStore(store, async ({ operation, when }) => {
      if (operation === 'putObject' && when === 'before') await held;
    }),
  );
  const tensors = placesOf(1, 1);
  const overwrite = (): void => {
    for (const { place } of tensors.values()) if (place.kind === 'memory') place.bytes.fill(255);
    release();
  };
  await publisher.publish(tensors, { onSnapshot: overwrite });
  expect((await visible()).tensors).toEqual(weightsOf(1, 1));
  expect(bytesOf(publisher.tensors)).toEqual(weightsOf(1, 1));
});

it('uses the memory of old versions again', async () => {
  const publisher = await open();
  const seen = new Set<unknown>();
  for (let version = 1; version <= 6; version++) {
    await publish(publisher);
    const place = publisher.tensors.get('salt')?.place;
    if (place?.kind === 'memory') seen.add(place.bytes.buffer);
  }
  expect(seen.size).toBe(2);
});

it('refuses other tensors than the run has, all problems at once, and a second publish during one', async () => {
  const publisher = await open();
  const tensors = placesOf(1, 1);
  tensors.delete('model.norm.weight');
  tensors.set('extra', { dtype: 'U8', shape: [2], place: { kind: 'memory', bytes: new Uint8Array(2) } });
  tensors.set('salt', { dtype: 'F32', shape: [1], place: { kind: 'memory', bytes: new Uint8Array(4) } });
  const layer = tensors.get('model.layers.0.weight');
  if (layer !== undefined)
    tensors.set('model.layers.0.weight', { ...layer, place: { kind: 'memory', bytes: new Uint8Array(5999) } });
  await expect(publisher.publish(tensors)).rejects.toMatchObject({
    code: 'delta-base-mismatch',
    message: expect.stringMatching(
      /model\.norm\.weight is missing; .*salt is F32 \[1\].*BF16 \[2\]; model\.layers\.0\.weight has 5999 bytes.*6000; extra is new/,
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

it('takes a tensor that two pipeline stages give once, if it is the same', async () => {
  const publisher = await open();
  const twice = (version: number): [string, TensorPlace][] => [
    ...placesOf(1, version),
    ...[...placesOf(1, 1)].filter(([name]) => name === 'model.layers.0.weight'),
  ];
  expect(await publisher.publish(twice(1))).toMatchObject({ version: 1 });
  await expect(publisher.publish(twice(2))).rejects.toMatchObject({
    code: 'delta-base-mismatch',
    message: expect.stringContaining('model.layers.0.weight was given twice with different bytes'),
  });
  expect((await visible()).tensors).toEqual(weightsOf(1, 1));
  expect(await publish(publisher)).toMatchObject({ version: 2 });
});

it('wakes who waits for versions; a wake that fails or hangs is an event and holds nobody up', async () => {
  const events: PublisherEvent[] = [];
  const woken: string[] = [];
  const publisher = await open(store, {
    onEvent: (event) => events.push(event),
    wake: async (identity, signal) => {
      woken.push(formatIdentity(identity));
      if (identity.version === 1) return;
      if (identity.version === 2) throw new Error('nobody is there');
      await once(signal, 'abort');
      throw new Error('it took too long');
    },
  });
  for (let version = 1; version <= 3; version++) await publish(publisher);
  await publisher.close();
  expect(woken).toEqual(['run/weight_v000001', 'run/weight_v000002', 'run/weight_v000003']);
  expect(events.filter(({ type }) => type === 'weights-published')).toMatchObject([
    { version: 1, anchor: true },
    { version: 2, anchor: false },
    { version: 3 },
  ]);
  expect(events.filter(({ type }) => type === 'wake-failed')).toEqual([
    { type: 'wake-failed', version: 2, reason: 'nobody is there' },
    { type: 'wake-failed', version: 3, reason: 'it took too long' },
  ]);
});

describe('opened', () => {
  it('goes on from the published version, whatever the distance to the last anchor', async () => {
    for (let version = 1; version <= 10; version++) {
      const publisher = await open();
      expect(publisher.version).toBe(version - 1);
      expect(bytesOf(publisher.tensors)).toEqual(version === 1 ? weightsOf(0, 0) : weightsOf(1, version - 1));
      await publish(publisher);
      expect((await visible()).tensors).toEqual(weightsOf(1, version));
    }
  });

  it('boots from a later version when its weights are those that were published, and only then', async () => {
    const publisher = await open();
    for (let count = 0; count < 3; count++) await publish(publisher);
    const at = (version: number, salt: number): Promise<Publisher> =>
      open(store, { bootVersion: policyVersion(version), bootWeights: placesOf(salt, version) });
    expect((await at(3, 1)).version).toBe(3);
    expect((await at(2, 1)).version).toBe(3);
    await expect(at(3, 2)).rejects.toMatchObject({ code: 'checksum-mismatch' });
    await expect(at(5, 1)).rejects.toMatchObject({ code: 'pointer-rewind' });
  });

  it('refuses a pointer that names no version, and a chain that is broken', async () => {
    const publisher = await open();
    for (let count = 0; count < 6; count++) await publish(publisher);
    await expect(open(store, { anchorEvery: 0 })).rejects.toMatchObject({ code: 'invalid-config' });
    const weights = join(root, 'run/weight_v000005/model-00001-of-00001.safetensors');
    const whole = await readFile(weights);
    await truncate(weights, whole.byteLength - 1);
    await expect(open()).rejects.toMatchObject({
      code: 'checksum-mismatch',
      message: expect.stringContaining('weight_v000005'),
    });
    await writeFile(weights, whole.fill(0, whole.byteLength - 9, whole.byteLength - 5));
    await expect(open()).rejects.toMatchObject({ code: 'checksum-mismatch' });
    await rm(join(root, 'run/weight_v000005'), { recursive: true });
    await expect(open()).rejects.toMatchObject({ message: expect.stringContaining('run/weight_v000005') });
    await store.compareAndSwapPointer(
      LATEST_POINTER,
      (await store.readPointer(LATEST_POINTER))?.tag,
      'latest and greatest',
    );
    await expect(open()).rejects.toMatchObject({
      code: 'store-failed',
      message: expect.stringContaining('latest and greatest'),
    });
    await expect(open(store, { fork: {} })).rejects.toMatchObject({ code: 'store-failed' });
  });

  it('refuses a store of another model, and one whose conditional writes do not hold', async () => {
    await publish(await open());
    const other = placesOf(0, 0);
    other.set('salt', { dtype: 'U16', shape: [2], place: { kind: 'memory', bytes: new Uint8Array(4) } });
    await expect(open(store, { bootWeights: other })).rejects.toMatchObject({
      code: 'delta-base-mismatch',
      message: expect.stringContaining('salt is BF16 [2] there and U16 [2] in the boot model'),
    });
    const careless = watchStore(store, ({ operation }) => {
      if (operation === 'probeConditionalWrites') throw new HoneError('store-failed', 'It overwrote what was there.');
    });
    await expect(open(careless)).rejects.toMatchObject({ message: 'It overwrote what was there.' });
  });
});

describe('a fork', () => {
  const fork = (options: Partial<PublisherOptions> = {}): Promise<Publisher> =>
    open(store, {
      runId: 'other',
      bootVersion: policyVersion(2),
      bootWeights: placesOf(1, 2),
      fork: {},
      ...options,
    });
  beforeEach(async () => {
    const publisher = await open();
    for (let count = 0; count < 3; count++) await publish(publisher);
  });

  it("takes the pointer over only when told so, from the version that it was told, and starts with an anchor at the boot version's successor", async () => {
    await expect(open(store, { runId: 'other' })).rejects.toMatchObject({
      code: 'pointer-conflict',
      message: expect.stringContaining('belongs to run run'),
    });
    await expect(fork({ fork: { from: parseIdentity('run/weight_v000002', '') } })).rejects.toMatchObject({
      code: 'pointer-conflict',
      message: expect.stringContaining('run/weight_v000003'),
    });
    const publisher = await fork({ fork: { from: parseIdentity('run/weight_v000003', '') } });
    expect(publisher.version).toBe(2);
    expect(await publish(publisher, 9)).toMatchObject({ version: 3, anchor: true });
    expect(await publish(publisher, 9)).toMatchObject({ version: 4, anchor: true });
    expect(await publish(publisher, 9)).toMatchObject({ version: 5, anchor: false });
    expect(await visible()).toMatchObject({ text: 'other/weight_v000005', tensors: weightsOf(9, 5) });
    const resumed = await open(store, { runId: 'other', bootVersion: policyVersion(2), bootWeights: placesOf(1, 2) });
    expect(resumed.version).toBe(5);
    expect(await directories()).toHaveLength(3);
  });

  it('is lost to the run that published meanwhile, and the run to the fork', async () => {
    const publisher = await fork();
    const run = await open();
    await publish(run);
    await expect(publish(publisher)).rejects.toMatchObject({
      code: 'pointer-conflict',
      message: expect.stringContaining('run/weight_v000004'),
    });
    await publish(await fork());
    await expect(publish(run)).rejects.toMatchObject({
      code: 'pointer-conflict',
      message: expect.stringContaining('other/weight_v000003'),
    });
  });

  it('is refused under a name that has versions here, and goes on after one that was killed', async () => {
    await store.putObject('other/weight_v000003/model-00001-of-00001.safetensors', bodyOf(new Uint8Array(9)));
    expect(await publish(await fork())).toMatchObject({ identity: { attempt: 1 } });
    expect(await directories('other/')).toEqual(['other/weight_v000003-r1']);
    await expect(open(store, { runId: 'run', bootVersion: policyVersion(0), fork: {} })).rejects.toMatchObject({
      code: 'pointer-conflict',
      message: expect.stringMatching(/run cannot fork.*holds versions of a run of that name.*run\/weight_v000002/),
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
    const history: string[] = [];
    const note = async (): Promise<void> => void history.push((await visible()).text);
    await publish(publisher, 1);
    await note();
    isFailing = true;
    await expect(publisher.publish(placesOf(2, 2))).rejects.toMatchObject({ code: 'store-failed' });
    // T01: what failed is not what the next delta is taken against.
    expect(publisher.version).toBe(1);
    expect(bytesOf(publisher.tensors)).toEqual(weightsOf(1, 1));
    const landed = (await visible()).version;
    if (landed === 2) await note();
    isFailing = false;
    const { version } = await publisher.publish(placesOf(3, 9));
    expect(version).toBe(landed + 1);
    expect((await visible()).tensors).toEqual(weightsOf(3, 9));
    await note();
    expect(await publish(publisher, 4)).toMatchObject({ version: landed + 2 });
    expect((await visible()).tensors).toEqual(weightsOf(4, landed + 2));
    await note();
    // What the failed publish left behind is gone; what any pointer named is there.
    expect(await directories()).toEqual(history.sort());
    expect(bytesOf((await open()).tensors)).toEqual(weightsOf(4, landed + 2));
  });

  it('with every swap unanswered, keeps what may have landed, forgets the oldest, and never guesses', async () => {
    let isSilent = false;
    const publisher = await open(
      watchStore(store, ({ operation, when }) => {
        if (isSilent && operation === 'compareAndSwapPointer' && when === 'before')
          throw new HoneError('store-unavailable', 'No answer came.');
      }),
    );
    await publish(publisher);
    const tag = (await store.readPointer(LATEST_POINTER))?.tag;
    isSilent = true;
    for (const salt of [2, 3, 4, 5])
      await expect(publisher.publish(placesOf(salt, 2))).rejects.toMatchObject({ code: 'store-unavailable' });
    isSilent = false;
    // The first swap lands now, long after its weights were forgotten.
    await store.compareAndSwapPointer(LATEST_POINTER, tag, 'run/weight_v000002');
    await expect(publish(publisher)).rejects.toMatchObject({ code: 'pointer-conflict' });
    expect((await open()).version).toBe(2);
    expect((await visible()).tensors).toEqual(weightsOf(2, 2));
  });

  it('by hanging, ends at the deadline or at a signal, and publishes on once the store answers', async () => {
    let isHanging = false;
    const hanging: WeightStore = {
      ...watchStore(store, () => undefined),
      putObject: (key, body, options) =>
        isHanging
          ? new Promise((_, reject) =>
              options?.signal?.addEventListener('abort', () => reject(options.signal?.reason as Error)),
            )
          : store.putObject(key, body, options),
    };
    const publisher = await open(hanging, { deadlineMs: 500 });
    await publish(publisher);
    isHanging = true;
    await expect(publish(publisher)).rejects.toMatchObject({
      code: 'store-unavailable',
      message: 'Version 2 of run run was not published within 0.5 s.',
    });
    const patient = await open(hanging);
    const stop = new AbortController();
    const publishing = patient.publish(placesOf(1, 2), { signal: stop.signal, onSnapshot: () => stop.abort() });
    await expect(publishing).rejects.toMatchObject({ code: 'aborted' });
    isHanging = false;
    expect(await publish(publisher)).toMatchObject({ version: 2 });
    expect((await visible()).tensors).toEqual(weightsOf(1, 2));
  });

  it('by hanging, ends after half an hour and what the bytes need at 20 MB/s', async () => {
    let isHanging = false;
    const entered = Promise.withResolvers<void>();
    const hanging: WeightStore = {
      ...watchStore(store, () => undefined),
      readPointer: (name, options) => {
        if (!isHanging) return store.readPointer(name, options);
        entered.resolve();
        return new Promise((_, reject) =>
          options?.signal?.addEventListener('abort', () => reject(options.signal?.reason as Error)),
        );
      },
    };
    const bytes = new Uint8Array(20_000_000);
    const weights = new Map<string, TensorPlace>([
      ['large', { dtype: 'U8', shape: [bytes.length], place: { kind: 'memory', bytes } }],
    ]);
    const publisher = await open(hanging, { bootWeights: weights });
    isHanging = true;
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    try {
      let failure: unknown;
      const snapshot = Promise.withResolvers<void>();
      const publishing = publisher
        .publish(weights, { onSnapshot: () => snapshot.resolve() })
        .catch((error: unknown) => (failure = error));
      await Promise.all([entered.promise, snapshot.promise]);
      await vi.advanceTimersByTimeAsync(1_800_900);
      expect(failure).toBeUndefined();
      await vi.advanceTimersByTimeAsync(200);
      await publishing;
      expect(failure).toMatchObject({ message: 'Version 1 of run run was not published within 1801 s.' });
    } finally {
      vi.useRealTimers();
    }
  });

  it('by not even heeding the signal, is left behind with an error, and its snapshot is not touched', async () => {
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    let isHanging = false;
    const publisher = await open(
      watchStore(store, async ({ operation, when }) => {
        if (isHanging && operation === 'putObject' && when === 'before') await held;
      }),
      { deadlineMs: 500 },
    );
    isHanging = true;
    await expect(publish(publisher)).rejects.toMatchObject({ code: 'store-unavailable' });
    await expect(publish(publisher)).rejects.toMatchObject({
      message: expect.stringContaining('still being published'),
    });
    isHanging = false;
    release();
    await expect
      .poll(
        () =>
          publish(publisher).then(
            ({ version }) => version,
            () => 0,
          ),
        { timeout: 30_000 },
      )
      .toBe(1);
    expect((await visible()).tensors).toEqual(weightsOf(1, 1));
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
  disk.grow();
  expect(await publish(publisher)).toMatchObject({ version: reached + 1 });
  expect((await visible()).tensors).toEqual(weightsOf(1, reached + 1));
});

it('knows a swap as its own that was repeated after its answer was lost', async () => {
  const repeating: WeightStore = {
    ...watchStore(store, () => undefined),
    compareAndSwapPointer: async (name, tag, value, options) => {
      await store.compareAndSwapPointer(name, tag, value, options);
      return store.compareAndSwapPointer(name, tag, value, options);
    },
  };
  const publisher = await open(repeating);
  for (let version = 1; version <= 3; version++) expect(await publish(publisher)).toMatchObject({ version });
  expect((await visible()).tensors).toEqual(weightsOf(1, 3));
});

describe('two publishers', () => {
  it('race for one version: exactly one wins, its bytes are what is seen, and the other says who won and stays out', async () => {
    const history: string[] = [];
    for (let round = 0; round < 4; round++) {
      const version = round + 1;
      const publishers = await Promise.all([open(), open()]);
      const results = await Promise.allSettled(publishers.map((publisher, salt) => publish(publisher, salt)));
      const winner = results.findIndex((result) => result.status === 'fulfilled');
      const seen = await visible();
      history.push(seen.text);
      expect(seen).toMatchObject({ version, tensors: weightsOf(winner, version) });
      expect(results[1 - winner]).toMatchObject({
        status: 'rejected',
        reason: { code: 'pointer-conflict', message: expect.stringContaining(seen.text) },
      });
      const loser = publishers[1 - winner] ?? expect.fail('no loser');
      expect(loser.version).toBe(version - 1);
      await expect(publish(loser)).rejects.toMatchObject({
        code: 'pointer-conflict',
        cure: expect.stringContaining('Stop one of the two'),
      });
      // The loser's directory is gone, whichever of the two came late.
      expect(await directories()).toEqual(history);
    }
  });

  it('with the same bytes are still one winner and one loser', async () => {
    for (let version = 1; version <= 3; version++) {
      const publishers = await Promise.all([open(), open()]);
      const results = await Promise.allSettled(publishers.map((publisher) => publish(publisher, 1)));
      expect(results.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
      expect(await visible()).toMatchObject({ version, tensors: weightsOf(1, version) });
    }
    expect(await directories()).toHaveLength(3);
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
    expect(await directories()).toEqual(['run/weight_v000001-r1', 'run/weight_v000002']);
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
    expect(bytesOf(publisher.tensors)).toEqual(seen.tensors);
    expect(await publish(publisher, 999)).toMatchObject({ version: seen.version + 1 });
    expect((await visible()).tensors).toEqual(weightsOf(999, seen.version + 1));
  }

  it('before each of its calls to the store, leaves a store that the next one goes on from', async () => {
    // A publish makes four calls: read the pointer, put weights, put the index, swap.
    let published = 0;
    for (const call of [1, 2, 3, 4, 8]) {
      const { version: before } = await visible();
      expect(() =>
        execFileSync(process.execPath, [script, root, String(call), String(call)], {
          stdio: ['ignore', 'pipe', 'inherit'],
        }),
      ).toThrow();
      const isPublished = call > 4 ? 1 : 0;
      expect((await visible()).version).toBe(before + isPublished);
      await expectWhole([call, 999], before + isPublished);
      published += isPublished + 1;
    }
    expect(await directories()).toHaveLength(published);
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

it('keeps the pointer monotone: every value that it ever had is of a higher version than the one before', async () => {
  const values: number[] = [];
  const noting = watchStore(store, async ({ operation, when }) => {
    if (operation !== 'compareAndSwapPointer' || when !== 'after') return;
    values.push(parseIdentity((await store.readPointer(LATEST_POINTER))?.value ?? '', 'latest').version);
  });
  for (let count = 0; count < 3; count++) {
    const publisher = await open(noting);
    await publish(publisher);
    await publish(publisher);
  }
  expect(values).toEqual([1, 2, 3, 4, 5, 6]);
  expect((await readdir(root)).filter((name) => !name.startsWith('.'))).toEqual(['run']);
});

import { mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { CodecPool } from './delta/codec-pool.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { discardFetched, fetchVersion, type FetchedVersion, type FetchOptions } from './fetch-version.ts';
import { FileStore } from './store/file-store.ts';
import type { ObjectSource } from './store/weight-store.ts';
import { readIndex } from './version-chain.ts';
import type { VersionIndex } from './version-directory.ts';
import { MODEL_BYTES, VersionWriter, weightsOf } from './version-writer.fixture.ts';

let codec: TensorCodec;
beforeAll(async () => {
  codec = await CodecPool.start({ threads: 1 });
});
afterAll(() => codec.close());

let root: string;
let store: FileStore;
let index: VersionIndex;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-fetch-'));
  store = await FileStore.open(join(root, 'store'));
  const identity = await new VersionWriter(store, codec).write(weightsOf(1), { anchor: true, shardBytes: 7000 });
  index = await readIndex(store, identity);
});
afterEach(() => rm(root, { recursive: true, force: true }));

/** What was asked for, in order, and how many bytes came. */
interface Traffic {
  readonly requests: string[];
  bytes: number;
  inFlight: number;
  mostInFlight: number;
}

/** The store as a remote one; `onChunk` may throw, or wait, before a chunk is handed over. Chunks are small. */
function remote(onChunk: (key: string, position: number) => Promise<void> | void = () => undefined): {
  source: ObjectSource;
  traffic: Traffic;
} {
  const traffic: Traffic = { requests: [], bytes: 0, inFlight: 0, mostInFlight: 0 };
  const source: ObjectSource = {
    localPath: () => undefined,
    statObject: (key, options) => store.statObject(key, options),
    readPointer: (name, options) => store.readPointer(name, options),
    readObject: async (key, options) => {
      const { range } = options ?? {};
      traffic.requests.push(range === undefined ? key : `${key} ${range.start}-${range.end}`);
      const stream = await store.readObject(key, options);
      if (stream === undefined) return undefined;
      return (async function* () {
        traffic.mostInFlight = Math.max(traffic.mostInFlight, ++traffic.inFlight);
        try {
          let position = range?.start ?? 0;
          for await (const chunk of stream)
            for (let start = 0; start < chunk.byteLength; start += 500) {
              await onChunk(key, position);
              const piece = chunk.subarray(start, start + 500);
              position += piece.byteLength;
              traffic.bytes += piece.byteLength;
              yield piece;
            }
        } finally {
          traffic.inFlight -= 1;
        }
      })();
    },
  };
  return { source, traffic };
}

const fetch = (source: ObjectSource, options: Partial<FetchOptions> = {}): Promise<FetchedVersion> =>
  fetchVersion(source, index, { cacheDirectory: join(root, 'cache'), codec, partBytes: 2000, ...options });

const sizeOf = (files: VersionIndex['files']): number =>
  [...(files?.values() ?? [])].reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);

async function expectWhole({ paths, bytes }: FetchedVersion): Promise<void> {
  expect(bytes).toBe(sizeOf(index.files));
  expect([...paths.keys()].sort()).toEqual([...new Set(index.weightMap.values())].sort());
  for (const [file, path] of paths)
    expect(await readFile(path)).toEqual(await readFile(join(root, 'store/run/weight_v000001', file)));
}

it('reads files of this machine where they lie', async () => {
  const fetched = await fetch(store);
  await expectWhole(fetched);
  for (const path of fetched.paths.values()) expect(path.startsWith(join(root, 'store'))).toBe(true);
  await expect(stat(join(root, 'cache'))).rejects.toThrow(/ENOENT/);
});

it('downloads once, in parts side by side, a bounded number at a time, and tells how far it is', async () => {
  const { source, traffic } = remote();
  const seen: number[] = [];
  await expectWhole(
    await fetch(source, {
      partsInFlight: 3,
      onProgress: ({ doneBytes, totalBytes }) => seen.push(doneBytes / totalBytes),
    }),
  );
  expect(traffic.bytes).toBe(sizeOf(index.files));
  expect(traffic.bytes).toBeGreaterThan(MODEL_BYTES);
  expect(traffic.mostInFlight).toBeGreaterThan(1);
  expect(traffic.mostInFlight).toBeLessThanOrEqual(3);
  expect(seen.at(-1)).toBe(1);
  expect([...seen].sort((left, right) => left - right)).toEqual(seen);
  await expectWhole(await fetch(source));
  expect(traffic.bytes).toBe(sizeOf(index.files));
  await discardFetched(join(root, 'cache'), index.identity);
  expect(await readdir(join(root, 'cache/run'))).toEqual([]);
});

it('goes on where it stopped, part by part, and never takes parts of other bytes', async () => {
  let broken = 0;
  const { source, traffic } = remote((_key, position) => {
    if (position >= 4000 && broken < 2) {
      broken++;
      throw new HoneError('store-unavailable', 'The link broke.');
    }
  });
  await expect(fetch(source, { partsInFlight: 1 })).rejects.toMatchObject({ message: 'The link broke.' });
  await expect(fetch(source, { partsInFlight: 1 })).rejects.toMatchObject({ message: 'The link broke.' });
  await expectWhole(await fetch(source));
  expect(traffic.bytes).toBe(sizeOf(index.files));
  // Other bytes under the same name: what is half there is not of them.
  await discardFetched(join(root, 'cache'), { runId: 'run' });
  broken = 1;
  await expect(fetch(source, { partsInFlight: 1 })).rejects.toMatchObject({ message: 'The link broke.' });
  const files = new Map([...(index.files ?? [])].map(([name, file]) => [name, { ...file, checksum: '0'.repeat(32) }]));
  index = { ...index, files };
  await expect(fetch(source)).rejects.toMatchObject({ code: 'checksum-mismatch' });
  expect(await readdir(join(root, 'cache/run/weight_v000001'))).toEqual([]);
});

it('goes on where a process was killed, a half-written record included', async () => {
  const { source, traffic } = remote((_key, position) => {
    if (position >= 6000) throw new HoneError('store-unavailable', 'The link broke.');
  });
  await expect(fetch(source, { partsInFlight: 1 })).rejects.toThrow();
  const directory = join(root, 'cache/run/weight_v000001');
  const record = (await readdir(directory)).find((name) => name.endsWith('.parts')) ?? '';
  const text = await readFile(join(directory, record), 'utf8');
  expect(text.split('\n').slice(1)).toEqual(['0', '1', '2', '']);
  await writeFile(join(directory, record), text.slice(0, -1));
  const again = remote();
  await expectWhole(await fetch(again.source));
  expect(again.traffic.bytes).toBe(sizeOf(index.files) - 4000);
  expect(traffic.bytes).toBe(6000);
});

describe('refuses', () => {
  const firstFile = (): string => join(root, 'store/run/weight_v000001', [...index.weightMap.values()][0] ?? '');

  it('bytes whose checksum is not the published one, and keeps nothing of them', async () => {
    const bytes = await readFile(firstFile());
    bytes[bytes.byteLength >> 1]! ^= 1;
    await writeFile(firstFile(), bytes);
    const { source } = remote();
    await expect(fetch(source)).rejects.toMatchObject({
      code: 'checksum-mismatch',
      message: expect.stringContaining(index.files?.get([...index.weightMap.values()][0] ?? '')?.checksum ?? '?'),
    });
    bytes[bytes.byteLength >> 1]! ^= 1;
    await writeFile(firstFile(), bytes);
    await expectWhole(await fetch(source));
  });

  it('objects that are too short, too long or not there', async () => {
    const bytes = await readFile(firstFile());
    const { source } = remote();
    for (const [damaged, message] of [
      [bytes.subarray(0, 3000), /ended at byte 3000/],
      [Buffer.concat([bytes, bytes]), /more bytes than/],
    ] as const) {
      await writeFile(firstFile(), damaged);
      await expect(fetch(source, { partBytes: 1 << 20 })).rejects.toThrow(message);
      await expect(fetch(store)).rejects.toMatchObject({
        code: 'checksum-mismatch',
        message: expect.stringContaining(`it has ${damaged.byteLength} bytes, published were ${bytes.byteLength}`),
      });
    }
    await rm(firstFile());
    for (const from of [source, store])
      await expect(fetch(from)).rejects.toMatchObject({
        code: 'store-failed',
        message: expect.stringContaining('has no run/'),
      });
  });

  it('to wait for ever: for a byte, for all of them, or after its signal fired', async () => {
    const hang = Promise.withResolvers<void>();
    const { source, traffic } = remote((_key, position) => (position >= 1000 ? hang.promise : undefined));
    await expect(fetch(source, { stallMs: 20 })).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringContaining('no byte arrived for 0.02 s'),
    });
    await expect(fetch(source, { deadlineMs: 20 })).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringContaining('did not arrive within 0.02 s'),
    });
    const abort = new AbortController();
    const fetching = fetch(source, { signal: abort.signal, onProgress: () => abort.abort() });
    await expect(fetching).rejects.toMatchObject({ code: 'aborted' });
    // Streams that were given up close their files as soon as they can.
    hang.resolve();
    await expect.poll(() => traffic.inFlight).toBe(0);
  });
});

it.each(['hone', 'another writer'])('gives two terabytes of %s the hours that they need', async (writer) => {
  const hour = 3_600_000;
  const [file = ''] = index.weightMap.values();
  const huge = { sizeBytes: 2e12, checksum: '0'.repeat(32) };
  const large: VersionIndex = {
    ...index,
    weightMap: new Map([['model.norm.weight', file]]),
    files: writer === 'hone' ? new Map([[file, huge]]) : undefined,
  };
  const reading = Promise.withResolvers<void>();
  const source: ObjectSource = {
    ...remote().source,
    statObject: async (key) => ({ key, sizeBytes: 2e12, modifiedMs: 0 }),
    readObject: (_key, { signal } = {}) => {
      reading.resolve();
      return new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason as Error)));
    },
  };
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  try {
    let failure: unknown;
    const fetching = fetchVersion(source, large, {
      cacheDirectory: join(root, 'cache'),
      codec,
      stallMs: Infinity,
    }).catch((error: unknown) => (failure = error));
    await reading.promise;
    await vi.advanceTimersByTimeAsync(28 * hour);
    expect(failure).toBeUndefined();
    await vi.advanceTimersByTimeAsync(hour);
    await fetching;
    expect(failure).toMatchObject({ message: expect.stringContaining('did not arrive within 103600 s') });
  } finally {
    vi.useRealTimers();
  }
});

it('does not believe an index that names a size out of all proportion, and holds no list of its parts', async () => {
  const huge = { sizeBytes: Number.MAX_SAFE_INTEGER, checksum: '0'.repeat(32) };
  const files = new Map([...(index.files?.keys() ?? [])].map((file) => [file, huge]));
  const { source } = remote();
  await expect(
    fetchVersion(source, { ...index, files }, { cacheDirectory: join(root, 'cache'), codec, partBytes: 2000 }),
  ).rejects.toMatchObject({ code: 'store-failed' });
});

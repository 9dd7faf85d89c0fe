import { execFileSync } from 'node:child_process';
import { mkdtempSync, openSync, ftruncateSync, closeSync, rmSync, statSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';

import { xxh3 } from '@node-rs/xxhash';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import type { BytePlace } from '../tensor-place.ts';
import { CodecPool } from './codec-pool.ts';
import type { DeltaEncoding, EncodedTensor } from './delta-codec.ts';
import { CHUNK_BYTES } from './delta-kernels.ts';
import { HOMES, makePair, putInto, takeFrom, tensorAt, type TensorCase } from './delta-tensors.fixture.ts';

const ENCODINGS: readonly DeltaEncoding[] = ['sparse', 'xor', 'overwrite'];

let pool: CodecPool;
let folder: string;
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hone-codec-'));
  pool = await CodecPool.start({ threads: 2 });
});
afterAll(async () => {
  await pool.close();
  rmSync(folder, { recursive: true });
});

const checksumOf = (bytes: Uint8Array): string => xxh3.xxh128(bytes).toString(16).padStart(32, '0');
const blobOf = ({ chunks }: EncodedTensor): Buffer => Buffer.concat(chunks);

/** A file of zeros that takes no room, with some bytes set. */
function hollowFile(name: string, sizeBytes: number, bytes: ReadonlyMap<number, number> = new Map()): BytePlace {
  const path = join(folder, name);
  const file = openSync(path, 'w');
  ftruncateSync(file, sizeBytes);
  for (const [offset, value] of bytes) writeSync(file, Buffer.of(value), 0, 1, offset);
  closeSync(file);
  return { kind: 'file', path, offset: 0, sizeBytes };
}

async function encodePair(
  encoding: DeltaEncoding,
  test: TensorCase,
): Promise<EncodedTensor & { old: Buffer; next: Buffer }> {
  const { old, next } = makePair(test);
  const encoded = await pool.encode({
    name: 'weight',
    encoding,
    old: tensorAt(putInto('own', { bytes: old, folder }), test),
    next: tensorAt(putInto('own', { bytes: next, folder }), test),
  });
  return { ...encoded, old: Buffer.from(old), next: Buffer.from(next) };
}

describe('what is encoded is applied', () => {
  const home = fc.constantFrom(...HOMES);
  const width = fc.constantFrom(1 as const, 2 as const, 4 as const, 8 as const);
  const density = fc.constantFrom(0, 1e-4, 0.01, 0.1, 0.4, 0.45, 0.9, 1);
  const elements = fc.oneof(
    { weight: 3, arbitrary: fc.integer({ min: 0, max: 300 }) },
    { weight: 2, arbitrary: fc.integer({ min: 0, max: 40_000 }) },
    { weight: 1, arbitrary: fc.constantFrom(CHUNK_BYTES / 2, CHUNK_BYTES / 2 + 1, CHUNK_BYTES - 1, 163_840, 200_003) },
  );

  it.each(ENCODINGS)('%s: every width, density, size and place, in place and not', async (encoding) => {
    await fc.assert(
      fc.asyncProperty(
        fc.record({
          width,
          density,
          elements,
          values: fc.constantFrom('small' as const, 'any' as const),
          seed: fc.nat(),
        }),
        fc.record({ old: home, next: home, from: home, to: home, blob: home, inPlace: fc.boolean() }),
        async (test, homes) => {
          const { old, next, changed } = makePair(test);
          const encoded = await pool.encode({
            name: 'weight',
            encoding,
            old: tensorAt(putInto(homes.old, { bytes: old, folder }), test),
            next: tensorAt(putInto(homes.next, { bytes: next, folder }), test),
          });
          expect(encoded.checksum).toBe(checksumOf(next));
          expect([encoded.changedElements, encoded.elements]).toEqual([changed, test.elements]);
          const blob = blobOf(encoded);
          if (changed === 0) {
            expect(blob.byteLength).toBe(0);
            return;
          }
          if (encoding === 'sparse') expect(blob.byteLength).toBeLessThanOrEqual(next.byteLength + 44);
          const from = tensorAt(putInto(homes.from, { bytes: old, folder }), test);
          const to = homes.inPlace
            ? from
            : tensorAt(putInto(homes.to, { bytes: new Uint8Array(old.byteLength), folder }), test);
          await pool.apply({
            name: 'weight',
            encoding,
            blob: putInto(homes.blob, { bytes: blob, folder }),
            from,
            to,
            checksum: encoded.checksum,
            checksumFormat: 'xxh3-128',
          });
          expect(takeFrom(to.place).equals(next)).toBe(true);
          if (!homes.inPlace) expect(takeFrom(from.place).equals(old)).toBe(true);
        },
      ),
      { numRuns: 60 },
    );
  });

  it('types below a byte count as bytes', async () => {
    const shape = [6];
    const old = { dtype: 'F4', shape, place: putInto('own', { bytes: Uint8Array.of(1, 2, 3), folder }) } as const;
    const next = { dtype: 'F4', shape, place: putInto('own', { bytes: Uint8Array.of(1, 2, 4), folder }) } as const;
    const encoded = await pool.encode({ name: 'packed', encoding: 'sparse', old, next });
    expect([encoded.changedElements, encoded.elements]).toEqual([1, 3]);
  });

  it('in place, chunks without a change are not written', async () => {
    const sizeBytes = 64 * 2 ** 20;
    const test = { width: 2, elements: sizeBytes / 2 } as const;
    const old = hollowFile('hollow-old.bin', sizeBytes);
    const next = hollowFile('hollow-next.bin', sizeBytes, new Map([[40_000_000, 1]]));
    for (const encoding of ENCODINGS) {
      const target = hollowFile(`hollow-${encoding}.bin`, sizeBytes);
      const { checksum, ...encoded } = await pool.encode({
        name: 'weight',
        encoding,
        old: tensorAt(old, test),
        next: tensorAt(next, test),
      });
      const blob = { kind: 'memory', bytes: Buffer.concat(encoded.chunks) } as const;
      const tensor = tensorAt(target, test);
      await pool.apply({
        name: 'weight',
        encoding,
        blob,
        from: tensor,
        to: tensor,
        checksum,
        checksumFormat: 'xxh3-128',
      });
      expect(await pool.checksum(target)).toBe(checksum);
      expect(statSync(join(folder, `hollow-${encoding}.bin`)).blocks * 512).toBeLessThanOrEqual(2 * CHUNK_BYTES);
    }
  });

  it('one thread and two give the same bytes', async () => {
    await using single = await CodecPool.start({ threads: 1 });
    const tests = [0.001, 0.02, 0.5, 1].map((density, seed): TensorCase => ({
      width: 2,
      elements: 150_000,
      density,
      values: 'small',
      seed,
    }));
    for (const encoding of ENCODINGS) {
      const jobs = tests.map((test) => {
        const { old, next } = makePair(test);
        return {
          name: `weight-${test.seed}`,
          encoding,
          old: tensorAt(putInto('shared', { bytes: old, folder }), test),
          next: tensorAt(putInto('shared', { bytes: next, folder }), test),
        };
      });
      const one = await Promise.all(jobs.map((job) => single.encode(job)));
      const two = await Promise.all(jobs.map((job) => pool.encode(job)));
      expect(two.map((encoded) => checksumOf(blobOf(encoded)))).toEqual(
        one.map((encoded) => checksumOf(blobOf(encoded))),
      );
    }
  });
});

describe('copies and checksums', () => {
  it('copy gives the bytes and their xxh3-128, and checks either format', async () => {
    const bytes = Buffer.from(
      makePair({ width: 1, elements: 2 * CHUNK_BYTES + 5, density: 0, values: 'any', seed: 9 }).old,
    );
    const from = putInto('file', { bytes, folder });
    const adler = await pool.checksum(from, { format: 'adler32' });
    expect(adler).toMatch(/^[0-9a-f]{8}$/);
    for (const home of HOMES) {
      const to = putInto(home, { bytes: new Uint8Array(bytes.byteLength), folder });
      expect(await pool.copy({ name: 'weight', from, to })).toBe(checksumOf(bytes));
      expect(takeFrom(to).equals(bytes)).toBe(true);
    }
    const to = putInto('shared', { bytes: new Uint8Array(bytes.byteLength), folder });
    await pool.copy({ name: 'weight', from, to, checksum: adler, checksumFormat: 'adler32' });
    await pool.copy({ name: 'weight', from, to, checksum: checksumOf(bytes).toUpperCase() });
    await expect(pool.copy({ name: 'weight', from, to, checksum: '0'.repeat(32) })).rejects.toMatchObject({
      code: 'checksum-mismatch',
      message: expect.stringContaining('weight'),
    });
    await expect(
      pool.copy({ name: 'weight', from, to, checksum: '00000000', checksumFormat: 'adler32' }),
    ).rejects.toMatchObject({ code: 'checksum-mismatch' });
  });

  it('a file that is missing, too short, or of another size is an error that names it', async () => {
    const short = putInto('file', { bytes: new Uint8Array(100), folder });
    if (short.kind !== 'file') throw new TypeError('not a file');
    await expect(pool.checksum({ ...short, offset: 50, sizeBytes: 100 })).rejects.toMatchObject({
      code: 'store-failed',
      message: expect.stringContaining(short.path),
    });
    await expect(pool.checksum({ ...short, path: join(folder, 'nowhere') })).rejects.toMatchObject({
      code: 'store-failed',
    });
    const other = putInto('own', { bytes: new Uint8Array(99), folder });
    await expect(pool.copy({ name: 'weight', from: short, to: other })).rejects.toMatchObject({
      code: 'delta-base-mismatch',
    });
    const test = { width: 1, elements: 100 } as const;
    for (const encoding of ENCODINGS) {
      await expect(
        pool.encode({ name: 'weight', encoding, old: tensorAt(other, test), next: tensorAt(short, test) }),
      ).rejects.toMatchObject({ code: 'delta-base-mismatch' });
    }
  });
});

describe('the base must be the right one', () => {
  it.each(ENCODINGS)('%s on other bytes is refused, naming the tensor', async (encoding) => {
    const test: TensorCase = { width: 2, elements: 5000, density: 0.05, values: 'small', seed: 3 };
    const encoded = await encodePair(encoding, test);
    const wrong = Buffer.from(encoded.old);
    // A byte that the delta does not change: overwriting would not hide it.
    wrong[wrong.findIndex((byte, index) => byte === encoded.next[index])]! ^= 1;
    const tensor = tensorAt(putInto('shared', { bytes: wrong, folder }), test);
    const job = {
      name: 'layer.7.weight',
      encoding,
      blob: { kind: 'memory', bytes: blobOf(encoded) },
      from: tensor,
      to: tensor,
    } as const;
    await expect(pool.apply({ ...job, checksum: encoded.checksum, checksumFormat: 'xxh3-128' })).rejects.toMatchObject({
      code: 'checksum-mismatch',
      message: expect.stringContaining('layer.7.weight'),
    });
  });

  it('adler32 of others is checked too', async () => {
    const test: TensorCase = { width: 2, elements: 5000, density: 0.05, values: 'small', seed: 4 };
    const encoded = await encodePair('xor', test);
    const checksum = await pool.checksum({ kind: 'memory', bytes: encoded.next }, { format: 'adler32' });
    for (const [claimed, isRight] of [
      [checksum, true],
      ['12345678', false],
    ] as const) {
      const tensor = tensorAt(putInto('shared', { bytes: encoded.old, folder }), test);
      const applied = pool.apply({
        name: 'weight',
        encoding: 'xor',
        blob: { kind: 'memory', bytes: blobOf(encoded) },
        from: tensor,
        to: tensor,
        checksum: claimed,
        checksumFormat: 'adler32',
      });
      if (isRight) await applied;
      else await expect(applied).rejects.toMatchObject({ code: 'checksum-mismatch' });
    }
  });

  it('overwrite is safe to apply twice', async () => {
    const test: TensorCase = { width: 4, elements: 3000, density: 0.1, values: 'any', seed: 5 };
    const encoded = await encodePair('overwrite', test);
    const tensor = tensorAt(putInto('shared', { bytes: encoded.next, folder }), test);
    await pool.apply({
      name: 'weight',
      encoding: 'overwrite',
      blob: { kind: 'memory', bytes: blobOf(encoded) },
      from: tensor,
      to: tensor,
      checksum: encoded.checksum,
      checksumFormat: 'xxh3-128',
    });
    expect(takeFrom(tensor.place).equals(encoded.next)).toBe(true);
  });

  it('overwrite refuses tensors that its positions cannot reach', async () => {
    const place = hollowFile('too-large.bin', 2 ** 32 + 2);
    const tensor = tensorAt(place, { width: 2, elements: 2 ** 31 + 1 });
    await expect(
      pool.encode({ name: 'embedding', encoding: 'overwrite', old: tensor, next: tensor }),
    ).rejects.toMatchObject({
      code: 'invalid-config',
      message: expect.stringContaining('embedding'),
      cure: expect.stringContaining('sparse'),
    });
  });
});

describe('jobs and threads', () => {
  it('runs the largest of jobs given at once first', async () => {
    await using single = await CodecPool.start({ threads: 1 });
    const order: number[] = [];
    await Promise.all(
      [3, 1, 5, 2, 4].map(async (size) => {
        await single.checksum({ kind: 'memory', bytes: new Uint8Array(size * 1000) });
        order.push(size);
      }),
    );
    expect(order).toEqual([5, 4, 3, 2, 1]);
  });

  it('an abort ends the job that runs and those that wait, and leaves the pool in order', async () => {
    await using single = await CodecPool.start({ threads: 1 });
    const large = hollowFile('large.bin', 2 ** 36);
    const controller = new AbortController();
    const jobs = Array.from({ length: 4 }, () => single.checksum(large, { signal: controller.signal }));
    const settled = Promise.allSettled(jobs);
    // Behind the first two, which are with the thread.
    await new Promise((resolve) => setImmediate(resolve));
    controller.abort();
    for (const job of await settled) expect(job).toMatchObject({ status: 'rejected', reason: { code: 'aborted' } });
    await expect(single.checksum(large, { signal: AbortSignal.abort() })).rejects.toMatchObject({ code: 'aborted' });
    const bytes = Buffer.from('still at work');
    expect(await single.checksum({ kind: 'memory', bytes })).toBe(checksumOf(bytes));
  });

  it('close fails what waits and what runs, and whatever comes later', async () => {
    const single = await CodecPool.start({ threads: 1 });
    const large = hollowFile('larger.bin', 2 ** 36);
    const settled = Promise.allSettled([1, 2, 3].map(() => single.checksum(large)));
    await new Promise((resolve) => setImmediate(resolve));
    await single.close();
    for (const job of await settled) expect(job).toMatchObject({ status: 'rejected', reason: { code: 'aborted' } });
    await expect(single.checksum(large)).rejects.toMatchObject({ code: 'aborted' });
    expect(single.threads).toBe(0);
  });

  it('a failed job fails alone', async () => {
    const bytes = Buffer.from('fine');
    const results = await Promise.allSettled([
      pool.checksum({ kind: 'memory', bytes }),
      pool.checksum({ kind: 'file', path: join(folder, 'nowhere'), offset: 0, sizeBytes: 4 }),
      pool.checksum({ kind: 'memory', bytes }),
    ]);
    expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
  });

  it('a thread that dies fails its jobs and says so; the last to die fails all that wait', async () => {
    const mortal = `
      const { parentPort } = require('node:worker_threads');
      parentPort.on('message', () => process.exit(3));
      parentPort.postMessage({ type: 'ready' });
    `;
    await using doomed = await CodecPool.start({ threads: 1, spawn: () => new Worker(mortal, { eval: true }) });
    const jobs = Array.from({ length: 5 }, () => doomed.checksum({ kind: 'memory', bytes: new Uint8Array(10) }));
    for (const job of await Promise.allSettled(jobs))
      expect(job).toMatchObject({
        status: 'rejected',
        reason: { code: 'engine-failed', message: expect.stringContaining('ended with code 3') },
      });
    expect(doomed.threads).toBe(0);
    await expect(doomed.checksum({ kind: 'memory', bytes: new Uint8Array(1) })).rejects.toMatchObject({
      code: 'engine-failed',
    });
  });

  it('a pool whose thread does not come up, or with an impossible number of threads, does not start', async () => {
    await expect(
      CodecPool.start({ threads: 2, spawn: () => new Worker('throw new Error("no memory")', { eval: true }) }),
    ).rejects.toMatchObject({ code: 'engine-failed', message: expect.stringContaining('no memory') });
    for (const threads of [0, 1.5, 65, Number.NaN])
      await expect(CodecPool.start({ threads })).rejects.toMatchObject({ code: 'invalid-config' });
  });
});

it('memory stays that of two chunks a thread, whatever the size of the tensor', () => {
  const program = fileURLToPath(new URL('./codec-memory.fixture.ts', import.meta.url));
  const output = execFileSync(process.execPath, [program, folder], { encoding: 'utf8' });
  const growths: unknown = JSON.parse(output);
  // 128 MiB of tensor each; the streams of zlib leave some tens of MiB to the garbage collector.
  for (const growth of growths as { job: string; growthBytes: number }[])
    expect(growth.growthBytes, growth.job).toBeLessThan((growth.job.startsWith('sparse') ? 24 : 96) * 2 ** 20);
});

import { createHash } from 'node:crypto';
import { constants, zstdCompressSync } from 'node:zlib';

import { xxh3 } from '@node-rs/xxhash';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { createRandom } from '../../domain/ids.ts';
import { CodecPool } from './codec-pool.ts';
import { makePair, tensorAt, type TensorCase } from './delta-tensors.fixture.ts';
import { BLOCK_HEAD_BYTES, DIGEST_BYTES, HEAD_BYTES } from './sparse-layout.ts';

let pool: CodecPool;
beforeAll(async () => {
  pool = await CodecPool.start({ threads: 2 });
});
afterAll(() => pool.close());

const memory = (bytes: Uint8Array): { kind: 'memory'; bytes: Uint8Array } => ({ kind: 'memory', bytes });
const checksumOf = (bytes: Uint8Array): string => xxh3.xxh128(bytes).toString(16).padStart(32, '0');

/** The blob with the digest of its own bytes: what someone who wants to do harm, not chance, would send. */
function signed(body: Uint8Array): Buffer {
  return Buffer.concat([body, Buffer.from(checksumOf(body), 'hex')]);
}

interface Sample {
  readonly test: TensorCase;
  readonly old: Uint8Array;
  readonly next: Uint8Array;
  readonly blob: Buffer;
}

async function sampleOf(test: TensorCase): Promise<Sample> {
  const { old, next } = makePair(test);
  const { chunks } = await pool.encode({
    name: 'weight',
    encoding: 'sparse',
    old: tensorAt(memory(old), test),
    next: tensorAt(memory(next), test),
  });
  return { test, old, next, blob: Buffer.concat(chunks) };
}

/** Applies a blob in place; returns the bytes afterwards and the code of the error, if there was one. */
async function tryToApply(
  { test, old, next }: Sample,
  blob: Uint8Array,
): Promise<{ bytes: Uint8Array; code: string; reason: string }> {
  const bytes = new Uint8Array(new SharedArrayBuffer(old.byteLength));
  bytes.set(old);
  const tensor = tensorAt(memory(bytes), test);
  try {
    await pool.apply({
      name: 'weight',
      encoding: 'sparse',
      blob: memory(blob),
      from: tensor,
      to: tensor,
      checksum: checksumOf(next),
      checksumFormat: 'xxh3-128',
    });
    return { bytes, code: 'applied', reason: '' };
  } catch (error) {
    const { code, message } = error as { code: string; message: string };
    expect(message).toContain('weight');
    return { bytes, code, reason: message };
  }
}

describe('the format does not drift', () => {
  /** 40 bf16 elements, 7 changed: too few for zstd to gain, so that the bytes depend on this code alone. */
  const old = Buffer.from(Uint16Array.from({ length: 40 }, (_, index) => 0x3f80 + 3 * index).buffer);
  const changes = new Map([
    [2, 0x0001],
    [3, 0x0003],
    [9, 0x0001],
    [10, 0x00ff],
    [17, 0x8001],
    [30, 0x0001],
    [39, 0x0100],
  ]);
  const changed = (): Buffer => {
    const next = Buffer.from(old);
    for (const [element, value] of changes) next.writeUInt16LE(next.readUInt16LE(2 * element) ^ value, 2 * element);
    return next;
  };
  const golden =
    '486e535001020000500000000000000007000000260000000200000000000000000300000600000006000080000000000101284c0007000080010301ff0101000700008000000000800001000000000700000000000000da6c02fb7e1abb240864d5cb66d0ec69';

  it('a block of gaps is written byte for byte as it always was, and read', async () => {
    const test: TensorCase = { width: 2, elements: 40, density: 0, values: 'small', seed: 0 };
    const next = changed();
    const { chunks } = await pool.encode({
      name: 'weight',
      encoding: 'sparse',
      old: tensorAt(memory(old), test),
      next: tensorAt(memory(next), test),
    });
    expect(Buffer.concat(chunks).toString('hex')).toBe(golden);
    const { bytes, code } = await tryToApply({ test, old, next, blob: Buffer.alloc(0) }, Buffer.from(golden, 'hex'));
    expect(code).toBe('applied');
    expect(Buffer.from(bytes).equals(next)).toBe(true);
  });

  // Written by the first version of this code, with zstd frames in them: whatever zstd writes later, these stay readable.
  it.each([
    [
      'gaps',
      { width: 4, elements: 3000, density: 0.1, values: 'small', seed: 11 },
      'SG5TUAEEAADgLgAAAAAAAC4BAACoCwAADQAAAAAAAAAAAwAALQEAAGcAAAAotS/9YC0A7QIAwgwOhmVDERBtbtg1jdSxnkABid/OSbZQMHDMuNU3jyPKpJKJfR7trPhDulJvYMVSA5Tck3pNWLaFr3MOAF3JIAbyYehAKKEmgT7TBU2pcYuJgQGGMuUW+AKshQEsWdNTSYVrUBAEUSRnCjvnUCgy7R0mKhsxy74RGWaiQgdGjuDmOrkrYZow+ngw5NHquCzweZMs5I6xF3oXzI7HhBAQFpqIRkwFzF438aA5mBkB/zDQQZEi1LEUSSXX7RYRqitKkIxYU89mp6qoH9kzRRBaAAAAKLUv/WAuAIUCAOIPDoIBEFzArkX7g0USxglFBDGjoBo3DyCYksSWrEYBZXm2g9ago4pX0ZRIEUdNqhFK40dEg2ABSR0dCAAUlf0mAXAJBn6DCbMLSHBJt5h6EwAAACi1L/1gLgBNAAAQAAABACkqwAITAAAAKLUv/WAuAE0AABAAAAEAKSrAAhMAAAAotS/9YC4ATQAAEAAAAQApKsACAAAAAC4BAAAAAAAAlQ+QSr9qSZzIJ38d6Amekw==',
    ],
    [
      'dense',
      { width: 2, elements: 300, density: 0.6, values: 'small', seed: 12 },
      'SG5TUAECAABYAgAAAAAAALkAAAAsAQAAAAAAAAAAAAABAAAAAAAAAGgAAAAotS/9YCwA9QIAtlEUghEQEgASABIAU0AZQQBR3GxkAJcw3wGDAG5gLyREAXI8kBxdzPjEMN4PQqVIcwphg7xdcNxbs0E1lyaYzUNBN7A+DQOlNfBTRhCyNu4OnLIdA0AZ6VB5gPYJIBMAAAAotS/9YCwATQAAEAAAAQAnKsACAAAAALkAAAAAAAAAR86TiptbNNgciVkPiVBULA==',
    ],
    [
      'stored',
      { width: 2, elements: 20, density: 1, values: 'any', seed: 13 },
      'SG5TUAECAQAoAAAAAAAAAKFqPkMXKz4baP6GYI0mq7JkXq3n3LffxmZFIE5tHIwel1vfJWh+ZCwAAAAAFAAAAAAAAABvgHxR+V0UqaA/939STgMW',
    ],
  ] as const)('a blob of the form %s that was kept is read', async (_, test, kept) => {
    const { old: before, next } = makePair(test);
    const blob = Buffer.from(kept, 'base64');
    const { bytes, code } = await tryToApply({ test, old: before, next, blob }, blob);
    expect(code).toBe('applied');
    expect(createHash('sha256').update(bytes).digest('hex')).toBe(createHash('sha256').update(next).digest('hex'));
  });
});

describe('a damaged blob', () => {
  const forms: readonly TensorCase[] = [
    { width: 2, elements: 600, density: 0.05, values: 'small', seed: 1 },
    { width: 4, elements: 200, density: 0.6, values: 'small', seed: 2 },
    { width: 1, elements: 120, density: 1, values: 'any', seed: 3 },
  ];

  it.each(forms)('with any bit flipped is refused and leaves the tensor whole: $width, $density', async (test) => {
    const sample = await sampleOf(test);
    const flips = Array.from({ length: 8 * sample.blob.byteLength }, (_, bit) => async () => {
      const blob = Buffer.from(sample.blob);
      blob[bit >> 3]! ^= 1 << (bit & 7);
      const { bytes, code } = await tryToApply(sample, blob);
      expect(code, `bit ${bit}`).toBe('checksum-mismatch');
      expect(Buffer.compare(bytes, sample.old), `bit ${bit}`).toBe(0);
    });
    await Promise.all(flips.map((flip) => flip()));
  });

  it.each(forms)('cut off anywhere, or with more behind it, is refused: $width, $density', async (test) => {
    const sample = await sampleOf(test);
    const cuts = Array.from({ length: sample.blob.byteLength }, (_, length) => sample.blob.subarray(0, length));
    for (const blob of [...cuts, Buffer.concat([sample.blob, Buffer.of(0)])])
      expect(await tryToApply(sample, blob)).toMatchObject({
        bytes: new Uint8Array(sample.old),
        code: 'checksum-mismatch',
      });
  });
});

describe('a blob made to do harm', () => {
  const test: TensorCase = { width: 2, elements: 600, density: 0.05, values: 'small', seed: 1 };

  it('with any number in its fields is refused, or gives the right bytes', async () => {
    const sample = await sampleOf(test);
    const body = sample.blob.subarray(0, -DIGEST_BYTES);
    const random = createRandom(7);
    const extremes = [0, 1, 0x7f, 0x80, 0xff];
    const tries: Buffer[] = [];
    for (let at = 0; at < body.byteLength; at++)
      for (const value of [...extremes, random.below(256)]) {
        const changed = Buffer.from(body);
        changed[at] = value;
        tries.push(changed);
      }
    for (let at = 0; at + 8 <= body.byteLength; at++)
      for (const word of [0, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff]) {
        const changed = Buffer.from(body);
        changed.writeUInt32LE(word, at);
        if (random.below(2) === 0) changed.writeUInt32LE(word, at + 4);
        tries.push(changed);
      }
    const outcomes = await Promise.all(tries.map((changed) => tryToApply(sample, signed(changed))));
    for (const { bytes, code } of outcomes) {
      if (code === 'applied') expect(Buffer.compare(bytes, sample.next)).toBe(0);
      else expect(code).toBe('checksum-mismatch');
    }
    expect(outcomes.filter(({ code }) => code === 'applied').length).toBeLessThan(tries.length / 4);
  });

  it('with a frame that expands to more than its plane is refused', async () => {
    const sample = await sampleOf({ ...test, elements: 100_000 });
    const head = sample.blob.subarray(0, HEAD_BYTES + BLOCK_HEAD_BYTES);
    const bomb = zstdCompressSync(Buffer.alloc(1 << 24), { params: { [constants.ZSTD_c_windowLog]: 17 } });
    const length = Buffer.alloc(4);
    length.writeUInt32LE(bomb.byteLength);
    const { code, bytes, reason } = await tryToApply(
      sample,
      signed(Buffer.concat([head, length, bomb, sample.blob.subarray(0, -16)])),
    );
    expect(code).toBe('checksum-mismatch');
    expect(reason).toContain('does not expand');
    expect(Buffer.compare(bytes, sample.old)).toBe(0);
  });

  it('of another tensor is refused before anything is written', async () => {
    const sample = await sampleOf(test);
    for (const other of [
      { ...test, elements: 601 },
      { ...test, width: 4, elements: 300 },
    ] as const) {
      const { blob } = await sampleOf(other);
      expect(await tryToApply(sample, blob)).toMatchObject({
        bytes: new Uint8Array(sample.old),
        code: 'checksum-mismatch',
      });
    }
  });

  it('whose blocks go back, overlap or leave the tensor is refused', async () => {
    const sample = await sampleOf(test);
    const body = sample.blob.subarray(0, -DIGEST_BYTES);
    const block = body.subarray(HEAD_BYTES, body.byteLength - 12);
    const twice = Buffer.concat([body.subarray(0, HEAD_BYTES), block, block, body.subarray(-12)]);
    const behind = Buffer.from(body);
    behind.writeBigUInt64LE(599n, HEAD_BYTES + 8);
    const far = Buffer.from(body);
    far.writeBigUInt64LE(2n ** 63n, HEAD_BYTES + 8);
    for (const wrong of [twice, behind, far])
      expect(await tryToApply(sample, signed(wrong))).toMatchObject({
        code: 'checksum-mismatch',
        reason: expect.stringContaining('covers elements'),
      });
  });
});

import { constants, createZstdCompress, zstdCompressSync, zstdDecompressSync } from 'node:zlib';

import { xxh3 } from '@node-rs/xxhash';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { CodecPool } from './codec-pool.ts';
import type { DeltaEncoding } from './delta-codec.ts';
import { makePair, tensorAt, type TensorCase } from './delta-tensors.fixture.ts';

let pool: CodecPool;
beforeAll(async () => {
  pool = await CodecPool.start({ threads: 2 });
});
afterAll(() => pool.close());

const memory = (bytes: Uint8Array): { kind: 'memory'; bytes: Uint8Array } => ({ kind: 'memory', bytes });
const test: TensorCase = { width: 2, elements: 300_000, density: 0.01, values: 'small', seed: 1 };
const small: TensorCase = { ...test, elements: 500, density: 0.05 };

async function encode(
  encoding: DeltaEncoding,
  pair: { old: Uint8Array; next: Uint8Array },
  shape: TensorCase,
): Promise<Buffer> {
  const { chunks } = await pool.encode({
    name: 'weight',
    encoding,
    old: tensorAt(memory(pair.old), shape),
    next: tensorAt(memory(pair.next), shape),
  });
  return Buffer.concat(chunks);
}

/** The sentences of the errors so far. */
const reasons: string[] = [];

/** Applies a blob; 'applied' only with the right bytes, else the error's code. */
async function outcome(
  encoding: DeltaEncoding,
  { pair, shape, blob }: { pair: { old: Uint8Array; next: Uint8Array }; shape: TensorCase; blob: Uint8Array },
): Promise<string> {
  const bytes = new Uint8Array(new SharedArrayBuffer(pair.old.byteLength));
  bytes.set(pair.old);
  const tensor = tensorAt(memory(bytes), shape);
  try {
    await pool.apply({
      name: 'weight',
      encoding,
      blob: memory(blob),
      from: tensor,
      to: tensor,
      checksum: xxh3.xxh128(pair.next).toString(16).padStart(32, '0'),
      checksumFormat: 'xxh3-128',
    });
  } catch (error) {
    const { code, message } = error as { code: string; message: string };
    expect(message).toContain('weight');
    reasons.push(message);
    return code;
  }
  return Buffer.compare(bytes, pair.next) === 0 ? 'applied' : 'wrong bytes';
}

function overwriteBlob(positions: readonly number[], bytes: readonly number[], count = positions.length): Buffer {
  return zstdCompressSync(
    Buffer.concat([Buffer.from(Uint32Array.of(count, ...positions).buffer), Buffer.from(Uint8Array.from(bytes))]),
  );
}

describe('what other systems read', () => {
  it('xor is the XOR of all bytes in one frame that tells its size', async () => {
    const pair = makePair(test);
    const blob = await encode('xor', pair, test);
    const difference = zstdDecompressSync(blob, { maxOutputLength: pair.old.byteLength });
    expect(difference.equals(pair.next.map((byte, index) => byte ^ pair.old[index]!))).toBe(true);
    expect(frameContentBytes(blob)).toBe(pair.old.byteLength);
  });

  it('overwrite is a count, the positions of changed bytes, and the new bytes, in one frame that tells its size', async () => {
    const pair = makePair(test);
    const blob = await encode('overwrite', pair, test);
    const changed = [...pair.next.keys()].filter((index) => pair.next[index] !== pair.old[index]);
    const content = zstdDecompressSync(blob);
    expect(frameContentBytes(blob)).toBe(content.byteLength);
    expect(content.readUInt32LE(0)).toBe(changed.length);
    expect(content.byteLength).toBe(4 + 5 * changed.length);
    expect(changed.map((_, index) => content.readUInt32LE(4 + 4 * index))).toEqual(changed);
    expect([...content.subarray(4 + 4 * changed.length)]).toEqual(changed.map((index) => pair.next[index]));
  });

  it('what others write is read: more than one frame, none that tells its size, no compression to speak of', async () => {
    const pair = makePair(test);
    const difference = pair.next.map((byte, index) => byte ^ pair.old[index]!);
    const cut = 123_457;
    const frames = Buffer.concat([
      zstdCompressSync(difference.subarray(0, cut)),
      zstdCompressSync(difference.subarray(cut)),
    ]);
    expect(await outcome('xor', { pair, shape: test, blob: frames })).toBe('applied');
    const stream = createZstdCompress({
      params: { [constants.ZSTD_c_compressionLevel]: 3, [constants.ZSTD_c_checksumFlag]: 1 },
    });
    stream.end(difference);
    const pieces: Buffer[] = [];
    for await (const piece of stream) pieces.push(piece as Buffer);
    expect(await outcome('xor', { pair, shape: test, blob: Buffer.concat(pieces) })).toBe('applied');
  });
});

describe('a damaged blob', () => {
  it.each(['xor', 'overwrite'] as const)('%s with any byte changed never gives other bytes', async (encoding) => {
    const pair = makePair(small);
    const blob = await encode(encoding, pair, small);
    const outcomes = await Promise.all(
      Array.from(blob, (_, at) => {
        const changed = Buffer.from(blob);
        changed[at]! ^= 1 + ((at * 37) % 255);
        return outcome(encoding, { pair, shape: small, blob: changed });
      }),
    );
    // A frame's header has bits that mean nothing; whatever is accepted gave the right bytes.
    expect(outcomes.filter((code) => code !== 'checksum-mismatch' && code !== 'applied')).toEqual([]);
    expect(outcomes.filter((code) => code === 'applied').length).toBeLessThan(5);
  });

  it.each(['xor', 'overwrite'] as const)('%s cut off anywhere is refused', async (encoding) => {
    const pair = makePair(small);
    const blob = await encode(encoding, pair, small);
    const outcomes = await Promise.all(
      Array.from(blob, (_, length) => outcome(encoding, { pair, shape: small, blob: blob.subarray(0, length) })),
    );
    expect(new Set(outcomes)).toEqual(new Set(['checksum-mismatch']));
  });

  it('xor that is longer or shorter than the tensor, or wants a huge window, is refused', async () => {
    const pair = makePair(small);
    const difference = pair.next.map((byte, index) => byte ^ pair.old[index]!);
    const longer = zstdCompressSync(Buffer.concat([difference, Buffer.alloc(1)]));
    const bomb = zstdCompressSync(Buffer.alloc(1 << 26));
    const shorter = zstdCompressSync(difference.subarray(1));
    const behind = Buffer.concat([zstdCompressSync(difference), zstdCompressSync(Buffer.of(0))]);
    for (const blob of [longer, bomb, shorter, behind, Buffer.alloc(0), Buffer.from('no frame at all')])
      expect(await outcome('xor', { pair, shape: small, blob })).toBe('checksum-mismatch');
  });

  it('a frame that asks for a window of 32 MiB is refused for that, not allocated', async () => {
    const pair = makePair(small);
    const blob = Buffer.from('28b52ffd0078' + '0b000000', 'hex');
    expect(await outcome('xor', { pair, shape: small, blob })).toBe('checksum-mismatch');
    expect(reasons.at(-1)).toMatch(/does not expand \(.*memory/u);
  });

  it('overwrite whose positions do not rise, repeat, leave the tensor, or are not as many as it says is refused', async () => {
    const shape: TensorCase = { ...small, width: 1, elements: 1000 };
    const old = new Uint8Array(1000);
    const next = old.slice();
    next[10] = 1;
    next[20] = 2;
    const pair = { old, next };
    expect(await outcome('overwrite', { pair, shape, blob: overwriteBlob([10, 20], [1, 2]) })).toBe('applied');
    for (const blob of [
      overwriteBlob([20, 10], [2, 1]),
      overwriteBlob([10, 10, 20], [1, 1, 2]),
      overwriteBlob([10, 20, 1000], [1, 2, 3]),
      overwriteBlob([10, 20, 0xffff_ffff], [1, 2, 3]),
      overwriteBlob([10, 20], [1, 2], 1),
      overwriteBlob([10, 20], [1, 2], 3),
      overwriteBlob([10, 20], [1, 2], 0xffff_ffff),
      overwriteBlob([10, 20], [1, 2, 3]),
      overwriteBlob([10, 20], [1]),
      overwriteBlob([], []),
      Buffer.alloc(0),
    ])
      expect(await outcome('overwrite', { pair, shape, blob })).toBe('checksum-mismatch');
    // These would give the right bytes: it is the order alone that is refused.
    for (const blob of [overwriteBlob([20, 10], [2, 1]), overwriteBlob([10, 10, 20], [1, 1, 2])]) {
      expect(await outcome('overwrite', { pair, shape, blob })).toBe('checksum-mismatch');
      expect(reasons.at(-1)).toContain('do not rise');
    }
  });
});

/** What the header of a zstd frame says its content has; undefined where it does not say. */
function frameContentBytes(frame: Buffer): number | undefined {
  const descriptor = frame.readUInt8(4);
  const isSingleSegment = (descriptor & 0x20) !== 0;
  const at = isSingleSegment ? 5 : 6;
  switch (descriptor >> 6) {
    case 0:
      return isSingleSegment ? frame.readUInt8(at) : undefined;
    case 1:
      return frame.readUInt16LE(at) + 256;
    case 2:
      return frame.readUInt32LE(at);
    default:
      return Number(frame.readBigUInt64LE(at));
  }
}

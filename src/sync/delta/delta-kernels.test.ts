import { xxh3 } from '@node-rs/xxhash';
import fc from 'fast-check';
import { beforeAll, describe, expect, it } from 'vitest';

import { createRandom } from '../../domain/ids.ts';
import { CHUNK_BYTES, compileDeltaKernels, DeltaKernels } from './delta-kernels.ts';

let kernels: DeltaKernels;
beforeAll(async () => {
  kernels = new DeltaKernels(await compileDeltaKernels());
});

function randomBytes(sizeBytes: number, seed: number): Buffer {
  const random = createRandom(seed);
  return Buffer.from(Uint8Array.from({ length: sizeBytes }, () => random.below(256)));
}

function hashInPieces(bytes: Buffer, pieceBytes: () => number): string {
  kernels.resetHash('tensor');
  for (let offset = 0; offset < bytes.byteLength;) {
    const piece = bytes.subarray(offset, offset + pieceBytes());
    kernels.hashBytes('tensor', piece);
    offset += piece.byteLength;
  }
  return kernels.digest('tensor').toString('hex');
}

const reference = (bytes: Buffer): string => xxh3.xxh128(bytes).toString(16).padStart(32, '0');

function referenceAdler(bytes: Buffer): number {
  let low = 1;
  let high = 0;
  for (const byte of bytes) {
    low = (low + byte) % 65_521;
    high = (high + low) % 65_521;
  }
  return high * 65_536 + low;
}

describe('xxh3-128', () => {
  it('is that of the reference library for every length up to 2048, whole and in pieces', () => {
    const bytes = randomBytes(2048, 1);
    const random = createRandom(2);
    for (let length = 0; length <= bytes.byteLength; length++) {
      const part = bytes.subarray(0, length);
      expect(hashInPieces(part, () => length)).toBe(reference(part));
      expect(hashInPieces(part, () => 1 + random.below(100))).toBe(reference(part));
    }
  });

  it('does not depend on how large inputs are cut', () => {
    const bytes = randomBytes(3 * CHUNK_BYTES + 17, 3);
    const cuts = fc.array(fc.oneof(fc.integer({ min: 1, max: 300 }), fc.integer({ min: 1, max: CHUNK_BYTES })), {
      minLength: 1,
      maxLength: 20,
    });
    fc.assert(
      fc.property(fc.integer({ min: 2049, max: bytes.byteLength }), cuts, (length, pieces) => {
        const part = bytes.subarray(0, length);
        let index = 0;
        // Small cuts alone would make the run long: every so often the rest goes in at once.
        const next = (): number => (index > 200 ? length : pieces[index++ % pieces.length]!);
        expect(hashInPieces(part, next)).toBe(reference(part));
      }),
      { numRuns: 30 },
    );
  });

  it('keeps two states apart', () => {
    const bytes = randomBytes(5000, 4);
    kernels.resetHash('blob');
    kernels.hashBytes('blob', bytes.subarray(0, 100));
    expect(hashInPieces(bytes, () => 777)).toBe(reference(bytes));
    kernels.hashBytes('blob', bytes.subarray(100));
    expect(kernels.digest('blob').toString('hex')).toBe(reference(bytes));
  });
});

it('adler32 is that of its definition, whole and in pieces, also where all bytes are 255', () => {
  for (const bytes of [randomBytes(CHUNK_BYTES, 5), Buffer.alloc(CHUNK_BYTES, 255)])
    for (const length of [0, 1, 15, 16, 17, 5535, 5536, 5537, 5552, 100_001, CHUNK_BYTES]) {
      const part = bytes.subarray(0, length);
      part.copy(kernels.old);
      expect(kernels.adler(1, 'old', length)).toBe(referenceAdler(part));
      const half = Math.floor(length / 2);
      const state = kernels.adler(1, 'old', half);
      bytes.copy(kernels.old, 0, half, length);
      expect(kernels.adler(state, 'old', length - half)).toBe(referenceAdler(part));
    }
});

describe('gaps', () => {
  /** Fills the block with changes at these elements of a byte tensor that fits one chunk. */
  function gather(elements: readonly number[], sizeBytes: number): void {
    kernels.old.fill(0);
    kernels.next.fill(0);
    for (const element of elements) kernels.next[element] = 1;
    kernels.resetBlock();
    kernels.scan(1, { base: 0, begin: 0, end: sizeBytes });
  }

  it('come back from every shift that leaves them room', () => {
    const elements = [3, 4, 70, 4000, 4001, 200_000, CHUNK_BYTES - 1];
    gather(elements, CHUNK_BYTES);
    const { changes, first, span } = kernels.block();
    expect([changes, first, span]).toEqual([elements.length, 3, CHUNK_BYTES - 3]);
    for (let shift = 0; shift <= 31; shift++) {
      gather(elements, CHUNK_BYTES);
      const gapBytes = kernels.packGaps(shift);
      expect(gapBytes).toBeDefined();
      kernels.places.fill(0);
      expect(kernels.unpackGaps(shift, { changes, gapBytes: gapBytes!, span })).toBe(true);
      expect([...kernels.places.subarray(0, changes)].map((place) => place + first)).toEqual(elements);
    }
  });

  it('are refused where they do not use all their bytes, or end elsewhere', () => {
    const elements = [0, 600, 1300];
    gather(elements, 2048);
    const gapBytes = kernels.packGaps(0)!;
    const claim = { changes: 3, gapBytes, span: 1301 };
    expect(kernels.unpackGaps(0, claim)).toBe(true);
    expect(kernels.unpackGaps(0, { ...claim, span: 1302 })).toBe(false);
    expect(kernels.unpackGaps(0, { ...claim, span: 1300 })).toBe(false);
    expect(kernels.unpackGaps(0, { ...claim, changes: 2 })).toBe(false);
    expect(kernels.unpackGaps(0, { ...claim, gapBytes: gapBytes - 1 })).toBe(false);
    expect(kernels.unpackGaps(0, { ...claim, gapBytes: gapBytes + 1 })).toBe(false);
    expect(kernels.unpackGaps(0, { ...claim, changes: 2 ** 31 })).toBe(false);
    expect(kernels.unpackGaps(0, { ...claim, gapBytes: 2 ** 31 })).toBe(false);
    expect(kernels.unpackGaps(32, claim)).toBe(false);
  });

  it('count elements beyond 32 bits', () => {
    const base = 2 ** 33 + 2 ** 20;
    kernels.old.fill(0);
    kernels.next.fill(0);
    kernels.next[9] = 5;
    kernels.next[100] = 6;
    kernels.resetBlock();
    expect(kernels.scan(2, { base, begin: 0, end: 128 })).toBe(128);
    expect(kernels.block()).toEqual({ changes: 2, first: base + 4, span: 47 });
    const gapBytes = kernels.packGaps(3)!;
    expect(kernels.unpackGaps(3, { changes: 2, gapBytes, span: 47 })).toBe(true);
    const range = { offset: base + 4 - base, from: 0, changes: 2, elements: 64 };
    expect(kernels.scatter(2, range)).toBe(2);
    expect(kernels.old.subarray(0, 128).equals(kernels.next.subarray(0, 128))).toBe(true);
    // A block that began 2^30 elements before the chunk has nothing in it, one that begins behind it neither.
    expect(kernels.scatter(2, { ...range, offset: -(2 ** 30) })).toBe(2);
    expect(kernels.scatter(2, { ...range, offset: 2 ** 40 })).toBe(0);
    expect(kernels.old.subarray(0, 128).equals(kernels.next.subarray(0, 128))).toBe(true);
  });

  it('that have no room say so', () => {
    // One byte for each 255 elements of a gap, and 131,072 bytes: a chunk cannot reach that with shift 0, a lie in the list can.
    gather([0, 1], 64);
    kernels.places[1] = 0xffff_ffff;
    expect(kernels.packGaps(0)).toBeUndefined();
    expect(kernels.packGaps(24)).toBeDefined();
  });
});

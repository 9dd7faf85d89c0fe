import fc from 'fast-check';
import { mkdtemp, open, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { DTYPES, tensorSizeBytes } from './dtype.ts';
import {
  decodeSafetensors,
  encodeSafetensors,
  layOutSafetensors,
  readSafetensors,
  readSafetensorsHeader,
  writeSafetensors,
  type TensorData,
} from './safetensors.ts';

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'hone-safetensors-'));
});
afterAll(() => rm(directory, { recursive: true }));

/** A file put together by hand from header text and data, with the header length that the text has unless told. */
function fileOf(
  header: string,
  data: readonly number[] = [],
  headerBytes: bigint = BigInt(Buffer.byteLength(header)),
): Buffer {
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(headerBytes);
  return Buffer.concat([length, Buffer.from(header), Buffer.from(data)]);
}

const tensorArbitrary = fc
  .record({ dtype: fc.constantFrom(...DTYPES), shape: fc.array(fc.nat(4), { maxLength: 3 }), seed: fc.nat(255) })
  .filter(({ dtype, shape }) => tensorSizeBytes(dtype, shape) !== undefined)
  .map(({ dtype, shape, seed }): TensorData => {
    const bytes = Uint8Array.from({ length: tensorSizeBytes(dtype, shape) ?? 0 }, (_, index) => seed + index * 7);
    return { dtype, shape, bytes };
  });
const nameArbitrary = fc
  .oneof(fc.string({ unit: 'binary' }), fc.constantFrom('0', '10', '__proto__', 'constructor', 'é'))
  .filter((name) => name !== '__metadata__' && name.isWellFormed());

it('gives back whatever it wrote', () => {
  fc.assert(
    fc.property(
      fc.uniqueArray(fc.tuple(nameArbitrary, tensorArbitrary), { selector: ([name]) => name, maxLength: 6 }),
      fc.dictionary(nameArbitrary, fc.string()),
      (entries, metadata) => {
        const written = new Map(entries);
        const bytes = Buffer.concat(encodeSafetensors(written, metadata));
        const read = decodeSafetensors(bytes, 'memory');
        expect(
          new Map(
            [...read.tensors]
              .sort(([left], [right]) => (left < right ? -1 : 1))
              .map(([name, tensor]) => [name, { ...tensor, bytes: Uint8Array.from(tensor.bytes) }]),
          ),
        ).toEqual(new Map([...written].sort(([left], [right]) => (left < right ? -1 : 1))));
        expect(Object.entries(read.metadata).sort()).toEqual(Object.entries(metadata).sort());
        expect(bytes.readBigUInt64LE() % 8n).toBe(0n);
      },
    ),
    { numRuns: 150 },
  );
});

it('lays tensors out as standard writers do: wide types first, then by name', async () => {
  const path = join(directory, 'order.safetensors');
  const tensor = (dtype: TensorData['dtype'], fill: number): TensorData => ({
    dtype,
    shape: [1],
    bytes: new Uint8Array(tensorSizeBytes(dtype, [1]) ?? 0).fill(fill),
  });
  await writeSafetensors(
    path,
    new Map([
      ['u', tensor('U8', 1)],
      ['b', tensor('BF16', 2)],
      ['f', tensor('F32', 3)],
      ['a', tensor('BF16', 4)],
      ['i', tensor('I64', 5)],
    ]),
    { format: 'pt' },
  );
  const bytes = await readFile(path);
  const header = bytes.subarray(8, 8 + Number(bytes.readBigUInt64LE())).toString();
  expect(header.trimEnd()).toBe(
    '{"__metadata__":{"format":"pt"},"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"f":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},' +
      '"a":{"dtype":"BF16","shape":[1],"data_offsets":[12,14]},"b":{"dtype":"BF16","shape":[1],"data_offsets":[14,16]},"u":{"dtype":"U8","shape":[1],"data_offsets":[16,17]}}',
  );
  expect([...bytes.subarray(-17)]).toEqual([5, 5, 5, 5, 5, 5, 5, 5, 3, 3, 3, 3, 4, 4, 2, 2, 1]);
  expect(await readdir(directory)).toEqual(['order.safetensors']);
});

describe('refuses', () => {
  const cases: [string, Buffer, RegExp][] = [
    ['fewer than 8 bytes', Buffer.from([1, 0, 0]), /3 bytes, fewer than the 8/],
    ['a header longer than the format allows', fileOf('{}', [], 100_000_001n), /header length is 100000001, more than/],
    ['a header length beyond 2^53', fileOf('{}', [], 2n ** 63n), /header length is 9223372036854775808/],
    ['a header longer than the file', fileOf('{}', [], 50n), /needs 58 bytes, the file has 10/],
    ['a header that does not start with a brace', fileOf(' {}'), /does not start with \{/],
    ['broken JSON', fileOf('{"a":'), /not JSON in UTF-8/],
    ['bytes that are not UTF-8', Buffer.concat([fileOf('{"', [], 4n), Buffer.from([0xff, 0x7d])]), /not JSON in UTF-8/],
    ['metadata that is not text', fileOf('{"__metadata__":{"step":3}}'), /number under "step"/],
    ['metadata that is not an object', fileOf('{"__metadata__":["a"]}'), /__metadata__ is not an object/],
    [
      'the same tensor twice',
      fileOf(
        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\\u0061":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        [1],
      ),
      /key "a" twice/,
    ],
    [
      'the same field twice',
      fileOf('{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', [1]),
      /key "dtype" twice/,
    ],
    [
      'an unknown dtype',
      fileOf('{"a":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}}', [1]),
      /tensor a has the unknown dtype "F7"/,
    ],
    [
      'a negative extent',
      fileOf('{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}', [1]),
      /tensor a has the shape \[-1\]/,
    ],
    [
      'a fractional extent',
      fileOf('{"a":{"dtype":"U8","shape":[0.5],"data_offsets":[0,1]}}', [1]),
      /tensor a has the shape/,
    ],
    ['three offsets', fileOf('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}', [1]), /offsets \[0,1,2\]/],
    [
      'an unknown field',
      fileOf('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]}}', [1]),
      /unknown field "strides"/,
    ],
    [
      'offsets that run backwards',
      fileOf('{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}', [1]),
      /bytes 1 to 0 of a data region of 1/,
    ],
    [
      'offsets beyond the file',
      fileOf('{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}', [1]),
      /bytes 0 to 9 of a data region of 1/,
    ],
    [
      'a shape that does not fit its bytes',
      fileOf('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', [1, 2, 3, 4]),
      /F32 \[2\] takes 8 bytes, its offsets span 4/,
    ],
    [
      'a shape whose product overflows',
      fileOf('{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
      /overflows/,
    ],
    [
      'half a byte',
      fileOf('{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}', [1, 2]),
      /does not fill whole bytes/,
    ],
    [
      'a gap',
      fileOf(
        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}',
        [1, 2, 3],
      ),
      /bytes 1 to 2 before tensor b/,
    ],
    [
      'an overlap',
      fileOf(
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}',
        [1, 2, 3],
      ),
      /tensor b starts at byte 1, inside/,
    ],
    [
      'bytes after the last tensor',
      fileOf('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', [1, 2]),
      /end at byte 1 of a data region of 2/,
    ],
  ];
  it.each(cases)('%s', async (name, bytes, message) => {
    const path = join(directory, `${name.replaceAll(/\W/g, '-')}.safetensors`);
    await writeFile(path, bytes);
    const error = await readSafetensors(path).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(HoneError);
    expect(error).toMatchObject({ code: 'invalid-safetensors', message: expect.stringMatching(message) });
    expect(String(error)).toContain(path);
  });

  it('a file cut at any byte', async () => {
    const path = join(directory, 'cut.safetensors');
    const whole = Buffer.concat(
      encodeSafetensors(new Map([['a', { dtype: 'BF16', shape: [2, 3], bytes: new Uint8Array(12).fill(9) }]])),
    );
    await writeFile(path, whole);
    for (let sizeBytes = whole.byteLength - 1; sizeBytes >= 0; sizeBytes--) {
      await truncate(path, sizeBytes);
      await expect(readSafetensors(path)).rejects.toMatchObject({ code: 'invalid-safetensors' });
    }
  });

  it('a missing file, and bytes that do not fit the shape to write', async () => {
    await expect(readSafetensors(join(directory, 'none'))).rejects.toMatchObject({
      code: 'invalid-safetensors',
      message: expect.stringContaining('ENOENT'),
    });
    await expect(
      writeSafetensors(
        join(directory, 'wrong'),
        new Map([['a', { dtype: 'F32', shape: [2], bytes: new Uint8Array(4) }]]),
      ),
    ).rejects.toMatchObject({
      message: expect.stringMatching(/tensor a has 4 bytes, but F32 \[2\] takes 8/),
    });
    expect(await readdir(directory)).not.toContain('wrong');
  });
});

it('reads scalars, empty tensors and padded headers', () => {
  const read = decodeSafetensors(
    fileOf(
      '{"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}}      ',
      [0, 0, 128, 63],
    ),
    'memory',
  );
  expect(read.tensors.get('e')?.bytes.byteLength).toBe(0);
  expect(Buffer.from(read.tensors.get('s')?.bytes ?? []).readFloatLE()).toBe(1);
});

describe('a header alone', () => {
  it('says where each tensor lies, and lays out a file before its data is there', async () => {
    const path = join(directory, 'header.safetensors');
    await fc.assert(
      fc.asyncProperty(fc.dictionary(fc.string({ minLength: 1, maxLength: 5 }), tensorArbitrary), async (record) => {
        const entries = Object.entries(record).filter(([name]) => name !== '__metadata__' && name.isWellFormed());
        const tensors = new Map(entries);
        const layout = layOutSafetensors(tensors, { format: 'pt' });
        const streamed = [layout.head];
        for (const name of layout.tensors.keys()) streamed.push(tensors.get(name)?.bytes ?? new Uint8Array(0));
        const bytes = Buffer.concat(streamed);
        expect(bytes).toEqual(Buffer.concat(encodeSafetensors(tensors, { format: 'pt' })));
        expect(layout.sizeBytes).toBe(bytes.byteLength);
        await writeFile(path, bytes);
        const header = await readSafetensorsHeader(path);
        expect(header.metadata).toEqual({ format: 'pt' });
        // Empty tensors lie where their neighbours do, in any order.
        expect(new Map([...header.tensors].sort())).toEqual(new Map([...layout.tensors].sort()));
        for (const [name, { offset, sizeBytes }] of header.tensors)
          expect(bytes.subarray(offset, offset + sizeBytes)).toEqual(Buffer.from(tensors.get(name)?.bytes ?? []));
      }),
      { numRuns: 60 },
    );
  });

  it('reads files of any size without their data, and refuses one that is cut', async () => {
    const path = join(directory, 'large.safetensors');
    const shape = [1 << 20, 1 << 15];
    const layout = layOutSafetensors(new Map([['w', { dtype: 'BF16' as const, shape }]]));
    // 64 GiB of nothing: the file takes no room.
    await using handle = await open(path, 'w');
    await handle.write(layout.head);
    await handle.truncate(layout.sizeBytes);
    expect((await readSafetensorsHeader(path)).tensors.get('w')).toEqual({
      dtype: 'BF16',
      shape,
      offset: layout.head.byteLength,
      sizeBytes: 2 ** 36,
    });
    await handle.truncate(layout.sizeBytes - 1);
    await expect(readSafetensorsHeader(path)).rejects.toMatchObject({ code: 'invalid-safetensors' });
    await rm(path);
    await expect(readSafetensorsHeader(path)).rejects.toThrow(/ENOENT/);
  });

  it('is not written for a tensor that has no size, or the name of the metadata', () => {
    const layOut = (name: string, shape: readonly number[]): unknown =>
      layOutSafetensors(new Map([[name, { dtype: 'F4' as const, shape }]]));
    expect(() => layOut('w', [3])).toThrow(/does not fill whole bytes/);
    expect(() => layOut('__metadata__', [2])).toThrow(/__metadata__/);
  });
});

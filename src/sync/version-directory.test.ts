import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import {
  formatIdentity,
  formatIndex,
  parseChecksum,
  parseIdentity,
  parseIndex,
  type VersionIdentity,
  type VersionIndex,
} from './version-directory.ts';

const identityOf = (version: number, attempt = 0): VersionIdentity => ({
  runId: 'run',
  version: policyVersion(version),
  attempt,
});

const DELTA: VersionIndex = {
  identity: identityOf(7),
  base: identityOf(6, 2),
  baseImageChecksum: 'a'.repeat(32),
  encoding: 'sparse',
  checksumFormat: 'xxh3-128',
  imageChecksum: 'b'.repeat(32),
  weightMap: new Map([
    ['layer.weight', 'model-00001-of-00002.safetensors'],
    ['7', 'model-00002-of-00002.safetensors'],
  ]),
  files: new Map([
    ['model-00001-of-00002.safetensors', { sizeBytes: 12, checksum: 'c'.repeat(32) }],
    ['model-00002-of-00002.safetensors', { sizeBytes: 0, checksum: 'd'.repeat(32) }],
  ]),
  publishedAtMs: 1_700_000_000_123,
};

const { base: _, baseImageChecksum: __, ...withoutBase } = DELTA;
const ANCHOR: VersionIndex = { ...withoutBase, base: undefined, encoding: undefined };

/** The index as JSON, with some keys of its metadata or of the whole replaced; undefined removes one. */
function altered(metadata: Record<string, unknown>, whole: Record<string, unknown> = {}): Uint8Array {
  // Written by formatIndex.
  const parsed = JSON.parse(Buffer.from(formatIndex(DELTA, 5)).toString()) as { metadata: object };
  return Buffer.from(JSON.stringify({ ...parsed, metadata: { ...parsed.metadata, ...metadata }, ...whole }));
}

describe('an index', () => {
  it('reads back as written, delta or anchor, with and without what other systems leave out', () => {
    for (const index of [DELTA, ANCHOR, { ...DELTA, base: identityOf(6) }])
      expect(parseIndex(formatIndex(index, 5), index.identity)).toEqual(index);
    for (const encoding of ['xor', 'overwrite'] as const)
      for (const checksumFormat of ['adler32', 'xxh3-128'] as const) {
        const index = { ...DELTA, encoding, checksumFormat };
        expect(parseIndex(formatIndex(index, 5), index.identity)).toMatchObject({ encoding, checksumFormat });
      }
  });

  it('has the shared form where others read, and everything else in its metadata', () => {
    const parsed: unknown = JSON.parse(Buffer.from(formatIndex(DELTA, 5)).toString());
    expect(parsed).toMatchObject({
      metadata: {
        total_size: 5,
        version: '000007',
        base_version: '000006',
        delta_encoding: 'sparse',
        compression_format: 'zstd',
        checksum_format: 'xxh3-128',
        published_at: '2023-11-14T22:13:20.123Z',
      },
      weight_map: { 'layer.weight': 'model-00001-of-00002.safetensors' },
    });
    expect(Object.keys(parsed as object)).toEqual(['metadata', 'weight_map']);
    const anchor = Buffer.from(formatIndex(ANCHOR, 5)).toString();
    expect(anchor).not.toMatch(/delta_encoding|base_version|compression_format/);
  });

  it('of another system is read, keys that mean nothing here included', () => {
    const foreign = {
      metadata: {
        version: '000007',
        base_version: '000006',
        delta_encoding: 'overwrite',
        compression_format: 'zstd',
        checksum_format: 'adler32',
        framework: { name: 'another' },
      },
      weight_map: { w: 'model-00000-of-00003.safetensors' },
      more: 1,
    };
    expect(parseIndex(Buffer.from(JSON.stringify(foreign)), identityOf(7))).toMatchObject({
      base: identityOf(6),
      encoding: 'overwrite',
      checksumFormat: 'adler32',
      files: undefined,
      imageChecksum: undefined,
    });
  });

  it.each<[string, Record<string, unknown>, RegExp]>([
    ['an unknown encoding', { delta_encoding: 'arc_v2' }, /arc_v2, this reader knows sparse, xor, overwrite/],
    ['an unknown compression', { compression_format: 'lz4' }, /compression is lz4/],
    ['no compression', { compression_format: undefined }, /compression is not named/],
    ['unknown checksums', { checksum_format: 'blake3' }, /blake3, this reader checks xxh3-128 and adler32/],
    ['no checksum format', { checksum_format: undefined }, /checksum_format/],
    ['a name from the prototype', { checksum_format: 'toString' }, /toString/],
    ['another version', { version: '000009' }, /version 000009/],
    ['a version that is no number', { version: '7 ' }, /version/],
    ['a base that is not older', { base_version: '000007', base_directory: undefined }, /not older/],
    ['a base directory of another version', { base_directory: 'weight_v000005-r1' }, /not of version/],
    ['a base directory elsewhere', { base_directory: '../weight_v000006' }, /names no weight version/],
    ['no base', { base_version: undefined }, /without a base_version/],
    ['an image checksum that is none', { image_checksum: 'x' }, /image_checksum/],
    ['sizes of some files only', { files: {} }, /tells no size of model-0000/],
    [
      'the size of a stranger',
      { files: { 'x.safetensors': { size_bytes: 1, checksum: 'e'.repeat(32) } } },
      /tells no size|holds no tensor/,
    ],
    ['a negative size', { files: { 'x.safetensors': { size_bytes: -1, checksum: 'e'.repeat(32) } } }, /size_bytes/],
  ])('with %s is refused', (_name, metadata, message) => {
    expect(() => parseIndex(altered(metadata), identityOf(7))).toThrow(message);
  });

  it.each(['../model.safetensors', '/etc/model.safetensors', 'a/b.safetensors', '.hidden.safetensors', 'model.bin', 7])(
    'that places a tensor in %j is refused',
    (file) => {
      expect(() => parseIndex(altered({}, { weight_map: { w: file } }), identityOf(7))).toThrow(
        /weight_map places tensor w in .* no safetensors file of its directory/,
      );
    },
  );

  it('that is cut, is not JSON or names a tensor twice is refused', () => {
    const text = Buffer.from(formatIndex(DELTA, 5)).toString();
    expect(() => parseIndex(Buffer.from(text.slice(0, 40)), identityOf(7))).toThrow(/not JSON/);
    expect(() => parseIndex(Buffer.from('[]'), identityOf(7))).toThrow(/not a usable version index/);
    const twice = text.replace('"7":', '"layer.weight":');
    expect(() => parseIndex(Buffer.from(twice), identityOf(7))).toThrow(/"layer.weight" twice/);
  });

  it('never gets through damaged as something else: any flipped bit is told or harmless', () => {
    const bytes = formatIndex(DELTA, 5);
    fc.assert(
      fc.property(fc.nat(bytes.byteLength * 8 - 1), (bit) => {
        const damaged = Uint8Array.from(bytes);
        damaged[bit >> 3]! ^= 1 << (bit & 7);
        try {
          const index = parseIndex(damaged, identityOf(7));
          for (const file of index.weightMap.values()) expect(file).toMatch(/^\w[\w.-]*\.safetensors$/);
          expect(index.identity).toEqual(identityOf(7));
        } catch (error) {
          expect(error).toMatchObject({ code: 'store-failed' });
        }
      }),
      { numRuns: 400 },
    );
  });
});

describe('names of versions', () => {
  it('read back as written', () => {
    for (const identity of [identityOf(0), identityOf(7), identityOf(1_234_567), identityOf(7, 3)])
      expect(parseIdentity(formatIdentity(identity), 'x')).toEqual(identity);
    expect(formatIdentity(identityOf(7))).toBe('run/weight_v000007');
    expect(formatIdentity(identityOf(7, 1))).toBe('run/weight_v000007-r1');
  });

  it.each([
    '',
    'weight_v000007',
    'run/weight_v7',
    'run/weight_v000007\n',
    'run/weight_v000007-r0',
    '../weight_v000007',
    'a/b/weight_v000007',
    'run/weight_v00000x',
    '\u0000',
  ])('refuse %j', (text) => {
    expect(() => parseIdentity(text, 'Pointer latest')).toThrow(/Pointer latest holds .* names no weight version/);
  });
});

it('takes checksums of tensors however they are padded or capitalised, and nothing else', () => {
  expect(parseChecksum('AB12', 'adler32')).toBe('0000ab12');
  expect(parseChecksum('f'.repeat(32), 'xxh3-128')).toBe('f'.repeat(32));
  for (const text of [undefined, '', '0x12', 'f'.repeat(33), 'g'])
    expect(parseChecksum(text, 'xxh3-128')).toBeUndefined();
});

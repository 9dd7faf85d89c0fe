import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { policyVersion } from '../domain/ids.ts';
import { decodeSafetensors } from '../tensor/safetensors.ts';
import { decodeVersion, encodeVersion, type EncodedVersion } from './delta.ts';
import { formatIdentity, INDEX_FILE, parseIdentity, parseIndex, type VersionIdentity } from './version-directory.ts';
import { checksumOf, imageOf, type WeightImage } from './weight-image.ts';

const identityOf = (version: number, attempt = 0): VersionIdentity => ({
  runId: 'run',
  version: policyVersion(version),
  attempt,
});
const shapesOf = (tensors: ReadonlyMap<string, Uint8Array>): Map<string, number[]> =>
  new Map([...tensors].map(([name, bytes]) => [name, [bytes.byteLength / 2]]));
const filesOf = (encoded: EncodedVersion): Map<string, Buffer> =>
  new Map(encoded.files.map((file) => [file.name, Buffer.concat(file.chunks)]));

async function decode(
  files: ReadonlyMap<string, Uint8Array>,
  identity: VersionIdentity,
  previous: WeightImage | undefined,
): Promise<WeightImage> {
  const read = (name: string): Uint8Array => files.get(name) ?? expect.fail(`no file ${name}`);
  return decodeVersion(parseIndex(read(INDEX_FILE), identity), {
    previous,
    readFile: (name) => Promise.resolve(read(name)),
  });
}

/** Two images of the same tensors; the second differs in some 16-bit elements, in whole tensors, or nowhere. */
const pairArbitrary = fc
  .uniqueArray(
    fc.tuple(
      fc.string({ minLength: 1 }).filter((name) => name !== '__metadata__' && name.isWellFormed()),
      fc.uint16Array({ maxLength: 40 }),
      fc.array(fc.tuple(fc.nat(39), fc.nat(65_535)), { maxLength: 5 }),
    ),
    {
      selector: ([name]) => name,
      maxLength: 6,
    },
  )
  .map((entries) => {
    const before = new Map<string, Uint8Array>();
    const after = new Map<string, Uint8Array>();
    for (const [name, elements, changes] of entries) {
      const changed = elements.slice();
      for (const [position, value] of changes) if (position < changed.length) changed[position] = value;
      before.set(name, new Uint8Array(elements.slice().buffer));
      after.set(name, new Uint8Array(changed.buffer));
    }
    return { before, after };
  });

it('gives back exactly the next version, as delta and as anchor, and counts what changed', async () => {
  await fc.assert(
    fc.asyncProperty(pairArbitrary, fc.boolean(), async ({ before, after }, anchor) => {
      const previous = imageOf(before);
      const encoded = await encodeVersion({
        identity: identityOf(7),
        next: imageOf(after),
        previous,
        base: anchor ? undefined : identityOf(6),
        shapes: shapesOf(after),
      });
      const decoded = await decode(filesOf(encoded), identityOf(7), anchor ? undefined : previous);
      expect(new Map([...decoded.tensors].sort())).toEqual(new Map([...after].sort()));
      expect(new Map([...decoded.checksums].sort())).toEqual(new Map([...imageOf(after).checksums].sort()));
      expect(previous.tensors).toEqual(before);
      let changed = 0;
      let total = 0;
      for (const [name, bytes] of after) {
        const old = new Uint16Array(before.get(name)?.slice().buffer ?? new ArrayBuffer(0));
        total += old.length;
        changed += new Uint16Array(bytes.slice().buffer).filter(
          (element, position) => element !== old[position],
        ).length;
      }
      expect([encoded.changedElements, encoded.totalElements]).toEqual([changed, total]);
      expect(encoded.wireBytes).toBe([...filesOf(encoded).values()].reduce((sum, file) => sum + file.byteLength, 0));
    }),
    { numRuns: 120 },
  );
});

const tensor = (seed: number, sizeBytes = 4000): Uint8Array =>
  Uint8Array.from({ length: sizeBytes }, (_, index) => (seed * 31 + index * index) & 255);
const before = new Map([
  ['kept', tensor(1)],
  ['moved', tensor(2)],
  ['odd.words', tensor(3, 2 * 333)],
]);
const after = new Map([
  ['kept', tensor(1)],
  ['moved', tensor(2).fill(7, 100, 140)],
  ['odd.words', tensor(3, 2 * 333).fill(9, 660)],
]);
const previous = imageOf(before);
const encodeDelta = (base = identityOf(6)): Promise<EncodedVersion> =>
  encodeVersion({ identity: identityOf(7), next: imageOf(after), previous, base, shapes: shapesOf(after) });

it('writes the form that other readers of the shared format expect', async () => {
  const files = filesOf(await encodeDelta());
  expect(JSON.parse(files.get(INDEX_FILE)?.toString() ?? '')).toEqual({
    metadata: {
      version: '000007',
      base_version: '000006',
      delta_encoding: 'xor',
      compression_format: 'zstd',
      checksum_format: 'xxh3-128',
      image_checksum: expect.stringMatching(/^[0-9a-f]{32}$/),
      total_size: expect.any(Number),
    },
    weight_map: { moved: 'model-00001-of-00001.safetensors', 'odd.words': 'model-00001-of-00001.safetensors' },
  });
  const stored = decodeSafetensors(files.get('model-00001-of-00001.safetensors') ?? Buffer.alloc(0), 'memory');
  expect(stored.metadata).toEqual({
    moved: checksumOf(after.get('moved') ?? tensor(0)),
    'odd.words': checksumOf(after.get('odd.words') ?? tensor(0)),
  });
  const frame = stored.tensors.get('moved');
  expect(frame?.dtype).toBe('U8');
  // zstd's magic number, then a header that carries the content size (flag bits 7-6 or the single-segment bit set).
  expect(Buffer.from(frame?.bytes.subarray(0, 4) ?? []).toString('hex')).toBe('28b52ffd');
  expect((frame?.bytes[4] ?? 0) & 0b1110_0000).not.toBe(0);
  expect(checksumOf(new Uint8Array(0))).toBe('99aa06d3014798d86001c324468d497f'); // From the reference implementation of XXH3.

  const anchor = filesOf(
    await encodeVersion({
      identity: identityOf(8),
      next: imageOf(after),
      previous,
      base: undefined,
      shapes: new Map([...shapesOf(after), ['kept', [20, 100]]]),
    }),
  );
  expect(JSON.parse(anchor.get(INDEX_FILE)?.toString() ?? '')).toMatchObject({
    metadata: { version: '000008', total_size: 8666 },
  });
  expect(anchor.get(INDEX_FILE)?.toString()).not.toContain('delta_encoding');
  expect(
    decodeSafetensors(anchor.get('model-00001-of-00001.safetensors') ?? Buffer.alloc(0), 'memory').tensors.get('kept'),
  ).toMatchObject({ dtype: 'BF16', shape: [20, 100] });
});

it('writes the same bytes for the same weights, so that a resumed run can complete a killed upload', async () => {
  expect(filesOf(await encodeDelta())).toEqual(filesOf(await encodeDelta()));
});

it('needs no weights file when nothing changed', async () => {
  const encoded = await encodeVersion({
    identity: identityOf(7),
    next: previous,
    previous,
    base: identityOf(6),
    shapes: shapesOf(before),
  });
  expect(encoded.files.map((file) => file.name)).toEqual([INDEX_FILE]);
  expect((await decode(filesOf(encoded), identityOf(7), previous)).tensors).toEqual(before);
});

describe('refuses', () => {
  it('any flipped bit and any cut, and leaves the base as it was', async () => {
    const files = filesOf(await encodeDelta());
    const weights = files.get('model-00001-of-00001.safetensors') ?? Buffer.alloc(0);
    const codes: unknown[] = [];
    let harmless = 0;
    const expectRefusal = async (damaged: Buffer): Promise<void> => {
      let image: WeightImage;
      try {
        image = await decode(
          new Map([...files, ['model-00001-of-00001.safetensors', damaged]]),
          identityOf(7),
          previous,
        );
      } catch (error) {
        codes.push(error instanceof HoneError ? error.code : error);
        return;
      }
      // Some bits mean nothing, such as white space in a header: then the result must be right to the bit.
      harmless += 1;
      expect(image.tensors).toEqual(after);
    };
    for (let position = 0; position < weights.byteLength; position++) {
      const flipped = Buffer.from(weights);
      flipped[position] = (flipped[position] ?? 0) ^ (1 << (position % 8));
      await expectRefusal(flipped);
      if (position % 5 === 0) await expectRefusal(weights.subarray(0, position));
    }
    expect(harmless).toBeLessThan(codes.length / 20);
    expect([...new Set(codes)].sort()).toEqual(['checksum-mismatch', 'invalid-safetensors']);
    expect(previous.tensors).toEqual(before);
  });

  it('a base that is not the one the delta was taken from, even where only unchanged tensors differ', async () => {
    const files = filesOf(await encodeDelta());
    const wrongMoved = imageOf(new Map([...before, ['moved', tensor(5)]]));
    await expect(decode(files, identityOf(7), wrongMoved)).rejects.toMatchObject({
      code: 'checksum-mismatch',
      message: expect.stringContaining('tensor moved'),
    });
    const wrongKept = imageOf(new Map([...before, ['kept', tensor(5)]]));
    await expect(decode(files, identityOf(7), wrongKept)).rejects.toMatchObject({
      code: 'checksum-mismatch',
      message: expect.stringContaining('the base differs'),
    });
    const shorter = imageOf(new Map([...before, ['moved', tensor(2, 100)]]));
    await expect(decode(files, identityOf(7), shorter)).rejects.toMatchObject({ code: 'checksum-mismatch' });
    const without = imageOf(
      new Map([
        ['kept', tensor(1)],
        ['odd.words', tensor(3, 666)],
      ]),
    );
    await expect(decode(files, identityOf(7), without)).rejects.toMatchObject({
      code: 'delta-base-mismatch',
      message: expect.stringContaining('tensor moved'),
    });
    await expect(decode(files, identityOf(7), undefined)).rejects.toMatchObject({ code: 'delta-base-mismatch' });
  });

  it.each([
    ['another encoding', 'delta_encoding', 'arc_v2', /arc_v2/],
    ['another compression', 'compression_format', 'lz4', /lz4/],
    ['other checksums', 'checksum_format', 'blake3', /blake3/],
    ['another version', 'version', '000009', /version 000009/],
    ['a base that is not older', 'base_version', '000007', /not older/],
    ['a base directory of another version', 'base_directory', 'weight_v000005-r1', /not of version/],
    ['no base', 'base_version', undefined, /without a base_version/],
  ])('an index with %s', async (_, key, value, message) => {
    const index: unknown = JSON.parse(
      filesOf(await encodeDelta())
        .get(INDEX_FILE)
        ?.toString() ?? '',
    );
    if (typeof index !== 'object' || index === null || !('metadata' in index)) return expect.fail('no metadata');
    const damaged = Buffer.from(
      JSON.stringify({ ...index, metadata: { ...(index.metadata as object), [key]: value } }),
    ); // Checked to be there above.
    expect(() => parseIndex(damaged, identityOf(7))).toThrow(message);
  });

  it('an index that is cut or places weights elsewhere', async () => {
    const text =
      filesOf(await encodeDelta())
        .get(INDEX_FILE)
        ?.toString() ?? '';
    expect(() => parseIndex(Buffer.from(text.slice(0, 40)), identityOf(7))).toThrow(/not JSON/);
    expect(() => parseIndex(Buffer.from(text.replaceAll('model-00001', '../model')), identityOf(7))).toThrow(
      /weight_map/,
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
  ])('refuse %j', (text) => {
    expect(() => parseIdentity(text, 'Pointer latest')).toThrow(/Pointer latest holds .* names no weight version/);
  });

  it('carry the base directory when it is not the plain one', async () => {
    const files = filesOf(await encodeDelta(identityOf(6, 2)));
    expect(parseIndex(files.get(INDEX_FILE) ?? Buffer.alloc(0), identityOf(7)).base).toEqual(identityOf(6, 2));
  });
});

/**
 * The tensors of a full anchor where its files hold them, and the proof that what was made of them is what was published: by the
 * checksum of each tensor in the index's format, whoever wrote it, and by that of the image where there is one.
 * Invariant: exactly the tensors of the index, each in the file that the index names, none without a checksum.
 */
import { HoneError } from '../domain/errors.ts';
import { readSafetensorsHeader } from '../tensor/safetensors.ts';
import { forEachBounded } from './bounded-work.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { imageChecksum } from './image-checksum.ts';
import type { TensorPlace, TensorPlaces } from './tensor-place.ts';
import { formatIdentity, parseChecksum, type VersionIndex } from './version-directory.ts';

const TENSORS_IN_FLIGHT = 8;

export interface AnchorTensors {
  readonly tensors: TensorPlaces;
  /** What each must have, in the index's format. */
  readonly published: ReadonlyMap<string, string>;
}

/** Throws `checksum-mismatch` where the files are not what the index says of them. */
export async function readAnchorTensors(
  index: VersionIndex,
  paths: ReadonlyMap<string, string>,
): Promise<AnchorTensors> {
  const tensors = new Map<string, TensorPlace>();
  const published = new Map<string, string>();
  for (const [file, path] of paths) {
    const header = await readSafetensorsHeader(path);
    for (const [name, { dtype, shape, offset, sizeBytes }] of header.tensors) {
      const checksum = parseChecksum(header.metadata[name], index.checksumFormat);
      if (index.weightMap.get(name) !== file || checksum === undefined)
        throw damagedAnchor(
          index,
          `${file} holds tensor ${name}, which the index does not place there, or without a ${index.checksumFormat} checksum`,
        );
      tensors.set(name, { dtype, shape, place: { kind: 'file', path, offset, sizeBytes } });
      published.set(name, checksum);
    }
  }
  const lost = [...index.weightMap.keys()].filter((name) => !tensors.has(name));
  if (lost.length > 0) throw damagedAnchor(index, `no file of it holds ${lost.join(', ')}`);
  return { tensors, published };
}

/** Throws `checksum-mismatch` with the names when the bytes that were made of an anchor are not those that were published. */
export async function proveAnchor(
  index: VersionIndex,
  { published }: Pick<AnchorTensors, 'published'>,
  made: {
    readonly tensors: TensorPlaces;
    /** xxh3-128 of each tensor of `tensors`, taken from its bytes. */
    readonly checksums: ReadonlyMap<string, string>;
    readonly codec: TensorCodec;
    readonly signal?: AbortSignal | undefined;
  },
): Promise<void> {
  const { tensors, checksums, codec, signal } = made;
  const { checksumFormat: format } = index;
  const wrong: string[] = [];
  await forEachBounded(published, { limit: TENSORS_IN_FLIGHT, signal }, async ([name, checksum], ending) => {
    const place = tensors.get(name)?.place;
    const found =
      format === 'xxh3-128' || place === undefined
        ? checksums.get(name)
        : await codec.checksum(place, { format, signal: ending });
    if (found !== checksum) wrong.push(name);
  });
  if (wrong.length > 0)
    throw damagedAnchor(
      index,
      `the bytes of ${wrong.sort().join(', ')} in ${[...new Set(wrong.map((name) => index.weightMap.get(name)))].join(', ')} are not those that were published`,
    );
  const found = imageChecksum(checksums);
  if (index.imageChecksum !== undefined && found !== index.imageChecksum)
    throw damagedAnchor(index, `its tensors together have checksum ${found}, published was ${index.imageChecksum}`);
}

function damagedAnchor(index: VersionIndex, what: string): HoneError {
  return new HoneError('checksum-mismatch', `${formatIdentity(index.identity)} is damaged: ${what}.`, {
    cure: 'Restore it from a copy of the store, or publish a full anchor.',
  });
}

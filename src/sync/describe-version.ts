/**
 * What a published version holds, from its index and the headers of its files: no weights are read.
 * Invariant: what is told of a tensor stands in the file that the index places it in.
 */
import { HoneError } from '../domain/errors.ts';
import { readRemoteHeader } from '../tensor/safetensors.ts';
import { forEachBounded } from './bounded-work.ts';
import { readWhole, type CallOptions, type ObjectSource } from './store/weight-store.ts';
import { formatIdentity, type VersionIndex } from './version-directory.ts';

const FILES_IN_FLIGHT = 8;

export interface DescribedTensor {
  readonly name: string;
  readonly file: string;
  /** Of what is stored: of a delta the difference, U8. */
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly storedBytes: number;
  /** Of the tensor's new bytes, in the index's format. */
  readonly checksum: string | undefined;
}

/** Every stored tensor, by name. */
export async function describeTensors(
  source: ObjectSource,
  index: VersionIndex,
  options: CallOptions = {},
): Promise<DescribedTensor[]> {
  const tensors: DescribedTensor[] = [];
  const files = new Set(index.weightMap.values());
  await forEachBounded(files, { limit: FILES_IN_FLIGHT, signal: options.signal }, async (file, signal) => {
    const key = `${formatIdentity(index.identity)}/${file}`;
    const stored = await source.statObject(key, { signal });
    if (stored === undefined) throw missing(key);
    const read = async (start: number, end: number): Promise<Uint8Array> => {
      const bytes = await readWhole(source, key, { signal, range: { start, end } });
      if (bytes === undefined) throw missing(key);
      return bytes;
    };
    const header = await readRemoteHeader(read, { sizeBytes: stored.sizeBytes, source: key });
    for (const [name, { dtype, shape, sizeBytes }] of header.tensors)
      tensors.push({ name, file, dtype, shape, storedBytes: sizeBytes, checksum: header.metadata[name] });
  });
  return tensors.sort((left, right) => (left.name < right.name ? -1 : 1));
}

function missing(key: string): HoneError {
  return new HoneError('store-failed', `The weight store has no ${key}, which its version's index names.`, {
    cure: 'Restore it from a copy of the store, or publish a full anchor.',
  });
}

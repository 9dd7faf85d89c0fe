/**
 * One version as files: a full anchor (plain tensors), or a delta that holds, for each tensor that changed, the zstd frame of its
 * XOR with the version before. Checksums are those of the new bytes. The file form is the one slime, miles and stitch share.
 * Invariant: decoding returns exactly the encoded image or throws; the base image is never touched.
 */
import { promisify } from 'node:util';
import { constants, zstdCompress, zstdDecompress } from 'node:zlib';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { decodeSafetensors, encodeSafetensors, type TensorData } from '../tensor/safetensors.ts';
import {
  formatIdentity,
  formatIndex,
  INDEX_FILE,
  type VersionIdentity,
  type VersionIndex,
} from './version-directory.ts';
import { CHECKSUM_FORMAT, checksumOf, imageChecksum, type WeightImage } from './weight-image.ts';

const WEIGHTS_FILE = 'model-00001-of-00001.safetensors';
/** Frames compressed or expanded at a time; each uses a thread of the shared pool. */
const FRAMES_IN_FLIGHT = 4;

const compress = promisify(zstdCompress);
const expand = promisify(zstdDecompress);

export interface EncodedVersion {
  /** Paths inside the version directory. The index comes last: without it there is no version. */
  readonly files: readonly { readonly name: string; readonly chunks: readonly Uint8Array[] }[];
  /** Bytes of all files. */
  readonly wireBytes: number;
  /** bf16 elements whose bits differ from the base; all of them for an anchor without a base image. */
  readonly changedElements: number;
  readonly totalElements: number;
}

export interface EncodeOptions {
  readonly identity: VersionIdentity;
  readonly next: WeightImage;
  /** The image that a delta is taken against; for an anchor only its changed elements are counted. */
  readonly previous: WeightImage | undefined;
  /** Undefined = write a full anchor. Needs `previous`. */
  readonly base: VersionIdentity | undefined;
  readonly shapes: ReadonlyMap<string, readonly number[]>;
}

export async function encodeVersion({
  identity,
  next,
  previous,
  base,
  shapes,
}: EncodeOptions): Promise<EncodedVersion> {
  const stored = new Map<string, TensorData>();
  const checksums: Record<string, string> = {};
  let changedElements = 0;
  let totalBytes = 0;
  await forEachBounded(next.tensors, FRAMES_IN_FLIGHT, async ([name, bytes]) => {
    totalBytes += bytes.byteLength;
    const old = previous?.tensors.get(name);
    const changed = next.checksums.get(name) !== previous?.checksums.get(name);
    const difference = old !== undefined && changed ? xorCounting(bytes, old, name) : undefined;
    changedElements += difference?.changedElements ?? (old === undefined ? bytes.byteLength / 2 : 0);
    if (base === undefined)
      stored.set(name, { dtype: 'BF16', shape: shapes.get(name) ?? [bytes.byteLength / 2], bytes });
    else if (difference !== undefined) {
      const options = {
        chunkSize: chunkSizeBytes(bytes.byteLength),
        // The frame's header then tells its size, which one-shot readers of other libraries insist on.
        pledgedSrcSize: bytes.byteLength,
        params: { [constants.ZSTD_c_compressionLevel]: 1 },
      };
      const frame = await compress(difference.bytes, options);
      stored.set(name, { dtype: 'U8', shape: [frame.byteLength], bytes: frame });
    } else if (old === undefined) throw mismatch(identity, `its base has no tensor ${name}`);
    if (stored.has(name)) checksums[name] = next.checksums.get(name) ?? checksumOf(bytes);
  });
  const index: VersionIndex = {
    identity,
    base,
    encoding: base === undefined ? undefined : 'xor',
    checksumFormat: CHECKSUM_FORMAT,
    imageChecksum: imageChecksum(next),
    weightMap: new Map([...stored.keys()].sort().map((name) => [name, WEIGHTS_FILE])),
  };
  const files: { name: string; chunks: Uint8Array[] }[] = [];
  if (stored.size > 0)
    files.push({ name: WEIGHTS_FILE, chunks: encodeSafetensors(stored, sortKeys(checksums), WEIGHTS_FILE) });
  const storedBytes = [...stored.values()].reduce((sum, tensor) => sum + tensor.bytes.byteLength, 0);
  files.push({ name: INDEX_FILE, chunks: [formatIndex(index, storedBytes)] });
  const wireBytes = files.reduce((sum, file) => file.chunks.reduce((bytes, chunk) => bytes + chunk.byteLength, sum), 0);
  return { files, wireBytes, changedElements, totalElements: totalBytes / 2 };
}

/**
 * The image of the version that `index` describes. `readFile` fetches a file of its directory. `previous` is the image of
 * `index.base`; anchors ignore it. Bytes that are not what the publisher wrote are `checksum-mismatch` or `invalid-safetensors`.
 */
export async function decodeVersion(
  index: VersionIndex,
  { previous, readFile }: { previous: WeightImage | undefined; readFile: (name: string) => Promise<Uint8Array> },
): Promise<WeightImage> {
  const { identity, base } = index;
  if (base !== undefined && previous === undefined) throw mismatch(identity, `version ${base.version} is not at hand`);
  const isDelta = base !== undefined;
  const tensors = new Map(isDelta ? previous?.tensors : undefined);
  const checksums = new Map(isDelta ? previous?.checksums : undefined);
  for (const file of new Set(index.weightMap.values())) {
    const source = `${formatIdentity(identity)}/${file}`;
    const stored = decodeSafetensors(await readFile(file), source);
    for (const name of stored.tensors.keys())
      if (index.weightMap.get(name) !== file)
        throw corrupt(source, `it holds tensor ${name}, which the index does not place there`);
    await forEachBounded(stored.tensors, FRAMES_IN_FLIGHT, async ([name, tensor]) => {
      const bytes = isDelta
        ? await applyFrame(tensor, previous?.tensors.get(name), name, identity, source)
        : new Uint8Array(tensor.bytes);
      const checksum = checksumOf(bytes);
      if (checksum !== stored.metadata[name])
        throw corrupt(
          source,
          `tensor ${name} came out with checksum ${checksum}, published was ${stored.metadata[name] ?? 'none'}`,
        );
      tensors.set(name, bytes);
      checksums.set(name, checksum);
    });
    for (const [name, home] of index.weightMap)
      if (home === file && !stored.tensors.has(name)) throw corrupt(source, `tensor ${name} is missing from it`);
  }
  const image = { tensors, checksums };
  const checksum = imageChecksum(image);
  if (index.imageChecksum !== undefined && checksum !== index.imageChecksum)
    throw corrupt(
      formatIdentity(identity),
      `all tensors together have checksum ${checksum}, published was ${index.imageChecksum}: the base differs`,
    );
  return image;
}

async function applyFrame(
  tensor: TensorData,
  old: Uint8Array | undefined,
  name: string,
  identity: VersionIdentity,
  source: string,
): Promise<Uint8Array> {
  if (old === undefined) throw mismatch(identity, `it changes tensor ${name}, which the base does not have`);
  let difference: Uint8Array;
  try {
    difference = await expand(tensor.bytes, {
      chunkSize: chunkSizeBytes(old.byteLength),
      maxOutputLength: old.byteLength,
    });
  } catch (error) {
    throw corrupt(source, `the difference of tensor ${name} does not expand (${reasonOf(error)})`, error);
  }
  if (difference.byteLength !== old.byteLength)
    throw corrupt(
      source,
      `the difference of tensor ${name} has ${difference.byteLength} bytes, the tensor ${old.byteLength}`,
    );
  return xorCounting(difference, old, name).bytes;
}

/** XOR of two equally long buffers in a new one, and how many 16-bit elements of it are not 0. Four bytes at a time. */
function xorCounting(
  left: Uint8Array,
  right: Uint8Array,
  name: string,
): { bytes: Uint8Array; changedElements: number } {
  const sizeBytes = left.byteLength;
  if (right.byteLength !== sizeBytes)
    throw new HoneError(
      'delta-base-mismatch',
      `Tensor ${name} has ${sizeBytes} bytes, in the version before it had ${right.byteLength}.`,
      {
        cure: 'Shapes never change within a run; start a new run for another model.',
      },
    );
  const bytes = new Uint8Array(sizeBytes);
  const words = sizeBytes >>> 2;
  const leftWords = wordsOf(left, words);
  const rightWords = wordsOf(right, words);
  const outWords = new Uint32Array(bytes.buffer, 0, words);
  let changedElements = 0;
  for (let index = 0; index < words; index++) {
    const difference = leftWords[index]! ^ rightWords[index]!;
    outWords[index] = difference;
    if (difference !== 0) changedElements += ((difference & 0xffff) === 0 ? 0 : 1) + (difference >>> 16 === 0 ? 0 : 1);
  }
  let tail = 0;
  for (let index = words * 4; index < sizeBytes; index++) tail |= bytes[index] = left[index]! ^ right[index]!;
  return { bytes, changedElements: changedElements + (tail === 0 ? 0 : 1) };
}

function wordsOf(bytes: Uint8Array, words: number): Uint32Array {
  const aligned = bytes.byteOffset % 4 === 0 ? bytes : new Uint8Array(bytes);
  return new Uint32Array(aligned.buffer, aligned.byteOffset, words);
}

/** Output buffer of one frame: large ones keep big tensors fast, small tensors should not each take a megabyte. */
function chunkSizeBytes(tensorBytes: number): number {
  return Math.max(1 << 16, Math.min(1 << 20, tensorBytes));
}

/** Runs the task for each item, at most `limit` at a time; the first failure is thrown once those in flight have settled. */
async function forEachBounded<T>(items: Iterable<T>, limit: number, task: (item: T) => Promise<void>): Promise<void> {
  const iterator = items[Symbol.iterator]();
  let failed = false;
  const lane = async (): Promise<void> => {
    for (let step = iterator.next(); step.done !== true && !failed; step = iterator.next()) {
      try {
        await task(step.value);
      } catch (error) {
        failed = true;
        throw error;
      }
    }
  };
  const settled = await Promise.allSettled(Array.from({ length: limit }, lane));
  for (const result of settled) if (result.status === 'rejected') throw result.reason;
}

function sortKeys(record: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(record).sort(([left], [right]) => (left < right ? -1 : 1)));
}

function corrupt(source: string, what: string, cause?: unknown): HoneError {
  return new HoneError('checksum-mismatch', `${source} is damaged: ${what}.`, {
    cure: 'Fetch it again; when it stays damaged, resume from the newest full anchor before it.',
    cause,
  });
}

function mismatch(identity: VersionIdentity, what: string): HoneError {
  return new HoneError('delta-base-mismatch', `Version ${identity.version} cannot be applied: ${what}.`, {
    cure: 'Start from a full anchor, or from the base model that the run booted from.',
  });
}

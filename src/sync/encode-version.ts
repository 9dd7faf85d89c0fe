/**
 * One version as the files of its directory: a full anchor, whose bodies read the tensors from where they lie, or a delta, whose
 * bodies are the blobs that the codec made. Shards are bounded, the index comes last.
 * Invariants: an unchanged tensor is in no file; each file's metadata holds the checksum of each of its tensors' new bytes; what is
 * encoded is what was hashed, so a tensor that changes meanwhile is an error and never a version.
 */
import { open } from 'node:fs/promises';

import { HoneError } from '../domain/errors.ts';
import { elementCount, type Dtype } from '../tensor/dtype.ts';
import { layOutSafetensors } from '../tensor/safetensors.ts';
import { forEachBounded } from './bounded-work.ts';
import type { DeltaEncoding, EncodedTensor, TensorCodec } from './delta/delta-codec.ts';
import { imageChecksum } from './image-checksum.ts';
import { objectChecksum } from './object-checksum.ts';
import { bodyOf, type ObjectBody } from './store/weight-store.ts';
import { placeSizeBytes, type BytePlace, type TensorPlace, type TensorPlaces } from './tensor-place.ts';
import {
  formatIndex,
  INDEX_FILE,
  type StoredFile,
  type VersionIdentity,
  type VersionIndex,
} from './version-directory.ts';

/** Bytes of tensors in one weight file; large enough for few requests, small enough to be fetched in parallel. */
const DEFAULT_SHARD_BYTES = 1 << 30;
const PIECE_BYTES = 1 << 20;
/** Given to the codec at once, so that none of its threads waits for the next. */
const TENSORS_IN_FLIGHT = 32;

export interface EncodeVersionOptions {
  readonly identity: VersionIdentity;
  readonly next: TensorPlaces;
  /** xxh3-128 of each tensor of `next`, where they are known; hashed here otherwise. */
  readonly checksums?: ReadonlyMap<string, string>;
  /** The tensors before: a delta is taken against them, of an anchor only the changed elements are counted. */
  readonly previous: TensorPlaces | undefined;
  readonly previousChecksums?: ReadonlyMap<string, string> | undefined;
  /** The version that `previous` is. Undefined = write a full anchor. */
  readonly base: VersionIdentity | undefined;
  readonly encoding: DeltaEncoding;
  readonly shardBytes?: number;
  /** Written into the index; different for every publisher. */
  readonly publisher?: string | undefined;
  /** Milliseconds since 1970, for readers of the index. */
  readonly publishedAtMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

export interface EncodedFile {
  /** Inside the version's directory. */
  readonly name: string;
  readonly body: ObjectBody;
}

export interface EncodedVersion {
  /** The index is the last: without it there is no version. */
  readonly files: readonly EncodedFile[];
  readonly index: VersionIndex;
  /** Of each tensor of the version, stored or not. */
  readonly checksums: ReadonlyMap<string, string>;
  readonly imageChecksum: string;
  /** Bytes of all files. */
  readonly wireBytes: number;
  readonly changedTensors: number;
  /** Elements whose bits differ from the version before; all of them when there is none. */
  readonly changedElements: number;
  readonly totalElements: number;
}

/** What goes into a file under a tensor's name. */
interface StoredPart {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  readonly sizeBytes: number;
  chunks(): Iterable<Uint8Array> | AsyncIterable<Uint8Array>;
}

export async function encodeVersion(codec: TensorCodec, options: EncodeVersionOptions): Promise<EncodedVersion> {
  const { identity, next, previous, base, encoding, shardBytes = DEFAULT_SHARD_BYTES, publishedAtMs, signal } = options;
  const checksums = await checksumsOf(codec, next, options.checksums, signal);
  const before =
    previous === undefined ? undefined : await checksumsOf(codec, previous, options.previousChecksums, signal);
  checkSameTensors(options);
  const changes = new Map<string, EncodedTensor>();
  if (previous !== undefined && before !== undefined)
    await forEachBounded(largestFirst(next), { limit: TENSORS_IN_FLIGHT, signal }, async ([name, tensor], ending) => {
      const old = previous.get(name);
      if (old === undefined || before.get(name) === checksums.get(name)) return;
      const encoded = await codec.encode({ name, encoding, old, next: tensor }, ending);
      if (encoded.checksum !== checksums.get(name)) throw changedMeanwhile(name);
      // Of an anchor only the count is of use.
      changes.set(name, base === undefined ? { ...encoded, chunks: [] } : encoded);
    });
  const stored = new Map<string, StoredPart>();
  let totalElements = 0;
  for (const [name, tensor] of [...next].sort(([left], [right]) => (left < right ? -1 : 1))) {
    totalElements += elementCount(tensor.shape) ?? 0;
    const part = base === undefined ? wholeTensor(tensor) : blobOf(changes.get(name));
    if (part !== undefined) stored.set(name, part);
  }
  const { files, weightMap, storedFiles, storedBytes } = await layOutFiles(stored, {
    checksums,
    shardBytes,
    isAnchor: base === undefined,
    signal,
  });
  const index: VersionIndex = {
    identity,
    base,
    baseImageChecksum: base === undefined || before === undefined ? undefined : imageChecksum(before),
    encoding: base === undefined ? undefined : encoding,
    checksumFormat: 'xxh3-128',
    imageChecksum: imageChecksum(checksums),
    weightMap,
    files: storedFiles,
    publisher: options.publisher,
    publishedAtMs,
  };
  files.push({ name: INDEX_FILE, body: bodyOf(formatIndex(index, storedBytes)) });
  return {
    files,
    index,
    checksums,
    imageChecksum: imageChecksum(checksums),
    wireBytes: files.reduce((sum, { body }) => sum + body.sizeBytes, 0),
    changedTensors: previous === undefined ? next.size : changes.size,
    changedElements:
      previous === undefined
        ? totalElements
        : [...changes.values()].reduce((sum, { changedElements }) => sum + changedElements, 0),
    totalElements,
  };
}

async function layOutFiles(
  stored: ReadonlyMap<string, StoredPart>,
  {
    checksums,
    shardBytes,
    isAnchor,
    signal,
  }: {
    readonly checksums: ReadonlyMap<string, string>;
    readonly shardBytes: number;
    readonly isAnchor: boolean;
    readonly signal: AbortSignal | undefined;
  },
): Promise<{
  files: EncodedFile[];
  weightMap: Map<string, string>;
  storedFiles: Map<string, StoredFile>;
  storedBytes: number;
}> {
  const shards = planShards(stored, shardBytes);
  const files: EncodedFile[] = [];
  const weightMap = new Map<string, string>();
  const storedFiles = new Map<string, StoredFile>();
  let storedBytes = 0;
  for (const [at, parts] of shards.entries()) {
    const file = `model-${fiveDigits(at + 1)}-of-${fiveDigits(shards.length)}.safetensors`;
    // Readers of plain checkpoints want to be told whose conventions a file follows.
    const metadata: Record<string, string> = isAnchor ? { format: 'pt' } : {};
    for (const name of parts.keys()) {
      metadata[name] = checksums.get(name) ?? '';
      weightMap.set(name, file);
    }
    const layout = layOutSafetensors(parts, metadata, file);
    const ordered = [...layout.tensors.keys()].map((name) => parts.get(name)).filter((part) => part !== undefined);
    const body: ObjectBody = { sizeBytes: layout.sizeBytes, chunks: () => chunksOf(layout.head, ordered) };
    files.push({ name: file, body });
    storedFiles.set(file, { sizeBytes: body.sizeBytes, checksum: await objectChecksum(body, signal) });
    for (const { sizeBytes } of ordered) storedBytes += sizeBytes;
  }
  return { files, weightMap, storedFiles, storedBytes };
}

/** Fills files in the order of names; a tensor is never split. Nothing stored = no file. */
function planShards(stored: ReadonlyMap<string, StoredPart>, shardBytes: number): Map<string, StoredPart>[] {
  const shards: Map<string, StoredPart>[] = [];
  let filledBytes = 0;
  for (const [name, part] of stored) {
    if (shards.length === 0 || (filledBytes > 0 && filledBytes + part.sizeBytes > shardBytes)) {
      shards.push(new Map());
      filledBytes = 0;
    }
    shards.at(-1)?.set(name, part);
    filledBytes += part.sizeBytes;
  }
  return shards;
}

async function* chunksOf(head: Uint8Array, parts: readonly StoredPart[]): AsyncGenerator<Uint8Array> {
  yield head;
  for (const part of parts) yield* part.chunks();
}

function wholeTensor({ dtype, shape, place }: TensorPlace): StoredPart {
  return { dtype, shape, sizeBytes: placeSizeBytes(place), chunks: () => piecesOf(place) };
}

function blobOf(encoded: EncodedTensor | undefined): StoredPart | undefined {
  if (encoded === undefined || encoded.chunks.length === 0) return undefined;
  const sizeBytes = encoded.chunks.reduce((sum, chunk) => sum + chunk.byteLength, 0);
  return { dtype: 'U8', shape: [sizeBytes], sizeBytes, chunks: () => encoded.chunks };
}

/** The bytes of a place, never more than a piece of a file in memory. */
async function* piecesOf(place: BytePlace): AsyncGenerator<Uint8Array> {
  if (place.kind === 'memory') {
    for (let start = 0; start < place.bytes.byteLength; start += PIECE_BYTES)
      yield place.bytes.subarray(start, start + PIECE_BYTES);
    return;
  }
  const handle = await open(place.path, 'r');
  try {
    for (let start = 0; start < place.sizeBytes;) {
      const piece = new Uint8Array(Math.min(PIECE_BYTES, place.sizeBytes - start));
      const { bytesRead } = await handle.read(piece, 0, piece.byteLength, place.offset + start);
      if (bytesRead === 0)
        throw new HoneError(
          'store-failed',
          `${place.path} ended at byte ${place.offset + start}, a tensor reaches to byte ${place.offset + place.sizeBytes}.`,
          { cure: 'Something cut the file short while its version was published; restore it and publish again.' },
        );
      start += bytesRead;
      yield piece.subarray(0, bytesRead);
    }
  } finally {
    await handle.close();
  }
}

async function checksumsOf(
  codec: TensorCodec,
  tensors: TensorPlaces,
  known: ReadonlyMap<string, string> | undefined,
  signal: AbortSignal | undefined,
): Promise<ReadonlyMap<string, string>> {
  const checksums = new Map<string, string>();
  await forEachBounded(tensors, { limit: TENSORS_IN_FLIGHT, signal }, async ([name, { place }], ending) => {
    checksums.set(name, known?.get(name) ?? (await codec.checksum(place, { signal: ending })));
  });
  return checksums;
}

function checkSameTensors({ identity, next, previous, base }: EncodeVersionOptions): void {
  if (base === undefined) return;
  const problems: string[] = [];
  for (const [name, { place }] of next) {
    const old = previous?.get(name);
    if (old === undefined) problems.push(`${name} is new`);
    else if (placeSizeBytes(old.place) !== placeSizeBytes(place))
      problems.push(`${name} has ${placeSizeBytes(place)} bytes, before ${placeSizeBytes(old.place)}`);
  }
  for (const name of previous?.keys() ?? []) if (!next.has(name)) problems.push(`${name} is missing`);
  if (problems.length === 0) return;
  throw new HoneError(
    'delta-base-mismatch',
    `Version ${identity.version} is no change of version ${base.version}: ${problems.join('; ')}.`,
    { cure: 'Tensors never change names or sizes within a run; start a new run for another model.' },
  );
}

function largestFirst(tensors: TensorPlaces): [string, TensorPlace][] {
  return [...tensors].sort(([, left], [, right]) => placeSizeBytes(right.place) - placeSizeBytes(left.place));
}

function changedMeanwhile(name: string): HoneError {
  return new HoneError('checksum-mismatch', `Tensor ${name} changed while its version was encoded.`, {
    cure: 'Publish a snapshot that nobody writes to.',
  });
}

function fiveDigits(number: number): string {
  return String(number).padStart(5, '0');
}

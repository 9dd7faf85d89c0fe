/**
 * One version's files applied to the weights that are held: reads the headers, checks that everything fits before a byte changes,
 * then lets the codec stream every stored tensor to its place, each proven by its checksum, all together by the image's.
 * Invariant: `held` becomes the version only when all bytes are those that were published; any failure is told with the names.
 */
import { HoneError } from '../domain/errors.ts';
import { tensorSizeBytes } from '../tensor/dtype.ts';
import { readSafetensorsHeader, type StoredTensor } from '../tensor/safetensors.ts';
import { forEachBounded } from './bounded-work.ts';
import type { ChecksumFormat, TensorCodec } from './delta/delta-codec.ts';
import { imageChecksum } from './image-checksum.ts';
import type { HeldVersion, LocalWeights, WeightChange } from './local-weights.ts';
import type { BytePlace, TensorPlace } from './tensor-place.ts';
import { formatIdentity, parseChecksum, type VersionIndex } from './version-directory.ts';

export interface ApplyOptions {
  readonly index: VersionIndex;
  /** Where each file of the index lies. */
  readonly paths: ReadonlyMap<string, string>;
  readonly weights: LocalWeights;
  readonly signal?: AbortSignal | undefined;
  /** Tensors at a time; the codec's threads are the real bound. */
  readonly limit?: number;
}

export interface AppliedVersion {
  /** What the weights are now. */
  readonly held: HeldVersion;
  readonly imageChecksum: string;
  /** Tensors that were written, and their bytes. */
  readonly writtenTensors: number;
  readonly writtenBytes: number;
}

/** Enough that small tensors travel to the codec's threads together. */
const TENSORS_IN_FLIGHT = 64;

/**
 * Throws `delta-base-mismatch` when the version does not fit what is held, `checksum-mismatch` or `invalid-safetensors` when its
 * bytes are not those that were published; the weights are then as they were, or dirty (see LocalWeights).
 */
export async function applyVersion(codec: TensorCodec, options: ApplyOptions): Promise<AppliedVersion> {
  const { index, weights, signal, limit = TENSORS_IN_FLIGHT } = options;
  checkBase(index, weights);
  const stored = await readStored(index, options.paths);
  checkTensors(index, stored, weights);
  const before = weights.held;
  // A tensor of an anchor that is the same as the one at hand need not be written, unless what is at hand is not known.
  const isHeld = ({ checksum }: Stored, name: string): boolean =>
    index.checksumFormat === 'xxh3-128' && before?.checksums.get(name) === checksum;
  const work = [...stored].filter(([name, tensor]) => !isHeld(tensor, name));
  work.sort(([, left], [, right]) => right.sizeBytes - left.sizeBytes);
  const checksums = new Map(before?.checksums);
  let writtenBytes = 0;
  const change = await weights.beginChange({
    whole: before === undefined,
    ...(signal === undefined ? {} : { signal }),
  });
  try {
    await forEachBounded(work, { limit, signal }, async ([name, tensor], workSignal) => {
      const old = weights.tensors.get(name);
      if (old === undefined) return; // checkTensors refused every name that is not there.
      const to: TensorPlace = { ...old, place: change.target(name) };
      checksums.set(name, await writeTensor(codec, { name, tensor, old, to, index, signal: workSignal }));
      writtenBytes += tensorSizeBytes(old.dtype, old.shape) ?? 0;
    });
    const found = imageChecksum(checksums);
    if (index.imageChecksum !== undefined && found !== index.imageChecksum)
      throw new HoneError(
        'checksum-mismatch',
        `All tensors of ${formatIdentity(index.identity)} together have checksum ${found}, published was ${index.imageChecksum}: the base differs.`,
        { cure: 'Start again from a full anchor, or from the base model that the run booted from.' },
      );
    const held = { runId: index.identity.runId, version: index.identity.version, checksums };
    await change.finish(held);
    return { held, imageChecksum: found, writtenTensors: work.length, writtenBytes };
  } catch (error) {
    await abandon(change, error);
    throw error;
  }
}

interface Stored extends StoredTensor {
  readonly path: string;
  /** The object that `path` is a copy of, for messages. */
  readonly source: string;
  /** Of the new bytes, in the index's format. */
  readonly checksum: string;
}

/** Before anything is read: a difference says nothing without exactly the bytes that it was taken against. */
function checkBase({ identity, base, baseImageChecksum, encoding }: VersionIndex, { held }: LocalWeights): void {
  if (base === undefined || encoding === undefined) return;
  const refuse = (what: string): never => {
    throw new HoneError(
      'delta-base-mismatch',
      `${formatIdentity(identity)} changes ${formatIdentity(base)}, but ${what}.`,
      { cure: 'Start from a full anchor, or from the base model that the run booted from.' },
    );
  };
  if (held === undefined) return refuse('what is held here is unknown: a change broke off');
  if (held.version !== base.version || (held.runId !== undefined && held.runId !== base.runId))
    return refuse(`held here is version ${held.version} of ${held.runId ?? 'the boot model'}`);
  if (baseImageChecksum === undefined) return;
  const found = imageChecksum(held.checksums);
  if (found !== baseImageChecksum)
    refuse(`the image held here as version ${held.version} has checksum ${found}, the base's is ${baseImageChecksum}`);
}

async function readStored(index: VersionIndex, paths: ReadonlyMap<string, string>): Promise<Map<string, Stored>> {
  const stored = new Map<string, Stored>();
  const missing = new Set(index.weightMap.keys());
  for (const file of new Set(index.weightMap.values())) {
    const source = `${formatIdentity(index.identity)}/${file}`;
    const path = paths.get(file);
    if (path === undefined)
      throw new HoneError('store-failed', `${source} was not fetched.`, { cure: 'Fetch all files of the version.' });
    const header = await readSafetensorsHeader(path);
    for (const [name, tensor] of header.tensors) {
      if (index.weightMap.get(name) !== file)
        throw damaged(
          source,
          `it holds tensor ${name}, which the index places in ${index.weightMap.get(name) ?? 'no file'}`,
        );
      const checksum = parseChecksum(header.metadata[name], index.checksumFormat);
      if (checksum === undefined)
        throw damaged(
          source,
          `it has no ${index.checksumFormat} checksum of tensor ${name}, so nothing would prove it`,
        );
      stored.set(name, { ...tensor, path, source, checksum });
      missing.delete(name);
    }
  }
  const [name] = missing;
  if (name !== undefined)
    throw damaged(
      `${formatIdentity(index.identity)}/${index.weightMap.get(name)}`,
      `tensor ${[...missing].join(', ')} is missing from it`,
    );
  return stored;
}

/** All problems in one message. */
function checkTensors(index: VersionIndex, stored: ReadonlyMap<string, Stored>, { tensors }: LocalWeights): void {
  const problems: string[] = [];
  for (const [name, tensor] of stored) {
    const own = tensors.get(name);
    if (own === undefined) problems.push(`${name} is unknown here`);
    else if (index.encoding !== undefined) {
      if (tensor.dtype !== 'U8' || tensor.shape.length !== 1)
        problems.push(`the difference of ${name} is ${describe(tensor)}, not a list of bytes`);
    } else if (describe(tensor) !== describe(own))
      problems.push(`${name} is ${describe(tensor)}, here ${describe(own)}`);
  }
  if (index.encoding === undefined)
    for (const name of tensors.keys()) if (!stored.has(name)) problems.push(`${name} is missing`);
  if (problems.length === 0) return;
  throw new HoneError(
    'delta-base-mismatch',
    `${formatIdentity(index.identity)} does not fit the model held here: ${problems.join('; ')}.`,
    { cure: 'Use the model that the run booted from; names, types and shapes never change within a run.' },
  );
}

interface TensorWork {
  readonly name: string;
  readonly tensor: Stored;
  readonly old: TensorPlace;
  readonly to: TensorPlace;
  readonly index: VersionIndex;
  readonly signal: AbortSignal;
}

/** Returns the xxh3-128 of the new bytes. */
async function writeTensor(codec: TensorCodec, work: TensorWork): Promise<string> {
  const { name, tensor, old, to, index, signal } = work;
  const { encoding, checksumFormat } = index;
  const { checksum } = tensor;
  const blob: BytePlace = { kind: 'file', path: tensor.path, offset: tensor.offset, sizeBytes: tensor.sizeBytes };
  try {
    if (encoding === undefined)
      return await codec.copy({ name, from: blob, to: to.place, checksum, checksumFormat }, signal);
    await codec.apply({ name, encoding, blob, from: old, to, checksum, checksumFormat }, signal);
  } catch (error) {
    // The codec knows the tensor; who has to restore the object needs its name as well.
    if (!(error instanceof HoneError) || error.code !== 'checksum-mismatch') throw error;
    const { code, message, cure } = error;
    throw new HoneError(code, `${tensor.source}: ${message}`, {
      ...(cure === undefined ? {} : { cure }),
      cause: error,
    });
  }
  return ownChecksum(codec, { checksum, checksumFormat, place: to.place, signal });
}

/** What is kept of a tensor is always its xxh3-128: another format costs one more look at the bytes. */
async function ownChecksum(
  codec: TensorCodec,
  {
    checksum,
    checksumFormat,
    place,
    signal,
  }: { checksum: string; checksumFormat: ChecksumFormat; place: BytePlace; signal: AbortSignal },
): Promise<string> {
  return checksumFormat === 'xxh3-128' ? checksum : codec.checksum(place, { signal });
}

/** The first failure is the one to tell. */
async function abandon(change: WeightChange, error: unknown): Promise<void> {
  try {
    await change.abandon();
  } catch (second) {
    throw new HoneError('store-failed', 'A change of the weights broke off, and so did its clean-up.', {
      cure: 'Start anew; the weights are taken from the newest full anchor.',
      cause: new AggregateError([error, second]),
    });
  }
}

function describe({ dtype, shape }: { readonly dtype: string; readonly shape: readonly number[] }): string {
  return `${dtype} [${shape.join(', ')}]`;
}

function damaged(source: string, what: string): HoneError {
  return new HoneError('checksum-mismatch', `${source} is damaged: ${what}.`, {
    cure: 'It is fetched again; when it stays damaged, restore it or publish a full anchor.',
  });
}

/**
 * Brings the weight files of one version to this machine: as they lie where the store has files, else downloaded once into a cache,
 * in ranges side by side, going on where an earlier try stopped. Invariant: a file that has its name in the cache is whole and has
 * the size and checksum of the index; what was read in place is proven later, tensor by tensor.
 */
import { appendFile, mkdir, open, readFile, rename, rm, stat, type FileHandle } from 'node:fs/promises';
import { dirname, join } from 'node:path';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { errnoCode, isDiskFull } from '../tensor/errno-code.ts';
import { forEachBounded } from './bounded-work.ts';
import { Deadline, limitForBytes } from './deadline.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import type { ByteRange, ObjectSource } from './store/weight-store.ts';
import { formatIdentity, type VersionIdentity, type VersionIndex } from './version-directory.ts';

export interface FetchOptions {
  /** A folder that belongs to these downloads alone; on a disk with room for a version. */
  readonly cacheDirectory: string;
  /** Hashes what was downloaded. */
  readonly codec: Pick<TensorCodec, 'checksum'>;
  readonly signal?: AbortSignal | undefined;
  /** For the whole version; by default an hour, and what its bytes need at 20 MB/s. */
  readonly deadlineMs?: number;
  /** Longest time without a byte; a minute by default. */
  readonly stallMs?: number;
  readonly partBytes?: number;
  readonly partsInFlight?: number;
  readonly onProgress?: (progress: FetchProgress) => void;
}

export interface FetchProgress {
  readonly doneBytes: number;
  readonly totalBytes: number;
}

export interface FetchedVersion {
  readonly paths: ReadonlyMap<string, string>;
  /** Of all files, wherever they came from. */
  readonly bytes: number;
  /**
   * Once, when the files are read no more: a source that keeps copies may drop its own. `damaged`: some of their bytes turned out
   * wrong, and the source reads them anew. Never rejects: the bytes were read by then.
   */
  readonly letGo: (outcome: 'used' | 'damaged') => Promise<void>;
}

const PART_BYTES = 16 << 20;
const PARTS_IN_FLIGHT = 4;
const DEADLINE_MS = 3_600_000;
const STALL_MS = 60_000;

export async function fetchVersion(
  source: ObjectSource,
  index: VersionIndex,
  options: FetchOptions,
): Promise<FetchedVersion> {
  const held = new Set<string>();
  const letGo = async (outcome: 'used' | 'damaged'): Promise<void> => {
    for (const key of held) await source.letGo?.(key, outcome).catch(() => undefined);
    held.clear();
  };
  try {
    return { ...(await fetchFiles(source, index, { options, held })), letGo };
  } catch (error) {
    await letGo(isDamage(error) ? 'damaged' : 'used');
    throw error;
  }
}

/** Whether the error says that stored bytes are not those that were published. */
export function isDamage(error: unknown): error is HoneError {
  return error instanceof HoneError && (error.code === 'checksum-mismatch' || error.code === 'invalid-safetensors');
}

async function fetchFiles(
  source: ObjectSource,
  index: VersionIndex,
  { options, held }: { readonly options: FetchOptions; readonly held: Set<string> },
): Promise<Omit<FetchedVersion, 'letGo'>> {
  const files = new Set(index.weightMap.values());
  const limitFor = (bytes: number): number => options.deadlineMs ?? limitForBytes(DEADLINE_MS, bytes);
  let indexedBytes = 0;
  for (const file of files) indexedBytes += index.files?.get(file)?.sizeBytes ?? 0;
  let limitMs = limitFor(indexedBytes);
  const name = formatIdentity(index.identity);
  let doneBytes = 0;
  let totalBytes = 0;
  using deadline = new Deadline({
    signal: options.signal,
    limitMs,
    expired: () =>
      new HoneError(
        'store-unavailable',
        `${name} did not arrive within ${limitMs / 1000} s: ${doneBytes} of ${totalBytes} bytes are here.`,
        { cure: 'The next try goes on from them; a slower link needs a longer deadline.' },
      ),
  });
  const paths = new Map<string, string>();
  const downloads: Download[] = [];
  // Other writers' indexes tell no sizes.
  const sizes = new Map<string, number | undefined>();
  for (const file of files)
    if (index.files?.has(file) !== true)
      sizes.set(
        file,
        (await deadline.race(source.statObject(`${name}/${file}`, { signal: deadline.signal })))?.sizeBytes,
      );
  if (sizes.size > 0) {
    limitMs = limitFor([...sizes.values()].reduce<number>((sum, bytes) => sum + (bytes ?? 0), indexedBytes));
    deadline.allow(limitMs);
  }
  await forEachBounded(files, { limit: PARTS_IN_FLIGHT, signal: deadline.signal }, async (file, signal) => {
    if (source.makeLocal === undefined) return;
    // A source that keeps copies itself checks them too; a second copy here would be of no use.
    await source.makeLocal(`${name}/${file}`, { signal });
    held.add(`${name}/${file}`);
  });
  for (const file of files) {
    const key = `${name}/${file}`;
    const wanted = index.files?.get(file);
    const local = await localFile(source, key);
    const cached = local ?? (await presentFile(join(options.cacheDirectory, key)));
    if (cached !== undefined) {
      if (wanted !== undefined && cached.sizeBytes !== wanted.sizeBytes) {
        if (local === undefined) await rm(cached.path, { force: true });
        throw damaged(key, `it has ${cached.sizeBytes} bytes, published were ${wanted.sizeBytes}`);
      }
      paths.set(file, cached.path);
      totalBytes += cached.sizeBytes;
      doneBytes += cached.sizeBytes;
      continue;
    }
    const sizeBytes = wanted?.sizeBytes ?? sizes.get(file);
    if (sizeBytes === undefined) throw missingObject(key);
    downloads.push({ file, key, sizeBytes, checksum: wanted?.checksum, path: join(options.cacheDirectory, key) });
    totalBytes += sizeBytes;
  }
  const onBytes = (bytes: number): void => {
    doneBytes += bytes;
    options.onProgress?.({ doneBytes, totalBytes });
  };
  if (downloads.length === 0) options.onProgress?.({ doneBytes, totalBytes });
  for (const download of downloads) {
    await downloadFile(source, download, { options, signal: deadline.signal, onBytes });
    paths.set(download.file, download.path);
  }
  return { paths, bytes: totalBytes };
}

/** Throws away what was downloaded of one version, or of every version of the run. */
export async function discardFetched(
  cacheDirectory: string,
  identity: VersionIdentity | Pick<VersionIdentity, 'runId'>,
): Promise<void> {
  const name = 'version' in identity ? formatIdentity(identity) : identity.runId;
  await rm(join(cacheDirectory, name), { recursive: true, force: true });
}

interface Download {
  readonly file: string;
  readonly key: string;
  readonly sizeBytes: number;
  /** xxh3-128; undefined where the index tells none. */
  readonly checksum: string | undefined;
  readonly path: string;
}

interface DownloadContext {
  readonly options: FetchOptions;
  readonly signal: AbortSignal;
  readonly onBytes: (bytes: number) => void;
}

async function downloadFile(source: ObjectSource, download: Download, context: DownloadContext): Promise<void> {
  const { key, sizeBytes, path, checksum } = download;
  const { codec, partBytes = PART_BYTES, partsInFlight = PARTS_IN_FLIGHT } = context.options;
  const partial = `${path}.partial`;
  const record = `${path}.parts`;
  // Parts of other bytes under the same name never count: the record begins with what it is a record of.
  const heading = `${sizeBytes} ${partBytes} ${checksum ?? '-'}`;
  await writing(path, async () => mkdir(dirname(path), { recursive: true }));
  const done = await readRecord(record, heading);
  const handle = await writing(path, async () => open(partial, done === undefined ? 'w+' : 'r+')).catch(
    async (error: unknown) => {
      await rm(record, { force: true });
      throw error;
    },
  );
  try {
    if (done === undefined) await writing(path, async () => appendFile(record, `${heading}\n`, { flag: 'w' }));
    // One after the other, as the size may be anything: an index is only text.
    const parts = (function* (): Generator<Part> {
      for (let number = 0; number * partBytes < sizeBytes; number++) {
        const range = { start: number * partBytes, end: Math.min((number + 1) * partBytes, sizeBytes) };
        if (done?.has(number) === true) context.onBytes(range.end - range.start);
        else yield { number, range };
      }
    })();
    await forEachBounded(parts, { limit: partsInFlight, signal: context.signal }, async ({ number, range }, signal) => {
      await downloadPart(source, download, { ...context, signal, handle, range });
      await writing(path, async () => appendFile(record, `${number}\n`));
    });
  } finally {
    await handle.close();
  }
  if (checksum !== undefined) {
    const found = await codec.checksum(
      { kind: 'file', path: partial, offset: 0, sizeBytes },
      { signal: context.signal },
    );
    if (found !== checksum) {
      await rm(partial, { force: true });
      await rm(record, { force: true });
      throw damaged(key, `what arrived has checksum ${found}, published was ${checksum}`);
    }
  }
  await writing(path, async () => rename(partial, path));
  await rm(record, { force: true });
}

interface Part {
  readonly number: number;
  readonly range: ByteRange;
}

async function downloadPart(
  source: ObjectSource,
  { key, path, sizeBytes }: Download,
  context: DownloadContext & { readonly handle: FileHandle; readonly range: ByteRange },
): Promise<void> {
  const { range, handle } = context;
  const { stallMs = STALL_MS } = context.options;
  using stall = new Deadline({
    signal: context.signal,
    limitMs: stallMs,
    expired: () =>
      new HoneError('store-unavailable', `${key}: no byte arrived for ${stallMs / 1000} s.`, {
        cure: 'Check the link to the weight store; the next try goes on from what is here.',
      }),
  });
  const isWhole = range.start === 0 && range.end === sizeBytes;
  const stream = await stall.race(
    source.readObject(key, isWhole ? { signal: stall.signal } : { signal: stall.signal, range }),
  );
  if (stream === undefined) throw missingObject(key);
  const iterator = stream[Symbol.asyncIterator]();
  let position = range.start;
  try {
    for (;;) {
      const step = await stall.race(iterator.next());
      if (step.done === true) break;
      stall.touch();
      const chunk = step.value;
      if (position + chunk.byteLength > range.end)
        throw damaged(key, `it has more bytes than the ${sizeBytes} that were published`);
      for (let offset = 0; offset < chunk.byteLength;)
        offset += await writing(
          path,
          async () => (await handle.write(chunk, offset, chunk.byteLength - offset, position + offset)).bytesWritten,
        );
      position += chunk.byteLength;
      context.onBytes(chunk.byteLength);
    }
  } finally {
    // A stream that hangs must not hold this up; it was told by the signal.
    void Promise.resolve(iterator.return?.()).catch(() => undefined);
  }
  if (position < range.end) throw damaged(key, `it ended at byte ${position}, published were ${sizeBytes}`);
}

async function readRecord(record: string, heading: string): Promise<Set<number> | undefined> {
  let text: string;
  try {
    text = await readFile(record, 'utf8');
  } catch {
    return undefined;
  }
  // A line that a crash cut off has no line break: its part is fetched again.
  const lines = text.slice(0, text.lastIndexOf('\n') + 1).split('\n');
  if (lines[0] !== heading) return undefined;
  return new Set(lines.slice(1, -1).map(Number));
}

/** The object as a file of this machine; an object that the source knows to be a file, but is not there, is missing. */
async function localFile(source: ObjectSource, key: string): Promise<PresentFile | undefined> {
  const path = source.localPath(key);
  if (path === undefined) return undefined;
  const file = await presentFile(path);
  if (file === undefined) throw missingObject(key);
  return file;
}

interface PresentFile {
  readonly path: string;
  readonly sizeBytes: number;
}

async function presentFile(path: string): Promise<PresentFile | undefined> {
  try {
    return { path, sizeBytes: (await stat(path)).size };
  } catch (error) {
    if (errnoCode(error) === 'ENOENT') return undefined;
    throw new HoneError('store-failed', `Could not read ${path}: ${reasonOf(error)}.`, {
      cure: 'Check the disk and the permissions of that folder.',
      cause: error,
    });
  }
}

async function writing<T>(path: string, body: () => Promise<T>): Promise<T> {
  try {
    return await body();
  } catch (error) {
    const isFull = isDiskFull(error);
    throw new HoneError(
      'store-failed',
      isFull ? `The disk is full: could not write ${path}.` : `Could not write ${path}: ${reasonOf(error)}.`,
      { cure: 'Make room on the disk of the cache folder; the download then goes on where it stopped.', cause: error },
    );
  }
}

function missingObject(key: string): HoneError {
  return new HoneError('store-failed', `The weight store has no ${key}, which a published version needs.`, {
    cure: 'Restore it from a copy of the store; versions may be pruned only behind a newer full anchor.',
  });
}

function damaged(key: string, what: string): HoneError {
  return new HoneError('checksum-mismatch', `${key} is damaged: ${what}.`, {
    cure: 'It is fetched again; when it stays damaged, restore it or publish a full anchor.',
  });
}

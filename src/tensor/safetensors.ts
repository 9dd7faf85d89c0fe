/**
 * Safetensors files: 8 bytes of header length, a JSON header, the data region. Read and written whole, or only the header, for
 * files of any size whose data is read in place or streamed.
 * Invariant: what passes here is consistent: every offset in range, every size equal to shape times element size, the data
 * region covered exactly once. Anything else is `invalid-safetensors`, naming the file, the tensor and the numbers.
 */
import { open, type FileHandle } from 'node:fs/promises';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { dtypeRank, isDtype, tensorSizeBytes, type Dtype } from './dtype.ts';
import { writeFileDurably } from './durable-file.ts';
import { errnoCode } from './errno-code.ts';
import { findDuplicateKey } from './json-keys.ts';

export interface TensorData {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  /** Row-major, little-endian; may be a view into the file's bytes. */
  readonly bytes: Uint8Array;
}

export interface Safetensors {
  readonly metadata: Record<string, string>;
  /** In the order of the data region. */
  readonly tensors: Map<string, TensorData>;
}

/** Where one tensor of a file lies, without its data. */
export interface StoredTensor {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  /** From the start of the file. */
  readonly offset: number;
  readonly sizeBytes: number;
}

export interface SafetensorsHeader {
  readonly metadata: Record<string, string>;
  /** In the order of the data region. */
  readonly tensors: Map<string, StoredTensor>;
  /** Of the whole file. */
  readonly sizeBytes: number;
}

/** A file to be streamed: `head`, then the bytes of each tensor in the order of `tensors`, with nothing between. */
export interface SafetensorsLayout extends SafetensorsHeader {
  /** Length field and header. */
  readonly head: Uint8Array;
}

const MAX_HEADER_BYTES = 100_000_000;
const READ_CHUNK_BYTES = 1 << 28;

interface HeaderEntry {
  readonly name: string;
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  readonly begin: number;
  readonly end: number;
}

/** Reads and checks a whole file. The header is checked against the file's size before any data is read. */
export function readSafetensors(path: string): Promise<Safetensors> {
  return withFile(path, async (handle) => {
    const { header, dataOffset, sizeBytes } = await readHeader(handle, path);
    return attachData(header, await readExactly(handle, dataOffset, sizeBytes - dataOffset, path));
  });
}

/** Names, types, shapes and places of a file's tensors, checked against its size; no data is read. */
export function readSafetensorsHeader(path: string): Promise<SafetensorsHeader> {
  return withFile(path, async (handle) => {
    const { header, dataOffset, sizeBytes } = await readHeader(handle, path);
    return { metadata: header.metadata, tensors: storedTensors(header, dataOffset), sizeBytes };
  });
}

/** The same of a file that lies elsewhere: `read` gives its bytes from `start` up to `end`. Two reads. */
export async function readRemoteHeader(
  read: (start: number, end: number) => Promise<Uint8Array>,
  { sizeBytes, source }: { readonly sizeBytes: number; readonly source: string },
): Promise<SafetensorsHeader> {
  const dataOffset = 8 + readHeaderLength(await read(0, Math.min(8, sizeBytes)), sizeBytes, source);
  const header = parseHeader(await read(8, dataOffset), sizeBytes - dataOffset, source);
  return { metadata: header.metadata, tensors: storedTensors(header, dataOffset), sizeBytes };
}

/** The same for bytes that are already in memory; `source` names them in errors. Tensors are views into `bytes`. */
export function decodeSafetensors(bytes: Uint8Array, source: string): Safetensors {
  const headerBytes = readHeaderLength(bytes.subarray(0, 8), bytes.byteLength, source);
  const header = parseHeader(bytes.subarray(8, 8 + headerBytes), bytes.byteLength - 8 - headerBytes, source);
  return attachData(header, bytes.subarray(8 + headerBytes));
}

/** Writes a file whole or not at all, tensors in the order of standard writers. */
export async function writeSafetensors(
  path: string,
  tensors: ReadonlyMap<string, TensorData>,
  metadata: Readonly<Record<string, string>> = {},
): Promise<void> {
  await writeFileDurably(path, encodeSafetensors(tensors, metadata, path), { mode: 'replace' });
}

/** The chunks of a file, in order: length and header first, then each tensor's own bytes, not copied. */
export function encodeSafetensors(
  tensors: ReadonlyMap<string, TensorData>,
  metadata: Readonly<Record<string, string>> = {},
  source = 'the file to write',
): Uint8Array[] {
  const layout = layOutSafetensors(tensors, metadata, source);
  const chunks = [layout.head];
  for (const [name, { dtype, shape, sizeBytes }] of layout.tensors) {
    const bytes = tensors.get(name)?.bytes;
    if (bytes?.byteLength !== sizeBytes)
      fail(
        source,
        `tensor ${name} has ${bytes?.byteLength} bytes, but ${dtype} [${shape.join(', ')}] takes ${sizeBytes}`,
      );
    chunks.push(bytes);
  }
  return chunks;
}

/** The header of a file whose data is streamed after it, tensors in the order of standard writers. */
export function layOutSafetensors(
  tensors: ReadonlyMap<string, { readonly dtype: Dtype; readonly shape: readonly number[] }>,
  metadata: Readonly<Record<string, string>> = {},
  source = 'the file to write',
): SafetensorsLayout {
  const ordered = [...tensors].sort(
    ([leftName, left], [rightName, right]) =>
      dtypeRank(right.dtype) - dtypeRank(left.dtype) || Buffer.compare(Buffer.from(leftName), Buffer.from(rightName)),
  );
  // The text is put together by hand: an object would move names that look like integers to the front.
  const entries: string[] = [];
  if (Object.keys(metadata).length > 0) entries.push(`"__metadata__":${JSON.stringify(metadata)}`);
  const placed: { name: string; dtype: Dtype; shape: readonly number[]; begin: number; sizeBytes: number }[] = [];
  let end = 0;
  for (const [name, { dtype, shape }] of ordered) {
    if (name === '__metadata__') fail(source, 'no tensor may be called __metadata__');
    const sizeBytes = tensorSizeBytes(dtype, shape);
    if (sizeBytes === undefined)
      fail(source, `tensor ${name} of ${dtype} [${shape.join(', ')}] overflows or does not fill whole bytes`);
    placed.push({ name, dtype, shape, begin: end, sizeBytes });
    entries.push(`${JSON.stringify(name)}:${JSON.stringify({ dtype, shape, data_offsets: [end, end + sizeBytes] })}`);
    end += sizeBytes;
  }
  const text = new TextEncoder().encode(`{${entries.join(',')}}`);
  const headerBytes = Math.ceil(text.byteLength / 8) * 8;
  if (headerBytes > MAX_HEADER_BYTES)
    fail(source, `the header takes ${headerBytes} bytes, more than the format's ${MAX_HEADER_BYTES}`);
  const head = new Uint8Array(8 + headerBytes).fill(0x20);
  new DataView(head.buffer).setBigUint64(0, BigInt(headerBytes), true);
  head.set(text, 8);
  return {
    head,
    metadata: { ...metadata },
    tensors: new Map(
      placed.map(({ name, begin, ...tensor }) => [name, { ...tensor, offset: head.byteLength + begin }]),
    ),
    sizeBytes: head.byteLength + end,
  };
}

function fail(source: string, what: string, cause?: unknown): never {
  throw new HoneError('invalid-safetensors', `${source} is not a valid safetensors file: ${what}.`, {
    cure: 'Download or write the file again; it is truncated or was made by a broken writer.',
    cause,
  });
}

async function withFile<T>(path: string, read: (handle: FileHandle) => Promise<T>): Promise<T> {
  let handle: FileHandle;
  try {
    handle = await open(path, 'r');
  } catch (error) {
    throw new HoneError('invalid-safetensors', `Cannot open ${path}: ${errnoCode(error) ?? String(error)}.`, {
      cure: 'Check the path and its permissions.',
      cause: error,
    });
  }
  try {
    return await read(handle);
  } finally {
    await handle.close();
  }
}

async function readHeader(
  handle: FileHandle,
  path: string,
): Promise<{ header: Header; dataOffset: number; sizeBytes: number }> {
  const sizeBytes = (await handle.stat()).size;
  const lengthField = await readExactly(handle, 0, Math.min(8, sizeBytes), path);
  const dataOffset = 8 + readHeaderLength(lengthField, sizeBytes, path);
  const headerText = await readExactly(handle, 8, dataOffset - 8, path);
  return { header: parseHeader(headerText, sizeBytes - dataOffset, path), dataOffset, sizeBytes };
}

async function readExactly(handle: FileHandle, position: number, sizeBytes: number, path: string): Promise<Uint8Array> {
  const bytes = new Uint8Array(sizeBytes);
  let filled = 0;
  while (filled < sizeBytes) {
    const { bytesRead } = await handle.read(
      bytes,
      filled,
      Math.min(READ_CHUNK_BYTES, sizeBytes - filled),
      position + filled,
    );
    if (bytesRead === 0)
      fail(path, `it ended at byte ${position + filled}, ${position + sizeBytes} were there when it was opened`);
    filled += bytesRead;
  }
  return bytes;
}

function readHeaderLength(lengthField: Uint8Array, sizeBytes: number, source: string): number {
  if (lengthField.byteLength < 8) fail(source, `it has ${sizeBytes} bytes, fewer than the 8 of the header length`);
  const length = new DataView(lengthField.buffer, lengthField.byteOffset, 8).getBigUint64(0, true);
  if (length > BigInt(MAX_HEADER_BYTES))
    fail(source, `its header length is ${length}, more than the format's ${MAX_HEADER_BYTES}`);
  if (8 + Number(length) > sizeBytes)
    fail(source, `its header needs ${8 + Number(length)} bytes, the file has ${sizeBytes}`);
  return Number(length);
}

interface Header {
  readonly metadata: Record<string, string>;
  /** Sorted by offset; together they cover the data region exactly. */
  readonly entries: readonly HeaderEntry[];
}

function parseHeader(headerBytes: Uint8Array, dataBytes: number, source: string): Header {
  if (headerBytes[0] !== 0x7b) fail(source, 'its header does not start with {');
  let text: string;
  let parsed: unknown;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(headerBytes);
    parsed = JSON.parse(text);
  } catch (error) {
    fail(source, `its header is not JSON in UTF-8 (${reasonOf(error)})`, error);
  }
  if (!isRecord(parsed)) fail(source, 'its header is not a JSON object');
  const duplicate = findDuplicateKey(text);
  if (duplicate !== undefined) fail(source, `its header has the key ${JSON.stringify(duplicate)} twice`);

  const metadata: Record<string, string> = {};
  const entries: HeaderEntry[] = [];
  for (const [name, value] of Object.entries(parsed)) {
    if (name !== '__metadata__') {
      entries.push(parseEntry(name, value, dataBytes, source));
      continue;
    }
    if (!isRecord(value)) fail(source, '__metadata__ is not an object');
    for (const [key, item] of Object.entries(value)) {
      if (typeof item !== 'string')
        fail(source, `__metadata__ holds a ${typeof item} under ${JSON.stringify(key)}, only strings are allowed`);
      Object.defineProperty(metadata, key, { value: item, enumerable: true, writable: true, configurable: true });
    }
  }
  entries.sort((left, right) => left.begin - right.begin || left.end - right.end);
  let covered = 0;
  for (const entry of entries) {
    if (entry.begin > covered)
      fail(source, `bytes ${covered} to ${entry.begin} before tensor ${entry.name} belong to no tensor`);
    if (entry.begin < covered)
      fail(source, `tensor ${entry.name} starts at byte ${entry.begin}, inside the tensor that ends at ${covered}`);
    covered = entry.end;
  }
  if (covered !== dataBytes) fail(source, `its tensors end at byte ${covered} of a data region of ${dataBytes}`);
  return { metadata, entries };
}

function parseEntry(name: string, value: unknown, dataBytes: number, source: string): HeaderEntry {
  if (!isRecord(value)) fail(source, `tensor ${name} is not described by an object`);
  const { dtype, shape, data_offsets: offsets } = value;
  const extra = Object.keys(value).find((key) => key !== 'dtype' && key !== 'shape' && key !== 'data_offsets');
  if (extra !== undefined) fail(source, `tensor ${name} has an unknown field ${JSON.stringify(extra)}`);
  if (typeof dtype !== 'string' || !isDtype(dtype))
    fail(source, `tensor ${name} has the unknown dtype ${JSON.stringify(dtype)}`);
  if (!isCountList(shape))
    fail(source, `tensor ${name} has the shape ${JSON.stringify(shape)}, not a list of whole numbers`);
  if (!isCountList(offsets) || offsets.length !== 2)
    fail(source, `tensor ${name} has the offsets ${JSON.stringify(offsets)}, not two whole numbers`);
  const [begin = 0, end = 0] = offsets;
  if (end < begin || end > dataBytes)
    fail(source, `tensor ${name} lies at bytes ${begin} to ${end} of a data region of ${dataBytes}`);
  const sizeBytes = tensorSizeBytes(dtype, shape);
  if (sizeBytes === undefined)
    fail(source, `tensor ${name} of ${dtype} [${shape.join(', ')}] overflows or does not fill whole bytes`);
  if (sizeBytes !== end - begin)
    fail(
      source,
      `tensor ${name} of ${dtype} [${shape.join(', ')}] takes ${sizeBytes} bytes, its offsets span ${end - begin}`,
    );
  return { name, dtype, shape, begin, end };
}

function storedTensors(header: Header, dataOffset: number): Map<string, StoredTensor> {
  const tensors = new Map<string, StoredTensor>();
  for (const { name, dtype, shape, begin, end } of header.entries)
    tensors.set(name, { dtype, shape, offset: dataOffset + begin, sizeBytes: end - begin });
  return tensors;
}

function attachData(header: Header, data: Uint8Array): Safetensors {
  const tensors = new Map<string, TensorData>();
  for (const { name, dtype, shape, begin, end } of header.entries)
    tensors.set(name, { dtype, shape, bytes: data.subarray(begin, end) });
  return { metadata: header.metadata, tensors };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isCountList(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((item) => Number.isSafeInteger(item) && item >= 0);
}

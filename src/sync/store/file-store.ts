/**
 * The WeightStore over a directory: an object is a file, written under another name, flushed and then linked to its own, which only
 * one process can do. What is visible is whole and on the disk; temporary files live apart in `.temporary/`, pointers in
 * `.pointers/`. Bytes are written, read and compared a chunk at a time, whatever the size of the object.
 */
import { randomUUID } from 'node:crypto';
import { statSync } from 'node:fs';
import { open, readdir, rm, rmdir, stat, type FileHandle } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';

import { HoneError } from '../../domain/errors.ts';
import { writeFileDurably } from '../../tensor/durable-file.ts';
import { errnoCode } from '../../tensor/errno-code.ts';
import { makeFolder } from '../../tensor/make-folder.ts';
import { checkByteRange } from './byte-range.ts';
import { fileFailure } from './file-failure.ts';
import { FilePointers } from './file-pointers.ts';
import {
  checkStoreKey,
  type ByteRange,
  type CallOptions,
  type ObjectBody,
  type Pointer,
  type StoredObject,
  type WeightStore,
} from './weight-store.ts';

// Keys never start with a dot, so these two cannot collide with an object.
const POINTERS = '.pointers';
const TEMPORARY = '.temporary';
/** A temporary file older than this belongs to a process that died in the middle of a write. */
const ABANDONED_AFTER_MS = 3_600_000;
const CHUNK_BYTES = 1 << 20;
/** How often an object may vanish between the failure to create it and the look at what is there. */
const PUT_ATTEMPTS = 10;
const PROBE_WRITERS = 8;
/** Files looked at a time. */
const STATS_IN_FLIGHT = 16;

export class FileStore implements WeightStore {
  readonly root: string;
  readonly #temporaryDirectory: string;
  readonly #pointers: FilePointers;

  private constructor(root: string, now: () => number) {
    this.root = root;
    this.#temporaryDirectory = join(root, TEMPORARY);
    this.#pointers = new FilePointers(join(root, POINTERS), { temporaryDirectory: this.#temporaryDirectory, now });
  }

  /**
   * Creates the directory when missing and clears away what killed writers left behind. `isReader`: nothing is made or removed, so that
   * any folder may be looked at, on a read-only disk as well; writes to it fail.
   */
  static async open(
    root: string,
    { now = Date.now, isReader = false }: { now?: () => number; isReader?: boolean } = {},
  ): Promise<FileStore> {
    const store = new FileStore(resolve(root), now);
    try {
      if (isReader) {
        await readdir(root);
        return store;
      }
      await makeFolder(store.#temporaryDirectory);
      for (const file of await readdir(store.#temporaryDirectory)) {
        const path = join(store.#temporaryDirectory, file);
        const information = await stat(path).catch(() => undefined); // Its writer may finish and remove it meanwhile.
        if (information !== undefined && now() - information.mtimeMs > ABANDONED_AFTER_MS)
          await rm(path, { force: true });
      }
    } catch (error) {
      throw fileFailure('open the weight store', root, error);
    }
    return store;
  }

  get location(): string {
    return this.root;
  }

  async putObject(
    key: string,
    body: ObjectBody,
    { signal }: CallOptions = {},
  ): Promise<'created' | 'identical' | 'different'> {
    signal?.throwIfAborted();
    const path = this.#objectPath(key);
    for (let attempt = 0; attempt < PUT_ATTEMPTS; attempt++) {
      const found = await this.#compare(path, body, signal);
      if (found !== undefined) return found;
      const result = await writeFileDurably(path, body.chunks(), {
        mode: 'exclusive',
        temporaryDirectory: this.#temporaryDirectory,
        sizeBytes: body.sizeBytes,
        ...(signal === undefined ? {} : { signal }),
      });
      if (result === 'written') return 'created';
    }
    throw new HoneError('store-failed', `${path} was made and removed ${PUT_ATTEMPTS} times while it was written.`, {
      cure: 'Stop what removes objects while they are published.',
    });
  }

  async readObject(
    key: string,
    { signal, range }: CallOptions & { readonly range?: ByteRange } = {},
  ): Promise<AsyncIterable<Uint8Array> | undefined> {
    signal?.throwIfAborted();
    const stored = await this.statObject(key);
    if (stored === undefined) return undefined;
    if (range !== undefined) checkByteRange(key, range, stored.sizeBytes);
    return readChunks(this.#objectPath(key), range ?? { start: 0, end: stored.sizeBytes }, signal);
  }

  async statObject(key: string, { signal }: CallOptions = {}): Promise<StoredObject | undefined> {
    signal?.throwIfAborted();
    const path = this.#objectPath(key);
    try {
      const information = await stat(path);
      // A folder is the beginning of other keys, not an object.
      return information.isFile()
        ? { key, sizeBytes: information.size, modifiedMs: Math.floor(information.mtimeMs) }
        : undefined;
    } catch (error) {
      if (errnoCode(error) === 'ENOENT' || errnoCode(error) === 'ENOTDIR') return undefined;
      throw fileFailure('read', path, error);
    }
  }

  localPath(key: string): string | undefined {
    const path = this.#objectPath(key);
    return statSync(path, { throwIfNoEntry: false })?.isFile() === true ? path : undefined;
  }

  async list(prefix: string, { signal }: CallOptions = {}): Promise<StoredObject[]> {
    // Only the directory that the prefix ends in needs a walk.
    const parent = prefix.slice(0, Math.max(0, prefix.lastIndexOf('/')));
    if (parent !== '') checkStoreKey(parent);
    const keys: string[] = [];
    const folders = [parent];
    for (let folder = folders.pop(); folder !== undefined; folder = folders.pop()) {
      signal?.throwIfAborted();
      const path = join(this.root, folder);
      try {
        for (const entry of await readdir(path, { withFileTypes: true })) {
          if (entry.name.startsWith('.')) continue;
          const key = folder === '' ? entry.name : `${folder}/${entry.name}`;
          if (entry.isDirectory()) folders.push(key);
          else if (entry.isFile() && key.startsWith(prefix)) keys.push(key);
        }
      } catch (error) {
        if (errnoCode(error) !== 'ENOENT' && errnoCode(error) !== 'ENOTDIR') throw fileFailure('list', path, error);
      }
    }
    const objects: StoredObject[] = [];
    keys.sort();
    for (let start = 0; start < keys.length; start += STATS_IN_FLIGHT) {
      signal?.throwIfAborted();
      const found = await Promise.all(keys.slice(start, start + STATS_IN_FLIGHT).map((key) => this.statObject(key)));
      for (const object of found) if (object !== undefined) objects.push(object);
    }
    return objects;
  }

  async remove(key: string, { signal }: CallOptions = {}): Promise<void> {
    signal?.throwIfAborted();
    const path = this.#objectPath(key);
    try {
      await rm(path, { force: true });
    } catch (error) {
      throw fileFailure('remove', path, error);
    }
    // Folders are only the names of keys; one without a key must not stay behind. Not empty is how this ends.
    for (let folder = dirname(path); folder.length > this.root.length; folder = dirname(folder)) {
      try {
        await rmdir(folder);
      } catch {
        return;
      }
    }
  }

  async readPointer(name: string, { signal }: CallOptions = {}): Promise<Pointer | undefined> {
    signal?.throwIfAborted();
    checkStoreKey(name);
    return await this.#pointers.read(name);
  }

  async listPointers(prefix: string, options: CallOptions = {}): Promise<string[]> {
    options.signal?.throwIfAborted();
    const parent = prefix.slice(0, Math.max(0, prefix.lastIndexOf('/')));
    if (parent !== '') checkStoreKey(parent);
    return await this.#pointers.list(prefix, options);
  }

  async compareAndSwapPointer(
    name: string,
    expectedTag: string | undefined,
    value: string,
    options: CallOptions = {},
  ): Promise<'swapped' | 'conflict'> {
    options.signal?.throwIfAborted();
    checkStoreKey(name);
    return await this.#pointers.compareAndSwap(name, expectedTag, value, options);
  }

  async removePointer(name: string, options: CallOptions = {}): Promise<void> {
    options.signal?.throwIfAborted();
    checkStoreKey(name);
    await this.#pointers.remove(name, options);
  }

  /** Some network and user-space file systems let two links to one name pass, or know no links at all. */
  async probeConditionalWrites({ signal }: CallOptions = {}): Promise<void> {
    const path = join(this.#temporaryDirectory, `probe-${randomUUID()}`);
    try {
      const results = await Promise.all(
        Array.from({ length: PROBE_WRITERS }, (_, writer) =>
          writeFileDurably(path, [Buffer.from(String(writer))], {
            mode: 'exclusive',
            ...(signal === undefined ? {} : { signal }),
          }),
        ),
      );
      const written = results.filter((result) => result === 'written').length;
      if (written === 1) return;
      throw new HoneError(
        'store-failed',
        `The file system of ${this.root} let ${written} of ${PROBE_WRITERS} writers create the same file.`,
        { cure: 'Put the weight store on a file system with hard links that exclude each other, or on S3.' },
      );
    } finally {
      await rm(path, { force: true }).catch(() => undefined);
    }
  }

  /** How what is stored compares with the body; undefined when nothing is. */
  async #compare(
    path: string,
    body: ObjectBody,
    signal: AbortSignal | undefined,
  ): Promise<'identical' | 'different' | undefined> {
    let handle: FileHandle;
    try {
      handle = await open(path, 'r');
    } catch (error) {
      if (errnoCode(error) === 'ENOENT') return undefined;
      throw fileFailure('read', path, error);
    }
    try {
      if ((await handle.stat()).size !== body.sizeBytes) return 'different';
      const buffer = Buffer.allocUnsafe(CHUNK_BYTES);
      let position = 0;
      for await (const chunk of body.chunks()) {
        for (let offset = 0; offset < chunk.byteLength;) {
          signal?.throwIfAborted();
          const wanted = Math.min(CHUNK_BYTES, chunk.byteLength - offset);
          const { bytesRead } = await handle.read(buffer, 0, wanted, position);
          const piece = chunk.subarray(offset, offset + bytesRead);
          if (bytesRead === 0 || buffer.compare(piece, 0, bytesRead, 0, bytesRead) !== 0) return 'different';
          offset += bytesRead;
          position += bytesRead;
        }
      }
      return position === body.sizeBytes ? 'identical' : 'different';
    } finally {
      await handle.close();
    }
  }

  #objectPath(key: string): string {
    checkStoreKey(key);
    return join(this.root, key);
  }
}

/** Opens the file when the first chunk is asked for, so that a stream that nobody reads holds nothing. */
async function* readChunks(
  path: string,
  { start, end }: ByteRange,
  signal: AbortSignal | undefined,
): AsyncGenerator<Uint8Array> {
  let handle: FileHandle;
  try {
    handle = await open(path, 'r');
  } catch (error) {
    throw fileFailure('read', path, error);
  }
  try {
    for (let position = start; position < end;) {
      signal?.throwIfAborted();
      const chunk = Buffer.allocUnsafeSlow(Math.min(CHUNK_BYTES, end - position));
      let bytesRead: number;
      try {
        ({ bytesRead } = await handle.read(chunk, 0, chunk.byteLength, position));
      } catch (error) {
        throw fileFailure('read', path, error);
      }
      if (bytesRead === 0) throw fileFailure('read', path, new Error(`it ends at byte ${position}, not at ${end}`));
      position += bytesRead;
      yield bytesRead === chunk.byteLength ? chunk : chunk.subarray(0, bytesRead);
    }
  } finally {
    await handle.close();
  }
}

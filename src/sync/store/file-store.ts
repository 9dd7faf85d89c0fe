/**
 * The WeightStore over a directory: an object is a file, a pointer is a directory with one numbered file for each swap.
 * Swapping tag n creates generation n + 1 under a name that only one process can create, so there is no lock that a killed
 * publisher could leave behind. What is visible is whole and flushed; temporary files live apart, in `.temporary/`.
 */
import { mkdir, readdir, readFile, rm, stat } from 'node:fs/promises';
import { join, sep } from 'node:path';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { errnoCode, writeFileDurably } from '../../tensor/durable-file.ts';
import { checkStoreKey, type Pointer, type WeightStore } from './weight-store.ts';

// Keys never start with a dot, so these two cannot collide with an object.
const POINTERS = '.pointers';
const TEMPORARY = '.temporary';
/** A temporary file older than this belongs to a process that died in the middle of a write. */
const ABANDONED_AFTER_MS = 3_600_000;

export class FileStore implements WeightStore {
  readonly root: string;
  readonly #temporaryDirectory: string;
  /** Newest generation seen of each pointer. Generations are never removed, so the newest is at or after it. */
  readonly #newestSeen = new Map<string, number>();

  private constructor(root: string) {
    this.root = root;
    this.#temporaryDirectory = join(root, TEMPORARY);
  }

  /** Creates the directory when missing and clears away what killed writers left behind. */
  static async open(root: string, { now = Date.now }: { now?: () => number } = {}): Promise<FileStore> {
    const store = new FileStore(root);
    try {
      await mkdir(store.#temporaryDirectory, { recursive: true });
      for (const file of await readdir(store.#temporaryDirectory)) {
        const path = join(store.#temporaryDirectory, file);
        const information = await stat(path).catch(() => undefined); // Its writer may finish and remove it meanwhile.
        if (information !== undefined && now() - information.mtimeMs > ABANDONED_AFTER_MS)
          await rm(path, { force: true });
      }
    } catch (error) {
      throw storeFailure('open the weight store', root, error);
    }
    return store;
  }

  async putObject(key: string, chunks: readonly Uint8Array[]): Promise<'created' | 'identical' | 'different'> {
    const result = await this.#create(this.#objectPath(key), chunks);
    if (result === 'written') return 'created';
    const stored = await this.getObject(key);
    return stored !== undefined && equalsChunks(stored, chunks) ? 'identical' : 'different';
  }

  async getObject(key: string): Promise<Uint8Array | undefined> {
    return readIfPresent(this.#objectPath(key));
  }

  async list(prefix: string): Promise<string[]> {
    // Only the directory that the prefix ends in needs a walk.
    const parent = prefix.slice(0, Math.max(0, prefix.lastIndexOf('/')));
    if (parent !== '') checkStoreKey(parent);
    const keys: string[] = [];
    try {
      for (const entry of await readdir(join(this.root, parent), { recursive: true, withFileTypes: true })) {
        const key = join(entry.parentPath, entry.name).slice(join(this.root, sep).length).replaceAll(sep, '/');
        if (entry.isFile() && key.startsWith(prefix) && !key.startsWith('.')) keys.push(key);
      }
    } catch (error) {
      if (errnoCode(error) !== 'ENOENT') throw storeFailure('list', join(this.root, parent), error);
    }
    return keys.sort();
  }

  async remove(key: string): Promise<void> {
    const path = this.#objectPath(key);
    try {
      await rm(path, { force: true });
    } catch (error) {
      throw storeFailure('remove', path, error);
    }
  }

  async readPointer(name: string): Promise<Pointer | undefined> {
    checkStoreKey(name);
    let generation = this.#newestSeen.get(name) ?? (await this.#listNewestGeneration(name));
    let value = generation === 0 ? undefined : await readIfPresent(this.#generationPath(name, generation));
    for (;;) {
      const next = await readIfPresent(this.#generationPath(name, generation + 1));
      if (next === undefined) break;
      generation += 1;
      value = next;
    }
    if (value === undefined) {
      if (generation === 0) return undefined;
      throw new HoneError('store-failed', `${this.#generationPath(name, generation)} was removed by hand.`, {
        cure: 'Restore the directory from a copy; generations of a pointer must stay.',
      });
    }
    this.#newestSeen.set(name, generation);
    return { value: Buffer.from(value).toString('utf8'), tag: String(generation) };
  }

  async compareAndSwapPointer(
    name: string,
    expectedTag: string | undefined,
    value: string,
  ): Promise<'swapped' | 'conflict'> {
    checkStoreKey(name);
    const expected = expectedTag === undefined ? 0 : Number(expectedTag);
    const result = await this.#create(this.#generationPath(name, expected + 1), [Buffer.from(value)]);
    return result === 'written' ? 'swapped' : 'conflict';
  }

  #create(path: string, chunks: readonly Uint8Array[]): Promise<'written' | 'exists'> {
    return writeFileDurably(path, chunks, { mode: 'exclusive', temporaryDirectory: this.#temporaryDirectory });
  }

  #objectPath(key: string): string {
    checkStoreKey(key);
    return join(this.root, key);
  }

  #generationPath(name: string, generation: number): string {
    return join(this.root, POINTERS, name, String(generation).padStart(8, '0'));
  }

  async #listNewestGeneration(name: string): Promise<number> {
    const directory = join(this.root, POINTERS, name);
    try {
      return (await readdir(directory)).reduce(
        (newest, file) => Math.max(newest, /^\d+$/.test(file) ? Number(file) : 0),
        0,
      );
    } catch (error) {
      if (errnoCode(error) === 'ENOENT') return 0;
      throw storeFailure('read the pointer', directory, error);
    }
  }
}

async function readIfPresent(path: string): Promise<Uint8Array | undefined> {
  try {
    return await readFile(path);
  } catch (error) {
    if (errnoCode(error) === 'ENOENT') return undefined;
    throw storeFailure('read', path, error);
  }
}

function equalsChunks(stored: Uint8Array, chunks: readonly Uint8Array[]): boolean {
  let offset = 0;
  for (const chunk of chunks) {
    if (Buffer.compare(stored.subarray(offset, offset + chunk.byteLength), chunk) !== 0) return false;
    offset += chunk.byteLength;
  }
  return offset === stored.byteLength;
}

function storeFailure(action: string, path: string, error: unknown): HoneError {
  return new HoneError('store-failed', `Could not ${action} ${path}: ${reasonOf(error)}.`, {
    cure: 'Check that the weight store is a readable and writable directory on a disk that is mounted.',
    cause: error,
  });
}

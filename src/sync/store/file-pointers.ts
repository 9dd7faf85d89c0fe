/**
 * The pointers of a FileStore: a folder each, with one numbered file for each swap. Swapping generation n creates n + 1 under a name
 * that only one process can create, so there is no lock that a killed publisher could leave behind. Removing a pointer is a swap
 * as well, to a generation that says so; numbers go on after it, so that a tag from before can never fit again.
 * Old generations are cleared away in time, the oldest first; what is there is therefore always a run of numbers without a gap.
 */
import { readdir, readFile, rm, stat } from 'node:fs/promises';
import { join, sep } from 'node:path';

import { HoneError } from '../../domain/errors.ts';
import { writeFileDurably } from '../../tensor/durable-file.ts';
import { errnoCode } from '../../tensor/errno-code.ts';
import { fileFailure } from './file-failure.ts';
import type { CallOptions, Pointer } from './weight-store.ts';

/** Content of the generation that a removal makes; no value may be this. */
const REMOVED = '\0removed';
/** A generation goes when it is older than this and this many newer ones are there: no reader or swapper can still be at it. */
const KEPT_MS = 3_600_000;
const KEPT_GENERATIONS = 16;
const REMOVE_ATTEMPTS = 1000;

interface Generation {
  readonly number: number;
  /** Undefined = the pointer was removed, or never set (number 0). */
  readonly value: string | undefined;
}

export class FilePointers {
  readonly #root: string;
  readonly #temporaryDirectory: string;
  readonly #now: () => number;
  /** Newest generation seen of each pointer; the newest is at or after it. */
  readonly #newestSeen = new Map<string, number>();

  constructor(root: string, { temporaryDirectory, now }: { temporaryDirectory: string; now: () => number }) {
    this.#root = root;
    this.#temporaryDirectory = temporaryDirectory;
    this.#now = now;
  }

  async read(name: string): Promise<Pointer | undefined> {
    const { number, value } = await this.#newest(name);
    return value === undefined ? undefined : { value, tag: String(number) };
  }

  async compareAndSwap(
    name: string,
    expectedTag: string | undefined,
    value: string,
    { signal }: CallOptions,
  ): Promise<'swapped' | 'conflict'> {
    if (value === REMOVED)
      throw new HoneError('store-failed', `${JSON.stringify(value)} cannot be the value of a pointer.`, {
        cure: 'It is how the store marks a pointer that was removed; choose another text.',
      });
    let expected: number;
    if (expectedTag === undefined) {
      const newest = await this.#newest(name);
      if (newest.value !== undefined) return 'conflict';
      expected = newest.number;
    } else {
      expected = Number(expectedTag);
      if (!Number.isSafeInteger(expected) || expected < 1) return 'conflict';
    }
    return (await this.#create(name, expected, value, signal)) ? 'swapped' : 'conflict';
  }

  async remove(name: string, { signal }: CallOptions): Promise<void> {
    for (let attempt = 0; attempt < REMOVE_ATTEMPTS; attempt++) {
      signal?.throwIfAborted();
      const { number, value } = await this.#newest(name);
      if (value === undefined || (await this.#create(name, number, REMOVED, signal))) return;
    }
    throw new HoneError('store-failed', `Pointer ${name} was swapped ${REMOVE_ATTEMPTS} times while it was removed.`, {
      cure: 'Stop what moves the pointer, then remove it.',
    });
  }

  /** Names of the pointers that are set, ascending. */
  async list(prefix: string, { signal }: CallOptions): Promise<string[]> {
    const parent = prefix.slice(0, Math.max(0, prefix.lastIndexOf('/')));
    const names: string[] = [];
    const folders = [parent];
    for (let folder = folders.pop(); folder !== undefined; folder = folders.pop()) {
      signal?.throwIfAborted();
      const path = join(this.#root, folder);
      let hasGenerations = false;
      try {
        for (const entry of await readdir(path, { withFileTypes: true })) {
          if (entry.isDirectory()) folders.push(folder === '' ? entry.name : `${folder}/${entry.name}`);
          else if (isGeneration(entry.name)) hasGenerations = true;
        }
      } catch (error) {
        if (errnoCode(error) !== 'ENOENT' && errnoCode(error) !== 'ENOTDIR')
          throw fileFailure('list the pointers in', path, error);
      }
      if (hasGenerations && folder.startsWith(prefix) && (await this.#newest(folder)).value !== undefined)
        names.push(folder.replaceAll(sep, '/'));
    }
    return names.sort();
  }

  /**
   * Creates the generation after `expected`, if that one is still there. It is looked at again afterwards: a process that stood
   * still between the two, for so long that its generation was cleared away, may have taken a number that was free once more.
   */
  async #create(name: string, expected: number, value: string, signal: AbortSignal | undefined): Promise<boolean> {
    if (!(await this.#isThere(name, expected))) return false;
    const path = this.#path(name, expected + 1);
    const result = await writeFileDurably(path, [Buffer.from(value)], {
      mode: 'exclusive',
      temporaryDirectory: this.#temporaryDirectory,
      ...(signal === undefined ? {} : { signal }),
    });
    if (result === 'exists') return false;
    if (!(await this.#isThere(name, expected))) {
      await rm(path, { force: true });
      return false;
    }
    if ((expected + 1) % KEPT_GENERATIONS === 0) await this.#clearOld(name, expected + 1);
    return true;
  }

  async #isThere(name: string, generation: number): Promise<boolean> {
    // Before the first generation there is nothing to look at, but none may have been cleared away either.
    if (generation === 0) {
      const numbers = await this.#numbers(name);
      return numbers.length === 0 || Math.min(...numbers) === 1;
    }
    return (await this.#valueOf(name, generation)) !== undefined;
  }

  async #newest(name: string): Promise<Generation> {
    const seen = this.#newestSeen.get(name) ?? 0;
    let number = seen;
    let value = number === 0 ? undefined : await this.#valueOf(name, number);
    if (value === undefined) {
      number = Math.max(0, ...(await this.#numbers(name)));
      if (number < seen)
        throw new HoneError('store-failed', `${this.#path(name, seen)} was removed by hand.`, {
          cure: 'Restore the directory from a copy; the newest generation of a pointer must stay.',
        });
      value = number === 0 ? undefined : await this.#valueOf(name, number);
    }
    for (;;) {
      const next = await this.#valueOf(name, number + 1);
      if (next === undefined) break;
      number += 1;
      value = next;
    }
    this.#newestSeen.set(name, number);
    return { number, value: value === REMOVED ? undefined : value };
  }

  async #numbers(name: string): Promise<number[]> {
    const path = join(this.#root, name);
    try {
      return (await readdir(path)).filter(isGeneration).map(Number);
    } catch (error) {
      if (errnoCode(error) === 'ENOENT') return [];
      throw fileFailure('read the pointer', path, error);
    }
  }

  async #valueOf(name: string, generation: number): Promise<string | undefined> {
    const path = this.#path(name, generation);
    try {
      return await readFile(path, 'utf8');
    } catch (error) {
      if (errnoCode(error) === 'ENOENT') return undefined;
      throw fileFailure('read', path, error);
    }
  }

  /** Oldest first, so that a process killed here leaves no gap. */
  async #clearOld(name: string, newest: number): Promise<void> {
    const old = (await this.#numbers(name)).filter((number) => number <= newest - KEPT_GENERATIONS);
    for (const number of old.sort((left, right) => left - right)) {
      const path = this.#path(name, number);
      const information = await stat(path).catch(() => undefined); // Another process may clear away as well.
      if (information !== undefined && this.#now() - information.mtimeMs < KEPT_MS) return;
      await rm(path, { force: true }).catch(() => undefined);
    }
  }

  #path(name: string, generation: number): string {
    return join(this.#root, name, String(generation).padStart(8, '0'));
  }
}

function isGeneration(file: string): boolean {
  return /^\d{8,}$/.test(file);
}

/**
 * Files that are whole or absent: bytes go to a temporary name, are flushed to the disk, and only then get their name.
 * Owns the flush of files and directories and the wording of write failures (a full disk above all); not what is written.
 */
import { randomUUID } from 'node:crypto';
import { link, open, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { errnoCode } from './errno-code.ts';
import { makeFolder } from './make-folder.ts';

const LINK_ATTEMPTS = 5;

export interface DurableOptions {
  /** `replace` swaps an existing file atomically; `exclusive` leaves it alone and reports `exists`. */
  readonly mode: 'replace' | 'exclusive';
  /** Where the temporary file lives; must be on the same disk. The target's own directory by default. */
  readonly temporaryDirectory?: string;
  /** How many bytes the chunks must hold together; another number is `store-failed`. */
  readonly sizeBytes?: number;
  readonly signal?: AbortSignal;
}

/**
 * Writes the chunks one after the other as one file; they may come as they are made, one is held at a time. Creates missing folders.
 * Nothing partial is ever visible at `path`. What the chunks' source throws passes through as it is.
 */
export async function writeFileDurably(
  path: string,
  chunks: Iterable<Uint8Array> | AsyncIterable<Uint8Array>,
  options: DurableOptions,
): Promise<'written' | 'exists'> {
  const directory = dirname(path);
  const temporary = join(options.temporaryDirectory ?? directory, `.${process.pid}-${randomUUID()}.tmp`);
  const source = new WatchedChunks(chunks);
  const made: string[] = [];
  let isLeft = true;
  try {
    made.push(...(await makeFolder(directory)));
    const handle = await open(temporary, 'wx');
    try {
      for await (const chunk of source) {
        options.signal?.throwIfAborted();
        let offset = 0;
        while (offset < chunk.byteLength) offset += (await handle.write(chunk, offset)).bytesWritten;
      }
      options.signal?.throwIfAborted();
      if (options.sizeBytes !== undefined && source.sizeBytes !== options.sizeBytes)
        throw new HoneError(
          'store-failed',
          `${path} was to hold ${options.sizeBytes} bytes, its source gave ${source.sizeBytes}.`,
          { cure: 'Give the size of the bytes that are written; nothing was left there.' },
        );
      await handle.sync();
    } finally {
      await handle.close();
    }
    if (options.mode === 'replace') {
      await rename(temporary, path);
      isLeft = false;
    } else {
      for (let attempt = 1; ; attempt++) {
        try {
          await link(temporary, path);
          break;
        } catch (error) {
          if (errnoCode(error) === 'EEXIST') return 'exists';
          // Whoever removed the last file of the folder may have removed the folder as well.
          if (errnoCode(error) !== 'ENOENT' || attempt === LINK_ATTEMPTS) throw error;
          made.push(...(await makeFolder(directory)));
        }
      }
    }
    await syncDirectory(directory);
    // A folder that was just made must itself survive a power cut, or the file in it does not.
    for (const folder of made) await syncDirectory(dirname(folder));
    return 'written';
  } catch (error) {
    if (error === source.failure || options.signal?.aborted === true || error instanceof HoneError) throw error;
    throw writeFailure(path, options.sizeBytes ?? source.knownSizeBytes, error);
  } finally {
    // After a link or a failure; after a rename there is nothing left to remove.
    if (isLeft) await rm(temporary, { force: true }).catch(() => undefined);
  }
}

/** Counts what passes and remembers what the source threw, so that its failures are not taken for failures to write. */
class WatchedChunks implements AsyncIterable<Uint8Array> {
  readonly #chunks: Iterable<Uint8Array> | AsyncIterable<Uint8Array>;
  sizeBytes = 0;
  failure: unknown;

  constructor(chunks: Iterable<Uint8Array> | AsyncIterable<Uint8Array>) {
    this.#chunks = chunks;
  }

  /** The size of the whole where the chunks are at hand, else what came so far. */
  get knownSizeBytes(): number {
    if (!Array.isArray(this.#chunks)) return this.sizeBytes;
    let sizeBytes = 0;
    for (const chunk of this.#chunks as readonly Uint8Array[]) sizeBytes += chunk.byteLength; // isArray forgets what of.
    return sizeBytes;
  }

  async *[Symbol.asyncIterator](): AsyncIterator<Uint8Array> {
    try {
      for await (const chunk of this.#chunks) {
        this.sizeBytes += chunk.byteLength;
        yield chunk;
      }
    } catch (error) {
      this.failure = error;
      throw error;
    }
  }
}

export async function syncDirectory(path: string): Promise<void> {
  if (process.platform === 'win32') return; // Directories cannot be opened for flushing there; NTFS journals the names.
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

function writeFailure(path: string, sizeBytes: number, error: unknown): HoneError {
  const code = errnoCode(error);
  if (code === 'ENOSPC' || code === 'EDQUOT') {
    const what = code === 'ENOSPC' ? 'The disk is full' : 'The disk quota is used up';
    return new HoneError('store-failed', `${what}: could not write ${path} (${sizeBytes} bytes).`, {
      cure: `Free space on the disk that holds ${dirname(path)} and try again; nothing partial was left there.`,
      cause: error,
    });
  }
  const reason = reasonOf(error);
  return new HoneError('store-failed', `Could not write ${path} (${sizeBytes} bytes): ${reason}.`, {
    cure: `Check that ${dirname(path)} is a writable directory on a disk with room; nothing partial was left there.`,
    cause: error,
  });
}

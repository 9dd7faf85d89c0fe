/**
 * Files that are whole or absent: bytes go to a temporary name, are flushed to the disk, and only then get their name.
 * Owns the flush of files and directories and the wording of write failures (a full disk above all); not what is written.
 */
import { randomUUID } from 'node:crypto';
import { link, mkdir, open, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';

import { HoneError, reasonOf } from '../domain/errors.ts';

export interface DurableOptions {
  /** `replace` swaps an existing file atomically; `exclusive` leaves it alone and reports `exists`. */
  readonly mode: 'replace' | 'exclusive';
  /** Where the temporary file lives; must be on the same disk. The target's own directory by default. */
  readonly temporaryDirectory?: string;
}

/** Writes the chunks one after the other as one file. Creates missing directories. Nothing partial is ever visible at `path`. */
export async function writeFileDurably(
  path: string,
  chunks: readonly Uint8Array[],
  options: DurableOptions,
): Promise<'written' | 'exists'> {
  const directory = dirname(path);
  const temporary = join(options.temporaryDirectory ?? directory, `.${process.pid}-${randomUUID()}.tmp`);
  try {
    const firstCreated = await mkdir(directory, { recursive: true });
    const handle = await open(temporary, 'wx');
    try {
      for (const chunk of chunks) {
        let offset = 0;
        while (offset < chunk.byteLength) offset += (await handle.write(chunk, offset)).bytesWritten;
      }
      await handle.sync();
    } finally {
      await handle.close();
    }
    if (options.mode === 'replace') await rename(temporary, path);
    else {
      try {
        await link(temporary, path);
      } catch (error) {
        if (errnoCode(error) === 'EEXIST') return 'exists';
        throw error;
      }
    }
    await syncDirectory(directory);
    // A directory that was just made must itself survive a power cut, or the file in it does not.
    if (firstCreated !== undefined)
      for (let made = directory; made.length >= firstCreated.length; made = dirname(made))
        await syncDirectory(dirname(made));
    return 'written';
  } catch (error) {
    throw writeFailure(path, chunks, error);
  } finally {
    // After a rename there is nothing left to remove; after a link or a failure there is.
    await rm(temporary, { force: true }).catch(() => undefined);
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

/** The system's short name of a failure (`ENOENT`), or undefined when it has none. */
export function errnoCode(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}

function writeFailure(path: string, chunks: readonly Uint8Array[], error: unknown): HoneError {
  const sizeBytes = chunks.reduce((sum, chunk) => sum + chunk.byteLength, 0);
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

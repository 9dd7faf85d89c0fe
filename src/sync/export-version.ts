/**
 * A published version as a plain Hugging Face folder that other tools load: config, tokenizer and template of the boot model, the
 * weights as safetensors, in several files when they are large.
 * Invariant: the folder appears whole under its name or not at all, and holds nothing of Hone's own.
 */
import { readdir, rename, rm } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { syncDirectory } from '../tensor/durable-file.ts';
import { errnoCode } from '../tensor/errno-code.ts';
import { STATE_FILE } from './folder-state.ts';
import { pullInto, type PulledVersion, type PullOptions } from './pull-version.ts';
import type { ObjectSource } from './store/weight-store.ts';
import type { VersionIdentity } from './version-directory.ts';

export async function exportVersion(
  source: ObjectSource,
  target: VersionIdentity,
  options: PullOptions,
): Promise<PulledVersion> {
  const directory = resolve(options.directory);
  await refuseFull(directory);
  // Beside its place, so that it can be renamed there; the same name each time, so that a killed export leaves one folder at most.
  const working = join(dirname(directory), `.${basename(directory)}.exporting`);
  await rm(working, { recursive: true, force: true });
  try {
    const pulled = await pullInto(source, target, { ...options, directory: working });
    await rm(join(working, STATE_FILE));
    await rename(working, directory);
    await syncDirectory(dirname(directory));
    return pulled;
  } catch (error) {
    await rm(working, { recursive: true, force: true });
    if (error instanceof HoneError) throw error;
    throw new HoneError('store-failed', `${directory} could not be written: ${reasonOf(error)}.`, {
      cure: 'Check that its parent folder is writable and its disk has room.',
      cause: error,
    });
  }
}

async function refuseFull(directory: string): Promise<void> {
  let files: string[];
  try {
    files = await readdir(directory);
  } catch (error) {
    if (errnoCode(error) === 'ENOENT') return;
    throw new HoneError('invalid-config', `${directory} is no folder that can be exported to: ${reasonOf(error)}.`, {
      cure: 'Name a folder that does not exist yet.',
      cause: error,
    });
  }
  if (files.length > 0)
    throw new HoneError('invalid-config', `${directory} holds ${files.length} files already.`, {
      cure: 'Name a folder that does not exist yet, or is empty.',
    });
}

/**
 * A file that a command makes at its end: whether it can be made is known before the work begins, nothing that is there is
 * replaced, and the file is whole from the moment that it has its name.
 */
import { closeSync, lstatSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';

import { HoneError, reasonOf } from '../domain/errors.ts';

const OTHER_PLACE = 'Name a file in a folder that is there and that you can write to with --out.';

/**
 * Leaves nothing behind. Throws `invalid-config` where something has the name already, or where the folder is missing or
 * refuses a new file.
 */
export function checkNewFile(path: string): void {
  const probe = temporaryPath(path);
  try {
    refuseExisting(path);
    closeSync(openSync(probe, 'wx'));
    rmSync(probe);
  } catch (cause) {
    if (cause instanceof HoneError) throw cause;
    throw new HoneError('invalid-config', `${path} could not be written: ${reasonOf(cause)}.`, {
      cure: OTHER_PLACE,
      cause,
    });
  }
}

/** Throws `invalid-config` where something took the name since, `store-failed` where writing fails; leaves no half file. */
export function writeNewFile(path: string, text: string): void {
  const temporary = temporaryPath(path);
  try {
    writeFileSync(temporary, text, { flag: 'wx', flush: true });
    refuseExisting(path);
    renameSync(temporary, path);
  } catch (cause) {
    rmSync(temporary, { force: true });
    if (cause instanceof HoneError) throw cause;
    throw new HoneError('store-failed', `Could not write ${path}: ${reasonOf(cause)}.`, { cure: OTHER_PLACE, cause });
  }
}

/** Beside the file, so that giving it its name moves no bytes; of this process alone. */
function temporaryPath(path: string): string {
  return `${path}.${process.pid}.tmp`;
}

function refuseExisting(path: string): void {
  if (lstatSync(path, { throwIfNoEntry: false }) === undefined) return;
  throw new HoneError('invalid-config', `${path} is there already, and nothing is written over it.`, {
    cure: 'Name another file with --out, or remove this one.',
  });
}

/** Text in and text out for the frontier commands; a file that is not there or cannot be written is one sentence. */
import { closeSync, existsSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { makeFolder } from '../frontier/make-folder.ts';

/** Throws `invalid-config` when the file cannot be read; `wants` completes "Name ...". */
export function readInput(path: string, wants: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (cause) {
    throw new HoneError('invalid-config', `${path} could not be read: ${reasonOf(cause)}.`, {
      cure: `Name ${wants}.`,
      cause,
    });
  }
}

/** Writes texts by file name into a folder, which is made where it does not exist; returns their paths. */
export function writeOutputs(folder: string, texts: Readonly<Record<string, string>>): string[] {
  try {
    makeFolder(folder);
    return Object.entries(texts).map(([name, text]) => {
      const path = join(folder, name);
      writeFileSync(path, text);
      return path;
    });
  } catch (cause) {
    throw new HoneError('store-failed', `Results could not be written to ${folder}: ${reasonOf(cause)}.`, {
      cure: 'Name a folder that you can write to with --out.',
      cause,
    });
  }
}

/** Throws as `writePicture` would; to be asked before work that a bad path would lose. Leaves nothing behind but its folder. */
export function checkPicturePlace(path: string): void {
  writingPicture(path, () => {
    const isNew = !existsSync(path);
    closeSync(openSync(path, 'a'));
    if (isNew) rmSync(path);
  });
}

/** Writes one picture where the user wants it; returns its path. Throws `store-failed`. */
export function writePicture(path: string, svg: string): string {
  writingPicture(path, () => writeFileSync(path, svg));
  return path;
}

function writingPicture(path: string, body: () => void): void {
  try {
    makeFolder(dirname(path));
    body();
  } catch (cause) {
    throw new HoneError('store-failed', `The picture could not be written to ${path}: ${reasonOf(cause)}.`, {
      cure: 'Name a file that you can write to with --svg.',
      cause,
    });
  }
}

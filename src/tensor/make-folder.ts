/**
 * Folders made from the topmost missing one down, one call each: Node's recursive mkdir never returns where the system answers
 * that a parent which is there is missing, as Linux does below /proc. Owns the making, not the flushing to disk.
 */
import { mkdir, stat } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';

import { errnoCode } from './errno-code.ts';

/** Makes the folder and those above it that are missing. Returns the ones that this call made, topmost first. */
export async function makeFolder(path: string): Promise<string[]> {
  const missing: string[] = [];
  let place = resolve(path);
  for (; !(await isFolder(place)); place = dirname(place)) missing.push(place);
  const made: string[] = [];
  for (const folder of missing.toReversed()) {
    try {
      await mkdir(folder);
      made.push(folder);
    } catch (error) {
      // Another process may have made it meanwhile.
      if (errnoCode(error) !== 'EEXIST' || !(await isFolder(folder))) throw error;
    }
  }
  return made;
}

/** False when nothing is there; a file in the place of a folder is an error, and so is a loop of links. */
async function isFolder(path: string): Promise<boolean> {
  try {
    if ((await stat(path)).isDirectory()) return true;
  } catch (error) {
    if (errnoCode(error) === 'ENOENT') return false;
    throw error;
  }
  throw Object.assign(new Error(`ENOTDIR: ${path} is a file, not a folder`), { code: 'ENOTDIR' });
}

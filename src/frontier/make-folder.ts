/** Folders for what the frontier commands write, made so that a place where none can be made is refused and never waited for. */
import { existsSync, mkdirSync, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';

/**
 * Makes a folder and those above it that are missing, from the topmost down, one call each: Node's recursive mkdir never
 * returns where the system answers that a parent which is there is missing, as Linux does below /proc. Throws a plain Error.
 */
export function makeFolder(path: string): void {
  const missing: string[] = [];
  let place = resolve(path);
  for (; !existsSync(place); place = dirname(place)) missing.push(place);
  if (!statSync(place).isDirectory()) throw new Error(`${place} is a file, not a folder`);
  for (const folder of missing.toReversed()) {
    try {
      mkdirSync(folder);
    } catch (cause) {
      // Another process may have made it meanwhile.
      if (!(existsSync(folder) && statSync(folder).isDirectory())) throw cause;
    }
  }
}

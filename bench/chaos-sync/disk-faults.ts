/**
 * What disks do to a service: a bit that turned, a file that was cut, no room left. Owns the small disks that it mounts.
 * Invariant: only files below the folder that is named are touched; a mounted disk is unmounted when it is disposed of.
 */
import { execFileSync } from 'node:child_process';
import {
  closeSync,
  mkdirSync,
  openSync,
  readdirSync,
  readSync,
  rmSync,
  statSync,
  truncateSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';

const BALLAST = 'ballast';

/** Files with at least one byte below the folder, in order of their names. */
export function filesBelow(directory: string): string[] {
  const files: string[] = [];
  for (const entry of readdirSync(directory, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    try {
      if (entry.isFile() && entry.name !== BALLAST && statSync(path).size > 0) files.push(path);
    } catch {
      // Its service removed it meanwhile.
    }
  }
  return files.toSorted();
}

/** Spoils one file, chosen by `draw`; returns what was done, or undefined when there is no file yet. */
export function spoilFile(directory: string, { how, draw }: { how: 'flip' | 'cut'; draw: number }): string | undefined {
  const files = filesBelow(directory);
  const path = files[draw % Math.max(1, files.length)];
  if (path === undefined) return undefined;
  try {
    const { size } = statSync(path);
    const place = Math.floor(size * ((draw % 9973) / 9973));
    if (how === 'cut') truncateSync(path, place);
    else flipBit(path, { place, bit: draw % 8 });
    return `${path.slice(directory.length + 1)}, ${how === 'cut' ? `cut to ${place} of ${size} bytes` : `bit ${draw % 8} of byte ${place} of ${size}`}`;
  } catch {
    return undefined; // Its service removed it meanwhile.
  }
}

function flipBit(path: string, { place, bit }: { place: number; bit: number }): void {
  const file = openSync(path, 'r+');
  try {
    const byte = Buffer.alloc(1);
    readSync(file, byte, 0, 1, place);
    byte[0] = (byte[0] ?? 0) ^ (1 << bit);
    writeSync(file, byte, 0, 1, place);
  } finally {
    closeSync(file);
  }
}

/** A disk of its own for a folder, small enough to be filled. */
export interface SmallDisk extends Disposable {
  fill(): void;
  free(): void;
}

/** Undefined where this process may not mount one. */
export function mountSmallDisk(path: string, sizeBytes: number): SmallDisk | undefined {
  if (process.platform !== 'linux' || process.getuid?.() !== 0) return undefined;
  mkdirSync(path, { recursive: true });
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${sizeBytes}`, 'hone-chaos', path], { stdio: 'ignore' });
  } catch {
    return undefined;
  }
  const ballast = join(path, BALLAST);
  return {
    fill: () => {
      const file = openSync(ballast, 'a');
      try {
        for (const block of [1 << 20, 1 << 16, 1 << 12]) {
          const bytes = Buffer.alloc(block);
          while (tryWrite(file, bytes));
        }
      } finally {
        closeSync(file);
      }
    },
    free: () => rmSync(ballast, { force: true }),
    // Lazily: a service that is still ending may hold a file open.
    [Symbol.dispose]: () => void execFileSync('umount', ['-l', path], { stdio: 'ignore' }),
  };
}

function tryWrite(file: number, bytes: Uint8Array): boolean {
  try {
    return writeSync(file, bytes) === bytes.byteLength;
  } catch {
    return false;
  }
}

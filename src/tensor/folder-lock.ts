/**
 * One process at a time in a folder: a lock file that appears whole (a link of a finished one) and tells who holds it. A lock whose
 * owner is dead is taken over; a process that got the dead one's number does not count as it.
 * Invariant: of two that try at once at most one gets the folder.
 */
import { randomBytes } from 'node:crypto';
import { linkSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { errnoCode } from './errno-code.ts';

export interface FolderLockOptions {
  /** Of the lock file, inside the folder. */
  readonly fileName: string;
  /** What to do while another process holds it; the lock file is named after it. */
  readonly cure: string;
}

export interface FolderLock extends Disposable {
  release(): void;
}

const ATTEMPTS = 8;

/** Throws `run-locked`, naming the process that holds the folder. */
export function lockFolder(folder: string, { fileName, cure }: FolderLockOptions): FolderLock {
  const file = join(folder, fileName);
  const mine = `${file}.${process.pid}.${randomBytes(4).toString('hex')}`;
  const text = JSON.stringify({
    pid: process.pid,
    startedMs: performance.timeOrigin,
    startTicks: startTicks('self'),
    // Two locks of one process are two owners.
    holder: randomBytes(8).toString('hex'),
  });
  try {
    writeFileSync(mine, text);
  } catch (cause) {
    throw new HoneError('store-failed', `Could not write ${mine}: ${reasonOf(cause)}.`, {
      cure: 'Check that the folder is writable, on a disk with room.',
      cause,
    });
  }
  try {
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      try {
        linkSync(mine, file);
        return heldLock(file, text);
      } catch (cause) {
        if (errnoCode(cause) !== 'EEXIST') throw cause;
        const owner = lockOwner(file);
        if (owner !== undefined && isAlive(owner))
          throw new HoneError('run-locked', `${folder} is in use by process ${owner.pid}.`, {
            cure: `${cure} If nothing of Hone runs there, remove ${file}.`,
            cause,
          });
        if (owner !== undefined) takeAway(file, owner);
      }
    }
    throw new HoneError('run-locked', `${folder} is being taken by another process.`, {
      cure: 'Try again in a moment.',
    });
  } finally {
    rmSync(mine, { force: true });
  }
}

function heldLock(file: string, text: string): FolderLock {
  const release = (): void => {
    // After a takeover by mistake the file is someone else's.
    if (readText(file) === text) rmSync(file, { force: true });
  };
  return { release, [Symbol.dispose]: release };
}

/** Removes the lock only if it still is the dead owner's: another process may have taken it over meanwhile. */
function takeAway(file: string, dead: LockOwner): void {
  const aside = `${file}.${process.pid}.${randomBytes(4).toString('hex')}`;
  try {
    renameSync(file, aside);
  } catch {
    return; // Another one was faster.
  }
  if (readText(aside) !== dead.text) {
    try {
      linkSync(aside, file);
    } catch {
      // Its place was taken: two may think that they hold it only if three processes met within microseconds.
    }
  }
  rmSync(aside, { force: true });
}

interface LockOwner {
  readonly text: string;
  readonly pid: number;
  /** When the process started, in milliseconds of Unix time. */
  readonly startedMs: number;
  /** The same as the kernel counts it, where it tells: what a process that got the number later cannot share. */
  readonly startTicks: string | undefined;
}

/** A file of another shape has an owner that never lives; undefined when there is none any more. */
function lockOwner(file: string): LockOwner | undefined {
  const text = readText(file);
  if (text === undefined) return undefined;
  try {
    const parsed = JSON.parse(text) as Partial<LockOwner>; // Written by lockFolder, or by nobody.
    if (typeof parsed.pid === 'number')
      return { text, pid: parsed.pid, startedMs: parsed.startedMs ?? 0, startTicks: parsed.startTicks };
  } catch {
    // Falls through.
  }
  return { text, pid: 0, startedMs: 0, startTicks: undefined };
}

function readText(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return undefined;
  }
}

/** Field 22 of /proc/<pid>/stat; undefined off Linux and for a process that is gone. */
function startTicks(pid: number | 'self'): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19];
  } catch {
    return undefined;
  }
}

function isAlive({ pid, startedMs, startTicks: recorded }: LockOwner): boolean {
  if (pid === 0) return false;
  const current = startTicks(pid);
  if (recorded !== undefined && current !== undefined) return recorded === current;
  // In a container every process may be the seventh: the same number from an earlier start is a dead owner.
  if (pid === process.pid) return startedMs === performance.timeOrigin;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    // It lives, under another user.
    return errnoCode(error) === 'EPERM';
  }
}

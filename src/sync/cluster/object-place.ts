/**
 * Where an object lies on the local disk: its data under one name while it grows and another when it is whole, and the digests of its
 * chunks beside. Owns what a failure to keep it there says to the user.
 */
import { open, rm, type FileHandle } from 'node:fs/promises';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { errnoCode, isDiskFull } from '../../tensor/errno-code.ts';

export interface ObjectPlace {
  readonly growingPath: string;
  readonly wholePath: string;
  readonly digestsPath: string;
}

/** Removes what lies at the place; what is open elsewhere stays readable there. */
export async function removePlace(place: ObjectPlace): Promise<void> {
  for (const path of [place.growingPath, place.wholePath, place.digestsPath]) await rm(path, { force: true });
}

/** The data that is there: a whole object that lost a chunk to damage lies under its final name still. */
export async function openLeftover(place: ObjectPlace): Promise<FileHandle> {
  try {
    return await open(place.wholePath, 'r+');
  } catch (error) {
    if (errnoCode(error) !== 'ENOENT') throw error;
    return open(place.growingPath, 'r+');
  }
}

/** `store-failed`, with the system's error as its cause. */
export function keepingFailure(key: string, path: string, error: unknown): HoneError {
  const isFull = isDiskFull(error);
  return new HoneError(
    'store-failed',
    `${key} cannot be kept at ${path}: ${isFull ? 'the disk is full' : reasonOf(error)}.`,
    {
      cure: isFull
        ? 'Free space on that disk, or give the cache a smaller bound.'
        : 'Check that the cache is a folder that can be written to.',
      cause: error,
    },
  );
}

/**
 * `state.json` of a folder of weights: which version its bytes are, with the checksum of every tensor, or that they are not to be
 * trusted. Invariant: it is replaced whole and is on the disk before whoever wrote it goes on.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { writeFileDurably } from '../tensor/durable-file.ts';
import { errnoCode } from '../tensor/errno-code.ts';

export const STATE_FILE = 'state.json';

const stateSchema = z.discriminatedUnion('state', [
  z.strictObject({ format: z.literal(1), state: z.literal('seeding') }),
  z.strictObject({ format: z.literal(1), state: z.literal('dirty'), reason: z.string() }),
  z.strictObject({
    format: z.literal(1),
    state: z.literal('whole'),
    run: z.string().optional().describe('absent = the boot model'),
    version: z.int().min(0),
    boot: z.string().describe('sizes and times of the files that the folder was seeded from'),
    checksums: z.record(z.string(), z.string().regex(/^[0-9a-f]{32}$/)),
  }),
]);

/**
 * `seeding`: the files themselves may be half there. `dirty`: the files are there, their tensors' bytes are not known.
 * `whole`: the bytes are those of the version.
 */
export type FolderState = z.output<typeof stateSchema>;

/** Undefined when there is none; text that cannot be understood counts as `seeding`. */
export async function readFolderState(directory: string): Promise<FolderState | undefined> {
  const path = join(directory, STATE_FILE);
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (error) {
    if (errnoCode(error) === 'ENOENT') return undefined;
    throw new HoneError('store-failed', `Could not read ${path}: ${reasonOf(error)}.`, {
      cure: 'Check the disk and the permissions of that folder.',
      cause: error,
    });
  }
  try {
    return stateSchema.parse(JSON.parse(text));
  } catch {
    return { format: 1, state: 'seeding' };
  }
}

export async function writeFolderState(directory: string, state: FolderState): Promise<void> {
  await writeFileDurably(join(directory, STATE_FILE), [Buffer.from(`${JSON.stringify(state)}\n`)], { mode: 'replace' });
}

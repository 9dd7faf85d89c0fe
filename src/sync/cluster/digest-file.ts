/**
 * The digests of an object's chunks, on the disk beside its data, so that a process that comes after a crash knows what it may use.
 * Written behind, many at a time. Invariant: it only ever spares bytes: a chunk without its digest here is fetched again.
 */
import { open, type FileHandle } from 'node:fs/promises';

import { DIGEST_BYTES } from './chunk-digest.ts';
import { writeAll } from './write-all.ts';

export class DigestFile {
  readonly #file: FileHandle;
  readonly #waiting = new Map<number, string>();
  #written: Promise<void> = Promise.resolve();

  private constructor(file: FileHandle) {
    this.#file = file;
  }

  /** With the digests that lie there, by chunk. */
  static async open(
    path: string,
    { isNew, chunkCount }: { readonly isNew: boolean; readonly chunkCount: number },
  ): Promise<{ file: DigestFile; digests: (string | undefined)[] }> {
    const file = await open(path, isNew ? 'w+' : 'r+');
    try {
      return { file: new DigestFile(file), digests: await readDigests(file, chunkCount) };
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  keep(chunk: number, digest: string): void {
    this.#waiting.set(chunk, digest);
    if (this.#waiting.size > 1) return;
    this.#written = this.#written.then(async () => this.#write());
  }

  /** Resolves when what was kept so far is written. Never rejects. */
  async settled(): Promise<void> {
    await this.#written;
  }

  async close(): Promise<void> {
    await this.#written;
    await this.#file.close();
  }

  async #write(): Promise<void> {
    const batch = [...this.#waiting].sort(([one], [other]) => one - other);
    this.#waiting.clear();
    try {
      for (let from = 0; from < batch.length;) {
        const [first = 0] = batch[from] ?? [];
        let to = from + 1;
        while (batch[to]?.[0] === first + to - from) to += 1;
        const run = batch.slice(from, to).map(([, digest]) => digest);
        await writeAll(this.#file, Buffer.from(run.join(''), 'hex'), first * DIGEST_BYTES);
        from = to;
      }
    } catch {
      // A chunk without its digest is fetched again by the next process.
    }
  }
}

async function readDigests(file: FileHandle, chunkCount: number): Promise<(string | undefined)[]> {
  const bytes = await file.readFile();
  return Array.from({ length: chunkCount }, (_, chunk) => {
    const digest = bytes.subarray(chunk * DIGEST_BYTES, (chunk + 1) * DIGEST_BYTES);
    return digest.byteLength < DIGEST_BYTES || digest.every((byte) => byte === 0) ? undefined : digest.toString('hex');
  });
}

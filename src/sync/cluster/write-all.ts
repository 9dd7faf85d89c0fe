/** Writes at a place of a file until every byte is there: one call may take a part only. */
import type { FileHandle } from 'node:fs/promises';

export async function writeAll(file: FileHandle, bytes: Uint8Array, position: number): Promise<void> {
  let written = 0;
  while (written < bytes.byteLength)
    written += (await file.write(bytes, written, bytes.byteLength - written, position + written)).bytesWritten;
}

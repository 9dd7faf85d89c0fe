/**
 * xxh3-128 of a whole object as its chunks come, for the sizes and checksums that an index holds of its files.
 * Invariant: the digest is that of the bytes in order, however they are cut; other work of the thread gets its turn in between.
 */
import { setImmediate } from 'node:timers/promises';

import { compileDeltaKernels, DeltaKernels } from './delta/delta-kernels.ts';
import type { ObjectBody } from './store/weight-store.ts';

/** Bytes hashed before others get a turn: a few milliseconds. */
const TURN_BYTES = 16 << 20;

let compiled: Promise<WebAssembly.Module> | undefined;

export async function objectChecksum(body: ObjectBody, signal?: AbortSignal): Promise<string> {
  compiled ??= compileDeltaKernels();
  const kernels = new DeltaKernels(await compiled);
  kernels.resetHash('blob');
  let sinceTurn = 0;
  for await (const chunk of body.chunks()) {
    for (let start = 0; start < chunk.byteLength; start += TURN_BYTES) {
      const part = chunk.subarray(start, start + TURN_BYTES);
      kernels.hashBytes('blob', part);
      sinceTurn += part.byteLength;
      if (sinceTurn < TURN_BYTES) continue;
      sinceTurn = 0;
      await setImmediate();
      signal?.throwIfAborted();
    }
  }
  return kernels.digest('blob').toString('hex');
}

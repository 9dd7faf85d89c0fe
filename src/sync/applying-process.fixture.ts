/**
 * A process that opens a folder of weights and brings it to the newest version of a store, for tests that kill it. Arguments: store,
 * folder, boot model, and how many tensors it changes in place before it kills itself. Prints what the folder holds when it opens
 * and when it is done.
 */
import { pathToFileURL } from 'node:url';

import { catchUp } from './catch-up.ts';
import { CodecPool } from './delta/codec-pool.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { FolderWeights } from './folder-weights.ts';
import { FileStore } from './store/file-store.ts';
import { LATEST_POINTER, parseIdentity } from './version-directory.ts';

async function main([root = '', folder = '', bootModel = '', killAt = '']: readonly string[]): Promise<void> {
  const store = await FileStore.open(root);
  const pool = await CodecPool.start({ threads: 1 });
  const weights = await FolderWeights.open(folder, { bootModel, codec: pool });
  process.stdout.write(`held ${weights.held?.version ?? 'nothing'}\n`);
  let changes = 0;
  const changed = (): void => {
    if (++changes === Number(killAt)) process.kill(process.pid, 'SIGKILL');
  };
  const codec: TensorCodec = {
    encode: (job, signal) => pool.encode(job, signal),
    apply: async (job, signal) => {
      await pool.apply(job, signal);
      changed();
    },
    copy: async (job, signal) => {
      const checksum = await pool.copy(job, signal);
      changed();
      return checksum;
    },
    checksum: (place, options) => pool.checksum(place, options),
    close: () => pool.close(),
    [Symbol.asyncDispose]: () => pool.close(),
  };
  const pointer = await store.readPointer(LATEST_POINTER);
  if (pointer !== undefined)
    await catchUp(store, parseIdentity(pointer.value, LATEST_POINTER), {
      codec,
      weights,
      cacheDirectory: `${folder}.cache`,
      now: () => performance.now(),
    });
  process.stdout.write(`held ${weights.held?.version ?? 'nothing'}\n`);
  await weights.close();
  await pool.close();
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main(process.argv.slice(2));

/** What the weight commands share, where a process of its own would tell no more: Ctrl-C is an error in one sentence. */
import { existsSync } from 'node:fs';

import { expect, it } from 'vitest';

import { withCodec } from './weights-store.ts';

it.each(['SIGINT', 'SIGTERM'] as const)('%s calls the work off with a sentence, and leaves nothing', async (name) => {
  const before = process.listeners(name);
  let cache = '';
  await expect(
    withCodec(async ({ signal, cacheDirectory }) => {
      cache = cacheDirectory;
      // As the system would: to the real signal others in this process listen as well.
      for (const listener of process.listeners(name)) if (!before.includes(listener)) listener(name);
      signal.throwIfAborted();
    }),
  ).rejects.toMatchObject({ code: 'aborted', message: `Called off by ${name}.`, cure: 'Call it again for the rest.' });
  expect(process.listeners(name)).toEqual(before);
  expect(existsSync(cache)).toBe(false);
});

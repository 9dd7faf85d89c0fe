import { expect, test } from 'vitest';

import type { HoneError } from '../domain/errors.ts';
import { watchEngine } from './engine-watch.ts';

test('an engine that stops answering is reported once, one that answers late is not', async () => {
  let answer: (() => void) | undefined;
  let asked = 0;
  const engine = {
    stats: () => {
      asked++;
      return new Promise<void>((resolve) => (answer = resolve));
    },
  };
  const reports: HoneError[] = [];
  const watch = watchEngine(engine, { everyMs: 2, silenceMs: 200, onSilent: (error) => reports.push(error) });
  try {
    // Each question is answered when the next turn of this loop sees it.
    for (let round = 1; round <= 3; round++) {
      await expect.poll(() => asked, { timeout: 20_000, interval: 1 }).toBe(round);
      answer?.();
    }
    expect(reports).toEqual([]);
    await expect.poll(() => reports.length, { timeout: 20_000, interval: 1 }).toBe(1);
    expect(reports[0]).toMatchObject({ code: 'engine-failed' });
    expect(reports[0]?.message).toContain('answered nothing for 0.2 s');
    expect(asked).toBe(4);
  } finally {
    watch.stop();
  }
});

test('a refused question is an answer: whoever failed says so elsewhere', async () => {
  let asked = 0;
  const reports: HoneError[] = [];
  const engine = {
    stats: () => {
      asked++;
      return Promise.reject(new Error('closed'));
    },
  };
  const watch = watchEngine(engine, { everyMs: 1, silenceMs: 2, onSilent: (error) => reports.push(error) });
  await expect.poll(() => asked, { timeout: 20_000, interval: 1 }).toBeGreaterThan(5);
  watch.stop();
  expect(reports).toEqual([]);
});

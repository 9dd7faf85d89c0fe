import { describe, expect, it } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { forEachBounded } from './bounded-work.ts';
import { Deadline, limitForBytes } from './deadline.ts';

const late = (): HoneError => new HoneError('store-unavailable', 'Too late.');
const never = new Promise<never>(() => undefined);

describe('a deadline', () => {
  it('ends a wait that has no end, and lets one through that is in time', async () => {
    using deadline = new Deadline({ limitMs: 10, expired: late });
    expect(await deadline.race(Promise.resolve(7))).toBe(7);
    await expect(deadline.race(never)).rejects.toThrow('Too late.');
    await expect(deadline.race(Promise.resolve(7))).rejects.toThrow('Too late.');
    expect(deadline.signal.reason).toMatchObject({ code: 'store-unavailable' });
  });

  it('follows its parent, with a typed error', async () => {
    const parent = new AbortController();
    using deadline = new Deadline({ signal: parent.signal, limitMs: Infinity, expired: late });
    const waiting = deadline.race(never);
    parent.abort(new Error('enough'));
    await expect(waiting).rejects.toMatchObject({ code: 'aborted', cause: { message: 'enough' } });
    using born = new Deadline({ signal: parent.signal, limitMs: Infinity, expired: late });
    expect(born.signal.aborted).toBe(true);
  });

  it('for bytes is what they need at 20 MB/s, and the time besides', () => {
    expect(limitForBytes(1000, 0)).toBe(1000);
    expect(limitForBytes(1_800_000, 2e12) / 3_600_000).toBeCloseTo(28.3, 1); // 0.5 h + 27.8 h
  });

  it('counts anew from each sign of life', async () => {
    using deadline = new Deadline({ limitMs: 600, expired: late });
    for (const startedMs = performance.now(); performance.now() - startedMs < 800; deadline.touch())
      await new Promise((resolve) => setTimeout(resolve, 10));
    expect(deadline.signal.aborted).toBe(false);
    await expect(deadline.race(never)).rejects.toThrow('Too late.');
  });
});

describe('bounded work', () => {
  it('runs at most so many at a time, all of them', async () => {
    let running = 0;
    let most = 0;
    const done: number[] = [];
    await forEachBounded([1, 2, 3, 4, 5, 6, 7], { limit: 3 }, async (item) => {
      most = Math.max(most, ++running);
      await new Promise((resolve) => setImmediate(resolve));
      running -= 1;
      done.push(item);
    });
    expect([most, done.length]).toEqual([3, 7]);
  });

  it('throws the first failure when nothing of it runs any more, and starts nothing new', async () => {
    const gate = Promise.withResolvers<void>();
    const seen: string[] = [];
    const work = forEachBounded(['slow', 'bad', 'unseen'], { limit: 2 }, async (item, signal) => {
      seen.push(item);
      if (item === 'bad') throw new Error('bad');
      signal.addEventListener('abort', () => gate.resolve());
      await gate.promise;
      seen.push('slow has ended');
    });
    await expect(work).rejects.toThrow('bad');
    expect(seen).toEqual(['slow', 'bad', 'slow has ended']);
    await expect(
      forEachBounded([1], { limit: 1, signal: AbortSignal.abort(late()) }, () => Promise.resolve()),
    ).rejects.toThrow('Too late.');
  });
});

import { describe, expect, it } from 'vitest';

import { createEngine } from './engine.ts';

describe('the engine', () => {
  it('gives aligned memory, takes it back, and grows', async () => {
    const engine = await createEngine({ build: 'plain', threads: 1 });
    const first = engine.alloc(3);
    const mark = engine.mark();
    const second = engine.alloc(100);
    expect([first % 64, second % 64, second - first]).toEqual([0, 0, 64]);
    const large = engine.allocFloats(40_000_000);
    engine.f32(large, 40_000_000).fill(1, 39_999_999);
    expect(engine.f32(large, 40_000_000)[39_999_999]).toBe(1);
    engine.release(mark);
    expect(engine.alloc(1)).toBe(second);
    await engine.close();
  });

  it('runs every item exactly once with any number of threads, idle or busy, and when the number changes', async () => {
    const engine = await createEngine({ build: 'plain', threads: 3 });
    const count = 1000;
    const ones = engine.allocF32(new Float32Array(count * 4).fill(1));
    const sums = engine.allocF32(new Float32Array(count * 4));
    let expected = 0;
    for (const threads of [3, 1, 2, 4, 2]) {
      engine.setThreads(threads);
      await engine.ready();
      const before = engine.workerChunks;
      expect(engine.threads).toBe(threads);
      // Small jobs may be over before a worker wakes, so they go on until one has helped.
      for (let round = 0; round < 300 || (threads > 1 && engine.workerChunks === before && round < 1e6); round++) {
        engine.run('take', count, 1, sums, ones);
        engine.f32(ones, count * 4).fill(1);
        expected++;
        // Now and then long enough for workers to fall asleep.
        if (round % 100 === 99) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
      }
      expect(engine.f32(sums, count * 4).every((sum) => sum === expected)).toBe(true);
      expect(engine.workerChunks > before).toBe(threads > 1);
    }
    await engine.close();
  });

  it('says how to get more memory when there is none', async () => {
    const engine = await createEngine({ build: 'plain', threads: 1, maxMemoryBytes: 200 * 1024 * 1024 });
    expect(() => engine.alloc(2 ** 30)).toThrow(/may use 209715200/);
    await engine.close();
    await expect(createEngine({ maxMemoryBytes: 1 })).rejects.toThrow(/maxMemoryBytes is 1/);
  });

  it('refuses impossible thread counts, and work after close', async () => {
    const engine = await createEngine({ build: 'plain', threads: 1 });
    expect(() => engine.setThreads(0)).toThrow(/threads is 0/);
    expect(() => engine.setThreads(17)).toThrow(/threads is 17/);
    await engine.close();
    expect(() => engine.run('take', 1, 1, 0, 0)).toThrow(/closed/);
  });

  it.each([1, 2])('reports a kernel that traps, with %s threads', async (threads) => {
    const engine = await createEngine({ build: 'plain', threads });
    expect(() => engine.run('take', 100, 1, 2 ** 32 - 64, 2 ** 32 - 64)).toThrow(/Kernel take trapped/);
    await engine.close();
  });

  it('takes the fused build where the runtime has it', async () => {
    const engine = await createEngine({ threads: 1 });
    expect(engine.build).toBe('fma');
    await engine.close();
  });
});

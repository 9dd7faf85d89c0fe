/** Bands of few tasks: the t distribution's own figures, slopes of 0 that must not pass, and how many tasks would tell. */
import { describe, expect, it } from 'vitest';

import { createRandom, deriveSeed } from '../domain/ids.ts';
import { tasksForSlope, widenBand } from './slope-band.ts';
import { measureSlope } from './slope.ts';

describe('widenBand', () => {
  it.each([
    [2, 12.7062],
    [3, 4.30265],
    [4, 3.18245],
    [5, 2.77645],
    [11, 2.22814],
    [31, 2.04227],
  ])('makes each side of a band of %d tasks as much longer as the t distribution says', (tasks, quantile) => {
    const { estimate, low, high } = widenBand({ estimate: 1, low: 0, high: 4 }, tasks);
    const factor = (quantile / 1.959964) * Math.sqrt(tasks / (tasks - 1));
    expect(estimate).toBe(1);
    expect(Math.abs((1 - low) / factor - 1)).toBeLessThan(0.0015);
    expect(Math.abs((high - 1) / (3 * factor) - 1)).toBeLessThan(0.0015);
  });

  it('knows no band of one task, and leaves that of very many as it is', () => {
    expect(widenBand({ estimate: 1, low: 1, high: 1 }, 1)).toEqual({ estimate: 1, low: -Infinity, high: Infinity });
    expect(widenBand({ estimate: 1, low: 0, high: 3 }, 100_000).low).toBeCloseTo(0, 4);
  });

  it('lets a slope of 0 pass for one above 0 about once in forty, with two tasks as with twenty', () => {
    const runs = 500;
    for (const tasks of [2, 3, 6, 10, 20]) {
      let passed = 0;
      for (let run = 0; run < runs; run++) {
        const random = createRandom(deriveSeed(2, tasks, run));
        const samples = Array.from({ length: tasks }, (_, task) => {
          const difficulty = random.next();
          return Array.from({ length: 6 }, () => ({
            taskId: `task-${task}`,
            success: random.next() < 0.7 - 0.5 * difficulty ? 1 : 0,
            cost: 1 + 5 * difficulty + random.next(),
          }));
        }).flat();
        if (measureSlope(samples, { seed: run, resamples: 200 }).withinTask.low > 0) passed += 1;
      }
      // 2.5 % is the aim, and 500 runs tell it to 0.7 points; the plain percentile band lets 19 to 22 % pass at two tasks.
      expect(passed / runs, `${tasks} tasks`).toBeLessThan(0.05);
    }
  });
});

describe('tasksForSlope', () => {
  it('is the number at which four of five tries tell the slope from 0', () => {
    const standardError = 2;
    const half = 1.96 * standardError;
    const needed = tasksForSlope({ estimate: 1, low: 1 - half, high: 1 + half }, 50) ?? 0;
    const shrunk = standardError * Math.sqrt(50 / needed);
    const random = createRandom(5);
    const normal = (): number => Math.sqrt(-2 * Math.log(1 - random.next())) * Math.cos(2 * Math.PI * random.next());
    const told = Array.from({ length: 20_000 }, () => 1 + shrunk * normal() > 1.96 * shrunk).filter(Boolean).length;
    expect(told / 20_000).toBeCloseTo(0.8, 2);
  });

  it('asks for more than there are, by the longer of half the band and its lower side', () => {
    expect(tasksForSlope({ estimate: 1, low: 0.9, high: 1.1 }, 50)).toBe(51);
    const clamped = tasksForSlope({ estimate: 1, low: 0, high: 5 }, 50) ?? 0;
    const symmetric = tasksForSlope({ estimate: 1, low: -1.5, high: 3.5 }, 50) ?? 0;
    expect(clamped).toBe(symmetric);
    expect(clamped).toBeGreaterThan(600);
  });

  it('knows of no number where the slope is not above 0 or the band has no end', () => {
    expect(tasksForSlope({ estimate: 0, low: 0, high: 1 }, 50)).toBeUndefined();
    expect(tasksForSlope({ estimate: -1, low: -2, high: 1 }, 50)).toBeUndefined();
    expect(tasksForSlope({ estimate: 1, low: -Infinity, high: Infinity }, 1)).toBeUndefined();
    expect(tasksForSlope({ estimate: Number.NaN, low: 0, high: 1 }, 9)).toBeUndefined();
  });
});

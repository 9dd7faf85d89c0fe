import { expect, test } from 'vitest';

import { summariseEfforts } from './effort-evaluation.ts';
import type { EvaluationLine } from './effort-evaluation.ts';

const line = (task: string, effort: string, success: number, lookups: number): EvaluationLine => ({
  task,
  effort,
  attempt: 0,
  success,
  precision: success,
  recall: success,
  cost: { tokens: 100 * lookups, sampledTokens: 5, turns: 2 + lookups, toolSeconds: 0, lookups },
  cheated: false,
  latencySeconds: 1,
});

test('means are over rollouts, and tasks are what is resampled', () => {
  const lines = [
    line('a', 'low', 1, 0),
    // A task with more rollouts weighs more.
    line('b', 'low', 0, 1),
    line('b', 'low', 0, 3),
    line('a', 'high', 1, 4),
    line('b', 'high', 0.5, 2),
  ];
  const [low, high] = summariseEfforts(lines, { seed: 1 });
  expect([low?.effort, low?.tasks, low?.rollouts]).toEqual(['low', 2, 3]);
  expect(low?.success.estimate).toBeCloseTo(1 / 3, 12);
  expect(low?.lookups.estimate).toBeCloseTo(4 / 3, 12);
  expect(low?.turns.estimate).toBeCloseTo(2 + 4 / 3, 12);
  expect(high?.tokens.estimate).toBeCloseTo(300, 12);
  // Of two tasks one alone may be drawn.
  expect([low?.success.low, low?.success.high]).toEqual([0, 1]);
  expect([high?.success.low, high?.success.high]).toEqual([0.5, 1]);
});

test('one task at an effort is too few for an interval', () => {
  expect(() => summariseEfforts([line('a', 'low', 1, 0)], { seed: 1 })).toThrow(/at least 2 tasks, got 1/u);
});

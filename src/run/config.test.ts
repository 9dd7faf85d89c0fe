import { expect, test } from 'vitest';

import { resolveConfig } from './config.ts';

const minimal = { name: 'r', model: 'models/nano' };
const messageOf = (input: unknown): string => {
  try {
    resolveConfig(input, 'hone.config.ts');
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
  return 'accepted';
};

test('defaults are resolved, the staleness bound from the mode', () => {
  expect(resolveConfig(minimal, 'x').schedule).toMatchObject({ mode: 'async', maxStaleness: 1 });
  expect(resolveConfig({ ...minimal, schedule: { mode: 'sync' } }, 'x').schedule.maxStaleness).toBe(0);
});

test('a mistyped key is refused with its path and the key that was meant', () => {
  expect(messageOf({ ...minimal, sampling: { temprature: 0.7 } })).toContain(
    'sampling.temprature is not a known option (did you mean temperature?)',
  );
  expect(messageOf({ ...minimal, algorithm: { flux: 1 } })).toContain('algorithm.flux is not a known option.');
});

test('every problem is reported at once', () => {
  const message = messageOf({ name: 'r', sampling: { topP: 0 }, algorithm: { groupSize: 1, steps: 'many' } });
  expect(message).toContain('4 problems');
  for (const key of ['model', 'sampling.topP', 'algorithm.groupSize', 'algorithm.steps'])
    expect(message).toContain(key);
});

test('impossible mixes are refused, each with its cure', () => {
  expect(messageOf({ ...minimal, replay: { keptSets: false } })).toMatch(
    /replay\.keptSets is false while sampling is truncated \(topP 0\.98.*Set replay\.keptSets to true, or replay\.acknowledgeMismatch/u,
  );
  expect(messageOf({ ...minimal, replay: { keptSets: false, acknowledgeMismatch: true } })).toBe('accepted');
  expect(messageOf({ ...minimal, replay: { keptSets: false }, sampling: { topP: 1 } })).toBe('accepted');
  expect(messageOf({ ...minimal, schedule: { mode: 'async', maxStaleness: 0 } })).toMatch(
    /schedule\.maxStaleness is 0 while schedule\.mode is async.*use schedule\.mode sync/u,
  );
  expect(messageOf({ ...minimal, schedule: { mode: 'sync', maxStaleness: 2 } })).toMatch(
    /schedule\.maxStaleness is 2 while schedule\.mode is sync/u,
  );
  expect(messageOf({ ...minimal, schedule: { concurrency: 200 } })).toMatch(
    /engine\.slots is 96, fewer than schedule\.concurrency 200/u,
  );
});

test('an option that another one makes meaningless is refused, not ignored', () => {
  expect(messageOf({ ...minimal, reward: { precisionWeight: 2, recalibrationBand: 2 } })).toContain(
    'reward.recalibrationBand, as reward.precisionWeight is a number',
  );
  expect(messageOf({ ...minimal, eval: { controls: false, controlTasks: 9 } })).toContain('eval.controlTasks');
  expect(messageOf({ ...minimal, replay: { acknowledgeMismatch: true } })).toContain('no mismatch to acknowledge');
});

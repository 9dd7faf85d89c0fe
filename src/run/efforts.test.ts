import { expect, test } from 'vitest';

import { resolveConfig } from './config.ts';
import { effortAt, effortBudget, effortsOf, tellsEffort } from './efforts.ts';

const base = { name: 'r', model: 'models/nano', eval: { tasks: 0, controls: false } };
const config = resolveConfig(
  { ...base, efforts: { low: { maxLookups: 0, maxTurns: 6 }, medium: { maxLookups: 2 }, high: {} } },
  'test',
);

test('a run that names no effort has one, and its model is told none', () => {
  const plain = resolveConfig(base, 'test');
  expect(effortsOf(plain)).toEqual(['standard']);
  expect(tellsEffort(plain)).toBe(false);
  expect(effortAt(plain, 12)).toBe('standard');
  expect(effortBudget(plain, 'standard')).toEqual({ maxTurns: 24, maxTokens: 256, maxSeconds: 60 });
});

test('the limits of an effort go before those of the harness, 0 included', () => {
  expect(effortsOf(config)).toEqual(['low', 'medium', 'high']);
  expect(tellsEffort(config)).toBe(true);
  expect(effortBudget(config, 'low')).toEqual({ maxLookups: 0, maxTurns: 6, maxTokens: 256, maxSeconds: 60 });
  expect(effortBudget(config, 'medium')).toEqual({ maxLookups: 2, maxTurns: 24, maxTokens: 256, maxSeconds: 60 });
  expect(effortBudget(config, 'high')).toEqual({ maxTurns: 24, maxTokens: 256, maxSeconds: 60 });
});

test('groups draw efforts uniformly, by seed and place alone, in whatever order they are named', () => {
  const draws = Array.from({ length: 3000 }, (_, ordinal) => effortAt(config, ordinal));
  // Four standard deviations of a share of a third over 3,000 draws are 0.034.
  for (const effort of effortsOf(config))
    expect(Math.abs(draws.filter((drawn) => drawn === effort).length / 3000 - 1 / 3)).toBeLessThan(0.034);
  const { low = {}, medium = {}, high = {} } = config.efforts;
  const renamed = { ...config, efforts: { high, low, medium } };
  expect(draws.map((_, ordinal) => effortAt(renamed, ordinal))).toEqual(draws);
  expect(draws.some((drawn, ordinal) => effortAt({ ...config, seed: 2 }, ordinal) !== drawn)).toBe(true);
});

import { expect, it } from 'vitest';

import { lowestTrue } from './bisection.ts';

it('finds the first double at which a condition holds', () => {
  const root = lowestTrue((value) => value * value >= 2, [0, 2]);
  expect(root * root).toBeGreaterThanOrEqual(2);
  expect((root - Number.EPSILON) ** 2).toBeLessThan(2);
});

it('is an end of the range where the condition holds everywhere, or nowhere', () => {
  expect(lowestTrue(() => true, [3, 5])).toBe(3);
  expect(lowestTrue(() => false, [3, 5])).toBe(5);
});

/** Quantiles against the printed table of Student's t. */
import { expect, it } from 'vitest';

import { studentQuantile } from './student-quantile.ts';

it.each([
  [0.975, 1, 12.7062],
  [0.975, 2, 4.30265],
  [0.975, 3, 3.18245],
  [0.95, 4, 2.13185],
  [0.975, 10, 2.22814],
  [0.995, 29, 2.75639],
  [0.975, 200, 1.9719],
])('gives the tabulated value at share %f with %i degrees of freedom', (share, freedom, expected) => {
  expect(studentQuantile(share, freedom)).toBeCloseTo(expected, 4);
});

it('is 0 in the middle and refuses what has no quantile', () => {
  expect(studentQuantile(0.5, 7)).toBeCloseTo(0, 12);
  expect(() => studentQuantile(1, 7)).toThrow('share 1');
  expect(() => studentQuantile(0.975, 0)).toThrow('0 degrees of freedom');
});

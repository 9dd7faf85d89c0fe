/** Names of efforts: what they may be. */
import { expect, it } from 'vitest';

import { STANDARD_EFFORT, effortSchema } from './effort.ts';

it.each([STANDARD_EFFORT, 'low', 'x-high', 'e2'])('%s is an effort', (name) => {
  expect(effortSchema.parse(name)).toBe(name);
});

it.each(['', 'Low', '2x', 'very high', '__proto__', 'constructor'])('%s is none', (name) => {
  expect(effortSchema.safeParse(name).success).toBe(false);
});

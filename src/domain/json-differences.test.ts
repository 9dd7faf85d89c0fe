import { describe, expect, it } from 'vitest';

import { jsonDifferences } from './json-differences.ts';

describe('jsonDifferences', () => {
  it('names what changed by its path, in the order of the keys', () => {
    const before = { seed: 1, schedule: { steps: 10, groups: 4 }, tasks: ['a', 'b'], kept: { same: [1, { x: null }] } };
    const after = { seed: 2, schedule: { steps: 10, groups: 8 }, tasks: ['a', 'c'], kept: { same: [1, { x: null }] } };
    expect(jsonDifferences(before, after)).toEqual([
      'seed was 1, is now 2',
      'schedule.groups was 4, is now 8',
      'tasks.1 was "b", is now "c"',
    ]);
    expect(jsonDifferences(before, structuredClone(before))).toEqual([]);
  });

  it('tells keys that came and went, other kinds of value, and lists of other lengths as one', () => {
    expect(jsonDifferences({ old: 1 }, { fresh: [] })).toEqual([
      'old was 1, is now undefined',
      'fresh was undefined, is now []',
    ]);
    expect(jsonDifferences({ a: { b: 1 } }, { a: null })).toEqual(['a was {"b":1}, is now null']);
    expect(jsonDifferences({ a: { 0: 1 } }, { a: [1] })).toEqual(['a was {"0":1}, is now [1]']);
    expect(jsonDifferences({ arms: [1, 2, 3] }, { arms: [1] })).toEqual(['arms had 3 entries, now has 1']);
    expect(jsonDifferences(3, 4, 'steps')).toEqual(['steps was 3, is now 4']);
  });
});

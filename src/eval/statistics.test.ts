/** Paired differences are paired, and the area under the curve counts what it says. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { createRandom } from '../domain/ids.ts';
import { excludesZero } from '../domain/statistics.ts';
import { areaUnderCurve, pairedDifference } from './statistics.ts';

function uniform(count: number, seed: number): Float64Array {
  const random = createRandom(seed);
  return Float64Array.from({ length: count }, () => random.next());
}

describe('pairedDifference', () => {
  it('is narrow where values move together, and wide where the pairing is broken', () => {
    const before = uniform(300, 3);
    const after = before.map((value) => value + 0.01);
    const paired = pairedDifference({ before, after }, { seed: 1 });
    expect(paired.low).toBeCloseTo(0.01, 10);
    expect(excludesZero(paired)).toBe(true);
    expect(excludesZero(pairedDifference({ before, after: after.toReversed() }, { seed: 1 }))).toBe(false);
  });
});

describe('areaUnderCurve', () => {
  const items = fc.array(fc.record({ score: fc.integer({ min: 0, max: 5 }), positive: fc.boolean() }), {
    maxLength: 30,
  });

  it('is the share of pairs in the right order, ties half', () => {
    fc.assert(
      fc.property(items, (list) => {
        let wins = 0;
        let pairs = 0;
        for (const one of list.filter(({ positive }) => positive)) {
          for (const other of list.filter(({ positive }) => !positive)) {
            pairs++;
            if (one.score > other.score) wins++;
            else if (one.score === other.score) wins += 0.5;
          }
        }
        const area = areaUnderCurve(list);
        if (pairs === 0) expect(area).toBeUndefined();
        else expect(area).toBeCloseTo(wins / pairs, 12);
      }),
      { numRuns: 200, seed: 4 },
    );
  });

  it('counts a weighted item as that many copies', () => {
    const once = areaUnderCurve([
      { score: 1, positive: false, weight: 3 },
      { score: 2, positive: true },
      { score: 2, positive: false },
    ]);
    const copies = areaUnderCurve(
      [1, 1, 1, 2].map((score) => ({ score, positive: false })).concat([{ score: 2, positive: true }]),
    );
    expect(once).toBe(copies);
  });
});

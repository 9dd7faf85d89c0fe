/** The table beside the published one: what is marked and when, how wide it is, and that it holds every arm. */
import { describe, expect, it } from 'vitest';

import { factorName } from './study-arms.ts';
import { inventRecord } from './study-record.fixture.ts';
import { summariseStudy } from './study-summary.ts';
import type { StudySummary } from './study-summary.ts';
import { compareWithPublished, compareWrongPrices, fixed, renderStudyTable } from './study-table.ts';

const record = inventRecord({ recordEvery: 500 });
const summary = summariseStudy(record);

/** The same summary with one figure moved by so many of its intervals from the published -16.26 %. */
function withFixedMediumSaving(intervals: number): StudySummary {
  const arms = summary.arms.map((arm, position) => ({
    ...arm,
    efforts: arm.efforts.map((effort, place) => {
      if (position !== 0 || place !== 1) return effort;
      const { savingPercent } = effort.last;
      const mean = -16.26 + intervals * (savingPercent.seedHalfWidth ?? Number.NaN);
      return { ...effort, last: { ...effort.last, savingPercent: { ...savingPercent, mean } } };
    }),
  }));
  return { ...summary, arms };
}

describe('the comparison', () => {
  it('marks a figure exactly when it is further away than the noise of its seeds and of the three published ones', () => {
    const markOf = (intervals: number): boolean | undefined =>
      compareWithPublished(withFixedMediumSaving(intervals), record.plan).rows[1]?.saving.isBeyondSeeds;
    const bound = Math.sqrt(1 + (record.plan.arms[0]?.seeds ?? Number.NaN) / 3);
    expect(markOf(0.95 * bound)).toBe(false);
    expect(markOf(1.05 * bound)).toBe(true);
    expect(markOf(-1.05 * bound)).toBe(true);
  });

  it('marks nothing where the plan is another one, and says why', () => {
    for (const [changes, reason] of [
      [{ steps: 50, recordEvery: 50 }, '50 steps'],
      [{ problems: [1, 2, 3] }, '3 of its 100 problems'],
      [{ batch: 12 }, '12 rollouts a step'],
    ] as const) {
      const other = inventRecord(changes, { hasWrongSlopes: false });
      const { rows, obstacle } = compareWithPublished(summariseStudy(other), other.plan);
      expect(obstacle).toContain(reason);
      expect(rows.some(({ saving, gain }) => saving.isBeyondSeeds || gain.isBeyondSeeds)).toBe(false);
      expect(renderStudyTable(summariseStudy(other), other.plan)).toContain(reason);
    }
  });

  it('sets wrong starting prices beside the prototype and right ones beside the published table', () => {
    const rows = compareWrongPrices(summary, record.plan);
    expect(rows.find(({ name, effort }) => name === 'fixed price, ×⅓' && effort === 1)?.saving.published).toBe(-193);
    expect(rows.find(({ name, effort }) => name === 'α = 0.5, ×1' && effort === 1)?.gain.published).toBe(14.8);
    const steered = rows.filter(({ name, effort }) => name.startsWith('α') && effort === 1);
    for (const { saving } of steered) expect(Math.abs(saving.mean - saving.closedForm)).toBeLessThan(1.5);
  });
});

describe('the text table', () => {
  it('has a row an arm and effort and at most 100 columns', () => {
    const text = renderStudyTable(summary, record.plan);
    const lines = text.split('\n');
    expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(100);
    expect(lines.filter((line) => /^(fixed price|α = [\d.]+) +(low|medium|high)/.test(line))).toHaveLength(18);
    expect(lines.filter((line) => /×(3|⅓)/.test(line))).toHaveLength(12);
    expect(text).toMatch(/α = 0\.5 +medium +14\.\d/);
    expect(text).toContain('-16.3');
  });
});

describe('numbers and names', () => {
  it('have a true minus, no minus zero, and fractions for small factors', () => {
    expect([fixed(-1.25, 1), fixed(-0.01, 1), fixed(null, 1), fixed(Number.NaN, 1)]).toEqual(['−1.3', '0.0', '–', '–']);
    expect([factorName(3), factorName(1 / 3), factorName(0.1), factorName(0.7)]).toEqual(['×3', '×⅓', '×1/10', '×0.7']);
  });
});

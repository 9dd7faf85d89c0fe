/** The tables against the closed form, so that a slip of the pen shows. */
import { expect, it } from 'vitest';

import { fixedLanding, steeredLanding } from './equilibrium.ts';
import { PUBLISHED, publishedRow, REPLICATION, WRONG_SLOPE } from './published-figures.ts';
import { STARTING_COSTS } from './study-record.ts';
import { toyProblem, TOY_PROBLEM_COUNT } from './toy-task.ts';

it('agree with the closed form at q = 1 within 3 points, as the study says', () => {
  for (const { alpha, savingPercent, gainPercent } of [...PUBLISHED.rows, ...REPLICATION.rows]) {
    for (const [effort, startingCost] of STARTING_COSTS.entries()) {
      let saving = 0;
      let gain = 0;
      for (let index = 0; index < TOY_PROBLEM_COUNT; index++) {
        const input = { ...toyProblem(index), startingCost };
        const landing = alpha === null ? fixedLanding(input) : steeredLanding({ ...input, alpha });
        saving += landing.costSaving;
        gain += landing.successGain;
      }
      expect(Math.abs(saving - (savingPercent[effort] ?? Number.NaN))).toBeLessThan(3);
      expect(Math.abs(gain - (gainPercent[effort] ?? Number.NaN))).toBeLessThan(3);
    }
  }
});

it('are found by rule and factor', () => {
  expect(publishedRow(PUBLISHED, { alpha: 0.5, slopeFactor: 1 })?.savingPercent[0]).toBe(15.51);
  expect(publishedRow(WRONG_SLOPE, { alpha: null, slopeFactor: 1 / 3 })?.savingPercent[1]).toBe(-193);
  expect(publishedRow(PUBLISHED, { alpha: 0.4, slopeFactor: 1 })).toBeUndefined();
});

/** The tables against the closed form, so that a slip of the pen shows. */
import { expect, it } from 'vitest';

import { fixedLanding, steeredLanding } from './equilibrium.ts';
import { PUBLISHED, publishedRow, WRONG_SLOPE } from './published-figures.ts';
import { STARTING_COSTS } from './study-record.ts';
import { toyProblem, TOY_PROBLEM_COUNT } from './toy-task.ts';

/** The prototype that WRONG_SLOPE comes from, with the right starting price: 100 problems x 3 seeds x 1,000 steps. */
const PROTOTYPE = [
  { alpha: null, savingPercent: [-63.2, -16.3, 1.6], gainPercent: [98.2, 41.6, 21.9] },
  { alpha: 0, savingPercent: [27.5, 31, 32.3], gainPercent: [1.7, 0.5, 0.9] },
  { alpha: 0.25, savingPercent: [21.2, 22.7, 21.7], gainPercent: [9.2, 7.9, 7.6] },
  { alpha: 0.5, savingPercent: [14.6, 14.6, 12.9], gainPercent: [16.8, 14.9, 12.9] },
  { alpha: 0.75, savingPercent: [7.5, 6.9, 5.8], gainPercent: [24.8, 21.1, 16.8] },
  { alpha: 1, savingPercent: [0.1, -0.1, 0.1], gainPercent: [32.7, 26.6, 19.7] },
] as const;

it('agree with the closed form at q = 1 within 3 points, as the study says', () => {
  for (const { alpha, savingPercent, gainPercent } of [...PUBLISHED.rows, ...PROTOTYPE]) {
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

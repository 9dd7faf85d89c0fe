/** The mean field against the golden runs, the figures of the whole grid, and its fixed points. */
import { expect, it } from 'vitest';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import { createMeanField } from './mean-field.ts';
import { studyPlan } from './study-plan.fixture.ts';
import { RECORD_COLUMNS } from './study-record.ts';

interface GoldenInput {
  pGood: number;
  pBad: number;
  alpha: number;
  eta: number;
  optimizer: 'sgd' | 'adam';
  lr: number;
  decay: boolean;
}

it.each(readVectors<GoldenInput, { rows: number[][] }>('meanFieldGolden'))(
  'meets the golden run of $in',
  ({ in: { pGood, pBad, alpha, eta, optimizer, lr, decay }, out }) => {
    const base = studyPlan();
    const schedule = decay ? { steps: 500, power: 0.6 } : null;
    const run = createMeanField(
      studyPlan({
        actor: { ...base.actor, optimizer, rate: lr, decay: schedule },
        controller: { ...base.controller, rate: eta, decay: schedule },
        recordEvery: 1,
      }),
      { rule: alpha < 0 ? { kind: 'fixed' } : { kind: 'steered', alpha }, slopeFactor: 1, seeds: 1 },
    );
    const values = run({ pGood, pBad });
    // Doubles against 40 digits; Adam divides by the root of tiny squares, so it keeps fewer digits.
    const tolerance = optimizer === 'sgd' ? 1e-12 : 1e-9;
    for (const [step = 0, ...expected] of out.rows) {
      for (const [column, value] of expected.entries()) {
        const actual = values[step * RECORD_COLUMNS.length + column] ?? Number.NaN;
        expect(vectorError(actual, value)).toBeLessThanOrEqual(tolerance);
      }
    }
  },
);

/** The mean field against the golden runs, the figures of the whole grid, and its fixed points. */
import { describe, expect, it } from 'vitest';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import { createMeanField, meanFieldStudy } from './mean-field.ts';
import { studyPlan } from './study-plan.fixture.ts';
import { RECORD_COLUMNS, recordedSteps, STARTING_COSTS } from './study-record.ts';
import { summariseStudy } from './study-summary.ts';
import { toyProblem, toyStart } from './toy-task.ts';
import { steeredLanding } from './equilibrium.ts';

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

describe('the whole grid', () => {
  it('lands on the known figures and keeps the order of alpha in every problem', () => {
    const { arms, order } = summariseStudy(meanFieldStudy(studyPlan()));
    for (const [position, arm] of arms.entries()) {
      for (const { last, closedForm, effort } of arm.efforts) {
        // What is left is q < 1 at step 1,000, and at low effort a last ring.
        expect(Math.abs(last.savingPercent.mean - closedForm.savingPercent)).toBeLessThan(position === 1 ? 3 : 2.5);
        expect(Math.abs(last.gainPercent.mean - closedForm.gainPercent)).toBeLessThan(effort === 'low' ? 2.5 : 1.5);
      }
    }
    expect(order.map(({ strictShare, endsShare }) => [strictShare, endsShare])).toEqual([
      [1, 1],
      [1, 1],
      [1, 1],
    ]);
  });

  it('is a run a problem and arm, in order, with a point a recorded step', () => {
    const plan = studyPlan({ problems: [7, 3], steps: 50, recordEvery: 20 });
    const record = meanFieldStudy(plan);
    expect(record.runs.map(({ problem, seed, arm }) => [problem, seed, arm])).toEqual(
      [3, 7].flatMap((problem) => [0, 1, 2, 3, 4, 5].map((arm) => [problem, 0, arm])),
    );
    const { successes, prices } = toyStart(toyProblem(3));
    for (const { values, references } of record.runs.slice(0, 6)) {
      expect(values).toHaveLength(recordedSteps(plan).length * RECORD_COLUMNS.length);
      expect([...values.subarray(0, 7)]).toEqual([0.5, ...STARTING_COSTS, ...prices]);
      expect(references).toEqual(STARTING_COSTS.map((cost, effort) => ({ success: successes[effort], cost })));
    }
  });
});

it('comes to rest at the steered landing of its q when steps are small and many', () => {
  const base = studyPlan();
  const run = createMeanField(
    studyPlan({
      steps: 20_000,
      actor: { ...base.actor, decay: null, rate: 0.002 },
      controller: { ...base.controller, decay: null, rate: 0.002 },
    }),
    { rule: { kind: 'steered', alpha: 0.5 }, slopeFactor: 3, seeds: 1 },
  );
  const problem = toyProblem(55);
  const [q = Number.NaN, ...rest] = run(problem).subarray(-RECORD_COLUMNS.length);
  for (const [effort, startingCost] of STARTING_COSTS.entries()) {
    const landing = steeredLanding({ ...problem, startingCost, alpha: 0.5, q });
    expect((rest[effort] ?? Number.NaN) / landing.cost).toBeCloseTo(1, 3);
    expect((rest[3 + effort] ?? Number.NaN) / landing.price).toBeCloseTo(1, 3);
  }
});

it('keeps a frozen skill at the start, and costs within their floor and ceiling', () => {
  const rows = (changes: Parameters<typeof studyPlan>[0]): number[][] =>
    meanFieldStudy(studyPlan({ problems: [33], ...changes })).runs.map(({ values }) => [
      ...values.subarray(-RECORD_COLUMNS.length),
    ]);
  for (const [q = 0, low = 0, medium = 0] of rows({ isSkillFrozen: true })) {
    expect(q).toBe(0.5);
    expect(low / 2).toBeCloseTo(1, 6);
    expect(medium / 6).toBeCloseTo(1, 6);
  }
  for (const [, ...rest] of rows({ costFloor: 0.95, costCeiling: 1.02 })) {
    for (const [effort, start] of STARTING_COSTS.entries()) {
      expect((rest[effort] ?? 0) / start).toBeGreaterThanOrEqual(0.95 - 1e-15);
      expect((rest[effort] ?? 0) / start).toBeLessThanOrEqual(1.02 + 1e-15);
    }
  }
});

it('refuses deviations under plain gradient steps, whose size would depend on the noise', () => {
  const { actor } = studyPlan();
  const plan = studyPlan({ baseline: 'deviation', actor: { ...actor, optimizer: 'sgd' } });
  expect(() => meanFieldStudy(plan)).toThrow('no mean field under plain gradient steps');
});

/** Each of the thirteen statements holds on sound evidence and fails on evidence that is broken in its own way. */
import { beforeAll, describe, expect, it } from 'vitest';

import { meanFieldStudy } from './mean-field.ts';
import type { Evidence, Formulas } from './statement.ts';
import { STUDY_EFFORTS } from './study-record.ts';
import type { StudyPlan, StudyRecord } from './study-record.ts';
import { runUnit, studyUnits } from './toy-run.ts';
import {
  gatherEvidence,
  renderVerification,
  STATEMENTS,
  VERIFICATION_PROBLEMS,
  verificationPlans,
  verifyStatement,
  verifyStudy,
} from './verification.ts';

/** The expectation in place of samples: the same landings without noise, in a tenth of a second. */
const simulate = (plan: StudyPlan): Promise<StudyRecord> => Promise.resolve(meanFieldStudy(plan));

let sound: Evidence;
beforeAll(async () => {
  sound = await gatherEvidence({ simulate, seed: 1 });
});

/** The runs of the two arms exchanged, the plan unchanged. */
function swapArms(record: StudyRecord, first: number, second: number): StudyRecord {
  const swapped = new Map([
    [first, second],
    [second, first],
  ]);
  return { ...record, runs: record.runs.map((run) => ({ ...run, arm: swapped.get(run.arm) ?? run.arm })) };
}

/** Every recorded value of one column times a factor, the start left alone. */
function scaleColumn(record: StudyRecord, { column, factor }: { column: number; factor: number }): StudyRecord {
  const width = 1 + 2 * STUDY_EFFORTS.length;
  return {
    ...record,
    runs: record.runs.map((run) => ({
      ...run,
      values: run.values.map((value, index) => (index >= width && index % width === column ? value * factor : value)),
    })),
  };
}

const withFormulas =
  (changes: (formulas: Formulas) => Partial<Formulas>) =>
  (evidence: Evidence): Evidence => ({
    ...evidence,
    formulas: { ...evidence.formulas, ...changes(evidence.formulas) },
  });

// Columns: q, three costs, three prices. Arms: fixed, then alpha 0, 1/4, 1/2, 3/4, 1.
const MEDIUM_COST = 2;
const HIGH_PRICE = 6;
const breakages: [number, string, (evidence: Evidence) => Evidence][] = [
  [1, 'a slope that is off by 1e-11', withFormulas((f) => ({ successSlope: (p) => f.successSlope(p) * (1 + 1e-11) }))],
  [
    2,
    'a golden run whose last price is off by 1e-11',
    (e) => ({
      ...e,
      golden: { ...e.golden, sgd: scaleColumn(e.golden.sgd, { column: HIGH_PRICE, factor: 1 + 1e-11 }) },
    }),
  ],
  [
    2,
    'the run of another problem in place of the Adam one',
    (e) => ({ ...e, golden: { ...e.golden, adam: e.golden.sgd } }),
  ],
  [3, 'swapped arms', (e) => ({ ...e, meanField: swapArms(e.meanField, 0, 3) })],
  [
    3,
    'medium costs that are 1 % too high',
    (e) => ({ ...e, meanField: scaleColumn(e.meanField, { column: MEDIUM_COST, factor: 1.01 }) }),
  ],
  [
    4,
    'a linear grid',
    withFormulas((f) => ({ toyProblem: (i) => ({ ...f.toyProblem(i), pGood: 0.05 + 0.0075 * i }) })),
  ],
  [
    5,
    'landings that stay a little short',
    withFormulas((f) => ({ fixedLanding: (p) => ({ ...f.fixedLanding(p), cost: 0.98 * f.fixedLanding(p).cost }) })),
  ],
  [
    6,
    'a constant weight of 1/2',
    withFormulas((f) => ({ linearise: (p) => ({ ...f.linearise(p), precisionWeight: 0.5 }) })),
  ],
  [6, 'a tangent that is too low', withFormulas((f) => ({ fBeta: (p, beta) => f.fBeta(p, beta) * 1.001 }))],
  [7, 'swapped ends', (e) => ({ ...e, main: swapArms(e.main, 1, 5) })],
  [8, 'swapped inner alphas', (e) => ({ ...e, main: swapArms(e.main, 2, 4) })],
  [9, 'swapped inner alphas', (e) => ({ ...e, main: swapArms(e.main, 2, 4) })],
  [10, 'the fixed arm in place of alpha 1/2', (e) => ({ ...e, main: swapArms(e.main, 0, 3) })],
  [11, 'a steered arm in place of the fixed one', (e) => ({ ...e, main: swapArms(e.main, 0, 3) })],
  [12, 'a fixed price that returns', (e) => ({ ...e, frozen: swapArms(e.frozen, 6, 9) })],
  [
    12,
    'costs that move by 3 % from the true slope',
    (e) => ({ ...e, frozen: scaleColumn(e.frozen, { column: MEDIUM_COST, factor: 1.03 }) }),
  ],
  [
    13,
    'prices that run away at the defaults',
    (e) => ({ ...e, main: scaleColumn(e.main, { column: HIGH_PRICE, factor: 20 }) }),
  ],
  [13, 'a floor that does not make prices run away', (e) => ({ ...e, floor: e.clippedFloor })],
  [13, 'a clip that does not hold', (e) => ({ ...e, clippedFloor: e.floor })],
  [
    13,
    'a clip that costs saving',
    (e) => ({ ...e, clippedFloor: scaleColumn(e.clippedFloor, { column: MEDIUM_COST, factor: 1.02 }) }),
  ],
];

describe('every statement', () => {
  it.each(STATEMENTS)('$id holds on sound evidence: $statement', (statement) => {
    expect(verifyStatement(statement, sound)).toMatchObject({ id: statement.id, passed: true });
  });

  it.each(breakages)('%i fails on %s', (id, _, breakEvidence) => {
    const statement = STATEMENTS.find((candidate) => candidate.id === id);
    expect(statement?.check(breakEvidence(sound)).passed).toBe(false);
  });

  it('is broken at least once above', () => {
    expect(STATEMENTS.map(({ id }) => id)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
    expect(new Set(breakages.map(([id]) => id)).size).toBe(STATEMENTS.length);
  });
});

describe('verifyStudy', () => {
  it('reports every statement, and says so in words', async () => {
    const studies: string[] = [];
    const report = await verifyStudy({
      simulate,
      seed: 7,
      onProgress: ({ study, done, total }) => studies.push(`${study} ${done}/${total}`),
    });
    expect(report).toMatchObject({ seed: 7, passed: true });
    expect(studies).toEqual(['main 0/4', 'frozen 1/4', 'floor 2/4', 'clippedFloor 3/4']);
    const text = renderVerification(report);
    expect(text.match(/^holds/gmu)).toHaveLength(13);
    expect(text).toContain('All 13 statements hold (seed 7).');
  });

  it('reports failures without throwing', async () => {
    const report = await verifyStudy({
      simulate: async (plan) => {
        const record = await simulate(plan);
        return plan.arms.length === 6 ? swapArms(record, 1, 5) : record;
      },
      meanField: (plan) => meanFieldStudy({ ...plan, steps: 800 }),
      seed: 7,
    });
    expect(report.passed).toBe(false);
    expect(report.statements.filter(({ passed }) => !passed).map(({ id }) => id)).toEqual([2, 3, 7, 8, 9]);
    expect(renderVerification(report)).toContain('8 of 13 statements hold (seed 7).');
  });

  it('stops between studies when the signal fires', async () => {
    const controller = new AbortController();
    const stopped = verifyStudy({
      simulate: (plan) => {
        controller.abort();
        return simulate(plan);
      },
      seed: 1,
      signal: controller.signal,
    });
    await expect(stopped).rejects.toThrow('stopped after 1 of 4 studies');
  });
});

describe('the plans', () => {
  it('take every fifth problem, with all ten ratios and two problems a pGood', () => {
    expect(VERIFICATION_PROBLEMS).toHaveLength(20);
    expect(new Set(VERIFICATION_PROBLEMS).size).toBe(20);
    for (let ten = 0; ten < 10; ten++) {
      expect(VERIFICATION_PROBLEMS.filter((problem) => Math.floor(problem / 10) === ten)).toHaveLength(2);
      expect(VERIFICATION_PROBLEMS.filter((problem) => problem % 10 === ten)).toHaveLength(2);
    }
    expect(VERIFICATION_PROBLEMS.slice(0, 4)).toEqual([0, 5, 13, 18]);
  });

  it('are about 3 x 10^8 rollouts', () => {
    let runs = 0;
    for (const { arms, problems, steps, batch } of Object.values(verificationPlans(1))) {
      expect(problems.length * steps * batch).toBe(20 * 1000 * 256);
      for (const { seeds } of arms) runs += seeds;
    }
    expect(runs).toBe(3 * 6 + 3 * 12 + 1 + 1);
  });
});

it('holds on sampled studies', async () => {
  const report = await verifyStudy({
    simulate: (plan) => Promise.resolve({ plan, runs: studyUnits(plan).flatMap((unit) => runUnit(plan, unit)) }),
    seed: 1,
  });
  expect(report.statements.filter(({ passed }) => !passed)).toEqual([]);
});

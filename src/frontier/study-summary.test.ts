/** The summary on records made by hand, where every figure can be worked out. */
import { describe, expect, it } from 'vitest';

import { studentQuantile } from './student-quantile.ts';
import { studyPlan } from './study-plan.fixture.ts';
import { recordedSteps, STARTING_COSTS } from './study-record.ts';
import type { StudyArm, StudyPlan, StudyRecord } from './study-record.ts';
import { steeredArms, summariseStudy } from './study-summary.ts';
import { successRate, toyProblem, toyStart } from './toy-task.ts';

const FIXED: StudyArm = { rule: { kind: 'fixed' }, slopeFactor: 1, seeds: 2 };
const steeredArm = (alpha: number): StudyArm => ({ rule: { kind: 'steered', alpha }, slopeFactor: 1, seeds: 2 });

/** A record whose (q, cost over start, price over start) at a row are given by the caller, the same at all efforts. */
function recordOf(
  plan: StudyPlan,
  at: (place: { problem: number; seed: number; arm: number; row: number }) => [number, number, number],
): StudyRecord {
  const rows = recordedSteps(plan);
  const runs = plan.problems.flatMap((problem) =>
    [0, 1].flatMap((seed) =>
      plan.arms.map((_, arm) => ({
        problem,
        seed,
        arm,
        capped: 1,
        references: [],
        values: Float64Array.from(
          rows.flatMap((_step, row) => {
            const [q, cost, price] = at({ problem, seed, arm, row });
            const { prices } = toyStart(toyProblem(problem));
            return [q, ...STARTING_COSTS.map((start) => start * cost), ...prices.map((start) => start * price)];
          }),
        ),
      })),
    ),
  );
  return { plan, runs };
}

describe('summariseStudy', () => {
  const plan = studyPlan({ problems: [12, 77], arms: [FIXED], steps: 100, recordEvery: 10 });
  const lastRow = recordedSteps(plan).length - 1;

  it('averages ratios: seeds within a problem, then problems, with both intervals', () => {
    const savings = new Map([
      [12, [0.1, 0.3]],
      [77, [0.5, 0.6]],
    ]);
    const record = recordOf(plan, ({ problem, seed, row }) =>
      row < lastRow ? [0.5, 1, 1] : [1, 1 - (savings.get(problem)?.[seed] ?? 0), Math.exp(seed + 1)],
    );
    const [arm] = summariseStudy(record).arms;
    const medium = arm?.efforts[1];
    const { mean, seedHalfWidth, problemHalfWidth } = medium?.last.savingPercent ?? { mean: 0 };
    expect(mean).toBeCloseTo(37.5, 10);
    // Within problems the squares are 2 x 10^2 and 2 x 5^2 with 2 degrees of freedom; the mean is over 4 runs.
    expect(seedHalfWidth).toBeCloseTo(studentQuantile(0.975, 2) * Math.sqrt(250 / 2 / 4), 8);
    // Problem means are 20 and 55: their deviation is 35 / sqrt(2).
    expect(problemHalfWidth).toBeCloseTo((studentQuantile(0.975, 1) * 35) / 2, 8);
    const gains = [12, 77].map((index) => {
      const problem = toyProblem(index);
      const successes = (savings.get(index) ?? []).map((saving) =>
        successRate({ ...problem, q: 1, cost: 6 * (1 - saving) }),
      );
      return ((successes[0] ?? 0) + (successes[1] ?? 0)) / 2 / (toyStart(problem).successes[1] ?? 0) - 1;
    });
    expect(medium?.last.gainPercent.mean).toBeCloseTo(50 * ((gains[0] ?? 0) + (gains[1] ?? 0)), 10);
    expect(medium?.logPriceChange.mean).toBeCloseTo(1.5, 12);
    expect(medium?.largestLogPriceChange).toBeCloseTo(2, 12);
    expect(arm?.q.mean).toBe(1);
    expect(arm?.cappedRollouts).toBe(4);
  });

  it('averages log cost and q over the last fifth of the steps', () => {
    const record = recordOf(plan, ({ row }) => {
      if (row < lastRow - 2) return [0.5, 5, 1];
      return [row === lastRow ? 1 : 0.7, row === lastRow ? 0.5 : 2, 1];
    });
    const averaged = summariseStudy(record).arms[0]?.efforts[0]?.averaged;
    // Rows at 80, 90 and 100: the geometric mean of 2, 2 and 1/2 is 2^(1/3), the mean q is 0.8.
    expect(averaged?.savingPercent.mean).toBeCloseTo(100 * (1 - 2 ** (1 / 3)), 10);
    const [first, second] = [12, 77].map((index) => {
      const problem = toyProblem(index);
      return successRate({ ...problem, q: 0.8, cost: 2 * 2 ** (1 / 3) }) / (toyStart(problem).successes[0] ?? 0) - 1;
    });
    expect(averaged?.gainPercent.mean).toBeCloseTo(50 * ((first ?? 0) + (second ?? 0)), 10);
  });

  it('counts problems that cost more, and gives no direction to those that hardly moved', () => {
    const record = recordOf(plan, ({ problem, row }) => [0.5, row < lastRow || problem === 12 ? 1 : 1.5, 1]);
    const medium = summariseStudy(record).arms[0]?.efforts[1];
    expect(medium?.costlierShare).toBe(0.5);
    expect(medium?.direction).toMatchObject({ problems: 1, targetDegrees: null, worstErrorDegrees: null });
    expect(medium?.direction?.meanDegrees).toBeGreaterThan(90);
    // A saving of 3 % and the loss of success that goes with it are a move of less than 5 %.
    const still = recordOf(plan, ({ row }) => [0.5, row < lastRow ? 1 : 0.97, 1]);
    expect(summariseStudy(still).arms[0]?.efforts[1]?.direction).toBeNull();
  });

  it('puts the closed form beside, at the q and within the bounds of the plan', () => {
    const closedForm = (changes: Partial<StudyPlan>): { savingPercent: number; gainPercent: number } | undefined => {
      const changed = { ...plan, arms: [steeredArm(0)], ...changes };
      return summariseStudy(recordOf(changed, () => [0.5, 1, 1])).arms[0]?.efforts[1]?.closedForm;
    };
    const learned = closedForm({});
    expect(learned?.savingPercent).toBeGreaterThan(10);
    expect(learned?.gainPercent).toBeCloseTo(0, 10);
    const frozen = closedForm({ isSkillFrozen: true });
    expect(frozen?.savingPercent).toBeCloseTo(0, 10);
    const bounded = closedForm({ costFloor: 0.99 });
    expect(bounded?.savingPercent).toBeCloseTo(1, 10);
    expect(bounded?.gainPercent).toBeGreaterThan(10);
  });

  it('has no interval from one seed, and none between problems from one problem', () => {
    const single = recordOf({ ...plan, problems: [12] }, () => [0.5, 1, 1]);
    const record = { ...single, runs: single.runs.filter(({ seed }) => seed === 0) };
    expect(summariseStudy(record).arms[0]?.efforts[0]?.last.savingPercent).toEqual({
      mean: 0,
      seedHalfWidth: null,
      problemHalfWidth: null,
    });
  });

  it('refuses unequal seeds and arms without runs', () => {
    const record = recordOf(plan, () => [0.5, 1, 1]);
    expect(() => summariseStudy({ ...record, runs: record.runs.slice(1) })).toThrow('these seeds by problem: 1, 2.');
    expect(() => summariseStudy({ ...record, runs: [] })).toThrow('these seeds by problem: none.');
  });
});

describe('order and direction over alpha', () => {
  const arms = [steeredArm(1), FIXED, steeredArm(0), steeredArm(0.5), { ...steeredArm(0.25), slopeFactor: 3 }];
  const plan = studyPlan({ problems: [12, 77], arms, steps: 10, recordEvery: 10 });
  const saved = [0, 0, 0.3, 0.15, 0.2];

  it('takes the steered arms from the true slope, by rising alpha', () => {
    expect(steeredArms(plan)).toEqual([2, 3, 0]);
  });

  it('counts a problem as ordered only if every step of alpha is', () => {
    const ordered = recordOf(plan, ({ arm }) => [1, 1 - (saved[arm] ?? 0), 1]);
    expect(summariseStudy(ordered).order[1]).toEqual({ effort: 'medium', strictShare: 1, endsShare: 1 });
    const bent = recordOf(plan, ({ arm, problem }) => [
      1,
      1 - (problem === 77 && arm === 3 ? 0.4 : (saved[arm] ?? 0)),
      1,
    ]);
    expect(summariseStudy(bent).order[1]).toEqual({ effort: 'medium', strictShare: 0.5, endsShare: 1 });
    const reversed = recordOf(plan, ({ arm }) => [1, 1 - (arm === 0 ? 0.4 : (saved[arm] ?? 0)), 1]);
    expect(summariseStudy(reversed).order[1]).toMatchObject({ strictShare: 0, endsShare: 0 });
  });

  it('takes neither more success at less cost nor less at more for the order of alpha', () => {
    // q rises with alpha while cost falls: success gains, but saving does not fall.
    const record = recordOf(plan, ({ arm }) => [0.8 - (saved[arm] ?? 0), 0.5 + (saved[arm] ?? 0), 1]);
    const [low] = summariseStudy({ ...record, plan }).order;
    expect(low).toMatchObject({ strictShare: 0, endsShare: 0 });
  });

  it('measures angles from the direction of alpha', () => {
    const record = recordOf(plan, () => [0.5, 0.5, 1]);
    const [toGain, , toSaving] = summariseStudy(record).arms.map(({ efforts }) => efforts[2]?.direction);
    // Less cost at the same q: success falls, so both angles are below 0.
    expect(toSaving?.targetDegrees).toBe(0);
    expect(toSaving?.meanDegrees).toBeLessThan(0);
    expect(toSaving?.worstErrorDegrees).toBeCloseTo(-(toSaving?.lowestDegrees ?? 0), 10);
    expect(toGain?.targetDegrees).toBe(90);
    expect(toGain?.worstErrorDegrees).toBeCloseTo(90 - (toGain?.lowestDegrees ?? 0), 10);
  });
});

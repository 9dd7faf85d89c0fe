/** One unit of the study: paired arms, its references, the order of a step, and the mean field as the limit of no noise. */
import { describe, expect, it } from 'vitest';

import { meanFieldStudy } from './mean-field.ts';
import { RECOVERED_PLAN } from './recovered-plan.ts';
import { RECORD_COLUMNS } from './study-record.ts';
import type { StudyArm, StudyPlan, StudyRun } from './study-record.ts';
import { runUnit, studyUnits, unitRollouts } from './toy-run.ts';
import { toyProblem, toyStart } from './toy-task.ts';

const FIXED: StudyArm = { rule: { kind: 'fixed' }, slopeFactor: 1, seeds: 1 };
const HALF: StudyArm = { rule: { kind: 'steered', alpha: 0.5 }, slopeFactor: 1, seeds: 1 };
const UNIT = { problem: 45, seed: 0 };

function plan(changes: Partial<StudyPlan> = {}): StudyPlan {
  return { ...RECOVERED_PLAN, arms: [FIXED, HALF], steps: 40, batch: 200, recordEvery: 10, ...changes };
}

function rowOf({ values }: StudyRun, row: number): number[] {
  const columns = RECORD_COLUMNS.length;
  return [...values.subarray(row * columns, (row + 1) * columns)];
}

describe('runUnit', () => {
  it('starts every arm at the exact start, and its price at the slope times its factor', () => {
    const wrong = { ...HALF, slopeFactor: 3 };
    const [fixed, tripled] = runUnit(plan({ arms: [FIXED, wrong] }), UNIT);
    const { prices } = toyStart(toyProblem(45));
    expect(rowOf(fixed!, 0)).toEqual([0.5, 2, 6, 15, ...prices]);
    expect(rowOf(tripled!, 0)).toEqual([0.5, 2, 6, 15, ...prices.map((price) => 3 * price)]);
    expect(rowOf(fixed!, 4).slice(4)).toEqual(prices);
    expect(rowOf(fixed!, 4)).not.toEqual(rowOf(fixed!, 3));
  });

  it('pairs arms: an arm does not notice which others run, nor a seed how many there are', () => {
    const [, together] = runUnit(plan(), UNIT);
    const [alone] = runUnit(plan({ arms: [HALF] }), UNIT);
    expect(alone!.values).toEqual(together!.values);
    expect(alone!.references).toEqual(together!.references);
    const twice = runUnit(plan({ arms: [FIXED, FIXED] }), UNIT);
    expect(twice[0]!.values).toEqual(twice[1]!.values);
    const [, more] = runUnit(plan({ arms: [FIXED, { ...HALF, seeds: 5 }] }), UNIT);
    expect(more!.values).toEqual(together!.values);
  });

  it('draws anew for each problem, seed and run seed', () => {
    const values = [plan(), plan({ seed: 2 })].map((one) => runUnit(one, UNIT)[0]!.values);
    const other = runUnit(plan({ arms: [{ ...FIXED, seeds: 2 }] }), { problem: 45, seed: 1 })[0]!;
    expect(values[0]).not.toEqual(values[1]);
    expect(values[0]).not.toEqual(other.values);
    expect(other.references).not.toEqual(runUnit(plan(), UNIT)[0]!.references);
  });

  it('runs only the arms that have the seed', () => {
    const arms = [{ ...FIXED, seeds: 2 }, HALF];
    expect(runUnit(plan({ arms }), { problem: 45, seed: 1 }).map(({ arm, seed }) => [arm, seed])).toEqual([[0, 1]]);
    expect(studyUnits(plan({ arms, problems: [7, 3] }))).toEqual([
      { problem: 3, seed: 0 },
      { problem: 3, seed: 1 },
      { problem: 7, seed: 0 },
      { problem: 7, seed: 1 },
    ]);
    expect(unitRollouts(plan({ arms }), { problem: 3, seed: 0 })).toEqual({ training: 16_000, reference: 600_000 });
    expect(unitRollouts(plan({ arms }), { problem: 3, seed: 1 })).toEqual({ training: 8000, reference: 600_000 });
  });

  it('measures references within their errors, or takes the exact ones', () => {
    const { successes, costs } = toyStart(toyProblem(45));
    const [run] = runUnit(plan({ steps: 1 }), UNIT);
    for (const [effort, { success, cost }] of run!.references.entries()) {
      const s0 = successes[effort]!;
      const c0 = costs[effort]!;
      expect(Math.abs(success - s0)).toBeLessThan(4 * Math.sqrt((s0 * (1 - s0)) / 200_000));
      expect(Math.abs(cost - c0)).toBeLessThan(4 * Math.sqrt((c0 * (1 + c0)) / 200_000));
      expect(success).not.toBe(s0);
      expect(Number.isInteger(Math.round(success * 200_000 * 1e6) / 1e6)).toBe(true);
    }
    const [exact] = runUnit(plan({ steps: 1, referenceRollouts: null }), UNIT);
    expect(exact!.references).toEqual(costs.map((cost, effort) => ({ success: successes[effort]!, cost })));
  });

  it('follows its mean field when batches are large', () => {
    const large = plan({ batch: 65_536, steps: 300, recordEvery: 300, referenceRollouts: null });
    const sampled = runUnit(large, UNIT);
    const expected = meanFieldStudy({ ...large, problems: [45] }).runs;
    for (const [arm, run] of sampled.entries()) {
      const [q, ...others] = rowOf(run, 1);
      const [meanQ, ...means] = rowOf(expected[arm]!, 1);
      expect(Math.abs(q! - meanQ!)).toBeLessThan(0.005);
      for (const [column, mean] of means.entries()) {
        expect(Math.abs(Math.log(others[column]! / mean))).toBeLessThan(0.03);
      }
    }
    // The prices that agree have moved far more than they may differ.
    expect(Math.log(rowOf(sampled[1]!, 1)[4]! / rowOf(sampled[1]!, 0)[4]!)).toBeGreaterThan(0.15);
  });

  it('keeps price and cost of an effort that had no rollout in the step', () => {
    const actor = { ...RECOVERED_PLAN.actor, optimizer: 'sgd' as const };
    const single = plan({ batch: 1, steps: 30, recordEvery: 1, actor, baseline: 'none', referenceRollouts: null });
    const run = runUnit(single, UNIT)[1]!;
    const moved = new Set<number>();
    for (let step = 1; step <= 30; step++) {
      const [before, after] = [rowOf(run, step - 1), rowOf(run, step)];
      expect(after.every(Number.isFinite)).toBe(true);
      const prices = [4, 5, 6].filter((column) => after[column] !== before[column]);
      const costs = [1, 2, 3].filter((column) => after[column] !== before[column]);
      expect(prices).toHaveLength(1);
      expect(costs.every((column) => column + 3 === prices[0])).toBe(true);
      moved.add(prices[0]!);
    }
    expect(moved.size).toBe(3);
  });

  it('counts rollouts that were cut, and goes on', () => {
    const actor = { ...RECOVERED_PLAN.actor, optimizer: 'sgd' as const, rate: 1e6, decay: null };
    const cheap = { ...FIXED, slopeFactor: 1e-9 };
    const wild = plan({ arms: [FIXED, cheap], actor, costCeiling: 1e6, steps: 10 });
    const [, run] = runUnit(wild, UNIT);
    expect(run!.capped).toBeGreaterThan(0);
    expect(run!.values.every(Number.isFinite)).toBe(true);
  });
});

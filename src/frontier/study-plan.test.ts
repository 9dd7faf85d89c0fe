/** The default plan is the published study; a part of the grid spreads over it; every value out of range is named. */
import { describe, expect, it } from 'vitest';

import { RECOVERED_PLAN } from './recovered-plan.ts';
import { checkStudyPlan, createStudyPlan } from './study-plan.ts';

describe('createStudyPlan', () => {
  it('is the recovered configuration, with arms from wrong prices beside it', () => {
    const { arms, ...rest } = createStudyPlan();
    const { arms: main, ...recovered } = RECOVERED_PLAN;
    expect(rest).toEqual(recovered);
    expect(arms.slice(0, 6)).toEqual(main);
    const wrong = arms
      .slice(6)
      .map(({ rule, slopeFactor, seeds }) => [rule.kind === 'fixed' ? null : rule.alpha, slopeFactor, seeds]);
    expect(wrong).toEqual([3, 1 / 3].flatMap((factor) => [null, 0, 0.5, 1].map((alpha) => [alpha, factor, 1])));
    expect(createStudyPlan({ hasWrongSlopes: false }).arms).toEqual(main);
  });

  it('takes alphas in order, and the outer ones and the middle one from wrong prices', () => {
    const { arms } = createStudyPlan({ alphas: [0.9, 0.1], seeds: 2 });
    expect(arms.map(({ rule }) => (rule.kind === 'fixed' ? null : rule.alpha))).toEqual(
      [null, 0.1, 0.9, null, 0.1, 0.9, null, 0.1, 0.9], // fixed and two alphas, three starting prices
    );
    expect(arms.slice(0, 3).every(({ seeds }) => seeds === 2)).toBe(true);
  });

  it('spreads a part of the problems over both axes of the grid', () => {
    const { problems } = createStudyPlan({ problems: 10 });
    expect(new Set(problems.map((problem) => Math.floor(problem / 10))).size).toBeGreaterThanOrEqual(9);
    expect(new Set(problems.map((problem) => problem % 10)).size).toBe(10);
    expect(createStudyPlan({ problems: 100 }).problems).toEqual(Array.from({ length: 100 }, (_, index) => index));
    expect(createStudyPlan({ problems: 1 }).problems).toHaveLength(1);
  });

  it('records fifty points where there are enough steps', () => {
    expect(createStudyPlan({ steps: 200 }).recordEvery).toBe(4);
    expect(createStudyPlan({ steps: 7 }).recordEvery).toBe(1);
  });

  it.each([
    [{ problems: 0 }, /to have 0 problems/u],
    [{ problems: 101 }, /to have 101 problems/u],
    [{ alphas: [0.5, 0.5] }, /0\.5, 0\.5 name one twice/u],
    [{ alphas: [1.5] }, /arms\.1\.rule\.alpha is 1\.5/u],
    [{ steps: 0 }, /steps is 0/u],
    [{ batch: 65_537 }, /batch is 65537/u],
    [{ seeds: 0.5 }, /arms\.0\.seeds is 0\.5/u],
    [{ seed: -1 }, /seed is -1/u],
  ])('refuses %j', (options, message) => {
    expect(() => createStudyPlan(options)).toThrow(message);
  });
});

describe('checkStudyPlan', () => {
  it('names every problem at once, with its value', () => {
    const broken = { ...RECOVERED_PLAN, steps: -1, problems: [3, 3], costFloor: 2, extra: 1 };
    expect(() => checkStudyPlan(broken, 'plan.json')).toThrow(/^plan\.json has 4 problems: .*costFloor is 2/u);
    expect(() => checkStudyPlan(broken)).toThrow(/problems.*names a problem twice/u);
    expect(checkStudyPlan(RECOVERED_PLAN)).toEqual(RECOVERED_PLAN);
  });
});

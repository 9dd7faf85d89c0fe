/** Where a run landed, on results that can be worked out by hand: pairing, weights, the angle, and the sentence. */
import { describe, expect, it } from 'vitest';

import { describeLanding, measureLanding, pairResults } from './landing.ts';
import type { LandingCost, PairOptions } from './landing.ts';
import { inventSteps, inventTable } from './report.fixture.ts';
import { describeRun } from './report.ts';
import type { TaskResult } from './scores.ts';
import { makeResult, makeTask } from './tasks.fixture.ts';
import { costWeightsSchema } from '../reward/cost.ts';
import { rewardBaseSchema } from '../reward/terms.ts';

const LOOKUPS: LandingCost = { name: 'lookups', weights: costWeightsSchema.parse({ lookups: 1 }) };
const TOKENS: LandingCost = { name: 'tokens', weights: costWeightsSchema.parse({ tokens: 1 }) };
const DETECTION: PairOptions = {
  base: rewardBaseSchema.parse({ kind: 'detection' }),
  precisionWeight: 2,
  costs: [LOOKUPS],
};
const BOOTSTRAP = { seed: 7, resamples: 400 };

/** One task a flag, whose one bug is found or not, with that many look-ups. */
function play(found: readonly boolean[], lookups: number): TaskResult[] {
  return found.map((isFound, index) =>
    makeResult(makeTask(`t${index}`, [[1, 'off-by-one', 'bug']]), isFound ? [[1, 'off-by-one']] : [], {
      lookupLines: Array.from({ length: lookups }, () => 1),
    }),
  );
}

const alternate = (count: number, period: number): boolean[] =>
  Array.from({ length: count }, (_, index) => index % period === 0);

describe('a landing on held-out tasks', () => {
  it('is success gained and cost saved over the starting policy, with the angle between them', () => {
    const before = play([...alternate(40, 2)], 4);
    const after = play(
      alternate(40, 2).map((isFound, index) => isFound || index % 4 === 1),
      2,
    );
    const columns = pairResults({ before, after }, { ...DETECTION, costs: [LOOKUPS, TOKENS] });
    const landing = measureLanding(
      { effort: 'low', alpha: 0.5, columns, costNames: ['lookups', 'tokens'], steps: [] },
      BOOTSTRAP,
    );
    // 30 found for 20; 80 look-ups for 160; tokens as before.
    expect(landing.successGain.estimate).toBeCloseTo(0.5, 12);
    expect(landing.successGain.low).toBeGreaterThan(0);
    const [lookups, tokens] = landing.costs;
    expect(lookups?.saving).toEqual({ estimate: 0.5, low: 0.5, high: 0.5 });
    expect(lookups?.angle.estimate).toBeCloseTo(45, 10);
    expect(tokens?.saving).toEqual({ estimate: 0, low: 0, high: 0 });
    expect(tokens?.angle.estimate).toBeCloseTo(90, 10);
    expect(landing.targetAngle).toBeCloseTo(45, 10);
    expect(landing.training).toBeNull();
  });

  it('pairs by task, in whatever order the results come: the same policy gained nothing, for certain', () => {
    const results = play(alternate(40, 3), 1);
    const columns = pairResults({ before: results, after: results.toReversed() }, DETECTION);
    const { successGain } = measureLanding(
      { effort: 'low', alpha: 0, columns, costNames: ['lookups'], steps: [] },
      BOOTSTRAP,
    );
    expect(successGain).toEqual({ estimate: 0, low: 0, high: 0 });
  });

  it('refuses two evaluations of other tasks', () => {
    const [first, second, third] = play([true, false, true], 1);
    if (first === undefined || second === undefined || third === undefined) throw new Error('three results');
    for (const after of [[first], [first, third], [first, first]])
      expect(() => pairResults({ before: [first, second], after }, DETECTION)).toThrow('do not cover the same tasks');
  });

  it('weighs precision as it is told, and takes success from what cheated', () => {
    const task = makeTask('t', [[1, 'off-by-one', 'bug']]);
    // Precision 1/2, recall 1.
    const half = makeResult(task, [
      [1, 'off-by-one'],
      [9, 'off-by-one'],
    ]);
    const cheated = { ...half, outcome: { ...half.outcome, cheated: true } };
    expect(pairResults({ before: [half], after: [cheated] }, DETECTION).success).toEqual({
      before: Float64Array.of(2 / 3),
      after: Float64Array.of(0),
    });
    const correct = { ...DETECTION, base: rewardBaseSchema.parse({ kind: 'correct' }) };
    expect(pairResults({ before: [half], after: [half] }, correct).success.before).toEqual(Float64Array.of(0));
  });

  it('measures an angle near half a turn the short way round', () => {
    // As much found as before, on other tasks, for twice the look-ups: 180 degrees, give or take.
    const columns = pairResults(
      {
        before: play(alternate(40, 2), 1),
        after: play(
          alternate(40, 2).map((isFound) => !isFound),
          2,
        ),
      },
      DETECTION,
    );
    const { costs } = measureLanding(
      { effort: 'low', alpha: 0.5, columns, costNames: ['lookups'], steps: [] },
      BOOTSTRAP,
    );
    const { estimate = 0, low = 0, high = 0 } = costs[0]?.angle ?? {};
    expect(Math.abs(estimate)).toBeCloseTo(180, 10);
    expect(low).toBeLessThan(estimate);
    expect(high).toBeGreaterThan(estimate);
    expect(high - low).toBeLessThan(120);
  });

  it('is not measured against a starting policy that spent nothing, also after it was stored', () => {
    const columns = pairResults({ before: play([true, true], 0), after: play([true, true], 1) }, DETECTION);
    const landing = measureLanding(
      { effort: 'low', alpha: 0.5, columns, costNames: ['lookups'], steps: [] },
      BOOTSTRAP,
    );
    const sentence =
      'Landing, low effort: success +0.0 % [0.0, 0.0], lookups saved not measured (the starting policy spent none) where alpha 0.5 asks for 45.';
    expect(describeLanding(landing)).toBe(sentence);
    // Nor is success against one that had none; what was saved is.
    const silent = pairResults({ before: play([false, false], 2), after: play([true, true], 1) }, DETECTION);
    expect(
      describeLanding(
        measureLanding({ effort: 'low', alpha: 0.5, columns: silent, costNames: ['lookups'], steps: [] }, BOOTSTRAP),
      ),
    ).toBe(
      'Landing, low effort: success not measured (the starting policy had none), lookups saved 50.0 % [50.0, 50.0]: no angle where alpha 0.5 asks for 45.',
    );
    // As results.json gives it back.
    const stored: typeof landing = JSON.parse(JSON.stringify(landing));
    expect(describeLanding(stored)).toBe(sentence);
  });
});

describe('a landing on training tasks', () => {
  const steps = inventSteps(10, 1).map((event) => ({
    ...event,
    metrics: {
      ...event.metrics,
      // The ninth step had none at low effort; only the last two count.
      'frontier/success_gain': event.step === 9 ? { high: 0.5 } : { low: event.step === 10 ? 0.2 : 9, high: 0.3 },
      'frontier/cost_saving':
        event.step === 9
          ? { 'high/lookups': 0.3 }
          : { 'low/lookups': event.step === 10 ? 0.2 : 9, 'high/lookups': 0.1 },
      'frontier/log_price': { 'low/lookups': Math.log(0.05), 'high/lookups': Math.log(event.step === 9 ? 0.02 : 0.08) },
    },
  }));
  const columns = pairResults({ before: play([true, true], 2), after: play([true, true], 1) }, DETECTION);
  const at = (effort: string): ReturnType<typeof measureLanding> =>
    measureLanding({ effort, alpha: 0.5, columns, costNames: ['lookups'], steps }, BOOTSTRAP);

  it('is the mean of the last fifth of the steps, of those with rollouts at the effort', () => {
    const { training: low } = at('low');
    expect(low?.steps).toBe(2);
    expect(low?.successGain).toBeCloseTo(0.2, 12);
    expect(low?.costs[0]?.angle).toBeCloseTo(45, 10);
    const { training: high } = at('high');
    expect(high?.successGain).toBeCloseTo(0.4, 12);
    expect(high?.costs[0]?.saving).toBeCloseTo(0.2, 12);
    expect(high?.costs[0]?.price).toBeCloseTo(0.04, 12);
    expect(at('medium').training).toBeNull();
  });

  it('is said in one line an effort, first of what a run says', () => {
    const landings = [at('low'), at('high')];
    const [low, high] = describeRun({ steps, table: { ...inventTable(30, 2), landings } });
    expect(low).toBe(
      'Landing, low effort: success +0.0 % [0.0, 0.0], lookups saved 50.0 % [50.0, 50.0]: 0 degrees [0, 0] where alpha 0.5 asks for 45; on training tasks, last 2 steps: +20.0 %, 20.0 %, 45 degrees; price 0.050.',
    );
    expect(high).toContain('Landing, high effort: ');
  });

  it('is absent from results of a run that measured none', () => {
    expect(describeRun({ steps, table: inventTable(30, 2) }).join('\n')).not.toContain('Landing');
  });
});

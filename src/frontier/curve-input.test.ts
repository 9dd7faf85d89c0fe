import { describe, expect, it } from 'vitest';

import { parseCurve } from './curve-input.ts';
import { parseCostOption, parseEvaluations } from './evaluation-records.ts';
import { toyEvaluations } from './evaluations.fixture.ts';
import { fitFrontier } from './frontier-fit.ts';

const POINTS = [
  { effort: 'high', cost: 0.21, success: 0.58 },
  { effort: 'low', cost: 0.02, success: 0.31 },
  { effort: 'medium', cost: 0.06, success: 0.47 },
];

describe('parseCurve', () => {
  it('reads the same curve from JSON, JSON Lines and CSV in any order of rows and columns', () => {
    const json = parseCurve(JSON.stringify(POINTS), 'points.json');
    expect(json.efforts).toEqual([
      { effort: 'low', cost: 0.02 },
      { effort: 'medium', cost: 0.06 },
      { effort: 'high', cost: 0.21 },
    ]);
    expect(json.curve.value(0.06)).toBeCloseTo(0.47, 12);
    const lines = parseCurve(POINTS.map((point) => JSON.stringify(point)).join('\n'), 'points.jsonl');
    const table = parseCurve(
      '\uFEFFsuccess;effort;cost;note\r\n0.58;high;0.21;x\r\n0.31;"low";0.02;\r\n0.47;medium;0.06;\r\n',
      'points.csv',
    );
    for (const input of [lines, table]) {
      expect(input.points).toEqual(json.points);
      for (const cost of [0.01, 0.04, 0.3]) expect(input.curve.value(cost)).toBe(json.curve.value(cost));
    }
  });

  it('takes the curve, the unit and the starting prices of a fit', () => {
    const cost = parseCostOption('turns');
    const records = parseEvaluations(toyEvaluations(44, { tasks: 60, rolloutsPerTask: 2, seed: 1 }), {
      origin: 'e',
      cost,
    });
    const fit = fitFrontier(records, { source: 'e', cost, seed: 1, resamples: 200 });
    const input = parseCurve(JSON.stringify(fit), 'frontier.json');
    expect(input).toMatchObject({ unit: 'turns', isFitted: true });
    for (const [index, { startPrice, cost: spent }] of input.efforts.entries()) {
      expect(startPrice).toBe(fit.efforts[index]?.startingPrice?.price);
      expect(input.curve.slope(spent)).toBeCloseTo(startPrice ?? 0, 10);
    }
  });

  it.each([
    ['', 'c is empty.'],
    ['effort,cost\nlow,1', 'c:1 has no column success.'],
    ['effort,cost,success\nlow,1,0.2\nhigh,-2,0.5', 'c:3 has the cost -2, not a number from 0 up.'],
    ['effort,cost,success\nlow,1,0\nhigh,2,0.5', 'c:2 has the success 0, not a number above 0 and at most 1.'],
    ['effort,cost,success\nlow,1,35\nhigh,2,0.5', 'c:2 has the success 35'],
    ['effort,cost,success\nlow,NaN,0.2\nhigh,2,0.5', 'c:2 has the cost "NaN"'],
    ['effort,cost,success\nlow,,0.2\nhigh,2,0.5', 'c:2 has no cost.'],
    ['[{"effort":"low","cost":1}]', 'c, point 1 has no success.'],
    ['[]', 'c has no point: there is no curve.'],
    ['effort,cost,success', 'c has no point: there is no curve.'],
    ['[3]', 'c, point 1 is 3, not a point.'],
    ['{"effort":"low","cost":NaN,"success":0.3}', 'c:1 has the cost NaN, which is no number of JSON.'],
    ['{"effort":"low","cost":1,"success":0.3}\n{"effort"', 'c:2 is not JSON: {"effort".'],
    ['{"effort":"low","cost":1,"success":0.3}', 'c has one effort, low: one cost is no curve.'],
    ['effort,cost,success\nlow,1,0.2\nlow,2,0.5', 'c has two points for effort low.'],
    ['effort,cost,success\nlow,1,0.2\nhigh,1,0.5', 'c has efforts that all cost the same: one cost is no curve.'],
    ['{"format":"hone-frontier-1"}', 'c is no result of hone frontier fit: source'],
  ])('refuses %j', (text, message) => {
    expect(() => parseCurve(text, 'c')).toThrow(message);
  });
});

/** Scores and comparisons on a handful of results whose figures can be worked out by hand. */
import { describe, expect, it } from 'vitest';

import { scoreFindings } from '../reward/detection.ts';
import { compareResults, intervalsOf } from './comparison.ts';
import { isElsewhereKind, restrictToKinds, scoreResults } from './scores.ts';
import { excludesZero } from '../domain/statistics.ts';
import { makeResult as result, makeTask } from './tasks.fixture.ts';

const two = makeTask('two', [
  [1, 'wrong-logic', 'bug'],
  [2, 'missing-await', 'bug'],
  [3, 'rename', 'equivalent'],
]);
const clean = makeTask('clean', [
  [1, 'missing-guard', 'inverse'],
  [2, 'rename', 'equivalent'],
]);
const one = makeTask('one', [
  [1, 'missing-return', 'bug'],
  [2, 'swapped-arguments', 'inverse'],
]);

const results = [
  result(
    two,
    [
      [1, 'wrong-logic'],
      [3, 'off-by-one'],
    ],
    { lookupLines: [2, 2] },
  ),
  result(clean, []),
  result(one, [[1, 'missing-guard']], { lookupLines: [1] }),
  result(makeTask('bad', [[1, 'off-by-one', 'bug']]), [], { valid: false }),
];

describe('scoreResults', () => {
  const scores = scoreResults(results);

  it('averages over samples, and pools counts', () => {
    // Precision per sample .5, 1, 1, 0; recall .5, 1, 1, 0. Pooled: 2 of 3 findings, 2 of 4 bugs.
    expect(scores.sample).toMatchObject({ precision: 0.625, recall: 0.625, fBeta: 0.625 });
    expect(scores.pooled.precision).toBeCloseTo(2 / 3, 12);
    expect(scores.pooled.recall).toBeCloseTo(2 / 4, 12);
    expect(scores.pooled.fBeta).toBeCloseTo((1.25 * (2 / 3) * 0.5) / (0.25 * (2 / 3) + 0.5), 12);
    expect(scores).toMatchObject({ tasks: 4, rollouts: 4, truePositives: 2, predicted: 3, actual: 4 });
  });

  it('counts by kind, names, validity, cost', () => {
    expect(scores.byKind).toEqual([
      { kind: 'wrong-logic', bugs: 1, found: 1 },
      { kind: 'off-by-one', bugs: 1, found: 0 },
      { kind: 'missing-return', bugs: 1, found: 1 },
      { kind: 'missing-await', bugs: 1, found: 0 },
    ]);
    expect(scores).toMatchObject({
      categoryAccuracy: 0.5,
      invalidShare: 0.25,
      silentShare: 0.5,
      turnsPerTask: 2,
      tokensPerTask: 100,
    });
  });

  it('counts a line once, however often it was looked up', () => {
    expect(scores.lookups).toEqual({ elsewhere: { lines: 2, lookedUp: 1 }, other: { lines: 6, lookedUp: 1 } });
  });

  it('leaves out the lines that their direction gives away', () => {
    // `one` becomes a clean task that stayed silent; the guard's fix leaves `clean`; nothing else changes.
    expect(scores.withoutDirectional).toMatchObject({ tasks: 4, truePositives: 1, predicted: 2, actual: 3 });
    expect(scores.withoutDirectional.sample.precision).toBeCloseTo((0.5 + 1 + 1 + 0) / 4, 12);
  });

  it('scores the elsewhere kinds alone', () => {
    const [first, second] = restrictToKinds(results, isElsewhereKind);
    expect(first?.outcome).toMatchObject({ actual: 1, predicted: 0, recall: 0 });
    expect(second?.outcome).toMatchObject({ actual: 0, predicted: 0, precision: 1 });
    expect(first?.submission.lookups.length).toBe(2);
    expect(scores.elsewhere.tasks).toBe(2);
  });

  it('keeps a false alarm on a line that was not changed', () => {
    const stray = restrictToKinds([result(two, [[9, 'wrong-logic']])], isElsewhereKind);
    expect(stray[0]?.outcome.predicted).toBe(1);
  });

  it('credits no kind to a sample that a finding too wide has voided', () => {
    const honest = result(two, [[1, 'wrong-logic']]);
    const [finding] = honest.submission.findings;
    const findings = finding === undefined ? [] : [finding, { ...finding, endLine: 9 }];
    const submission = { ...honest.submission, findings };
    const outcome = scoreFindings(submission, { bugs: two.gold.bugs, file: two.environment.file });
    const wide = scoreResults([{ ...honest, submission, outcome }]);
    expect(wide.byKind.map(({ found }) => found)).toEqual([0, 0]);
    expect(wide.categoryAccuracy).toBeUndefined();
  });

  it('has numbers, not NaN, for silence and for nothing', () => {
    expect(scoreResults([result(two, [])]).pooled).toEqual({ precision: 0, recall: 0, fBeta: 0 });
    expect(scoreResults([]).sample).toEqual({ precision: 0, recall: 0, fBeta: 0 });
    expect(scoreResults([]).categoryAccuracy).toBeUndefined();
  });
});

describe('intervals', () => {
  const many = Array.from({ length: 60 }, (_, index) =>
    makeTask(`task-${index}`, [
      [1, 'off-by-one', 'bug'],
      [2, 'missing-await', 'inverse'],
    ]),
  );
  const before = many.map((task, index) =>
    result(task, index % 3 === 0 ? [[1, 'off-by-one']] : [], { lookupLines: [2] }),
  );
  const after = many.map((task, index) => result(task, index % 3 < 2 ? [[1, 'off-by-one']] : [], { lookupLines: [2] }));

  it('have the scores as estimates', () => {
    const scores = scoreResults(results);
    const intervals = intervalsOf(results, { seed: 1, resamples: 100 });
    expect(intervals.sampleFBeta.estimate).toBeCloseTo(scores.sample.fBeta, 12);
    expect(intervals.pooledFBeta.estimate).toBeCloseTo(scores.pooled.fBeta, 12);
    expect(intervals.lookupGap.estimate).toBeCloseTo(1 / 2 - 1 / 6, 12);
  });

  it('of a difference exclude 0 for a real gain, and are 0 for none', () => {
    const gain = compareResults({ before, after }, { seed: 1 });
    expect(gain.sampleFBeta.estimate).toBeCloseTo(1 / 3, 12);
    expect(excludesZero(gain.sampleFBeta)).toBe(true);
    expect(compareResults({ before, after: before }, { seed: 1 }).sampleFBeta).toEqual({
      estimate: 0,
      low: 0,
      high: 0,
    });
  });

  it('pair by task, whatever the order, and take several samples of a task together', () => {
    const shuffled = after.toReversed();
    const options = { seed: 1, resamples: 200 };
    expect(compareResults({ before, after: shuffled }, options)).toEqual(compareResults({ before, after }, options));
    const doubled = compareResults({ before: [...before, ...before], after: [...after, ...after] }, options);
    expect(doubled.sampleFBeta).toEqual(compareResults({ before, after }, options).sampleFBeta);
  });

  it('refuse evaluations of different tasks', () => {
    expect(() => compareResults({ before, after: after.slice(1) }, { seed: 1 })).toThrow(/do not cover the same tasks/);
  });
});

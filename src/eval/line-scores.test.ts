/** Ranking figures and the exact threshold, against figures by hand and brute force. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { createRandom } from '../domain/ids.ts';
import { alwaysSilent, reportLines, thresholdControl } from './controls.ts';
import { chooseThreshold, forcedChoice, labelLineScores, rankingIntervals, summariseRanking } from './line-scores.ts';
import type { LineScore } from './line-scores.ts';
import { scoreResults } from './scores.ts';
import { makeTask } from './tasks.fixture.ts';

function line(taskIndex: number, score: number, isBug: boolean, kind = 'off-by-one'): LineScore {
  return { taskIndex, line: 1, isBug, kind, role: isBug ? 'bug' : 'equivalent', score };
}

/** Random tasks of one to four lines, a third of them clean. */
function randomTasks(count: number, seed: number): { tasks: ReturnType<typeof makeTask>[]; lines: LineScore[] } {
  const random = createRandom(seed);
  const tasks = Array.from({ length: count }, (_, index) => {
    const lines = 1 + random.below(4);
    const bug = random.next() < 1 / 3 ? -1 : random.below(lines);
    return makeTask(
      `t${index}`,
      Array.from(
        { length: lines },
        (__, position) =>
          [position + 1, position === bug ? 'off-by-one' : 'rename', position === bug ? 'bug' : 'equivalent'] as const,
      ),
    );
  });
  const scores = tasks.map(({ environment, gold }) =>
    environment.changes.map(
      (change) => Math.round(10 * (random.next() + (gold.bugs[0]?.startLine === change.line ? 0.4 : 0))) / 10,
    ),
  );
  return { tasks, lines: labelLineScores(tasks, scores) };
}

describe('labelLineScores', () => {
  it('pairs lines with labels, and refuses rows of the wrong length', () => {
    const task = makeTask('t', [
      [4, 'rename', 'equivalent'],
      [6, 'off-by-one', 'bug'],
    ]);
    expect(labelLineScores([task], [[0.1, 0.9]])).toEqual([
      { taskIndex: 0, line: 4, isBug: false, kind: 'rename', role: 'equivalent', score: 0.1 },
      { taskIndex: 0, line: 6, isBug: true, kind: 'off-by-one', role: 'bug', score: 0.9 },
    ]);
    expect(() => labelLineScores([task], [[0.1]])).toThrow(/1 scores for the 2 changed lines/);
  });
});

describe('forcedChoice', () => {
  it('counts tasks with a choice only, and ties by share', () => {
    const decided = [line(0, 2, true), line(0, 1, false)];
    const tied = [line(1, 1, true), line(1, 1, false), line(1, 0, false)];
    const withoutChoice = [line(2, 9, false), line(3, 9, true)];
    const lines = [decided, tied, withoutChoice].flat();
    expect(forcedChoice(lines)).toEqual({ choices: 2, share: 0.75, chance: (1 / 2 + 1 / 3) / 2 });
  });

  it('is at chance for scores without information', () => {
    const lines = Array.from({ length: 40 }, (_, index) => line(Math.floor(index / 4), 1, index % 4 === 0));
    const { forcedChoice: choice, auc } = summariseRanking(lines);
    expect(choice.share).toBeCloseTo(choice.chance, 12);
    expect(auc).toBe(0.5);
  });

  it('by kind, sets each bug against the lines without a bug in its task', () => {
    const lines = [
      line(0, 3, true, 'wrong-logic'),
      line(0, 1, true, 'missing-return'),
      line(0, 2, false),
      line(0, 0, false),
    ];
    const { byKind, withoutDirectional } = summariseRanking(lines);
    expect(byKind.map(({ kind, forcedChoice: choice, auc }) => [kind, choice.share, choice.chance, auc])).toEqual([
      ['missing-return', 0, 1 / 3, 0.5],
      ['wrong-logic', 1, 1 / 3, 1],
    ]);
    expect(withoutDirectional.auc).toBe(1);
  });
});

describe('rankingIntervals', () => {
  it('have the summary as estimate, and exclude chance for real information', () => {
    const { lines } = randomTasks(300, 1);
    const summary = summariseRanking(lines);
    const intervals = rankingIntervals({ scores: lines }, { seed: 1, resamples: 400 });
    expect(intervals.forcedChoice.estimate).toBeCloseTo(summary.forcedChoice.share, 12);
    expect(intervals.auc.estimate).toBeCloseTo(summary.auc ?? Number.NaN, 12);
    expect(intervals.auc.low).toBeGreaterThan(0.5);
  });

  it('of a difference are exactly 0 where only the scale moved', () => {
    const { lines } = randomTasks(100, 2);
    const moved = lines.map((item) => ({ ...item, score: 3 + 2 * item.score }));
    const zero = { estimate: 0, low: 0, high: 0 };
    expect(rankingIntervals({ scores: moved, before: lines }, { seed: 1, resamples: 100 })).toEqual({
      forcedChoice: zero,
      auc: zero,
    });
  });
});

describe('chooseThreshold', () => {
  it('reaches what the detection score says, and no other threshold does better', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 1e6 }), fc.constantFrom(0.5, 1, 2), (seed, beta) => {
        const { tasks, lines } = randomTasks(25, seed);
        const chosen = chooseThreshold(lines, { beta });
        const reach = (threshold: number): number =>
          scoreResults(reportLines({ tasks, lines }, { threshold }), { beta }).sample.fBeta;
        expect(reach(chosen.threshold)).toBeCloseTo(chosen.fBeta, 12);
        for (let threshold = -0.05; threshold < 1.6; threshold += 0.1)
          expect(reach(threshold)).toBeLessThanOrEqual(chosen.fBeta + 1e-12);
      }),
      { numRuns: 40, seed: 9 },
    );
  });

  it('stays silent when every line is clean', () => {
    const lines = [line(0, 0.9, false), line(1, 0.2, false)];
    const { threshold, fBeta } = chooseThreshold(lines);
    expect(threshold).toBeGreaterThan(0.9);
    expect(fBeta).toBe(1);
  });
});

describe('controls', () => {
  const { tasks, lines } = randomTasks(200, 3);

  it('always silent scores the share of clean tasks, exactly', () => {
    const clean = tasks.filter(({ gold }) => gold.bugs.length === 0).length / tasks.length;
    const { sample, pooled } = scoreResults(alwaysSilent(tasks));
    expect(sample.precision).toBeCloseTo(clean, 12);
    expect(sample.fBeta).toBeCloseTo(clean, 12);
    expect(pooled.fBeta).toBe(0);
  });

  it('report a line that scores exactly the threshold', () => {
    const exact = reportLines({ tasks, lines: lines.map((item) => ({ ...item, score: 0.5 })) }, { threshold: 0.5 });
    expect(scoreResults(exact).predicted).toBe(lines.length);
  });

  it('a threshold chosen on other tasks carries over', () => {
    const tuning = randomTasks(400, 4).lines;
    const { threshold, results } = thresholdControl({ tuning, tasks, lines });
    expect(scoreResults(results).sample.fBeta).toBeGreaterThan(scoreResults(alwaysSilent(tasks)).sample.fBeta);
    expect(
      results.every(
        ({ submission }, index) =>
          submission.findings.length ===
          lines.filter((item) => item.taskIndex === index && item.score >= threshold.threshold).length,
      ),
    ).toBe(true);
  });
});

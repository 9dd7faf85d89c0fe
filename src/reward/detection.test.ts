/** The detection score against the vectors, and the properties of the matching against brute force. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { readVectors } from '../../test/read-vectors.fixture.ts';
import type { Finding, Submission } from '../domain/finding.ts';
import type { Bug, BugCategory } from '../domain/task.ts';
import { matchFindings, samplePrecisionRecall, scoreFindings } from './detection.ts';

const file = 'lib/index.js';

function bug(startLine: number, endLine = startLine, category: BugCategory = 'wrong-logic'): Bug {
  return { category, severity: 'high', startLine, endLine, description: 'wrong', fix: '' };
}

function finding(startLine: number, endLine = startLine, rest: Partial<Finding> = {}): Finding {
  return {
    file,
    startLine,
    endLine,
    severity: 'high',
    category: 'wrong-logic',
    title: 'wrong',
    description: '',
    ...rest,
  };
}

function submission(findings: readonly Finding[], valid = true): Submission {
  return { valid, findings, end: valid ? 'finished' : 'malformed', turns: 1, lookups: [] };
}

describe('samplePrecisionRecall', () => {
  it.each(
    readVectors<
      { tp: number; pred: number; gt: number; conglomerate: boolean },
      { P: number; R: number; reward: number }
    >('samplePR'),
  )('gives $out for $in', ({ in: { tp, pred, gt, conglomerate }, out }) => {
    const point = samplePrecisionRecall({ truePositives: tp, predicted: pred, actual: gt, conglomerate });
    expect(point.precision).toBeCloseTo(out.P, 12);
    expect(point.recall).toBeCloseTo(out.R, 12);
    expect(0.5 * point.precision + point.recall).toBeCloseTo(out.reward, 12);
  });
});

describe('scoreFindings', () => {
  it('counts two findings on one bug as one hit and one miss', () => {
    const outcome = scoreFindings(submission([finding(10), finding(10)]), { bugs: [bug(10), bug(20)], file });
    expect(outcome).toMatchObject({
      truePositives: 1,
      predicted: 2,
      actual: 2,
      precision: 0.5,
      recall: 0.5,
      valid: true,
    });
  });

  it('gives the wide finding to the bug that the narrow one cannot reach', () => {
    // In order, the wide finding would take bug 10 and leave the narrow one without a partner.
    const outcome = scoreFindings(submission([finding(10, 12), finding(10)]), { bugs: [bug(10), bug(12)], file });
    expect(outcome).toMatchObject({ truePositives: 2, precision: 1, recall: 1 });
  });

  it('never matches another file, and reads ./ as nothing', () => {
    expect(
      scoreFindings(submission([finding(10, 10, { file: 'lib/other.js' })]), { bugs: [bug(10)], file }).precision,
    ).toBe(0);
    expect(
      scoreFindings(submission([finding(10, 10, { file: './lib/index.js' })]), { bugs: [bug(10)], file }).precision,
    ).toBe(1);
  });

  it('voids a sample that holds a finding wider than the limit, on a clean task too', () => {
    const wide = [finding(10), finding(1, 6)];
    expect(scoreFindings(submission(wide), { bugs: [bug(10)], file })).toMatchObject({
      precision: 0,
      recall: 0,
      predicted: 2,
      truePositives: 0,
    });
    expect(scoreFindings(submission([finding(1, 6)]), { bugs: [], file })).toMatchObject({ precision: 0, recall: 0 });
    expect(scoreFindings(submission([finding(6, 10)]), { bugs: [bug(10)], file }).precision).toBe(1);
  });

  it('accepts a finding as wide as a real bug', () => {
    expect(scoreFindings(submission([finding(1, 9)]), { bugs: [bug(1, 9)], file }).precision).toBe(1);
  });

  it('rewards silence on a clean task only when the report could be read', () => {
    expect(scoreFindings(submission([]), { bugs: [], file })).toMatchObject({ precision: 1, recall: 1, valid: true });
    expect(scoreFindings(submission([], false), { bugs: [], file })).toMatchObject({
      precision: 0,
      recall: 0,
      predicted: 0,
      valid: false,
    });
    expect(scoreFindings(submission([]), { bugs: [bug(3)], file })).toMatchObject({ precision: 0, recall: 0 });
  });

  it('carries cheating into the outcome', () => {
    expect(scoreFindings(submission([finding(10)]), { bugs: [bug(10)], file, cheated: true }).cheated).toBe(true);
  });
});

describe('matchFindings', () => {
  const spans = fc.array(fc.tuple(fc.integer({ min: 1, max: 9 }), fc.integer({ min: 0, max: 3 })), { maxLength: 5 });

  it('is one to one, overlapping, and as large as brute force finds', () => {
    fc.assert(
      fc.property(spans, spans, (findingSpans, bugSpans) => {
        const findings = findingSpans.map(([start, extra]) => finding(start, start + extra));
        const bugs = bugSpans.map(([start, extra]) => bug(start, start + extra));
        const matched = matchFindings(findings, { bugs, file });
        const used = matched.filter((index) => index !== undefined);
        expect(new Set(used).size).toBe(used.length);
        for (const [index, bugIndex] of matched.entries()) {
          if (bugIndex !== undefined) expect(touches(findings[index], bugs[bugIndex])).toBe(true);
        }
        expect(used.length).toBe(largestMatching(findings, bugs));
      }),
      { numRuns: 300, seed: 7 },
    );
  });

  it('prefers the bug of its own category', () => {
    const bugs = [bug(10, 10, 'wrong-logic'), bug(10, 10, 'off-by-one')];
    expect(matchFindings([finding(10, 10, { category: 'off-by-one' })], { bugs, file })).toEqual([1]);
  });
});

function touches(one: Finding | undefined, other: Bug | undefined): boolean {
  return one !== undefined && other !== undefined && one.startLine <= other.endLine && other.startLine <= one.endLine;
}

function largestMatching(findings: readonly Finding[], bugs: readonly Bug[]): number {
  const [first, ...rest] = findings;
  if (first === undefined) return 0;
  let best = largestMatching(rest, bugs);
  for (const [index, candidate] of bugs.entries()) {
    if (touches(first, candidate)) best = Math.max(best, 1 + largestMatching(rest, bugs.toSpliced(index, 1)));
  }
  return best;
}

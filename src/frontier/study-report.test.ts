/** The study's page: whole in one file, a table for each picture, and sentences that change when the numbers do. */
import { describe, expect, it } from 'vitest';

import { inventRecord } from './study-record.fixture.ts';
import type { StudyRecord } from './study-record.ts';
import { renderStudyReport, renderStudySvg } from './study-report.ts';
import { summariseStudy } from './study-summary.ts';
import { describeStudy } from './study-words.ts';

const record = inventRecord();
const render = (of: StudyRecord, form: 'sampled' | 'mean-field' = 'sampled'): string =>
  renderStudyReport({
    record: of,
    summary: summariseStudy(of),
    form,
    facts: [{ name: 'Time', value: '61 ns a rollout, 2 workers' }],
    files: [{ name: 'Results', path: 'runs/a<b/results.json' }],
  });
const page = render(record);

describe('the page', () => {
  it('needs no network and no script, and stays small', () => {
    expect(page).not.toMatch(/<script|<link|<img|src=|url\(|@import|href=/);
    expect(page.length).toBeLessThan(1_000_000);
    expect(page).toContain('<meta name="viewport"');
  });

  it('has the sections in their order and a table of numbers for each picture', () => {
    const heads = [...page.matchAll(/<h2>([^<]*)<\/h2>/g)].map((match) => match[1]);
    expect(heads).toEqual([
      'What it says',
      'Where each rule lands',
      'Beside the published figures',
      'How it gets there',
      'A wrong starting price',
      'Order and direction',
      'How it was run',
      'Where it is',
    ]);
    const figures = page.match(/<figure /g)?.length;
    expect(figures).toBe(5);
    expect(page.match(/<summary>Numbers<\/summary>/g)).toHaveLength(5);
    expect(page.match(/role="img" aria-label="[^"]{40,}"/g)).toHaveLength(15);
    const ids = [...page.matchAll(/ id="([^"]*)"/g)].map((match) => match[1]);
    expect(new Set(ids).size).toBe(ids.length);
  });

  it('shows what it was given, escaped, and draws no number that is none', () => {
    expect(page).toContain('61 ns a rollout, 2 workers');
    expect(page).toContain('runs/a&lt;b/results.json');
    expect(page).not.toMatch(/NaN|Infinity|undefined|∞/);
  });

  it('is the same for the same record', () => {
    expect(render(inventRecord())).toBe(page);
  });

  it('holds for a small study: one problem, one arm, no wrong slopes', () => {
    for (const rule of [{ kind: 'fixed' }, { kind: 'steered', alpha: 0.3 }] as const) {
      const small = inventRecord(
        { problems: [42], steps: 3, recordEvery: 1, arms: [{ rule, slopeFactor: 1, seeds: 1 }] },
        { hasWrongSlopes: false },
      );
      const text = render(small, 'mean-field');
      expect(text).not.toMatch(/NaN|Infinity|undefined|∞/);
      expect(text).not.toContain('A wrong starting price');
      expect(text).toContain('without sampling');
    }
  });
});

describe('the words', () => {
  const wordsOf = (of: StudyRecord): string => {
    const { lead, findings } = describeStudy({ record: of, summary: summariseStudy(of), form: 'sampled' });
    return [lead, ...findings].join('\n');
  };

  it('say what was run, in numbers', () => {
    const words = wordsOf(record);
    expect(words).toContain('On 100 problems');
    expect(words).toContain('2,200 runs of 1,000 steps with 1,024 rollouts each');
    expect(words).toContain('the fixed price and α = 0, 0.25, 0.5, 0.75 and 1');
    expect(words).toContain('Steering lands where α points');
    expect(words).toMatch(/\d+ of 36 figures agree within what the seeds of both explain/);
    expect(words).toMatch(/A fixed price that starts wrong stays wrong\. At medium effort it ends from ×⅓ at −1\d\d/);
    expect(words).toMatch(
      /wrong by ×⅓ and ×3, saving and gain end within [\d.]+ points at low effort, 0\.\d points at medium/,
    );
  });

  it('say that steering misses when the arms are not what they claim', () => {
    const last = record.plan.arms.length - 5;
    const swapped: StudyRecord = {
      plan: record.plan,
      runs: record.runs.map((run) => {
        if (run.arm === 1) return { ...run, arm: last };
        return run.arm === last ? { ...run, arm: 1 } : run;
      }),
    };
    const words = wordsOf(swapped);
    expect(words).toContain('Steering does not land where α points');
    expect(words).toMatch(/in this share of the problems: 0 % at low effort/);
  });
});

describe('the standalone picture', () => {
  it('is one SVG with the three panels', () => {
    const svg = renderStudySvg({ record });
    expect(svg.startsWith('<svg xmlns=')).toBe(true);
    expect(svg.match(/class="panel"/g)).toHaveLength(3);
    expect(svg).not.toMatch(/NaN/);
  });
});

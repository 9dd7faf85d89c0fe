/** The report: whole, self-contained, well formed, escaped; and the same results as text of at most 100 columns. */
import { describe, expect, it } from 'vitest';

import { curveGroups, renderCurvesSvg } from './curves.ts';
import { readStepEvents } from './events.ts';
import { inventReport, inventSteps, inventTable } from './report.fixture.ts';
import { describeRun, renderReport } from './report.ts';
import { renderTable } from './result-table.ts';

const VOID_TAGS = new Set(['meta', 'br']);
const report = inventReport(3);
const page = renderReport(report);

/** Tags that are not closed in order; XML's short form counts as closed. */
function unbalancedTags(text: string): string[] {
  const open: string[] = [];
  for (const [, slash, name = '', rest = ''] of text.matchAll(/<(\/?)([a-z][a-z0-9]*)((?:"[^"]*"|[^">])*)>/g)) {
    if (VOID_TAGS.has(name) || rest.endsWith('/')) continue;
    if (slash === '') open.push(name);
    else if (open.pop() !== name) return [name];
  }
  return open;
}

describe('renderReport', () => {
  it('needs nothing but itself', () => {
    expect(page).not.toMatch(/<script|<link|src=|href=|https?:|url\(|@import/);
    expect(page).toContain('prefers-color-scheme:dark');
  });

  it('is well formed and has no number that is none', () => {
    expect(unbalancedTags(page)).toEqual([]);
    expect(page).not.toMatch(/NaN|undefined|Infinity|\[object/);
  });

  it('has a picture and a table for each curve, and every metric of the step events is drawn', () => {
    const charts = curveGroups(report.steps).flatMap(({ charts: ofGroup }) => ofGroup);
    expect(page.split('<figure').length - 1).toBe(charts.length);
    expect(page.split('<svg class="chart"').length - 1).toBe(charts.length);
    expect(page.split('<details>').length - 1).toBe(charts.length);
    expect(new Set(charts.map(({ id }) => id)).size).toBe(charts.length);
    for (const part of [
      'precision',
      'Entropy',
      'zero-variance',
      'Kept-set size',
      'Mismatch k3',
      'Tokens per second',
      'Pause',
      'Weight delta',
    ]) {
      expect(page).toContain(part);
    }
  });

  it('draws what a reward is made of and where a steered run lands, with its target, where steps recorded it', () => {
    const byCost = (value: number): Record<string, number> => ({ 'low/tokens': value, 'high/tokens': 2 * value });
    const steps = report.steps.map((event, index) => ({
      ...event,
      metrics: {
        ...event.metrics,
        'reward/components': { precision: 0.3, recall: 0.1, frontier: -0.05 },
        'frontier/success_gain': index === 2 ? { low: 0.1 } : { low: 0.1, high: 0.2 },
        'frontier/cost_saving': byCost(0.1),
        'frontier/log_price': byCost(-3),
        'frontier/gap': byCost(0.01),
      },
    }));
    expect(readStepEvents(steps)).toHaveLength(steps.length);
    const drawn = new Map(
      curveGroups(steps, { alpha: 0.3 }).flatMap(({ charts }) => charts.map((chart) => [chart.id, chart] as const)),
    );
    expect(drawn.get('components')?.series.map(({ name }) => name)).toEqual(['precision', 'recall', 'frontier']);
    expect(drawn.get('success-gain')?.caption).toContain('gain : saving = 0.3 : 0.7');
    expect(
      drawn
        .get('success-gain')
        ?.series[1]?.points.slice(1, 4)
        .map(({ value }) => value),
    ).toEqual([0.2, null, 0.2]);
    expect(drawn.get('cost-saving')?.series.map(({ name }) => name)).toEqual(['low/tokens', 'high/tokens']);
    expect(drawn.get('log-price')?.series).toHaveLength(2);
    expect(drawn.get('gap')?.series).toHaveLength(2);
    expect(unbalancedTags(renderReport({ ...report, steps, alpha: 0.3 }))).toEqual([]);
    expect(curveGroups(report.steps).map(({ title }) => title)).not.toContain('Where does it land');
  });

  it('shows policies, controls and kinds', () => {
    for (const { label } of report.table?.rows ?? []) expect(page).toContain(label);
    expect(page).toContain('contradicted-constant');
    expect(page).toContain('What no threshold can move');
  });

  it('escapes what comes from outside', () => {
    const hostile = renderReport({ ...report, title: '<img onerror=x>', facts: [{ name: '"a"', value: '<b>&' }] });
    expect(hostile).not.toContain('<img');
    expect(hostile).toContain('&lt;b&gt;&amp;');
  });

  it('can be drawn before the first step and before any evaluation', () => {
    const empty = renderReport({ title: 'new', facts: [], steps: [], files: [] });
    expect(unbalancedTags(empty)).toEqual([]);
    expect(empty).not.toContain('<figure');
  });
});

describe('describeRun', () => {
  it('says whether intervals exclude 0, and whether the policy stayed open, with numbers', () => {
    const sentences = describeRun(report);
    expect(
      sentences.some((sentence) =>
        /^After - before, sampled, all kinds: sample-averaged F0\.5 [+-]0\.\d{3} \[/.test(sentence),
      ),
    ).toBe(true);
    expect(sentences.at(-1)).toMatch(
      /^Groups with variance: \d+ % → \d+ % .* above half of where they started; entropy 0\.\d+ → 0\.\d+ nats\.$/,
    );
  });

  it('does not hide a collapse', () => {
    const collapsed = report.steps.map((event, index) => ({
      ...event,
      metrics: { ...event.metrics, 'rollout/groups_with_variance': index < 45 ? 0.8 : 0.3 },
    }));
    expect(describeRun({ steps: collapsed }).at(-1)).toContain('BELOW half');
  });
});

describe('renderTable', () => {
  const text = renderTable(inventTable(60, 4));

  it('fits 100 columns and has every row', () => {
    for (const line of text.split('\n')) expect(line.length).toBeLessThanOrEqual(100);
    for (const part of [
      'A before, sampled',
      'E always silent',
      'after - before',
      'what no threshold can move',
      'changed lines looked up',
      'missing-await',
    ]) {
      expect(text).toContain(part);
    }
  });

  it('keeps the columns apart and in line', () => {
    const wide = text.split('\n').slice(2, 11);
    expect(wide[1]).toMatch(/ turns tokens$/);
    expect(new Set(wide.slice(1, 9).map((line) => line.length))).toEqual(new Set([100]));
  });

  it('shows no precision for a policy that reports nothing', () => {
    expect(text).toMatch(/always silent .*\] +- +0\.000 +0\.000/);
    expect(text).not.toMatch(/NaN|undefined/);
  });

  it('survives JSON', () => {
    const table = inventTable(30, 4);
    expect(renderTable(JSON.parse(JSON.stringify(table)) as typeof table)).toBe(renderTable(table));
  });
});

describe('renderCurvesSvg', () => {
  it('is one picture that stands alone', () => {
    const svg = renderCurvesSvg(inventSteps(40, 1));
    expect(svg.startsWith('<svg xmlns="http://www.w3.org/2000/svg"')).toBe(true);
    expect(unbalancedTags(svg)).toEqual([]);
    expect(svg).not.toMatch(/NaN|undefined/);
    expect(svg.split('class="panel"').length - 1).toBe(6);
  });
});

describe('readStepEvents', () => {
  const steps = inventSteps(3, 1);
  const [first, second, third] = steps;

  it('reads its own JSON back, in order, the last of a repeated step, and passes over other events', () => {
    const repeated = { ...second, version: 9 };
    const lines = [third, { event: 'weights-published' }, second, first, repeated].map(
      (event) => JSON.parse(JSON.stringify(event)) as unknown,
    );
    expect(readStepEvents(lines)).toEqual([first, repeated, third]);
  });

  it('names what is wrong with an event that does not keep the schema', () => {
    const broken = { ...first, metrics: { ...first?.metrics, 'policy/entropi': 1 } };
    expect(() => readStepEvents([broken])).toThrow(/policy\/entropi/);
    const missing = structuredClone(first?.metrics) as Record<string, unknown>;
    delete missing['policy/entropy'];
    expect(() => readStepEvents([{ ...first, metrics: missing }])).toThrow(/metrics\.policy\/entropy/);
  });
});

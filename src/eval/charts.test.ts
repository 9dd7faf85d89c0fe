/** Charts: ticks, gaps, smoothing, escaping, and that what is drawn is where the numbers say. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { CHART_WIDTH, drawChart, formatValue, movingMean, niceTicks, renderChart, renderChartTable } from './charts.ts';
import type { Chart } from './charts.ts';

function chart(values: readonly (number | null)[], rest: Partial<Chart> = {}): Chart {
  const points = values.map((value, index) => ({ step: index + 1, value }));
  return {
    id: 'c',
    title: 'Title',
    caption: '',
    form: 'lines',
    format: 'score',
    series: [{ name: 'one', points }],
    ...rest,
  };
}

describe('niceTicks', () => {
  it('encloses the range with a few round numbers, rising', () => {
    fc.assert(
      fc.property(
        fc.double({ min: -1e6, max: 1e6, noNaN: true }),
        fc.double({ min: 0.1, max: 1e6, noNaN: true }),
        (low, span) => {
          const ticks = niceTicks(low, low + span);
          expect(ticks[0]).toBeLessThanOrEqual(low + 1e-6 * span);
          expect(ticks.at(-1)).toBeGreaterThanOrEqual(low + span - 1e-6 * span);
          expect(ticks.length).toBeLessThanOrEqual(7);
          for (const [index, tick] of ticks.entries())
            if (index > 0) expect(tick).toBeGreaterThan(ticks[index - 1] ?? 0);
        },
      ),
      { numRuns: 200, seed: 2 },
    );
    expect(niceTicks(0, 1)).toEqual([0, 0.25, 0.5, 0.75, 1]);
    expect(niceTicks(0.3, 0.3).length).toBeGreaterThan(1);
    expect(niceTicks(88_000, 88_000 + 1e-9).length).toBeLessThanOrEqual(7);
    expect(niceTicks(0, 0)).toContain(0);
  });
});

describe('movingMean', () => {
  it('averages a centred window, cut at the ends, over gaps', () => {
    expect(movingMean([1, 2, 3, 4, 5], 3)).toEqual([1.5, 2, 3, 4, 4.5]);
    expect(movingMean([1, null, 3], 3)).toEqual([1, 2, 3]);
    expect(movingMean([null, null], 1)).toEqual([null, null]);
  });
});

describe('drawChart', () => {
  it('puts the values where the scale says', () => {
    const { body } = drawChart(chart([0, 0.5, 1]));
    // Steps 1..3 across 48..372; 0 at the bottom (166), 1 at the top (26).
    expect(body).toContain('d="M48 166L210 96L372 26"');
  });

  it('leaves a gap for a missing value, and shows a value that stands alone', () => {
    const { body } = drawChart(chart([0, 1, null, 1, null]));
    expect(body).toMatch(/d="M48 166L129 26M291 26"/);
    expect(body).toContain('<circle');
  });

  it('draws thin steps and a bold mean for a long run', () => {
    const { body } = drawChart(chart(Array.from({ length: 60 }, (_, index) => index % 2)));
    expect(body).toContain('class="raw l0"');
    expect(body).toContain('class="mean l0"');
  });

  it('fills each column of shares exactly, in at most 46 columns', () => {
    const parts = [1, 3].map((value, index) => ({
      name: `part ${index}`,
      points: Array.from({ length: 200 }, (_, step) => ({ step, value })),
    }));
    const { body } = drawChart(chart([], { form: 'shares', series: parts }));
    const heights = [
      ...body.matchAll(/<rect class="s(\d)" x="[\d.]+" y="[\d.]+" width="[\d.]+" height="([\d.]+)"\/>/g),
    ];
    expect(heights.length).toBe(2 * 46);
    for (const [, index, height] of heights) expect(Number(height)).toBe(index === '0' ? 35 : 105);
  });

  it('survives nothing, one step, and equal values', () => {
    expect(drawChart(chart([])).body).toContain('no steps yet');
    for (const values of [[0.5], [2, 2, 2], [null, null], [0, 0]])
      expect(drawChart(chart(values)).body).not.toMatch(/NaN|Infinity/);
  });

  it('keeps the legend inside the picture', () => {
    const series = ['a long name of a series', 'another long name', 'and a third one'].map((name) => ({
      name,
      points: [{ step: 1, value: 1 }],
    }));
    const { body } = drawChart(chart([], { series }));
    for (const [, x] of body.matchAll(/class="legend" x="([\d.]+)"/g)) expect(Number(x)).toBeLessThan(CHART_WIDTH - 60);
  });
});

describe('renderChart', () => {
  it('says in words what it shows, and escapes names', () => {
    const svg = renderChart(
      chart([0.25, 0.5], {
        title: 'P & R',
        series: [
          {
            name: '<b>',
            points: [
              { step: 1, value: 0.25 },
              { step: 2, value: 0.5 },
            ],
          },
        ],
      }),
    );
    expect(svg).toContain('aria-label="P &amp; R: &lt;b&gt; from 0.25 to 0.5"');
    expect(svg).not.toContain('<b>');
  });
});

describe('renderChartTable', () => {
  it('has every step of a short run, and first and last of a long one', () => {
    expect(renderChartTable(chart([0.1, null]))).toContain('<tr><th scope="row">2</th><td>–</td></tr>');
    const rows = [
      ...renderChartTable(chart(Array.from({ length: 500 }, (_, index) => index))).matchAll(/scope="row">(\d+)</g),
    ].map(([, step]) => Number(step));
    expect(rows.length).toBe(30);
    expect([rows[0], rows.at(-1)]).toEqual([1, 500]);
  });
});

describe('formatValue', () => {
  it.each([
    [0.5, 'score', '0.5'],
    [0.25, 'share', '25 %'],
    [5230, 'count', '5230'],
    [1_234_567, 'count', '1.2M'],
    [150_000, 'bytes', '150 kB'],
    [3.14159, 'milliseconds', '3.1 ms'],
    [0.00023, 'scientific', '2.3e−4'],
    [0, 'scientific', '0'],
  ] as const)('%d as %s is %s', (value, format, text) => {
    expect(formatValue(value, format)).toBe(text);
  });
});

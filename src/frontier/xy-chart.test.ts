/** X-y charts: what is drawn is where the axes say, nothing leaves its frame, and every look reads without colour. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { PANEL_WIDTH, drawPanel, renderFigure, renderStandaloneSvg } from './xy-chart.ts';
import type { Figure, Panel } from './xy-chart.ts';
import { drawLayer } from './xy-layers.ts';
import type { Frame } from './xy-frame.ts';
import type { Layer } from './xy-layers.ts';
import { createScale, formatNumber, formatTick, linearTicks, logTicks, rangeOf } from './xy-scale.ts';

const frame: Frame = {
  x: createScale({ low: 0, high: 10 }, { isLog: false, pixels: [0, 100] }),
  y: createScale({ low: 0, high: 10 }, { isLog: false, pixels: [100, 0] }),
  left: 0,
  right: 100,
  top: 0,
  bottom: 100,
};
const look = { colour: 0 } as const;
const pathOf = (layer: Layer): string => / d="([^"]*)"/.exec(drawLayer(layer, frame))?.[1] ?? '';

function panel(layers: readonly Layer[], rest: Partial<Panel> = {}): Panel {
  return {
    summary: 'A summary.',
    x: { label: 'x', format: 'number' },
    y: { label: 'y', format: 'number' },
    layers,
    ...rest,
  };
}

describe('lines', () => {
  it('stand where the axes say, and end at a gap', () => {
    const points = [
      { x: 0, y: 0 },
      { x: 5, y: 10 },
      { x: 6, y: Number.NaN },
      { x: 8, y: 2 },
      { x: 10, y: 2 },
    ];
    expect(pathOf({ kind: 'line', look, points })).toBe('M0 100L50 0M80 80L100 80');
  });

  it('are cut where they cross the frame, in both directions', () => {
    const points = [
      { x: 0, y: 5 },
      { x: 10, y: 15 },
      { x: 10, y: 5 },
    ];
    expect(pathOf({ kind: 'line', look, points })).toBe('M0 50L50 0M100 0L100 50');
    const ray = { from: { x: 0, y: 0 }, to: { x: 400, y: 200 } };
    expect(pathOf({ kind: 'segments', look, segments: [ray] })).toBe('M0 100L100 50');
  });
});

describe('marks, bands and bars', () => {
  it('leave out what is outside, and split a band at a gap', () => {
    const outside = [{ x: 11, y: 5 }];
    expect(drawLayer({ kind: 'marks', look, points: outside }, frame)).toBe('');
    const points = [0, 5, 6, 8, 10].map((x) => ({ x, low: x === 6 ? Number.NaN : 2, high: 40 }));
    expect(pathOf({ kind: 'band', look, points })).toBe('M0 0L50 0L50 80L0 80ZM80 0L100 0L100 80L80 80Z');
  });

  it('put caps on the ends of a bar that are inside', () => {
    const points = [{ x: 5, y: 5, yLow: 2, yHigh: 20 }];
    expect(pathOf({ kind: 'error-bars', look, points })).toBe('M50 80L50 0M47 80H53');
  });

  it('move labels apart that would overlap', () => {
    const labels = [5, 5.1, 5.2].map((y) => ({ x: 1, y, text: String(y) }));
    const drawn = drawLayer({ kind: 'labels', look, labels }, frame);
    const heights = [...drawn.matchAll(/ y="([\d.]+)"/g)].map((match) => Number(match[1])).toSorted((a, b) => a - b);
    expect(heights).toHaveLength(3);
    for (const [index, height] of heights.entries())
      if (index > 0) expect(height - (heights[index - 1] ?? 0)).toBeGreaterThanOrEqual(12);
  });

  it('step labels below their points away from a neighbour, and only from one that is near', () => {
    const labels = [1, 1.5, 9].map((x) => ({ x, y: 5, text: 'medium' }));
    const drawn = drawLayer({ kind: 'labels', look, labels, side: 'below' }, frame);
    const heights = [...drawn.matchAll(/ y="([\d.]+)"/g)].map((match) => Number(match[1]));
    expect((heights[1] ?? 0) - (heights[0] ?? 0)).toBeGreaterThanOrEqual(12);
    expect(heights[2]).toBe(heights[0]);
  });
});

describe('every layer', () => {
  it('stays inside the frame, whatever the numbers are', () => {
    const value = fc.oneof(fc.double({ min: -30, max: 30, noNaN: true }), fc.constantFrom(Number.NaN, Infinity));
    fc.assert(
      fc.property(fc.array(fc.tuple(value, value, value), { minLength: 1, maxLength: 12 }), (rows) => {
        const points = rows.map(([x, y, z]) => ({ x, y, low: y, high: z, yLow: y, yHigh: z, xLow: y, xHigh: z }));
        const pairs = points.map(({ x, y }) => ({ from: { x: 3, y: 3 }, to: { x, y } }));
        for (const layer of [
          { kind: 'line', look, points },
          { kind: 'band', look, points },
          { kind: 'segments', look, segments: pairs },
          { kind: 'error-bars', look, points },
        ] as const) {
          const path = pathOf(layer);
          expect(path).not.toMatch(/NaN|Infinity/);
          for (const [, x, y] of path.matchAll(/[ML](-?[\d.]+) (-?[\d.]+)/g)) {
            expect(Math.abs(Number(x) - 50)).toBeLessThanOrEqual(50);
            expect(Math.abs(Number(y) - 50)).toBeLessThanOrEqual(50);
          }
        }
      }),
      { numRuns: 200, seed: 3 },
    );
  });
});

describe('axes', () => {
  it('have ticks inside their range, rising, a handful of them', () => {
    fc.assert(
      fc.property(
        fc.double({ min: 1e-6, max: 1e6, noNaN: true }),
        fc.double({ min: 1.01, max: 1e9, noNaN: true }),
        (low, ratio) => {
          for (const ticks of [logTicks(low, low * ratio), linearTicks(low, low * ratio)]) {
            expect(ticks.length).toBeGreaterThanOrEqual(2);
            expect(ticks.length).toBeLessThanOrEqual(9);
            for (const [index, tick] of ticks.entries()) {
              expect(tick).toBeGreaterThanOrEqual(low * (1 - 1e-6));
              expect(tick).toBeLessThanOrEqual(low * ratio * (1 + 1e-6));
              if (index > 0) expect(tick).toBeGreaterThan(ticks[index - 1] ?? 0);
            }
          }
        },
      ),
      { numRuns: 300, seed: 4 },
    );
    expect(logTicks(1, 100)).toEqual([1, 2, 5, 10, 20, 50, 100]);
  });

  it('show a single value, no value and only what a logarithm can take', () => {
    const axis = { label: '', format: 'number' } as const;
    for (const values of [[3], [0], [], [-2, -2]]) {
      const { low, high } = rangeOf(axis, values);
      expect(high).toBeGreaterThan(low);
    }
    const log = rangeOf({ ...axis, scale: 'log' }, [-1, 0, 10, 1000, Number.NaN]);
    expect(log.low).toBeGreaterThan(5);
    expect(log.high).toBeLessThan(2000);
    expect(rangeOf({ ...axis, low: 0 }, [5, 10]).low).toBe(0);
  });

  it('have equal units when asked, and grow the shorter range rather than a very flat picture', () => {
    const shape = (width: number, height: number): { width: number; height: number } => {
      const points = [
        { x: 0, y: 0 },
        { x: width, y: height },
      ];
      const { body } = drawPanel(panel([{ kind: 'marks', look, points }], { isEqualAspect: true }));
      const [, left, right] = /M([\d.]+) [\d.]+H([\d.]+)/.exec(body) ?? [];
      const [, top, bottom] = /M[\d.]+ ([\d.]+)V([\d.]+)/.exec(body) ?? [];
      return { width: Number(right) - Number(left), height: Number(bottom) - Number(top) };
    };
    const square = shape(1, 1);
    expect(square.height).toBeCloseTo(square.width, 0);
    const oblong = shape(4, 3);
    expect(oblong.height / oblong.width).toBeCloseTo(3 / 4, 2);
    expect(shape(100, 1).height).toBe(180);
    expect(shape(1, 100).height).toBe(420);
  });
});

describe('numbers', () => {
  it('are written with a true minus, a sign where asked, and no minus zero', () => {
    expect(formatNumber(-0.6293, 'signed-percent')).toBe('−62.9 %');
    expect(formatNumber(0.017, 'signed-percent')).toBe('+1.7 %');
    expect(formatNumber(-0.0002, 'signed-percent')).toBe('0.0 %');
    expect(formatNumber(12_345, 'number')).toBe('12,345');
    expect(formatNumber(0.0218987, 'number')).toBe('0.0219');
    expect(formatNumber(3e-7, 'number')).toBe('3e−7');
    expect(formatNumber(Number.NaN, 'percent')).toBe('–');
    expect(formatTick(0.25, 'percent')).toBe('25 %');
    expect(formatTick(0.025, 'percent')).toBe('2.5 %');
    expect(formatTick(2, 'times')).toBe('×2');
  });
});

describe('a figure', () => {
  const figure: Figure = {
    id: 'one',
    title: 'A <title>',
    caption: 'Read "so".',
    legend: [{ name: 'first & only', look: { colour: 0, mark: 'diamond', dash: 'dashed' }, shows: 'both' }],
    panels: [panel([{ kind: 'marks', look, points: [{ x: 1, y: 1 }] }]), panel([])],
    table: { heads: ['row', 'value'], rows: [['a < b', '1']] },
  };

  it('is escaped, has a sentence a panel, and its numbers in a table', () => {
    const html = renderFigure(figure);
    expect(html).toContain('A &lt;title&gt;');
    expect(html).toContain('first &amp; only');
    expect(html.match(/role="img" aria-label="A summary\."/g)).toHaveLength(2);
    expect(html).toContain('<details><summary>Numbers</summary>');
    expect(html).toContain('<th scope="row">a &lt; b</th><td>1</td>');
  });

  it('is one SVG with its styles inside when it stands alone', () => {
    const svg = renderStandaloneSvg(figure);
    expect(svg).toContain('xmlns="http://www.w3.org/2000/svg"');
    expect(svg).toContain('prefers-color-scheme:dark');
    expect(svg.match(/<svg/g)).toHaveLength(1);
    expect(svg).toContain(`width="${2 * PANEL_WIDTH + 24 + 32}"`);
    expect(renderStandaloneSvg(figure, { columns: 1 })).toContain(`width="${PANEL_WIDTH + 32}"`);
  });
});

/** The pictures of training: prices and costs relative to the start, and paths that begin and end where they should. */
import { describe, expect, it } from 'vitest';

import { priceFigure, trajectoryFigure, wrongPriceFigure } from './study-courses.ts';
import { exampleProblems } from './study-paths.ts';
import { inventRecord } from './study-record.fixture.ts';
import { summariseStudy } from './study-summary.ts';
import { toyProblem, toyStart } from './toy-task.ts';

const record = inventRecord({ problems: [0, 11, 25, 38, 42, 57, 63, 76, 84, 99] });
const MEDIUM = 1;

describe('prices', () => {
  it('start at ×1 and end at the mean that the summary has, inside their band', () => {
    const figure = priceFigure(record);
    const { arms } = summariseStudy(record);
    const lines = (figure.panels[MEDIUM]?.layers ?? []).filter((layer) => layer.kind === 'line');
    const bands = (figure.panels[MEDIUM]?.layers ?? []).filter((layer) => layer.kind === 'band');
    expect(lines).toHaveLength(5);
    for (const [index, { points }] of lines.entries()) {
      expect(points[0]?.y).toBe(1);
      const [last, mean] = [points.at(-1), arms[index + 1]?.efforts[MEDIUM]?.logPriceChange.mean];
      expect(Math.log(last?.y ?? 0)).toBeCloseTo(mean ?? Number.NaN, 9);
      const band = bands[index]?.points.at(-1);
      expect(last?.y).toBeGreaterThan(band?.low ?? Infinity);
      expect(last?.y).toBeLessThan(band?.high ?? 0);
    }
    expect(figure.table.heads).toHaveLength(12);
    expect(figure.table.rows).toHaveLength(15);
  });
});

describe('paths', () => {
  it('are of an easy, a middling and a hard problem', () => {
    const successes = exampleProblems(record).map((index) => toyStart(toyProblem(index)).successes[MEDIUM] ?? 0);
    expect(successes).toHaveLength(3);
    expect(successes[0]).toBeGreaterThan(successes[1] ?? 1);
    expect(successes[1]).toBeGreaterThan(successes[2] ?? 1);
    expect(exampleProblems(inventRecord({ problems: [7] }))).toEqual([7]);
  });

  it('start on the frontier of q = 1/2 at its tangent and end near the closed form', () => {
    const { panels, table } = trajectoryFigure(record);
    expect(table.rows).toHaveLength(18);
    for (const [, start, end, closed] of table.rows) {
      expect(start).toBe('6');
      expect(Math.abs(Math.log(Number(end) / Number(closed)))).toBeLessThan(0.15);
    }
    const layers = panels[0]?.layers ?? [];
    const frontier = layers.find((layer) => layer.kind === 'line');
    const tangent = layers.find((layer) => layer.kind === 'segments')?.segments[0];
    const below = (frontier?.points ?? []).map(({ x, y }) => {
      const slope = ((tangent?.to.y ?? 0) - (tangent?.from.y ?? 0)) / ((tangent?.to.x ?? 0) - (tangent?.from.x ?? 0));
      return (tangent?.from.y ?? 0) + slope * (x - (tangent?.from.x ?? 0)) - y;
    });
    // A concave curve lies below its tangent and meets it at the start only.
    expect(Math.min(...below)).toBeGreaterThan(-1e-9);
    expect(Math.min(...below)).toBeLessThan(1e-3);
  });
});

describe('wrong starting prices', () => {
  it('are drawn beside the right one, a dash for each factor', () => {
    const figure = wrongPriceFigure(record);
    expect(figure?.legend.map(({ name }) => name)).toEqual([
      'fixed price, ×⅓',
      'fixed price, ×1',
      'fixed price, ×3',
      'α = 0.5, ×⅓',
      'α = 0.5, ×1',
      'α = 0.5, ×3',
    ]);
    expect(new Set(figure?.legend.slice(0, 3).map(({ look }) => look.dash)).size).toBe(3);
    const ends = (figure?.table.rows ?? [])
      .filter(([name]) => name?.endsWith('medium'))
      .map((row) => Number(row.at(-1)?.slice(1)));
    expect(ends[0]).toBeGreaterThan(2);
    expect(ends[2]).toBeLessThan(0.5);
    // Steering takes the error out.
    expect(ends[3]).toBeCloseTo(ends[4] ?? 0, 1);
    expect(ends[5]).toBeCloseTo(ends[4] ?? 0, 1);
  });

  it('draw one steered rule of many, and table them all', () => {
    const steered = [0, 0.4, 1].map(
      (alpha) => ({ rule: { kind: 'steered', alpha }, slopeFactor: 1, seeds: 1 }) as const,
    );
    const arms = [1, 3].flatMap((slopeFactor) => steered.map((arm) => ({ ...arm, slopeFactor })));
    const figure = wrongPriceFigure(inventRecord({ problems: [42], arms }, { hasWrongSlopes: false }));
    expect(figure?.legend.map(({ name }) => name)).toEqual(['α = 0.4, ×1', 'α = 0.4, ×3']);
    expect(figure?.table.rows).toHaveLength(18);
  });

  it('are left out where none was run', () => {
    expect(wrongPriceFigure(inventRecord({ problems: [42] }, { hasWrongSlopes: false }))).toBeUndefined();
  });
});

/** The pictures that compare where arms end: marks stand where the summary says, directions survive the frame's edge. */
import { describe, expect, it } from 'vitest';

import { directionFigure, gainAgainstSaving } from './study-figures.ts';
import { inventRecord } from './study-record.fixture.ts';
import { problemMoves, summariseStudy } from './study-summary.ts';
import type { Figure } from './xy-chart.ts';
import type { Layer } from './xy-layers.ts';

const record = inventRecord({ problems: [0, 11, 25, 38, 42, 57, 63, 76, 84, 99] });
const summary = summariseStudy(record);
const MEDIUM = 1;

type LayerOf<Kind extends Layer['kind']> = Extract<Layer, { kind: Kind }>;
const mediumLayers = (figure: Figure): readonly Layer[] => figure.panels[MEDIUM]?.layers ?? [];
const isMarks = (layer: Layer): layer is LayerOf<'marks'> => layer.kind === 'marks';
const isSegments = (layer: Layer): layer is LayerOf<'segments'> => layer.kind === 'segments';

describe('gain against saving', () => {
  const figure = gainAgainstSaving(record);
  const marks = mediumLayers(figure).filter(isMarks);
  const [dots, means] = [marks.slice(0, 6), marks.slice(6)];

  it('has a panel an effort, a dot a problem and arm, and each mean where the summary has it', () => {
    expect(figure.panels.map(({ title }) => title)).toEqual(['Low effort', 'Medium effort', 'High effort']);
    expect(dots.map(({ points }) => points.length)).toEqual([10, 10, 10, 10, 10, 10]);
    for (const [arm, { points }] of means.entries()) {
      const last = summary.arms[arm]?.efforts[MEDIUM]?.last;
      expect(100 * (points[0]?.x ?? 0)).toBeCloseTo(last?.savingPercent.mean ?? Number.NaN, 9);
      expect(100 * (points[0]?.y ?? 0)).toBeCloseTo(last?.gainPercent.mean ?? Number.NaN, 9);
    }
  });

  it('sends a ray from the origin along each target direction', () => {
    const rays = mediumLayers(figure)
      .filter(isSegments)
      .flatMap(({ segments }) => segments);
    expect(rays.map(({ to }) => to.y / (to.x + to.y))).toEqual([0, 0.25, 0.5, 0.75, 1]);
    expect(rays.every(({ from }) => from.x === 0 && from.y === 0)).toBe(true);
  });

  it('moves dots from beyond the frame to its edge along their own direction, and counts them', () => {
    const low = figure.panels[0];
    const shown = low?.layers.find(isMarks)?.points ?? [];
    const [left, top] = [low?.x.low ?? 0, low?.y.high ?? 0];
    const onEdge = shown.filter(({ x, y }) => Math.abs(x - left) < 1e-9 || Math.abs(y - top) < 1e-9);
    expect(onEdge.length).toBeGreaterThan(0);
    expect(figure.caption).toMatch(/\d+ dots lie beyond the frame/);
    const moves = problemMoves(record, { arm: 0, effort: 0 });
    for (const [index, { x, y }] of shown.entries()) {
      expect(x).toBeGreaterThanOrEqual(left - 1e-9);
      expect(y).toBeLessThanOrEqual(top + 1e-9);
      const move = moves[index];
      expect(Math.atan2(y, x)).toBeCloseTo(Math.atan2(move?.gain ?? 0, move?.saving ?? 0), 9);
    }
  });

  it('tells the arms apart by mark as well as by colour, and tables every arm and effort', () => {
    expect(new Set(figure.legend.map(({ look }) => look.mark)).size).toBe(6);
    expect(new Set(figure.legend.map(({ look }) => look.colour)).size).toBe(6);
    expect(figure.table.rows).toHaveLength(18);
    expect(figure.panels[MEDIUM]?.summary).toContain('α = 0.5 +');
  });
});

describe('directions', () => {
  it('measure angles from the saving axis, and leave out problems that hardly moved', () => {
    const { table, panels } = directionFigure(record);
    const row = table.rows.find(([name]) => name === 'α = 1, medium');
    expect(row?.[1]).toBe('90°');
    expect(Number(row?.[2]?.replace('°', ''))).toBeGreaterThan(80);
    expect(Number(row?.[2]?.replace('°', ''))).toBeLessThan(100);
    const moved = summary.arms[5]?.efforts[MEDIUM]?.direction?.problems;
    expect(row?.[4]).toBe(String(moved));
    expect(panels).toHaveLength(3);
  });

  it('have no target for a fixed price', () => {
    expect(directionFigure(record).table.rows[0]?.slice(0, 2)).toEqual(['fixed price, low', 'none']);
  });
});

import { describe, expect, it } from 'vitest';

import { controllerSchema } from '../reward/terms.ts';
import { parseCurve } from './curve-input.ts';
import { simulateLandings } from './simulation.ts';
import type { SimulationOptions } from './simulation.ts';
import { courseFigure, landingFigure, renderSimulationReport } from './simulation-report.ts';
import {
  compactLandings,
  describeSimulation,
  fullLandings,
  renderSimulationText,
  settlingTable,
} from './simulation-tables.ts';
import type { Simulation } from './simulation-tables.ts';

const CURVE = 'effort,cost,success\nlow,0.02,0.31\nmedium,0.06,0.47\nhigh,0.21,0.58\n';

function simulation(overrides: Partial<SimulationOptions> = {}, text = CURVE): Simulation {
  const options: SimulationOptions = {
    alphas: [0, 0.5, 1],
    percents: [10, 25],
    law: 'success',
    halfLifeSteps: 75,
    slopeError: 3,
    steps: 300,
    actorRate: 0.015,
    controller: { ...controllerSchema.parse({}), deadZone: 0 },
    ...overrides,
  };
  const input = parseCurve(text, 'points.csv');
  return { source: 'points.csv', input, options, efforts: simulateLandings(input, options) };
}

describe('a simulation in words', () => {
  it('puts the ends of alpha where they belong in the tables', () => {
    const { heads, rows } = compactLandings(simulation(), 25);
    expect(heads).toEqual(['rule', 'low', 'medium', 'high']);
    expect(rows.map(([name]) => name)).toEqual([
      'α = 0',
      'α = 0.5',
      'α = 1',
      'fixed price',
      'fixed price ×3',
      'fixed price ×⅓',
    ]);
    for (const cell of rows[0]?.slice(1) ?? []) expect(cell).toMatch(/^\+\d+\.\d \/ 0\.0$/u);
    for (const cell of rows[2]?.slice(1) ?? []) expect(cell).toBe('0.0 / +25.0');
    expect(settlingTable(simulation(), 25).rows).toHaveLength(9);
    expect(fullLandings(simulation(), 25).rows).toHaveLength(18);
  });

  it('says the theorem, the assumption, what has not settled, and where the curve is a guess', () => {
    const text = describeSimulation(simulation()).join('\n');
    expect(text).toContain('Without improvement every α stays where it started');
    expect(text).toContain('here 10 %, 25 % more success at equal cost');
    expect(text).toContain('Not settled after 300 steps');
    expect(text).toContain('of 6 at low');
    expect(describeSimulation(simulation({ law: 'failures' })).join('\n')).toContain('fewer failures at equal cost');
  });

  it('says where the curve passes beside a point, and where the starting price is not its slope', () => {
    const bent = simulation({}, 'effort,cost,success\nlow,1,0.3\nmedium,2,0.3\nhigh,4,0.6\n');
    expect(describeSimulation(bent).join('\n')).toContain('The curve passes beside low (30.0 % measured');
    const input = parseCurve(CURVE, 'points.csv');
    const { options } = simulation();
    const efforts = simulateLandings(
      { curve: input.curve, efforts: input.efforts.map((effort) => ({ ...effort, startPrice: 5 })) },
      options,
    );
    expect(describeSimulation({ source: 'x', input, options, efforts }).join('\n')).toContain(
      'The starting price is not the slope of the curve at low',
    );
  });
});

describe('the page of a simulation', () => {
  it('has three figures an improvement, each panel with its table, and no script', () => {
    const page = renderSimulationReport(simulation());
    expect(page.match(/<figure /gu)).toHaveLength(6);
    expect(page.match(/<svg class="chart"/gu)).toHaveLength(18);
    expect(page.match(/<details>/gu)).toHaveLength(8);
    expect(page).not.toMatch(/<script|NaN|undefined/u);
  });

  it('marks the slope that a price goes to, and samples courses with their ends', () => {
    const { panels, table } = courseFigure(simulation(), { percent: 25, shows: 'price' });
    expect(panels).toHaveLength(3);
    expect(table.rows[0]?.[0]).toBe('0');
    expect(table.rows.at(-1)?.[0]).toBe('300');
    expect(table.rows[0]?.slice(1, 4)).toEqual(['×1', '×3', '×0.333']);
    const marks = panels[1]?.layers.filter(({ kind }) => kind === 'marks');
    expect(marks).toHaveLength(3);
    expect(landingFigure(simulation(), 25).caption).toContain('beyond the right edge');
  });

  it('keeps text within the width of a terminal', () => {
    for (const row of renderSimulationText(simulation()).split('\n')) expect(row.length).toBeLessThanOrEqual(110);
  });
});

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
    expect(text).toContain('of 6 at effort low');
    expect(describeSimulation(simulation({ law: 'failures' })).join('\n')).toContain('fewer failures at equal cost');
  });

  it('says where success ends at 100 %, in a sentence and beside the table', () => {
    const capped = simulation({ percents: [25, 300] });
    const text = renderSimulationText(capped);
    expect(text).toContain('300 % more success at equal cost, up to 100 %: cost saved');
    expect(text).toContain('25 % more success at equal cost: cost saved');
    expect(text).toContain('Success reaches 100 % and ends there: effort low, effort medium, effort high.');
    expect(describeSimulation(capped).join('\n')).toContain(
      '300 % more success at equal cost is not to be had everywhere: with 300 % the end is reached at effort low (at most +222.6 %), effort medium (at most +112.8 %), effort high (at most +72.4 %).',
    );
    expect(renderSimulationReport(capped)).toContain('Success reaches 100 % and ends there');
    expect(describeSimulation(simulation()).join('\n')).not.toContain('100 %');
  });

  it('names the controller, and gives one piece of advice about it that says which rows need which', () => {
    const said = (rate: number, controllerSource?: string): string => {
      const controller = { ...simulation().options.controller, rate, proportional: 0, slewLimit: null, decay: null };
      return describeSimulation({ ...simulation({ controller }), controllerSource }).join('\n');
    };
    expect(said(0.02)).toContain('the default controller (rate 0.02, proportional 0; --config takes the one of a run)');
    expect(said(0.003, 'mine.json')).toContain('the controller of mine.json (rate 0.003, proportional 0)');
    expect(said(0.003)).toMatch(/need more steps or a higher controller\.rate\. Set it in .* --config/u);
    expect(said(2)).toMatch(/effort low at α = .* swings\).*need a higher controller\.proportional or a lower/u);
    for (const rate of [0.003, 0.02, 2])
      expect(said(rate).match(/Set it in the frontier term of reward\.terms/gu)).toHaveLength(1);
  });

  it('says where the curve passes beside a point, and where the starting price is not its slope', () => {
    const bent = simulation({}, 'effort,cost,success\nlow,1,0.3\nmedium,2,0.3\nhigh,4,0.6\n');
    expect(describeSimulation(bent).join('\n')).toContain('The curve passes beside effort low (30.0 % measured');
    const input = parseCurve(CURVE, 'points.csv');
    const { options } = simulation();
    const efforts = simulateLandings(
      { curve: input.curve, efforts: input.efforts.map((effort) => ({ ...effort, startPrice: 5 })) },
      options,
    );
    expect(describeSimulation({ source: 'x', input, options, efforts }).join('\n')).toContain(
      'The starting price is not the slope of the curve at effort low',
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

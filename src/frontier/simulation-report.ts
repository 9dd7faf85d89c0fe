/**
 * The page of a simulation: what it rests on, and for each assumed improvement the old and the new frontier with where each rule
 * lands, the course of the price, and the course of the gap, each with its numbers as a table. One HTML file without script.
 */
import { escapeHtml } from '../eval/charts.ts';
import { costLabel } from './fit-report.ts';
import { renderFrontierPage, renderScrolling } from './frontier-page.ts';
import { improveCurve } from './landing.ts';
import type { Course, EffortSimulation, SteeredOutcome } from './simulation.ts';
import {
  assumptionName,
  capNote,
  compactLandings,
  describeSimulation,
  fullLandings,
  improvementName,
  settlingTable,
} from './simulation-tables.ts';
import type { Simulation } from './simulation-tables.ts';
import { factorName, mainArms } from './study-arms.ts';
import { renderFigure, renderFigureTable, renderStandaloneSvg } from './xy-chart.ts';
import type { Figure, LegendEntry, Panel } from './xy-chart.ts';
import type { Point } from './xy-frame.ts';
import type { Layer } from './xy-layers.ts';
import type { Look } from './xy-look.ts';
import { formatNumber } from './xy-scale.ts';

const OLD: Look = { colour: 'soft', dash: 'dashed' };
const NEW: Look = { colour: 'ink' };
const BASE: Look = { colour: 'ink', mark: 'circle', isHollow: true };
const FIXED: Look = { colour: 4, mark: 'cross' };
/** Points of a course that are drawn, and rows of its table. */
const DRAWN = 160;
const ROWS = 20;

export function renderSimulationReport(simulation: Simulation): string {
  const { source, options, input, efforts } = simulation;
  const sections = options.percents.map((percent) => {
    const figures = [
      landingFigure(simulation, percent),
      courseFigure(simulation, { percent, shows: 'price' }),
      courseFigure(simulation, { percent, shows: 'gap' }),
    ];
    const landings = compactLandings(simulation, percent);
    const note = capNote(simulation, percent);
    const settling = settlingTable(simulation, percent);
    return {
      title: `If training brings ${assumptionName(simulation, percent)}`,
      html: [
        `<h3>${escapeHtml(landings.title)}</h3>${renderScrolling(renderFigureTable(landings))}${note === undefined ? '' : `<p>${escapeHtml(note)}</p>`}`,
        ...figures.map((figure) => renderFigure(figure)),
        `<details><summary>${escapeHtml(settling.title)}</summary>${renderScrolling(renderFigureTable(settling))}</details>`,
      ].join(''),
    };
  });
  return renderFrontierPage({
    title: 'Where each α would land',
    subtitle: `Simulated on the curve of ${source}, before anything is trained`,
    facts: [
      { name: 'efforts', value: efforts.map(({ effort }) => effort).join(', ') },
      { name: 'curve', value: input.isFitted ? 'fitted to evaluations' : 'concave fit through the points given' },
      {
        name: 'improvement',
        value: options.percents.map((percent) => improvementName(percent, options.law)).join('; '),
      },
      { name: 'steps', value: String(options.steps) },
      { name: 'half of it after', value: `${options.halfLifeSteps} steps` },
      { name: "actor's rate", value: String(options.actorRate) },
    ],
    verdicts: describeSimulation(simulation),
    sections,
    footer: 'Made by hone frontier simulate.',
  });
}

/** Landings under the middle one of the assumed improvements, as one picture that needs nothing else. */
export function renderSimulationSvg(simulation: Simulation): string {
  const { percents } = simulation.options;
  const percent = percents[Math.floor(percents.length / 2)] ?? 0;
  return renderStandaloneSvg(landingFigure(simulation, percent), { columns: 2 });
}

/** Old and new frontier of each effort, and where each rule ends, with its direction from the start. */
export function landingFigure(simulation: Simulation, percent: number): Figure {
  const { options, efforts, input } = simulation;
  const looks = looksOf(options.alphas);
  const better = improveCurve(input.curve, { law: options.law, percent });
  let beyond = 0;
  const panels = efforts.map((effort): Panel => {
    const { base } = effort;
    const steered = effort.steered.filter((outcome) => outcome.percent === percent);
    const fixed = effort.fixed.filter((outcome) => outcome.percent === percent);
    const right = fixed.find(({ startFactor }) => startFactor === 1)?.landing.cost ?? base.cost;
    const most = Math.min(Math.max(1.5 * base.cost, 1.1 * right), 3 * base.cost);
    const at = (curve: { value(cost: number): number }): Point[] =>
      Array.from({ length: 101 }, (_, index) => ({ x: (most * index) / 100, y: curve.value((most * index) / 100) }));
    const origin = { x: base.cost, y: base.success };
    const shown = fixed.filter(({ landing }) => landing.cost <= most);
    beyond += fixed.length - shown.length;
    const layers: Layer[] = [
      { kind: 'line', look: OLD, points: at(input.curve), width: 1.5 },
      { kind: 'line', look: NEW, points: at(better), width: 1.5 },
      ...steered.map(({ landing }, index): Layer => ({
        kind: 'segments',
        look: { ...lookAt(looks, index), dash: 'solid' },
        segments: [{ from: origin, to: { x: landing.cost, y: landing.success } }],
        width: 1.6,
        opacity: 0.75,
      })),
      { kind: 'marks', look: FIXED, size: 4.2, points: shown.map(({ landing }) => pointOf(landing)) },
      {
        kind: 'labels',
        look: { colour: 'soft' },
        side: 'below',
        labels: shown.map(({ landing, startFactor }) => ({ ...pointOf(landing), text: factorName(startFactor) })),
      },
      ...steered.map(({ landing }, index): Layer => ({
        kind: 'marks',
        look: lookAt(looks, index),
        size: 4.6,
        points: [pointOf(landing)],
      })),
      { kind: 'marks', look: BASE, size: 4.4, points: [origin] },
    ];
    return {
      title: titleOf(effort),
      summary: `${titleOf(effort)}, ${improvementName(percent, options.law)}: ${steered.map(({ alpha, landing }) => `α = ${alpha} saves ${formatNumber(landing.costSaving, 'percent')} and gains ${formatNumber(landing.successGain, 'percent')}`).join('; ')}.`,
      x: { label: costLabel(input.unit), format: 'number', low: 0, high: most },
      y: { label: 'success', format: 'percent', low: 0 },
      layers,
    };
  });
  const edge = beyond === 0 ? '' : ' Fixed prices that end beyond the right edge are in the table only.';
  return {
    id: `landing-${percent}`,
    title: 'Where each rule lands',
    caption: `The ring is where the effort starts, on the old frontier; each line goes from there in the direction of its α to the landing on the new one. Crosses are prices that stay fixed: as intended (×1), too high and too low; they end where the new frontier has their slope.${edge}`,
    legend: [
      { name: 'start', look: BASE, shows: 'mark' },
      { name: 'frontier before', look: OLD, shows: 'line' },
      { name: 'frontier after', look: NEW, shows: 'line' },
      ...alphaEntries(options.alphas, 'mark'),
      { name: 'fixed price', look: FIXED, shows: 'mark' },
    ],
    panels,
    table: fullLandings(simulation, percent),
  };
}

/** Price over its start, or gap, over the steps: each alpha from the intended price, the middle alpha from wrong ones too. */
export function courseFigure(
  simulation: Simulation,
  { percent, shows }: { readonly percent: number; readonly shows: 'price' | 'gap' },
): Figure {
  const { options, efforts } = simulation;
  const { alphas, steps } = options;
  const looks = looksOf(alphas);
  const middle = Math.floor(alphas.length / 2);
  const isPrice = shows === 'price';
  const valueAt = (course: Course, step: number, { startPrice }: EffortSimulation): number =>
    isPrice ? (course.prices[step] ?? Number.NaN) / startPrice : (course.gaps[step] ?? Number.NaN);
  const panels = efforts.map((effort): Panel => {
    const outcomes = effort.steered.filter((outcome) => outcome.percent === percent);
    const layers = outcomes.flatMap(({ courses, landing }, index): Layer[] => {
      const look = lookAt(looks, index);
      const drawn = index === middle ? courses : courses.slice(0, 1);
      return [
        ...drawn.map((course): Layer => ({
          kind: 'line',
          look: course.startFactor === 1 ? look : { ...look, dash: 'dotted' },
          points: sampledSteps(steps, DRAWN).map((step) => ({ x: step, y: valueAt(course, step, effort) })),
          width: course.startFactor === 1 ? 2 : 1.6,
        })),
        ...(isPrice && landing.price > 0
          ? ([
              { kind: 'marks', look, size: 3.8, points: [{ x: steps, y: landing.price / effort.startPrice }] },
            ] satisfies Layer[])
          : []),
      ];
    });
    return {
      title: titleOf(effort),
      summary: `${titleOf(effort)}, ${isPrice ? 'price over its start' : 'gap'} at the end: ${outcomes.map((outcome) => `α = ${outcome.alpha} ${sayEnd(outcome, effort, isPrice)}`).join('; ')}.`,
      x: { label: 'step', format: 'number', low: 0, high: steps },
      y: isPrice
        ? { label: 'price over the starting price', format: 'times', scale: 'log' }
        : { label: 'gap, (1 − α) gain − α saving', format: 'signed-percent' },
      layers,
      height: 200,
    };
  });
  const wrong = `dotted: α = ${alphas[middle]} from starting prices ${factorName(options.slopeError)} and ${factorName(1 / options.slopeError)}`;
  return {
    id: `${shows}-${percent}`,
    title: isPrice ? 'The price over training' : 'How far off its direction',
    caption: isPrice
      ? `The price of cost that the controller sets, over the starting price; ${wrong}. Marks at the end are the slope of the new frontier at the landing: a price that has reached its mark has landed.`
      : `The gap that the controller drives to 0: above it success is ahead of its target, below it the saving is; ${wrong}. A curve that swings across 0 rings.`,
    legend: alphaEntries(alphas, isPrice ? 'both' : 'line'),
    panels,
    table: courseTable(simulation, { percent, valueAt, isPrice }),
  };
}

function courseTable(
  { options: { steps }, efforts }: Simulation,
  {
    percent,
    valueAt,
    isPrice,
  }: {
    percent: number;
    valueAt: (course: Course, step: number, effort: EffortSimulation) => number;
    isPrice: boolean;
  },
): Figure['table'] {
  const columns = efforts.flatMap((effort) =>
    effort.steered
      .filter((outcome) => outcome.percent === percent)
      .flatMap(({ alpha, courses }) =>
        courses.map((course) => ({
          head: `${effort.effort}, α = ${alpha}${course.startFactor === 1 ? '' : `, start ${factorName(course.startFactor)}`}`,
          cell: (step: number) => formatNumber(valueAt(course, step, effort), isPrice ? 'times' : 'signed-percent'),
        })),
      ),
  );
  return {
    heads: ['step', ...columns.map(({ head }) => head)],
    rows: sampledSteps(steps, ROWS).map((step) => [String(step), ...columns.map(({ cell }) => cell(step))]),
  };
}

/** About `count` steps, evenly spaced, the first and the last always among them. */
function sampledSteps(steps: number, count: number): number[] {
  const places = Math.min(count, steps);
  return Array.from({ length: places + 1 }, (_, index) => Math.round((steps * index) / places));
}

function sayEnd({ courses, landing }: SteeredOutcome, { startPrice }: EffortSimulation, isPrice: boolean): string {
  const [course] = courses;
  if (course === undefined) return 'not run';
  const gap = formatNumber(course.gaps.at(-1) ?? Number.NaN, 'signed-percent');
  if (!isPrice) return gap;
  const end = formatNumber((course.prices.at(-1) ?? Number.NaN) / startPrice, 'times');
  return `${end} of ${formatNumber(landing.price / startPrice, 'times')}`;
}

function alphaEntries(alphas: readonly number[], shows: LegendEntry['shows']): LegendEntry[] {
  const looks = looksOf(alphas);
  return alphas.map((alpha, index) => ({ name: `α = ${alpha}`, look: lookAt(looks, index), shows }));
}

/** The looks that these alphas have in the study's pictures. */
function looksOf(alphas: readonly number[]): Look[] {
  const arms = alphas.map((alpha) => ({ rule: { kind: 'steered' as const, alpha }, slopeFactor: 1, seeds: 1 }));
  const drawn = mainArms({ arms });
  return alphas.map((_, index) => drawn.find((arm) => arm.index === index)?.look ?? { colour: 0 });
}

function lookAt(looks: readonly Look[], index: number): Look {
  return looks[index] ?? { colour: 0 };
}

function titleOf({ effort }: EffortSimulation): string {
  return `Effort ${effort}`;
}

function pointOf({ cost, success }: { cost: number; success: number }): Point {
  return { x: cost, y: success };
}

/**
 * The page of a fit: what it says, the frontier with its band and tangents, the slopes three ways, and the tables. One HTML
 * file without script or network; a picture never says more than its table.
 */
import { escapeHtml } from '../eval/charts.ts';
import { describeFit, fitTables, oneOf, rewardAdvice } from './fit-tables.ts';
import { renderFrontierPage, renderScrolling } from './frontier-page.ts';
import type { EffortFit, FrontierFile } from './frontier-file.ts';
import { smoothCurve } from './smooth-curve.ts';
import { renderFigure, renderFigureTable, renderStandaloneSvg } from './xy-chart.ts';
import type { Figure } from './xy-chart.ts';
import type { Point } from './xy-frame.ts';
import type { Layer } from './xy-layers.ts';
import type { Look } from './xy-look.ts';
import { formatNumber } from './xy-scale.ts';

const CURVE: Look = { colour: 0 };
const ASSUMED: Look = { colour: 0, dash: 'dotted' };
const POINT: Look = { colour: 'ink', mark: 'circle' };
const TANGENT: Look = { colour: 1, dash: 'dashed' };
const ESTIMATES = [
  { name: 'across efforts', key: 'acrossEfforts', look: { colour: 0, mark: 'circle' }, shift: 1 },
  { name: 'within tasks', key: 'withinTask', look: { colour: 1, mark: 'square' }, shift: 1.04 },
  { name: 'pooled', key: 'pooled', look: { colour: 4, mark: 'cross' }, shift: 0.96 },
] as const satisfies readonly { name: string; key: keyof EffortFit['slopes']; look: Look; shift: number }[];

export function renderFitReport(fit: FrontierFile): string {
  const { source, efforts, resamples, seed, cost, rewardTerm } = fit;
  const tables = fitTables(fit).map(
    (table) => `<h3>${escapeHtml(table.title)}</h3>${renderScrolling(renderFigureTable(table))}`,
  );
  const figures = [frontierFigure(fit), slopeFigure(fit)].map((figure) => renderFigure(figure));
  const use =
    rewardTerm === null
      ? `<p>${escapeHtml(rewardAdvice(fit))}</p>`
      : `<p>A term for <code>reward.terms</code> in a run's config, with these starting prices; set <code>alpha</code> to the share of the improvement that is to be success.</p>${renderScrolling(`<pre>${escapeHtml(JSON.stringify(rewardTerm, null, 2))}</pre>`)}`;
  return renderFrontierPage({
    title: 'The frontier of a policy',
    subtitle: `Fitted to ${source}`,
    facts: [
      { name: 'efforts', value: efforts.map(({ effort }) => effort).join(', ') },
      { name: 'rollouts', value: efforts.reduce((sum, { rollouts }) => sum + rollouts, 0).toLocaleString('en-US') },
      { name: 'cost', value: describeCost(cost) },
      { name: 'bands', value: `95 %, ${resamples.toLocaleString('en-US')} resamples of tasks, seed ${seed}` },
    ],
    verdicts: describeFit(fit),
    sections: [
      { title: 'Success against cost', html: `<div class="pair">${figures.join('')}</div>` },
      { title: 'The numbers', html: tables.join('') },
      { title: 'To use it', html: use },
      {
        title: 'How to read it',
        html: [
          '<p>The <b>slope</b> at an effort is the success that one more unit of cost comes with. It is the price at which a policy has no reason to move: a higher price makes it spend less, a lower one more. Steering starts there and repairs an error of a factor of three either way.</p>',
          '<p><b>Across efforts</b>: the curve that fits all efforts best while never falling and never getting steeper. <b>Within tasks</b>: rollouts of one task compared with each other, which leaves out that hard tasks cost more and fail more, but is misled by agents that stop when they have succeeded. <b>Pooled</b>: all rollouts of an effort together, misled by both; shown to see how much that matters, never taken as a price. On the toy task, whose slopes are known, the first is off by 4 to 7 % on average with three efforts, the second by 1 %.</p>',
          '<p>A starting price is taken from across efforts where that band lies above 0, else from within tasks where that one does. Where neither does there is none: more cost does not come with more success for sure, and a price would be a guess.</p>',
        ].join(''),
      },
    ],
    footer: 'Made by hone frontier fit.',
  });
}

/** The frontier alone, as one picture that needs nothing else. */
export function renderFitSvg(fit: FrontierFile): string {
  return renderStandaloneSvg(frontierFigure(fit));
}

/** Points with error bars, the curve with its band, the tangent at each effort; without a curve the points alone. */
function frontierFigure(fit: FrontierFile): Figure {
  const { efforts, band, cost } = fit;
  const hasCurve = fit.curve.length > 0;
  const most = band.at(-1)?.cost ?? Math.max(...efforts.map((effort) => effort.cost.high));
  const layers: Layer[] = [];
  if (hasCurve) {
    const curve = smoothCurve(fit.curve);
    const at = (from: number, to: number): Point[] =>
      Array.from({ length: 81 }, (_, index) => {
        const x = from + ((to - from) * index) / 80;
        return { x, y: curve.value(x) };
      });
    layers.push(
      { kind: 'band', look: CURVE, points: band.map(({ cost: x, low, high }) => ({ x, low, high })) },
      ...(curve.from > 0 ? [{ kind: 'line', look: ASSUMED, points: at(0, curve.from) } as const] : []),
      { kind: 'line', look: ASSUMED, points: at(curve.to, most) },
      { kind: 'line', look: CURVE, points: at(curve.from, curve.to) },
    );
  }
  const tangents = efforts.flatMap(({ startingPrice, cost: spent, success }) => {
    if (startingPrice === null) return [];
    const x = spent.estimate;
    const y = hasCurve ? smoothCurve(fit.curve).value(x) : success.estimate;
    const reach = Math.min(0.16 * most, 0.14 / startingPrice.price);
    return [
      {
        from: { x: x - reach, y: y - reach * startingPrice.price },
        to: { x: x + reach, y: y + reach * startingPrice.price },
      },
    ];
  });
  layers.push(
    { kind: 'segments', look: TANGENT, segments: tangents, width: 1.8 },
    {
      kind: 'error-bars',
      look: POINT,
      points: efforts.map(({ cost: spent, success }) => ({
        x: spent.estimate,
        y: success.estimate,
        xLow: spent.low,
        xHigh: spent.high,
        yLow: success.low,
        yHigh: success.high,
      })),
    },
    { kind: 'marks', look: POINT, size: 4, points: efforts.map((effort) => pointOf(effort)) },
    {
      kind: 'labels',
      look: POINT,
      side: 'below',
      labels: efforts.map((effort) => ({ ...pointOf(effort), y: effort.success.low, text: effort.effort })),
    },
  );
  return {
    id: 'frontier',
    title: hasCurve ? 'The frontier' : 'Success and cost',
    caption: hasCurve
      ? 'Points are the efforts with 95 % bands of both means. The curve is the concave fit, shaded its 95 % band; dotted where it lies outside the efforts and is assumed. Dashed: the tangent at each effort, whose slope is the starting price.'
      : 'Points are the efforts with 95 % bands of both means; dashed, where there is one, a line whose slope is the starting price. One cost is not enough for a curve.',
    legend: [
      { name: 'effort', look: POINT, shows: 'mark' },
      ...(hasCurve
        ? ([
            { name: 'concave fit', look: CURVE, shows: 'line' },
            { name: '95 % band', look: CURVE, shows: 'band' },
          ] as const)
        : []),
      { name: 'starting price', look: TANGENT, shows: 'line' },
    ],
    panels: [
      {
        summary: `Success against cost: ${efforts.map(({ effort, success, cost: spent }) => `${effort} ${formatNumber(success.estimate, 'percent')} at ${formatNumber(spent.estimate, 'number')}`).join(', ')}.`,
        x: { label: costLabel(cost.unit), format: 'number', low: 0 },
        y: { label: 'success', format: 'percent', low: 0 },
        layers,
        height: 270,
      },
    ],
    table: curveTable(fit),
  };
}

/** Every estimate of the slope that is above 0, with its band, over the cost of its effort. */
function slopeFigure(fit: FrontierFile): Figure {
  const { cost } = fit;
  const layers: Layer[] = [];
  // Logarithmic axes have no place for no cost.
  const efforts = fit.efforts.filter((effort) => effort.cost.estimate > 0);
  const costless = fit.efforts.filter((effort) => effort.cost.estimate === 0).map(({ effort }) => effort);
  const hidden = ESTIMATES.flatMap(({ name, key }) => {
    const below = efforts.filter(({ slopes }) => (slopes[key]?.estimate ?? 1) <= 0).map(({ effort }) => effort);
    return below.length === 0 ? [] : [`${name} at ${below.map((effort) => `effort ${effort}`).join(', ')}`];
  });
  const drawn = ESTIMATES.filter(({ key }) => efforts.some(({ slopes }) => (slopes[key]?.estimate ?? 0) > 0));
  if (fit.curve.length > 0) {
    const curve = smoothCurve(fit.curve);
    const from = Math.max(curve.from, Math.min(...efforts.map((effort) => effort.cost.estimate)));
    const points = Array.from({ length: 81 }, (_, index) => {
      const x = from * (curve.to / from) ** (index / 80);
      return { x, y: curve.slope(x) };
    });
    // A logarithmic axis has no place for a slope of 0.
    layers.push({ kind: 'line', look: CURVE, points: points.filter(({ y }) => y > 0) });
  }
  const estimates = efforts.flatMap(({ slopes }) => Object.values(slopes).flatMap((slope) => slope?.estimate ?? []));
  const floor = 0.2 * Math.min(...estimates.filter((estimate) => estimate > 0));
  for (const { key, look, shift } of drawn) {
    const points = efforts.flatMap(({ cost: spent, slopes }) => {
      const slope = slopes[key];
      if (slope === null || !(slope.estimate > 0)) return [];
      const y = slope.estimate;
      return [{ x: spent.estimate * shift, y, yLow: Math.max(slope.low, floor), yHigh: slope.high }];
    });
    layers.push({ kind: 'error-bars', look, points }, { kind: 'marks', look, points, size: 3.6 });
  }
  const below = hidden.length === 0 ? '' : ` Not above 0, and so not on this axis: ${hidden.join('; ')}.`;
  const left =
    costless.length === 0
      ? ''
      : ` Nothing is spent at ${costless.map((effort) => `effort ${effort}`).join(' and ')}, which is in the table only.`;
  return {
    id: 'slopes',
    title: 'What one more unit of cost buys',
    caption: `The slope at each effort, three ways, with 95 % bands, set a little apart; the line is the slope of the curve. Both axes are logarithmic; a band that reaches down to 0 ends at the lower edge.${below}${left}`,
    legend: [
      ...drawn.map(({ name, look }) => ({ name, look, shows: 'mark' as const })),
      ...(fit.curve.length > 0 ? [{ name: 'of the curve', look: CURVE, shows: 'line' as const }] : []),
    ],
    panels: [
      {
        summary: `Slopes: ${efforts.map(({ effort, slopes }) => `${effort} ${ESTIMATES.map(({ name, key }) => `${name} ${slopes[key] === null ? 'not measured' : formatNumber(slopes[key].estimate, 'number')}`).join(', ')}`).join('; ')}.`,
        x: {
          label: costLabel(cost.unit),
          format: 'number',
          scale: 'log',
          low: 0.75 * Math.min(...efforts.map((effort) => effort.cost.estimate)),
          high: 1.3 * Math.max(...efforts.map((effort) => effort.cost.estimate)),
        },
        y: { label: `success per ${oneOf(cost.unit)}`, format: 'number', scale: 'log' },
        layers,
        height: 270,
      },
    ],
    table: {
      heads: ['effort', ...ESTIMATES.flatMap(({ name }) => [name, 'low', 'high'])],
      rows: fit.efforts.map(({ effort, slopes }) => [
        effort,
        ...ESTIMATES.flatMap(({ key }) => {
          const slope = slopes[key];
          return slope === null
            ? ['–', '–', '–']
            : [slope.estimate, slope.low, slope.high].map((value) => formatNumber(value, 'number'));
        }),
      ]),
    },
  };
}

function curveTable({ efforts, band }: FrontierFile): Figure['table'] {
  const rows = efforts.map(({ effort, cost, success }) => [
    formatNumber(cost.estimate, 'number'),
    effort,
    formatNumber(success.estimate, 'percent'),
    formatNumber(success.low, 'percent'),
    formatNumber(success.high, 'percent'),
  ]);
  const curve = band
    .filter((_, index) => index % 3 === 2)
    .map(({ cost, success, low, high }) => [
      formatNumber(cost, 'number'),
      'curve',
      ...[success, low, high].map((value) => formatNumber(value, 'percent')),
    ]);
  return { heads: ['cost', 'what', 'success', 'low', 'high'], rows: [...rows, ...curve] };
}

export function costLabel(unit: string): string {
  return unit === 'cost' ? 'cost of a rollout' : `cost of a rollout (${unit})`;
}

function pointOf({ cost, success }: EffortFit): Point {
  return { x: cost.estimate, y: success.estimate };
}

function describeCost({ unit, weights }: FrontierFile['cost']): string {
  if (weights === null) return `numbers, in ${unit}`;
  const parts = Object.entries(weights).filter(([, weight]) => weight > 0);
  return parts.map(([name, weight]) => `${weight} × ${name}`).join(' + ');
}

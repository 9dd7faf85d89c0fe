/**
 * X-y charts as inline SVG: figures of one or more panels with a legend, a caption and their numbers as a table, for a page
 * (panels wrap on a narrow screen) or as one SVG file. Colours are CSS variables, so light and dark need one drawing; each
 * look has a mark and a dash besides its colour, so that a chart reads without colour. Nothing is drawn outside its frame.
 */
import { CHART_STYLE } from '../eval/report-style.ts';
import { escapeHtml } from '../eval/charts.ts';
import type { Drawing } from '../eval/charts.ts';
import { XY_CHART_STYLE } from './frontier-style.ts';
import { round } from './xy-frame.ts';
import { drawLayer, drawSwatch, layerValues } from './xy-layers.ts';
import type { Layer } from './xy-layers.ts';
import type { Look } from './xy-look.ts';
import { createScale, formatTick, rangeOf } from './xy-scale.ts';
import type { Axis, Range, Scale } from './xy-scale.ts';

export interface Panel {
  readonly title?: string;
  /** One sentence that a screen reader says in place of the picture. */
  readonly summary: string;
  readonly x: Axis;
  readonly y: Axis;
  /** Painted in this order. */
  readonly layers: readonly Layer[];
  /** One unit is as long upwards as sideways. */
  readonly isEqualAspect?: boolean;
  /** Of the plot, in units of a drawing that is 380 wide; default 240, and what equal aspect needs where that is set. */
  readonly height?: number;
  /** Room on the right for labels that stand beside the ends of lines; default 12. */
  readonly rightMargin?: number;
}

export interface LegendEntry {
  readonly name: string;
  readonly look: Look;
  /** What the sample in the legend shows. */
  readonly shows: 'line' | 'mark' | 'both' | 'band';
}

/** Cells are text already, formatted by `formatNumber` or taken as they are; the first column names the row. */
export interface FigureTable {
  readonly heads: readonly string[];
  readonly rows: readonly (readonly string[])[];
}

export interface Figure {
  /** Unique in the page. */
  readonly id: string;
  readonly title: string;
  /** How to read it. */
  readonly caption: string;
  readonly legend: readonly LegendEntry[];
  readonly panels: readonly Panel[];
  /** The numbers of the picture, for readers who can't see it or want to compute with it. */
  readonly table: FigureTable;
}

export const PANEL_WIDTH = 380;
const DEFAULT_HEIGHT = 240;
const EQUAL_ASPECT_HEIGHTS = { least: 180, most: 420 };
const TICK_TEXT_WIDTH = 6.4;
const ROW = 18;

/** A `<figure>` for a page whose styles hold PAGE_STYLE of eval and XY_CHART_STYLE. */
export function renderFigure(figure: Figure): string {
  const { id, title, caption, legend, panels, table } = figure;
  const keys = legend.map(({ name, look, shows }) => {
    const swatch = `<svg viewBox="0 0 30 14" width="30" height="14" aria-hidden="true">${drawSwatch(look, shows)}</svg>`;
    return `<li>${swatch}${escapeHtml(name)}</li>`;
  });
  const drawings = panels.map((panel) => {
    const { width, height, body } = drawPanel(panel);
    return `<svg class="chart" viewBox="0 0 ${width} ${height}" role="img" aria-label="${escapeHtml(panel.summary)}">${body}</svg>`;
  });
  const numbers = `<details><summary>Numbers</summary><div class="scroll" tabindex="0">${renderFigureTable(table)}</div></details>`;
  return [
    `<figure id="${escapeHtml(id)}" class="xy"><figcaption><h3>${escapeHtml(title)}</h3>${escapeHtml(caption)}</figcaption>`,
    keys.length === 0 ? '' : `<ul class="keys">${keys.join('')}</ul>`,
    `<div class="panels">${drawings.join('')}</div>${numbers}</figure>`,
  ].join('');
}

export function renderFigureTable({ heads, rows }: FigureTable): string {
  const head = heads.map((name) => `<th scope="col">${escapeHtml(name)}</th>`);
  const body = rows.map(([name = '', ...cells]) => {
    const values = cells.map((cell) => `<td>${escapeHtml(cell)}</td>`);
    return `<tr><th scope="row">${escapeHtml(name)}</th>${values.join('')}</tr>`;
  });
  return `<table><thead><tr>${head.join('')}</tr></thead><tbody>${body.join('')}</tbody></table>`;
}

/** One SVG file with its styles inside: title, legend, panels side by side (`columns` a row, default all). */
export function renderStandaloneSvg(
  figure: Pick<Figure, 'title' | 'legend' | 'panels'>,
  { columns = figure.panels.length }: { readonly columns?: number } = {},
): string {
  const inset = 16;
  const gap = 24;
  const perRow = Math.max(1, columns);
  const inner = Math.min(perRow, figure.panels.length) * (PANEL_WIDTH + gap) - gap;
  const width = inner + 2 * inset;
  const title = `<text class="title" x="${inset}" y="${inset + 12}">${escapeHtml(figure.title)}</text>`;
  const legend = drawLegend(figure.legend, { left: inset, top: inset + 26, width: inner });
  let y = inset + 26 + legend.height + 10;
  const panels: string[] = [];
  for (let row = 0; row < figure.panels.length; row += perRow) {
    const drawings = figure.panels.slice(row, row + perRow).map((panel) => drawPanel(panel));
    for (const [column, { body }] of drawings.entries())
      panels.push(`<g transform="translate(${inset + column * (PANEL_WIDTH + gap)} ${y})">${body}</g>`);
    y += Math.max(...drawings.map(({ height }) => height)) + gap;
  }
  const height = Math.ceil(y - gap + inset);
  const label = `${figure.title}. ${figure.panels.map(({ summary }) => summary).join(' ')}`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-label="${escapeHtml(label)}"><style>${CHART_STYLE}${XY_CHART_STYLE}</style><rect class="ground" width="${width}" height="${height}" rx="8"/>${title}${legend.body}${panels.join('')}</svg>\n`;
}

/** One panel as SVG elements in a box PANEL_WIDTH wide. */
export function drawPanel(panel: Panel): Drawing {
  const values = panel.layers.flatMap((layer) => layerValues(layer));
  const xRange = rangeOf(
    panel.x,
    values.map(([x]) => x),
  );
  const yRange = rangeOf(
    panel.y,
    values.map(([, y]) => y),
  );
  const titleHeight = panel.title === undefined ? 0 : 22;
  const top = titleHeight + 22;
  const right = PANEL_WIDTH - (panel.rightMargin ?? 12);
  const yTickTexts = scaleOf(panel.y, yRange, [0, 1]).ticks.map((tick) => formatTick(tick, panel.y.format));
  const left = Math.max(30, 12 + TICK_TEXT_WIDTH * Math.max(...yTickTexts.map((text) => text.length), 0));
  const shape = shapePlot(panel, { xRange, yRange, width: right - left });
  const bottom = top + shape.height;
  const x = scaleOf(panel.x, shape.xRange, [left, right]);
  const y = scaleOf(panel.y, shape.yRange, [bottom, top]);
  const frame = { x, y, left, right, top, bottom };
  const body = [
    panel.title === undefined ? '' : `<text class="panel" x="0" y="13">${escapeHtml(panel.title)}</text>`,
    `<text class="axis name" x="0" y="${titleHeight + 11}">${escapeHtml(panel.y.label)}</text>`,
    drawGrid(frame, panel),
    `<text class="axis name" x="${round(right)}" y="${round(bottom + 33)}" text-anchor="end">${escapeHtml(panel.x.label)}</text>`,
    ...panel.layers.map((layer) => drawLayer(layer, frame)),
  ].join('');
  return { width: PANEL_WIDTH, height: Math.ceil(bottom + 40), body };
}

function scaleOf({ scale = 'linear', ticks }: Axis, range: Range, pixels: readonly [number, number]): Scale {
  return createScale(range, { isLog: scale === 'log', pixels, ...(ticks === undefined ? {} : { ticks }) });
}

/** Equal aspect sets the height; where that would be too low or too high, the shorter range grows about its middle. */
function shapePlot(
  { isEqualAspect = false, height = DEFAULT_HEIGHT }: Panel,
  { xRange, yRange, width }: { xRange: Range; yRange: Range; width: number },
): { height: number; xRange: Range; yRange: Range } {
  if (!isEqualAspect) return { height, xRange, yRange };
  const span = ({ low, high }: Range): number => high - low;
  const grown = (range: Range, length: number): Range => {
    const middle = (range.low + range.high) / 2;
    return { low: middle - length / 2, high: middle + length / 2 };
  };
  const fitting = (width * span(yRange)) / span(xRange);
  const { least, most } = EQUAL_ASPECT_HEIGHTS;
  if (fitting > most) return { height: most, yRange, xRange: grown(xRange, (span(yRange) * width) / most) };
  if (fitting < least) return { height: least, xRange, yRange: grown(yRange, (span(xRange) * least) / width) };
  return { height: fitting, xRange, yRange };
}

function drawGrid(
  frame: { x: Scale; y: Scale; left: number; right: number; top: number; bottom: number },
  panel: Panel,
): string {
  const { x, y, left, right, top, bottom } = frame;
  const rule = (tick: number): string => (tick === 0 ? 'grid zero' : 'grid');
  const rows = y.ticks.map((tick) => {
    const at = round(y.toPixel(tick));
    const text = `<text class="axis" x="${round(left - 6)}" y="${round(at + 4)}" text-anchor="end">${formatTick(tick, panel.y.format)}</text>`;
    return `<path class="${rule(tick)}" d="M${round(left)} ${at}H${round(right)}"/>${text}`;
  });
  const labels = x.ticks.map((tick) => formatTick(tick, panel.x.format));
  const longest = TICK_TEXT_WIDTH * Math.max(...labels.map((text) => text.length), 1) + 10;
  // Crowded ticks keep their rule and lose every second label.
  const room = (right - left) / Math.max(1, x.ticks.length - 1);
  const stride = Math.max(1, Math.ceil(longest / Math.max(1, room)));
  const zero = Math.max(0, x.ticks.indexOf(0));
  const columns = x.ticks.map((tick, index) => {
    const at = round(x.toPixel(tick));
    // A label at the edge would leave the drawing.
    const half = (TICK_TEXT_WIDTH * (labels[index] ?? '').length) / 2;
    const middle = round(Math.min(at, PANEL_WIDTH - half - 1));
    const text =
      (index - zero) % stride === 0
        ? `<text class="axis" x="${middle}" y="${round(bottom + 16)}" text-anchor="middle">${labels[index]}</text>`
        : '';
    return `<path class="${rule(tick)}" d="M${at} ${round(top)}V${round(bottom)}"/>${text}`;
  });
  return [...rows, ...columns].join('');
}

function drawLegend(
  legend: readonly LegendEntry[],
  { left, top, width }: { left: number; top: number; width: number },
): { height: number; body: string } {
  let x = 0;
  let row = 0;
  const entries = legend.map(({ name, look, shows }) => {
    // Without measuring text: 6.4 units a character at 12 units, and room for the sample.
    const needed = 52 + 6.4 * name.length;
    if (x > 0 && x + needed > width) {
      x = 0;
      row++;
    }
    const at = `translate(${round(left + x)} ${top + row * ROW})`;
    x += needed;
    return `<g transform="${at}">${drawSwatch(look, shows)}<text class="legend" x="36" y="11">${escapeHtml(name)}</text></g>`;
  });
  return { height: legend.length === 0 ? 0 : (row + 1) * ROW, body: entries.join('') };
}

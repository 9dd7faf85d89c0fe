/**
 * Small charts as inline SVG and, beside each, the same numbers as a table. Two forms: lines over steps (noisy series
 * drawn thin, their moving mean bold) and columns of shares. Colours are CSS variables, so light and dark need one drawing.
 * Everything that comes from outside is escaped; a missing value is a gap and never drawn as 0.
 */

export interface Series {
  readonly name: string;
  readonly points: readonly { readonly step: number; readonly value: number | null }[];
}

export type ValueFormat = 'score' | 'share' | 'count' | 'bytes' | 'milliseconds' | 'scientific';

export interface Chart {
  readonly id: string;
  readonly title: string;
  readonly caption: string;
  readonly series: readonly Series[];
  /** `shares`: each column is one step or a run of steps, split by how much of the total each series has. */
  readonly form: 'lines' | 'shares';
  readonly format: ValueFormat;
  readonly startsAtZero?: boolean;
}

export interface Drawing {
  readonly width: number;
  readonly height: number;
  /** SVG elements, without the enclosing svg. */
  readonly body: string;
}

interface Frame {
  readonly x: (step: number) => number;
  readonly y: (value: number) => number;
  readonly top: number;
  readonly bottom: number;
}

export const CHART_WIDTH = 380;
const PLOT = { left: 48, right: CHART_WIDTH - 8, height: 140 };
const LEGEND_ROW = 18;
const MOST_COLUMNS = 46;
const MOST_TABLE_ROWS = 30;

export function drawChart(chart: Chart): Drawing {
  const legend = drawLegend(chart.series);
  const top = legend.height + 8;
  const bottom = top + PLOT.height;
  const height = bottom + 24;
  const steps = [...new Set(chart.series.flatMap(({ points }) => points.map(({ step }) => step)))].toSorted(
    (a, b) => a - b,
  );
  const [first, last] = [steps[0], steps.at(-1)];
  if (first === undefined || last === undefined) {
    const body = `<text class="axis" x="${CHART_WIDTH / 2}" y="${(top + bottom) / 2}" text-anchor="middle">no steps yet</text>`;
    return { width: CHART_WIDTH, height, body };
  }
  const isShares = chart.form === 'shares';
  const ticks = isShares ? [0, 0.25, 0.5, 0.75, 1] : valueTicks(chart);
  const [low, high] = [ticks[0] ?? 0, ticks.at(-1) ?? 1];
  const frame: Frame = {
    x: scale([first, Math.max(last, first + 1)], [PLOT.left, PLOT.right]),
    y: scale([low, high], [bottom, top]),
    top,
    bottom,
  };
  const format = isShares ? 'share' : chart.format;
  const grid = ticks.map((tick) => {
    const y = round(frame.y(tick));
    const text = `<text class="axis" x="${PLOT.left - 6}" y="${y + 4}" text-anchor="end">${formatValue(tick, format)}</text>`;
    return `<line class="grid" x1="${PLOT.left}" x2="${PLOT.right}" y1="${y}" y2="${y}"/>${text}`;
  });
  const marks = isShares
    ? drawShares(chart.series, steps, frame)
    : chart.series.map((series, index) => drawLine(series, index, frame));
  const body = [legend.body, ...grid, drawStepAxis([first, last], frame), ...marks].join('');
  return { width: CHART_WIDTH, height, body };
}

export function renderChart(chart: Chart): string {
  const { width, height, body } = drawChart(chart);
  return `<svg class="chart" viewBox="0 0 ${width} ${height}" role="img" aria-label="${escapeHtml(describe(chart))}">${body}</svg>`;
}

/** At most 30 rows, evenly spaced, the first and the last step always among them. */
export function renderChartTable(chart: Chart): string {
  const values = chart.series.map(({ points }) => new Map(points.map(({ step, value }) => [step, value])));
  const steps = [...new Set(values.flatMap((column) => [...column.keys()]))].toSorted((a, b) => a - b);
  const rows = thin(steps).map((step) => {
    const cells = values.map((column) => `<td>${formatCell(column.get(step) ?? null, chart.format)}</td>`);
    return `<tr><th scope="row">${step}</th>${cells.join('')}</tr>`;
  });
  const heads = chart.series.map(({ name }) => `<th scope="col">${escapeHtml(name)}</th>`);
  return `<table><thead><tr><th scope="col">step</th>${heads.join('')}</tr></thead><tbody>${rows.join('')}</tbody></table>`;
}

/** Mean over a centred window, cut at the ends; missing values are skipped, and bridged where they have neighbours. */
export function movingMean(values: readonly (number | null)[], window: number): (number | null)[] {
  const half = Math.floor(window / 2);
  return values.map((_, index) => {
    const near = values.slice(Math.max(0, index - half), index + half + 1).filter((neighbour) => neighbour !== null);
    return near.length === 0 ? null : near.reduce((sum, neighbour) => sum + neighbour, 0) / near.length;
  });
}

/** About four round numbers that enclose the range. */
export function niceTicks(low: number, high: number): number[] {
  // A range that is nothing but rounding is no range.
  const size = Math.max(Math.abs(low), Math.abs(high));
  const span = high - low > 1e-8 * size ? high - low : size || 1;
  const rough = span / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999) ?? 10);
  const from = Math.floor(low / step + 1e-9);
  const to = Math.max(Math.ceil(high / step - 1e-9), from + 1);
  return Array.from({ length: to - from + 1 }, (_, index) => Number(((from + index) * step).toPrecision(12)));
}

export function formatValue(value: number, format: ValueFormat): string {
  switch (format) {
    case 'score':
      return trimZeros(value.toFixed(3));
    case 'share':
      return `${trimZeros((100 * value).toFixed(1))} %`;
    case 'count':
      return formatCount(value);
    case 'bytes':
      return Math.abs(value) >= 1e6
        ? `${trimZeros((value / 1e6).toFixed(1))} MB`
        : `${trimZeros((value / 1e3).toFixed(1))} kB`;
    case 'milliseconds':
      return `${trimZeros(value.toFixed(1))} ms`;
    case 'scientific':
      return value === 0 ? '0' : value.toExponential(1).replace('e-', 'e−').replace('e+', 'e');
    default:
      return format satisfies never;
  }
}

export function escapeHtml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}

function drawLegend(series: readonly Series[]): { height: number; body: string } {
  let x = 0;
  let row = 0;
  const entries = series.map(({ name }, index) => {
    // Without measuring text: 6.6 units a character at 12 units, and room for the swatch.
    const width = 34 + 6.6 * name.length;
    if (x > 0 && x + width > CHART_WIDTH) {
      x = 0;
      row++;
    }
    const y = row * LEGEND_ROW;
    const entry = `<rect class="s${index % 6}" x="${x}" y="${y + 5}" width="14" height="4" rx="2"/><text class="legend" x="${x + 20}" y="${y + 12}">${escapeHtml(name)}</text>`;
    x = round(x + width);
    return entry;
  });
  return { height: (row + 1) * LEGEND_ROW, body: entries.join('') };
}

function drawStepAxis([first, last]: readonly [number, number], { x, bottom }: Frame): string {
  const inside = niceTicks(first, last).filter(
    (tick) => Number.isInteger(tick) && tick >= first && tick <= last && x(tick) > PLOT.left + 8,
  );
  const ticks = inside.length > 0 ? inside : [last];
  const labels = ticks.map(
    (tick) => `<text class="axis" x="${round(x(tick))}" y="${bottom + 17}" text-anchor="middle">${tick}</text>`,
  );
  const name = `<text class="axis" x="${PLOT.left - 6}" y="${bottom + 17}" text-anchor="end">step</text>`;
  return name + labels.join('');
}

function drawLine({ points }: Series, index: number, frame: Frame): string {
  const window = Math.max(1, Math.round(points.length / 10));
  const values = points.map(({ value }) => value);
  const colour = `l${index % 6}`;
  const path = (heights: readonly (number | null)[]): string => linePath(points, heights, frame);
  if (window < 3) return `<path class="mean ${colour}" d="${path(values)}"/>${lonePoints(points, index, frame)}`;
  return `<path class="raw ${colour}" d="${path(values)}"/><path class="mean ${colour}" d="${path(movingMean(values, window))}"/>`;
}

function linePath(points: Series['points'], heights: readonly (number | null)[], { x, y }: Frame): string {
  let path = '';
  let pen = 'M';
  for (const [index, { step }] of points.entries()) {
    const height = heights[index] ?? null;
    if (height === null) {
      pen = 'M';
      continue;
    }
    path += `${pen}${round(x(step))} ${round(y(height))}`;
    pen = 'L';
  }
  return path;
}

/** A line of one point would be invisible. */
function lonePoints(points: Series['points'], index: number, { x, y }: Frame): string {
  return points
    .filter(
      ({ value }, position) =>
        value !== null &&
        (points[position - 1]?.value ?? null) === null &&
        (points[position + 1]?.value ?? null) === null,
    )
    .map(
      ({ step, value }) =>
        `<circle class="s${index % 6}" cx="${round(x(step))}" cy="${round(y(value ?? 0))}" r="2.5"/>`,
    )
    .join('');
}

function drawShares(series: readonly Series[], steps: readonly number[], { top, bottom }: Frame): string[] {
  const columns = Math.min(steps.length, MOST_COLUMNS);
  const width = (PLOT.right - PLOT.left) / columns;
  const gap = Math.min(1, width / 4);
  const values = series.map(({ points }) => new Map(points.map(({ step, value }) => [step, value ?? 0])));
  return Array.from({ length: columns }, (_, column) => {
    const members = steps.slice(
      Math.floor((column * steps.length) / columns),
      Math.floor(((column + 1) * steps.length) / columns),
    );
    const amounts = values.map((ofSeries) => members.reduce((sum, step) => sum + (ofSeries.get(step) ?? 0), 0));
    const total = amounts.reduce((sum, amount) => sum + amount, 0);
    let base = bottom;
    return amounts
      .map((amount, index) => {
        const height = total === 0 ? 0 : ((bottom - top) * amount) / total;
        base -= height;
        if (height === 0) return '';
        return `<rect class="s${index % 6}" x="${round(PLOT.left + column * width)}" y="${round(base)}" width="${round(width - gap)}" height="${round(height)}"/>`;
      })
      .join('');
  });
}

function valueTicks({ series, startsAtZero = false }: Chart): number[] {
  const values = series
    .flatMap(({ points }) => points.map(({ value }) => value))
    .filter((value) => value !== null && Number.isFinite(value));
  // The filter above leaves numbers only; `reduce` and not `Math.max(...)`, which fails on very long runs.
  const low = values.reduce<number>((least, value) => Math.min(least, value ?? least), Number.POSITIVE_INFINITY);
  const high = values.reduce<number>((most, value) => Math.max(most, value ?? most), Number.NEGATIVE_INFINITY);
  if (low > high) return [0, 1];
  return niceTicks(startsAtZero ? Math.min(0, low) : low, high);
}

function describe({ title, series, format }: Chart): string {
  const ends = series.flatMap(({ name, points }) => {
    const known = points.filter(({ value }) => value !== null);
    const [first, last] = [known[0]?.value, known.at(-1)?.value];
    if (first === undefined || first === null || last === undefined || last === null) return [];
    return [`${name} from ${formatValue(first, format)} to ${formatValue(last, format)}`];
  });
  return `${title}: ${ends.join(', ')}`;
}

function formatCell(value: number | null, format: ValueFormat): string {
  if (value === null) return '–';
  // In a column of numbers the points line up, so zeros at the end stay.
  if (format === 'score') return value.toFixed(3);
  if (format === 'share') return `${(100 * value).toFixed(1)} %`;
  return formatValue(value, format);
}

function thin(steps: readonly number[]): number[] {
  if (steps.length <= MOST_TABLE_ROWS) return [...steps];
  const stride = (steps.length - 1) / (MOST_TABLE_ROWS - 1);
  return Array.from({ length: MOST_TABLE_ROWS }, (_, index) => steps[Math.round(index * stride)] ?? 0);
}

function scale(
  [fromLow, fromHigh]: readonly [number, number],
  [toLow, toHigh]: readonly [number, number],
): (value: number) => number {
  return (value) => toLow + ((value - fromLow) / (fromHigh - fromLow)) * (toHigh - toLow);
}

function formatCount(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e6) return `${trimZeros((value / 1e6).toFixed(1))}M`;
  if (size >= 1e4) return `${trimZeros((value / 1e3).toFixed(1))}k`;
  return trimZeros(value.toFixed(size < 100 ? 1 : 0));
}

function trimZeros(text: string): string {
  return text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}

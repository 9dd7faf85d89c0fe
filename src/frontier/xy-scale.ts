/**
 * Axes of x-y charts: which range is shown, where the ticks are, how a value becomes a pixel and a label. Linear or
 * logarithmic. Invariant: every tick lies inside the range that is shown, and a range always has a length.
 */
import { niceTicks } from '../eval/charts.ts';

/** `percent` takes shares (0.1 is 10 %), `times` takes factors; `signed` forms show the plus. */
export type NumberFormat = 'number' | 'percent' | 'signed-percent' | 'times';

export interface Axis {
  readonly label: string;
  readonly format: NumberFormat;
  /** Default `linear`. */
  readonly scale?: 'linear' | 'log';
  /** Ends of the range that is shown; the data's own with a margin where absent. Positive on a log axis. */
  readonly low?: number;
  readonly high?: number;
  /** In place of round numbers; those outside the range are left out. */
  readonly ticks?: readonly number[];
}

/** A range with the direction of its pixels. */
export interface Scale {
  readonly low: number;
  readonly high: number;
  readonly ticks: readonly number[];
  /** Pixel of a value; values outside the range land outside the frame. */
  readonly toPixel: (value: number) => number;
}

export interface Range {
  readonly low: number;
  readonly high: number;
}

const MARGIN_SHARE = 0.05;

/** The range of an axis: as given, else what the finite values cover and a margin of 5 % on either side. */
export function rangeOf(axis: Axis, values: Iterable<number>): Range {
  const isLog = axis.scale === 'log';
  let least = Number.POSITIVE_INFINITY;
  let most = Number.NEGATIVE_INFINITY;
  for (const value of values) {
    if (!Number.isFinite(value) || (isLog && value <= 0)) continue;
    least = Math.min(least, value);
    most = Math.max(most, value);
  }
  if (least > most) [least, most] = isLog ? [1, 10] : [0, 1];
  const to = isLog ? Math.log : (value: number): number => value;
  const from = isLog ? Math.exp : (value: number): number => value;
  const size = Math.max(Math.abs(to(least)), Math.abs(to(most)));
  const isFlat = to(most) - to(least) <= 1e-9 * size;
  const margin = isFlat ? size / 2 || 0.5 : MARGIN_SHARE * (to(most) - to(least));
  const low = axis.low ?? from(to(least) - margin);
  const high = axis.high ?? from(to(most) + margin);
  return high > low ? { low, high } : { low, high: isLog ? 2 * low : low + (Math.abs(low) || 1) };
}

/** The scale that puts `low` at the first pixel and `high` at the second; `ticks` in place of round numbers. */
export function createScale(
  { low, high }: Range,
  options: { readonly isLog: boolean; readonly pixels: readonly [number, number]; readonly ticks?: readonly number[] },
): Scale {
  const { isLog, pixels } = options;
  const [first, last] = pixels;
  const [from, to] = isLog ? [Math.log(low), Math.log(high)] : [low, high];
  const toPixel = (value: number): number =>
    first + (((isLog ? Math.log(value) : value) - from) / (to - from)) * (last - first);
  const round = isLog ? logTicks(low, high) : linearTicks(low, high);
  const ticks = options.ticks?.filter((tick) => tick >= low && tick <= high) ?? round;
  return { low, high, ticks, toPixel };
}

/** At most about six round numbers inside the range. */
export function linearTicks(low: number, high: number): number[] {
  const slack = 1e-9 * (high - low);
  return niceTicks(low, high).filter((tick) => tick >= low - slack && tick <= high + slack);
}

/** Round multiples of the powers of ten inside the range, fewer on a long one; evenly spaced below a factor of 3. */
export function logTicks(low: number, high: number): number[] {
  if (high < 3 * low) return linearTicks(low, high);
  const decades = Math.log10(high / low);
  const factors = tickFactors(decades);
  const stride = Math.max(1, Math.ceil(decades / 6));
  const ticks: number[] = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += stride) {
    for (const factor of factors) {
      const tick = Number((factor * 10 ** power).toPrecision(12));
      if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push(tick);
    }
  }
  return ticks;
}

function tickFactors(decades: number): readonly number[] {
  if (decades > 2.2) return [1];
  return decades > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7];
}

/**
 * A value as text with a true minus sign. `digits` are decimals for percents; significant figures otherwise
 * (default 1 and 3). NaN is a dash.
 */
export function formatNumber(value: number, format: NumberFormat, digits?: number): string {
  if (Number.isNaN(value)) return '–';
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞';
  switch (format) {
    case 'percent':
    case 'signed-percent': {
      const text = (100 * value).toFixed(digits ?? 1);
      const isZero = Number(text) === 0;
      const sign = value > 0 && !isZero && format === 'signed-percent' ? '+' : '';
      return `${sign}${trueMinus(isZero ? text.replace('-', '') : text)} %`;
    }
    case 'times':
      return `×${plain(value, digits ?? 3)}`;
    case 'number':
      return plain(value, digits ?? 3);
    default:
      return format satisfies never;
  }
}

/** As short as the ticks of one axis allow: no decimals that all of them lack. */
export function formatTick(value: number, format: NumberFormat): string {
  const isPercent = format === 'percent' || format === 'signed-percent';
  return isPercent ? formatNumber(value, format, decimalsOf(100 * value)) : formatNumber(value, format, 6);
}

function decimalsOf(value: number): number {
  const text = Number(value.toFixed(3)).toString();
  return text.includes('.') ? (text.split('.')[1] ?? '').length : 0;
}

function plain(value: number, figures: number): string {
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e-4 && size < 1e15) {
    // All digits before the point stay: 12,345 is not 12,300.
    const decimals = Math.max(0, figures - 1 - Math.floor(Math.log10(size)));
    const rounded = Number(value.toFixed(Math.min(decimals, 20)));
    return trueMinus(rounded.toLocaleString('en-US', { maximumFractionDigits: Math.min(decimals, 20) }));
  }
  return trueMinus(
    value
      .toExponential(Math.max(0, figures - 1))
      .replace(/\.?0+e/, 'e')
      .replace('e+', 'e'),
  );
}

function trueMinus(text: string): string {
  return text.replaceAll('-', '−');
}

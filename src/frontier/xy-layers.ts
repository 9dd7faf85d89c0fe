/**
 * What can be drawn into a panel of an x-y chart, and its SVG: lines, dots, bands, segments, error bars, and labels from their
 * own file. Everything is cut at the frame, and points nearer than half a unit to the one before are left out.
 */
import { cutAtFrame, isInside, pair, pixelOf, round, thin } from './xy-frame.ts';
import type { Frame, Pixel, Point } from './xy-frame.ts';
import { drawLabels } from './xy-labels.ts';
import type { LabelsLayer } from './xy-labels.ts';
import { fill, markClass, markPath, stroke } from './xy-look.ts';
import type { Look } from './xy-look.ts';

/** Values are in the units of the axes. Points that are not finite are gaps in a line and absent elsewhere. */
export type Layer =
  | {
      readonly kind: 'line';
      readonly look: Look;
      readonly points: readonly Point[];
      /** In units of the drawing; default 2. */
      readonly width?: number;
      /** 0 to 1, default 1. */
      readonly opacity?: number;
    }
  | {
      readonly kind: 'marks';
      readonly look: Look;
      readonly points: readonly Point[];
      /** Radius in units of the drawing; default 2.4. */
      readonly size?: number;
      /** A rim of the ground's colour sets the mark off from what lies under it. */
      readonly hasRim?: boolean;
      readonly opacity?: number;
    }
  | {
      readonly kind: 'band';
      readonly look: Look;
      readonly points: readonly { readonly x: number; readonly low: number; readonly high: number }[];
      readonly opacity?: number;
    }
  | {
      /** Straight pieces, cut at the frame; an arrow head stands at `to` where that is inside. */
      readonly kind: 'segments';
      readonly look: Look;
      readonly segments: readonly { readonly from: Point; readonly to: Point }[];
      readonly hasArrow?: boolean;
      readonly width?: number;
      readonly opacity?: number;
    }
  | {
      /** Ends that are absent are not drawn: vertical, horizontal or both. */
      readonly kind: 'error-bars';
      readonly look: Look;
      readonly points: readonly (Point & {
        readonly xLow?: number;
        readonly xHigh?: number;
        readonly yLow?: number;
        readonly yHigh?: number;
      })[];
    }
  | LabelsLayer;

const CAP = 3;

/** Every (x, y) that an automatic range must show; the far ends of segments don't count, since rays may be endless. */
export function layerValues(layer: Layer): [number, number][] {
  switch (layer.kind) {
    case 'line':
    case 'marks':
      return layer.points.map(({ x, y }) => [x, y]);
    case 'band':
      return layer.points.flatMap(({ x, low, high }): [number, number][] => [
        [x, low],
        [x, high],
      ]);
    case 'segments':
      return layer.segments.map(({ from }) => [from.x, from.y]);
    case 'error-bars':
      return layer.points.flatMap(({ x, y, xLow = x, xHigh = x, yLow = y, yHigh = y }): [number, number][] => [
        [xLow, yLow],
        [xHigh, yHigh],
      ]);
    case 'labels':
      return [];
    default:
      return layer satisfies never;
  }
}

export function drawLayer(layer: Layer, frame: Frame): string {
  switch (layer.kind) {
    case 'line': {
      const path = linePath(layer.points, frame);
      return path === ''
        ? ''
        : `<path class="line ${stroke(layer.look)}"${strokeWidth(layer)}${fade(layer)} d="${path}"/>`;
    }
    case 'marks':
      return drawMarks(layer, frame);
    case 'band':
      return drawBand(layer, frame);
    case 'segments':
      return drawSegments(layer, frame);
    case 'error-bars':
      return drawErrorBars(layer, frame);
    case 'labels':
      return drawLabels(layer, frame);
    default:
      return layer satisfies never;
  }
}

/** The sample of a legend entry, in a box of 30 by 14. */
export function drawSwatch(look: Look, shows: 'line' | 'mark' | 'both' | 'band'): string {
  if (shows === 'band') return `<rect class="${fill(look)}" x="1" y="2" width="28" height="10" opacity=".22"/>`;
  const line = shows === 'mark' ? '' : `<path class="line ${stroke(look)}" stroke-width="2" d="M1 7H29"/>`;
  const mark =
    shows === 'line' ? '' : `<path class="${markClass(look)}" d="${markPath(look.mark ?? 'circle', [15, 7], 4)}"/>`;
  return line + mark;
}

function drawMarks(layer: Extract<Layer, { kind: 'marks' }>, frame: Frame): string {
  const { look, points, size = 2.4 } = layer;
  const shape = look.mark ?? 'circle';
  const path = points
    .map((point) => pixelOf(point, frame))
    .filter((pixel) => isInside(pixel, frame))
    .map((pixel) => markPath(shape, pixel, size))
    .join('');
  const rim = layer.hasRim === true ? ' rim' : '';
  return path === '' ? '' : `<path class="${markClass(look)}${rim}"${fade(layer)} d="${path}"/>`;
}

/** Between the frame's top and bottom; a gap in the values splits the band. */
function drawBand(layer: Extract<Layer, { kind: 'band' }>, frame: Frame): string {
  const pieces: { lows: Pixel[]; highs: Pixel[] }[] = [];
  let piece: { lows: Pixel[]; highs: Pixel[] } | undefined;
  for (const { x, low, high } of layer.points) {
    const [column, bottom] = pixelOf({ x, y: low }, frame);
    const [, top] = pixelOf({ x, y: high }, frame);
    if (!Number.isFinite(column + bottom + top) || column < frame.left - 0.01 || column > frame.right + 0.01) {
      piece = undefined;
      continue;
    }
    if (piece === undefined) pieces.push((piece = { lows: [], highs: [] }));
    const clamp = (y: number): number => Math.min(frame.bottom, Math.max(frame.top, y));
    piece.lows.push([column, clamp(bottom)]);
    piece.highs.push([column, clamp(top)]);
  }
  const path = pieces
    .filter(({ lows }) => lows.length > 1)
    .map(({ lows, highs }) => `M${[...thin(highs), ...thin(lows).toReversed()].map(pair).join('L')}Z`)
    .join('');
  return path === '' ? '' : `<path class="${fill(layer.look)}" opacity="${layer.opacity ?? 0.16}" d="${path}"/>`;
}

function drawSegments(layer: Extract<Layer, { kind: 'segments' }>, frame: Frame): string {
  const pieces = layer.segments.map(({ from, to }) => {
    const [start, end] = [pixelOf(from, frame), pixelOf(to, frame)];
    const cut = cutAtFrame(start, end, frame);
    if (cut === undefined) return '';
    const isWhole = layer.hasArrow === true && isInside(end, frame);
    return `M${pair(cut[0])}L${pair(cut[1])}${isWhole ? arrowHead(cut[0], cut[1]) : ''}`;
  });
  const path = pieces.join('');
  if (path === '') return '';
  return `<path class="line ${stroke(layer.look)}"${strokeWidth(layer)}${fade(layer)} d="${path}"/>`;
}

function drawErrorBars(layer: Extract<Layer, { kind: 'error-bars' }>, frame: Frame): string {
  const path = layer.points
    .flatMap(({ x, y, xLow, xHigh, yLow, yHigh }) => [
      xLow === undefined || xHigh === undefined
        ? ''
        : bar(pixelOf({ x: xLow, y }, frame), pixelOf({ x: xHigh, y }, frame), frame),
      yLow === undefined || yHigh === undefined
        ? ''
        : bar(pixelOf({ x, y: yLow }, frame), pixelOf({ x, y: yHigh }, frame), frame),
    ])
    .join('');
  return path === ''
    ? ''
    : `<path class="line bars ${stroke({ colour: layer.look.colour })}" stroke-width="1.5" d="${path}"/>`;
}

/** A bar with caps at those ends that are inside the frame. */
function bar(low: Pixel, high: Pixel, frame: Frame): string {
  const cut = cutAtFrame(low, high, frame);
  if (cut === undefined) return '';
  const isLevel = low[1] === high[1];
  const cap = ([x, y]: Pixel): string =>
    isLevel
      ? `M${pair([x, Math.max(frame.top, y - CAP)])}V${round(Math.min(frame.bottom, y + CAP))}`
      : `M${pair([Math.max(frame.left, x - CAP), y])}H${round(Math.min(frame.right, x + CAP))}`;
  const caps = [low, high].filter((end) => isInside(end, frame)).map(cap);
  return `M${pair(cut[0])}L${pair(cut[1])}${caps.join('')}`;
}

function linePath(points: readonly Point[], frame: Frame): string {
  let path = '';
  let last: Pixel | undefined;
  let drawn: Pixel | undefined;
  for (const [index, point] of points.entries()) {
    const pixel = pixelOf(point, frame);
    if (!Number.isFinite(pixel[0] + pixel[1])) {
      last = undefined;
      continue;
    }
    if (last === undefined) {
      last = pixel;
      continue;
    }
    const isLast = index === points.length - 1;
    if (!isLast && Math.hypot(pixel[0] - last[0], pixel[1] - last[1]) < 0.5) continue;
    const cut = cutAtFrame(last, pixel, frame);
    last = pixel;
    if (cut === undefined) continue;
    const isJoined = drawn !== undefined && drawn[0] === cut[0][0] && drawn[1] === cut[0][1];
    path += isJoined ? `L${pair(cut[1])}` : `M${pair(cut[0])}L${pair(cut[1])}`;
    drawn = cut[1];
  }
  return path;
}

function arrowHead([x0, y0]: Pixel, [x1, y1]: Pixel): string {
  const length = Math.hypot(x1 - x0, y1 - y0);
  if (length < 1) return '';
  const [ux, uy] = [(x1 - x0) / length, (y1 - y0) / length];
  const wing = (side: number): Pixel => [x1 - 6 * ux - side * 3.5 * uy, y1 - 6 * uy + side * 3.5 * ux];
  return `M${pair(wing(1))}L${pair([x1, y1])}L${pair(wing(-1))}`;
}

function strokeWidth({ width }: { readonly width?: number }): string {
  return ` stroke-width="${width ?? 2}"`;
}

function fade({ opacity }: { readonly opacity?: number }): string {
  return opacity === undefined || opacity === 1 ? '' : ` opacity="${opacity}"`;
}

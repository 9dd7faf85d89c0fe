/**
 * What can be drawn into a panel of an x-y chart, and its SVG: lines, dots, bands, segments, error bars, labels. Geometry is
 * cut at the frame here, not hidden by a clip path, so that the drawing never reaches beyond it. Coordinates are rounded to
 * a tenth of a unit, and points nearer than half a unit to the one before are left out.
 */
import { escapeHtml } from '../eval/charts.ts';
import type { Scale } from './xy-scale.ts';

export type Mark = 'circle' | 'square' | 'triangle' | 'triangle-down' | 'diamond' | 'cross' | 'plus';
export type Dash = 'solid' | 'dashed' | 'dotted' | 'dash-dotted' | 'long-dashed';

export interface Look {
  /** 0 to 5 are the report's six; `ink` and `soft` are those of its text. */
  readonly colour: 0 | 1 | 2 | 3 | 4 | 5 | 'ink' | 'soft';
  /** Default `circle`. */
  readonly mark?: Mark;
  /** Default `solid`. */
  readonly dash?: Dash;
  /** Marks are outlines on the ground's colour. */
  readonly isHollow?: boolean;
}

export interface Point {
  readonly x: number;
  readonly y: number;
}

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
  | {
      /** Text beside points; labels that would overlap move apart, up or down, those above and below away from their points. */
      readonly kind: 'labels';
      readonly look: Look;
      /** A label's own look wins over the layer's. */
      readonly labels: readonly (Point & { readonly text: string; readonly look?: Look })[];
      /** Default `right`. */
      readonly side?: 'right' | 'left' | 'above' | 'below';
    };

export interface Frame {
  readonly x: Scale;
  readonly y: Scale;
  readonly left: number;
  readonly right: number;
  readonly top: number;
  readonly bottom: number;
}

type Pixel = readonly [number, number];

const LABEL_HEIGHT = 12.5;
/** Width of a character of a label, without measuring text. */
const LABEL_CHARACTER = 6.6;
const CAP = 3;

export function round(value: number): number {
  return Math.round(value * 10) / 10;
}

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

function drawLabels({ labels, look, side = 'right' }: Extract<Layer, { kind: 'labels' }>, frame: Frame): string {
  const placed = labels
    .map(({ x, y, text, look: own = look }) => ({ text, own, pixel: pixelOf({ x, y }, frame) }))
    .filter(({ pixel }) => isInside(pixel, frame))
    .map(({ text, own, pixel: [x, y] }) => ({ text, own, x, y }));
  if (side === 'right') spreadLabels(placed, frame);
  if (side === 'above' || side === 'below') stackLabels(placed, side);
  const offsets = { right: [7, 4], left: [-7, 4], above: [0, -7], below: [0, 15] } as const;
  const anchors = { right: 'start', left: 'end', above: 'middle', below: 'middle' } as const;
  const [dx, dy] = offsets[side];
  return placed
    .map(
      ({ text, own, x, y }) =>
        `<text class="label ${fill(own)}" x="${round(x + dx)}" y="${round(y + dy)}" text-anchor="${anchors[side]}">${escapeHtml(text)}</text>`,
    )
    .join('');
}

/** From the top down each label keeps its distance; when that runs out of the frame, all are pushed up from the bottom. */
function spreadLabels(labels: { x: number; y: number }[], { top, bottom }: Frame): void {
  const sorted = labels.toSorted((a, b) => a.y - b.y);
  let least = top + 4;
  for (const label of sorted) {
    label.y = Math.max(label.y, least);
    least = label.y + LABEL_HEIGHT;
  }
  let most = bottom;
  for (const label of sorted.toReversed()) {
    label.y = Math.min(label.y, most);
    most = label.y - LABEL_HEIGHT;
  }
}

/** From left to right each label steps further from its point until it is clear of those before it. */
function stackLabels(labels: { text: string; x: number; y: number }[], side: 'above' | 'below'): void {
  const step = side === 'below' ? LABEL_HEIGHT : -LABEL_HEIGHT;
  const done: typeof labels = [];
  for (const label of labels.toSorted((a, b) => a.x - b.x)) {
    const isHit = (other: (typeof labels)[number]): boolean =>
      Math.abs(other.y - label.y) < LABEL_HEIGHT &&
      Math.abs(other.x - label.x) < (LABEL_CHARACTER / 2) * (other.text.length + label.text.length + 1);
    while (done.some(isHit)) label.y += step;
    done.push(label);
  }
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

/** Liang and Barsky: the part of a segment inside the frame, or undefined. */
function cutAtFrame([x0, y0]: Pixel, [x1, y1]: Pixel, frame: Frame): [Pixel, Pixel] | undefined {
  if (!Number.isFinite(x0 + y0 + x1 + y1)) return undefined;
  const [dx, dy] = [x1 - x0, y1 - y0];
  let enter = 0;
  let leave = 1;
  const sides: readonly Pixel[] = [
    [-dx, x0 - frame.left],
    [dx, frame.right - x0],
    [-dy, y0 - frame.top],
    [dy, frame.bottom - y0],
  ];
  for (const [speed, room] of sides) {
    if (speed === 0 && room < 0) return undefined;
    if (speed < 0) enter = Math.max(enter, room / speed);
    if (speed > 0) leave = Math.min(leave, room / speed);
  }
  if (enter > leave) return undefined;
  const at = (share: number): Pixel => [x0 + share * dx, y0 + share * dy];
  return [enter === 0 ? [x0, y0] : at(enter), leave === 1 ? [x1, y1] : at(leave)];
}

function markPath(mark: Mark, [x, y]: Pixel, size: number): string {
  const at = pair([x, y]);
  const [s, d] = [round(size), round(2 * size)];
  switch (mark) {
    case 'circle':
      return `M${pair([x - size, y])}a${s} ${s} 0 1 0 ${d} 0a${s} ${s} 0 1 0 ${-d} 0z`;
    case 'square':
      return `M${pair([x - size * 0.9, y - size * 0.9])}h${round(1.8 * size)}v${round(1.8 * size)}h${round(-1.8 * size)}z`;
    case 'triangle':
      return `M${pair([x, y - 1.15 * size])}l${round(1.1 * size)} ${round(1.95 * size)}h${round(-2.2 * size)}z`;
    case 'triangle-down':
      return `M${pair([x, y + 1.15 * size])}l${round(1.1 * size)} ${round(-1.95 * size)}h${round(-2.2 * size)}z`;
    case 'diamond':
      return `M${pair([x, y - 1.25 * size])}l${round(1.25 * size)} ${round(1.25 * size)}l${round(-1.25 * size)} ${round(1.25 * size)}l${round(-1.25 * size)} ${round(-1.25 * size)}z`;
    case 'cross':
      return `M${pair([x - size * 0.8, y - size * 0.8])}l${round(1.6 * size)} ${round(1.6 * size)}m0 ${round(-1.6 * size)}l${round(-1.6 * size)} ${round(1.6 * size)}`;
    case 'plus':
      return `M${at}m${-s} 0h${d}m${-s} ${-s}v${d}`;
    default:
      return mark satisfies never;
  }
}

function arrowHead([x0, y0]: Pixel, [x1, y1]: Pixel): string {
  const length = Math.hypot(x1 - x0, y1 - y0);
  if (length < 1) return '';
  const [ux, uy] = [(x1 - x0) / length, (y1 - y0) / length];
  const wing = (side: number): Pixel => [x1 - 6 * ux - side * 3.5 * uy, y1 - 6 * uy + side * 3.5 * ux];
  return `M${pair(wing(1))}L${pair([x1, y1])}L${pair(wing(-1))}`;
}

function thin(pixels: readonly Pixel[]): Pixel[] {
  let last: Pixel | undefined;
  return pixels.filter((pixel, index) => {
    const isFar = last === undefined || Math.hypot(pixel[0] - last[0], pixel[1] - last[1]) >= 0.5;
    if (!isFar && index < pixels.length - 1) return false;
    last = pixel;
    return true;
  });
}

function pixelOf({ x, y }: Point, frame: Frame): Pixel {
  return [frame.x.toPixel(x), frame.y.toPixel(y)];
}

function isInside([x, y]: Pixel, { left, right, top, bottom }: Frame): boolean {
  const slack = 0.01;
  return x >= left - slack && x <= right + slack && y >= top - slack && y <= bottom + slack;
}

function pair([x, y]: Pixel): string {
  return `${round(x)} ${round(y)}`;
}

function stroke({ colour, dash = 'solid' }: Look): string {
  const name = typeof colour === 'number' ? `l${colour}` : `l-${colour}`;
  return dash === 'solid' ? name : `${name} ${dash}`;
}

function fill({ colour }: Look): string {
  return typeof colour === 'number' ? `s${colour}` : `s-${colour}`;
}

/** Crosses are lines and need a stroke; hollow marks have the ground inside; others a thin rim of ground, to keep apart. */
function markClass(look: Look): string {
  const isLines = look.mark === 'cross' || look.mark === 'plus';
  if (isLines) return `strokes ${stroke({ colour: look.colour })}`;
  return look.isHollow === true ? `hollow ${stroke({ colour: look.colour })}` : fill(look);
}

function strokeWidth({ width }: { readonly width?: number }): string {
  return ` stroke-width="${width ?? 2}"`;
}

function fade({ opacity }: { readonly opacity?: number }): string {
  return opacity === undefined || opacity === 1 ? '' : ` opacity="${opacity}"`;
}

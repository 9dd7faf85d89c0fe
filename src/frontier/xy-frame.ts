/**
 * The geometry of a panel of an x-y chart: from values to pixels, and what of a shape lies inside the frame. Shapes are cut
 * here and not hidden by a clip path, so that a drawing never reaches beyond its frame. Coordinates are written to a tenth
 * of a unit.
 */
import type { Scale } from './xy-scale.ts';

export interface Point {
  readonly x: number;
  readonly y: number;
}

export interface Frame {
  readonly x: Scale;
  readonly y: Scale;
  readonly left: number;
  readonly right: number;
  readonly top: number;
  readonly bottom: number;
}

export type Pixel = readonly [number, number];

export function round(value: number): number {
  return Math.round(value * 10) / 10;
}

/** Liang and Barsky: the part of a segment inside the frame, or undefined. */
export function cutAtFrame([x0, y0]: Pixel, [x1, y1]: Pixel, frame: Frame): [Pixel, Pixel] | undefined {
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

export function thin(pixels: readonly Pixel[]): Pixel[] {
  let last: Pixel | undefined;
  return pixels.filter((pixel, index) => {
    const isFar = last === undefined || Math.hypot(pixel[0] - last[0], pixel[1] - last[1]) >= 0.5;
    if (!isFar && index < pixels.length - 1) return false;
    last = pixel;
    return true;
  });
}

export function pixelOf({ x, y }: Point, frame: Frame): Pixel {
  return [frame.x.toPixel(x), frame.y.toPixel(y)];
}

export function isInside([x, y]: Pixel, { left, right, top, bottom }: Frame): boolean {
  const slack = 0.01;
  return x >= left - slack && x <= right + slack && y >= top - slack && y <= bottom + slack;
}

export function pair([x, y]: Pixel): string {
  return `${round(x)} ${round(y)}`;
}

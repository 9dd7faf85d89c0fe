/** Words beside points of an x-y chart, moved apart where they would overlap; widths are estimated, not measured. */
import { escapeHtml } from '../eval/charts.ts';
import { isInside, pixelOf, round } from './xy-frame.ts';
import type { Frame, Point } from './xy-frame.ts';
import { fill } from './xy-look.ts';
import type { Look } from './xy-look.ts';

/** Text beside points; labels that would overlap move apart, up or down, those above and below away from their points. */
export interface LabelsLayer {
  readonly kind: 'labels';
  readonly look: Look;
  /** A label's own look wins over the layer's. */
  readonly labels: readonly (Point & { readonly text: string; readonly look?: Look })[];
  /** Default `right`. */
  readonly side?: 'right' | 'left' | 'above' | 'below';
}

const LABEL_HEIGHT = 12.5;
/** Width of a character of a label, without measuring text. */
const LABEL_CHARACTER = 6.6;

export function drawLabels({ labels, look, side = 'right' }: LabelsLayer, frame: Frame): string {
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

/** How lines and marks of an x-y chart look: their kinds, their CSS classes, and the outline of each mark. */
import { pair, round } from './xy-frame.ts';
import type { Pixel } from './xy-frame.ts';

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

export function markPath(mark: Mark, [x, y]: Pixel, size: number): string {
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

export function stroke({ colour, dash = 'solid' }: Look): string {
  const name = typeof colour === 'number' ? `l${colour}` : `l-${colour}`;
  return dash === 'solid' ? name : `${name} ${dash}`;
}

export function fill({ colour }: Look): string {
  return typeof colour === 'number' ? `s${colour}` : `s-${colour}`;
}

/** Crosses are lines and need a stroke; hollow marks have the ground inside; others a thin rim of ground, to keep apart. */
export function markClass(look: Look): string {
  const isLines = look.mark === 'cross' || look.mark === 'plus';
  if (isLines) return `strokes ${stroke({ colour: look.colour })}`;
  return look.isHollow === true ? `hollow ${stroke({ colour: look.colour })}` : fill(look);
}

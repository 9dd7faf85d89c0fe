/**
 * Success against mean cost as one smooth curve through the points of a concave fit: it never falls, its slope never rises
 * and never jumps, and at each point it is the slope that was handed in. Between points a quadratic spline with one knot
 * more an interval (Schumaker 1983); outside them assumptions, stated at `smoothCurve`.
 */
import { HoneError } from '../domain/errors.ts';

export interface Curve {
  /** The cost that success begins to rise from; it is flat below. */
  readonly start: number;
  /** Success at a mean cost from 0 up. */
  value(cost: number): number;
  /** Success that one more unit of cost buys there. */
  slope(cost: number): number;
}

export interface MeasuredCurve extends Curve {
  /** Range of costs that points lie at; outside it the curve is assumed. */
  readonly from: number;
  readonly to: number;
}

export interface CurvePoint {
  /** From 0 up. */
  readonly cost: number;
  readonly success: number;
  /** At this point; from the chord on its right to the one on its left, either of them included. */
  readonly slope: number;
}

/** Of an interval, the part before a point at which the slope still has to come down from the chord. */
const ROUNDED_SHARE = 0.1;

/**
 * Points ascend in cost; costs from 0 up, success in [0, 1], slopes >= 0 with slope[i] >= chord[i] >= slope[i + 1]. The curve
 * goes through its points but for two kinds. Points on a straight piece share its slope, which leaves a curve that bends at
 * both ends of the piece only a place a little above them. And where the slope at a point is that of the whole interval
 * after it, the bend before the next point takes a tenth of the interval, and success lies that much lower from there on.
 * Below the first point one quadratic through (0, 0), or the straight line down to no success where the first slope is too
 * steep for that; at cost 0 the first slope is what makes the first piece smooth. Above the last point
 * s' = slope / (1 + x / h)^2 with x the cost beyond it and h = min(cost, (1 - success) / slope): the form of pc / (1 + pc),
 * which never exceeds 1; a curve that is at 1 there is flat beyond. Throws `invalid-config` on points that break these rules.
 */
export function smoothCurve(points: readonly CurvePoint[]): MeasuredCurve {
  const [first] = points;
  if (first === undefined)
    throw new HoneError('invalid-config', 'A curve needs at least 1 point, got 0.', { cure: 'Give points.' });
  for (const point of points) check(point);
  const knots = layKnots(points);
  const costs = Float64Array.from(knots, ({ cost }) => cost);
  const slopes = Float64Array.from(knots, ({ slope }) => slope);
  const values = integrate(knots, first);
  const end = knots.length - 1;
  const lastCost = costs[end] ?? 0;
  const lastSlope = slopes[end] ?? 0;
  const lastValue = Math.min(values[end] ?? 0, 1);
  const room = Math.min(lastCost === 0 ? Infinity : lastCost, (1 - lastValue) / lastSlope);
  const isFlatBeyond = lastSlope === 0 || room === 0;
  const locate = (cost: number): number => {
    let index = end;
    while (index > 0 && (costs[index] ?? 0) > cost) index--;
    return index;
  };
  return {
    start: costs[0] ?? 0,
    from: first.cost,
    to: lastCost,
    value(cost) {
      if (cost >= lastCost) {
        const beyond = cost - lastCost;
        // Not slope x beyond / (1 + beyond / room): that is NaN at infinity.
        return isFlatBeyond ? lastValue : lastValue + lastSlope / (1 / beyond + 1 / room);
      }
      const index = locate(cost);
      const start = costs[index] ?? 0;
      if (cost <= start) return values[index] ?? 0;
      const width = (costs[index + 1] ?? start) - start;
      const slope = slopes[index] ?? 0;
      const change = (slopes[index + 1] ?? 0) - slope;
      const step = cost - start;
      return Math.min(1, (values[index] ?? 0) + step * (slope + (change * step) / (2 * width)));
    },
    slope(cost) {
      if (cost === lastCost) return lastSlope;
      if (cost > lastCost) return isFlatBeyond ? 0 : lastSlope / (1 + (cost - lastCost) / room) ** 2;
      const index = locate(cost);
      const start = costs[index] ?? 0;
      if (cost < start) return 0;
      const width = (costs[index + 1] ?? start) - start;
      const slope = slopes[index] ?? 0;
      return slope + (((slopes[index + 1] ?? 0) - slope) * (cost - start)) / width;
    },
  };
}

/** Where the slope, which is linear between knots, turns. */
interface Knot {
  readonly cost: number;
  readonly slope: number;
}

function layKnots(points: readonly CurvePoint[]): Knot[] {
  const chords = points.slice(1).map((next, index) => chordBetween(points[index] ?? next, next));
  const knots: Knot[] = [];
  let from = 0;
  while (from + 1 < points.length) {
    // Points inside a straight piece have its slope; the next one that has not is its end.
    let to = from + 1;
    while (to + 1 < points.length && isInside(points, to, chords)) to++;
    const start = points[from];
    const stop = points[to];
    if (start === undefined || stop === undefined) break;
    const piece = {
      start,
      stop,
      chord: chordBetween(start, stop).slope,
      inside: to > from + 1 ? { first: points[from + 1] ?? stop, last: points[to - 1] ?? start } : undefined,
    };
    knots.push(...pieceKnots(piece));
    from = to;
  }
  const last = points.at(-1);
  if (last !== undefined) knots.push({ cost: last.cost, slope: last.slope });
  const [first] = points;
  return first === undefined ? knots : [...headKnots(first), ...knots];
}

/** The knot that the curve starts from, below the first point. */
function headKnots({ cost, success, slope }: CurvePoint): Knot[] {
  if (cost === 0) return [];
  const chord = success / cost;
  return [chord >= slope ? { cost: 0, slope: 2 * chord - slope } : { cost: cost - success / slope, slope }];
}

interface Piece {
  readonly start: CurvePoint;
  readonly stop: CurvePoint;
  readonly chord: number;
  /** Points within it, all on its chord. */
  readonly inside: { readonly first: CurvePoint; readonly last: CurvePoint } | undefined;
}

/**
 * The knots from the start of a piece up to its end, which is not among them. Points inside are lifted by what leaves room
 * for the slope to come down to the chord before them and to go on down after them: half of the most that is possible.
 */
function pieceKnots({ start, stop, chord, inside }: Piece): Knot[] {
  const slack = slackOf(start, stop);
  const before = (inside?.first ?? stop).cost - start.cost;
  const after = stop.cost - (inside?.last ?? start).cost;
  const fall = chord - stop.slope;
  let rise = start.slope - chord;
  // At no cost nothing is priced, so that slope is free.
  if (start.cost === 0 && rise <= slack && fall > slack) rise = (fall * after) / before;
  const first = { cost: start.cost, slope: chord + rise };
  if (rise <= slack && fall <= slack) return [first];
  if (rise <= slack) return [first, { cost: stop.cost - ROUNDED_SHARE * after, slope: chord }];
  if (fall <= slack) return [first, { cost: start.cost + ROUNDED_SHARE * before, slope: chord }];
  if (inside === undefined) return [first, { cost: start.cost + (fall / (rise + fall)) * before, slope: chord }];
  const lift = Math.min(rise * before, fall * after) / 2;
  // In each interval the knot lies where the slope is that interval's own chord.
  return [
    first,
    { cost: start.cost + lift / rise, slope: chord + lift / before },
    { cost: inside.first.cost, slope: chord },
    { cost: inside.last.cost, slope: chord },
    { cost: stop.cost - lift / fall, slope: chord - lift / after },
  ];
}

/** Success at each knot: what the first point has, and from there the area under the slopes. */
function integrate(knots: readonly Knot[], first: CurvePoint): Float64Array {
  const values = new Float64Array(knots.length);
  const anchor = first.cost === 0 ? 0 : 1;
  const area = (left: Knot | undefined, right: Knot | undefined): number =>
    left === undefined || right === undefined ? 0 : ((left.slope + right.slope) / 2) * (right.cost - left.cost);
  values[anchor] = first.success;
  for (let index = anchor + 1; index < knots.length; index++)
    values[index] = (values[index - 1] ?? 0) + area(knots[index - 1], knots[index]);
  return values;
}

/** Whether the chords on both sides of a point are one line, and its slope theirs. */
function isInside(
  points: readonly CurvePoint[],
  index: number,
  chords: readonly { readonly slope: number; readonly slack: number }[],
): boolean {
  const [left, right] = [chords[index - 1], chords[index]];
  const slope = points[index]?.slope ?? Number.NaN;
  if (left === undefined || right === undefined) return false;
  return Math.abs(slope - left.slope) <= left.slack && Math.abs(slope - right.slope) <= right.slack;
}

/** Throws `invalid-config` where two points and their slopes are not those of a concave curve. */
function chordBetween(point: CurvePoint, next: CurvePoint): { readonly slope: number; readonly slack: number } {
  const width = next.cost - point.cost;
  const slope = (next.success - point.success) / width;
  const slack = slackOf(point, next);
  if (!(width > 0) || slope > point.slope + slack || slope < next.slope - slack)
    throw new HoneError(
      'invalid-config',
      `The points at cost ${point.cost} and ${next.cost} are not those of a concave curve: slope ${point.slope}, chord ${slope}, slope ${next.slope}.`,
      { cure: 'Fit a concave curve first.' },
    );
  return { slope, slack };
}

/** Rounding of a fit leaves its slopes a little beyond its chords; a chord has the rounding of success over the width. */
function slackOf(point: CurvePoint, next: CurvePoint): number {
  return 1e-9 * Math.max(point.slope, next.slope) + (8 * Number.EPSILON) / (next.cost - point.cost);
}

function check({ cost, success, slope }: CurvePoint): void {
  if (!(cost >= 0 && Number.isFinite(cost)))
    throw new HoneError('invalid-config', `A point of the curve has the cost ${cost}, not a finite number from 0 up.`, {
      cure: 'Give the mean cost of a rollout.',
    });
  if (!(success >= 0 && success <= 1))
    throw new HoneError('invalid-config', `A point of the curve has the success ${success}, not from 0 to 1.`, {
      cure: 'Give the share of rollouts that succeed.',
    });
  if (!(slope >= 0 && Number.isFinite(slope)))
    throw new HoneError('invalid-config', `A point of the curve has the slope ${slope}, not a number from 0 up.`, {
      cure: 'Fit a concave curve that does not fall first.',
    });
}

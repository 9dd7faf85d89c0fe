/**
 * Success against mean cost as one smooth curve through the points of a concave fit: it never falls, its slope never rises
 * within the points, and the slope at a point is the one that was handed in. Between points a quadratic spline with one
 * knot more an interval (Schumaker 1983); outside them assumptions, stated at `smoothCurve`.
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
  readonly cost: number;
  readonly success: number;
  /** At this point; between the chords on both sides. */
  readonly slope: number;
}

/**
 * Points ascend in cost; costs above 0, success in [0, 1], slopes >= 0 with slope[i] >= chord[i] >= slope[i + 1]. Below the
 * first point one quadratic through (0, 0), or the straight line down to no success where the first slope is too steep for
 * that. Above the last point s' = slope / (1 + x / h)^2 with x the cost beyond it and h = min(cost, (1 - success) / slope):
 * the form of pc / (1 + pc), which never exceeds 1. Throws `invalid-config` on points that break these rules.
 */
export function smoothCurve(points: readonly CurvePoint[]): MeasuredCurve {
  const first = points[0];
  const last = points.at(-1);
  if (first === undefined || last === undefined)
    throw new HoneError('invalid-config', 'A curve needs at least 1 point, got 0.', { cure: 'Give points.' });
  const knots = [...headKnots(first), ...points.flatMap((point, index) => knotsFrom(point, points[index + 1]))];
  const costs = Float64Array.from(knots, ({ cost }) => cost);
  const slopes = Float64Array.from(knots, ({ slope }) => slope);
  const values = Float64Array.from(knots, ({ success }) => success);
  const room = Math.min(last.cost, (1 - last.success) / last.slope);
  const locate = (cost: number): number => {
    let index = costs.length - 1;
    while (index > 0 && (costs[index] ?? 0) > cost) index--;
    return index;
  };
  return {
    start: costs[0] ?? 0,
    from: first.cost,
    to: last.cost,
    value(cost) {
      if (cost >= last.cost) {
        const beyond = cost - last.cost;
        // Not slope x beyond / (1 + beyond / room): that is NaN at infinity.
        return last.slope === 0 || room === 0 ? last.success : last.success + last.slope / (1 / beyond + 1 / room);
      }
      const index = locate(cost);
      const start = costs[index] ?? 0;
      if (cost <= start) return values[index] ?? 0;
      const width = (costs[index + 1] ?? start) - start;
      const slope = slopes[index] ?? 0;
      const change = (slopes[index + 1] ?? 0) - slope;
      const step = cost - start;
      return (values[index] ?? 0) + step * (slope + (change * step) / (2 * width));
    },
    slope(cost) {
      if (cost >= last.cost)
        return last.slope === 0 || room === 0 ? 0 : last.slope / (1 + (cost - last.cost) / room) ** 2;
      const index = locate(cost);
      const start = costs[index] ?? 0;
      if (cost < start) return 0;
      const width = (costs[index + 1] ?? start) - start;
      const slope = slopes[index] ?? 0;
      return slope + (((slopes[index + 1] ?? 0) - slope) * (cost - start)) / width;
    },
  };
}

/** The knot that the curve starts from, below the first point. */
function headKnots({ cost, success, slope }: CurvePoint): CurvePoint[] {
  const chord = success / cost;
  if (chord >= slope) return [{ cost: 0, success: 0, slope: 2 * chord - slope }];
  return [{ cost: cost - success / slope, success: 0, slope }];
}

/** A point, and the knot between it and the next: there the slope is the chord, which makes the areas come out right. */
function knotsFrom(point: CurvePoint, next: CurvePoint | undefined): CurvePoint[] {
  check(point);
  if (next === undefined) return [point];
  const width = next.cost - point.cost;
  const chord = (next.success - point.success) / width;
  // Rounding of a fit leaves its slopes a little beyond its chords.
  const slack = 1e-9 * Math.max(Math.abs(point.slope), Math.abs(chord));
  if (!(width > 0) || chord > point.slope + slack || chord < next.slope - slack)
    throw new HoneError(
      'invalid-config',
      `The points at cost ${point.cost} and ${next.cost} are not those of a concave curve: slope ${point.slope}, chord ${chord}, slope ${next.slope}.`,
      { cure: 'Fit a concave curve first.' },
    );
  const fall = point.slope - next.slope;
  const share = Math.min(Math.max((chord - next.slope) / fall, 0), 1);
  if (fall <= slack) return [point];
  // Where a slope is the chord itself the line is straight, and the curve has a corner at the other end.
  if (share < 1e-9) return [point, { cost: point.cost, success: point.success, slope: chord }];
  if (share > 1 - 1e-9) return [point, { cost: next.cost, success: next.success, slope: chord }];
  const first = share * width;
  return [
    point,
    { cost: point.cost + first, success: point.success + (first * (point.slope + chord)) / 2, slope: chord },
  ];
}

function check({ cost, success, slope }: CurvePoint): void {
  if (!(cost > 0 && Number.isFinite(cost)))
    throw new HoneError('invalid-config', `A point of the curve has the cost ${cost}, not a finite number above 0.`, {
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

/**
 * From points at several efforts to one smooth curve: the concave least-squares fit of reward/, rounded by the smooth curve of
 * this room so that its slope at each effort is the fit's tangent there. Also which efforts others beat.
 */
import { fitConcave } from '../reward/concave-fit.ts';
import type { FrontierPoint } from '../reward/concave-fit.ts';
import { smoothCurve } from './smooth-curve.ts';
import type { CurvePoint, MeasuredCurve } from './smooth-curve.ts';

export interface FittedCurve {
  readonly curve: MeasuredCurve;
  /** The fit at the costs of the points, ascending; points of equal cost once. */
  readonly points: readonly CurvePoint[];
}

/**
 * At least 2 different costs from 0 up; throws `invalid-config` as fitConcave and smoothCurve do. Costs at which the fit
 * lies below no success are left out: the curve starts further right.
 */
export function fitCurve(points: readonly FrontierPoint[]): FittedCurve {
  const fit = fitConcave(points);
  const costs = [...new Set(points.map(({ cost }) => cost))].toSorted((left, right) => left - right);
  const fitted = costs.map((cost) => ({
    cost,
    // Rounding may lift the end of a fit over 1, or push its slope below 0.
    success: Math.min(fit.value(cost), 1),
    slope: Math.max(fit.tangentAt(cost), 0),
  }));
  const shown = fitted.filter(({ success }, index) => success >= 0 || index === fitted.length - 1);
  return { curve: smoothCurve(shown), points: shown };
}

/**
 * Which others reach more success than `points[index]` for no more cost: one of them, or two in a mix that spends as much on
 * average. Empty when none do.
 */
export function dominatorsOf(points: readonly { cost: number; success: number }[], index: number): number[] {
  const point = points[index];
  if (point === undefined) return [];
  let best = point.success;
  let found: number[] = [];
  for (const [low, cheaper] of points.entries()) {
    if (low === index || cheaper.cost > point.cost) continue;
    if (cheaper.success > best) [best, found] = [cheaper.success, [low]];
    for (const [high, dearer] of points.entries()) {
      if (high === index || dearer.cost <= point.cost) continue;
      const share = (point.cost - cheaper.cost) / (dearer.cost - cheaper.cost);
      const mixed = cheaper.success + share * (dearer.success - cheaper.success);
      if (mixed > best) [best, found] = [mixed, [low, high]];
    }
  }
  return found;
}

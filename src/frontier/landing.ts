/**
 * Where training would end on a frontier that got better: for each alpha the one point in its direction, for a fixed price the
 * point whose slope is that price. How the frontier gets better is an assumption of the caller, one of three laws.
 * Without improvement every alpha lands where it started, and a fixed price does only if it is the slope there.
 */
import { HoneError } from '../domain/errors.ts';
import { statedReference } from '../reward/reference.ts';
import { relativeGains, requireAlpha } from '../reward/relative-gain.ts';
import type { Gains, Operating } from '../reward/relative-gain.ts';
import { lowestTrue } from './bisection.ts';
import type { Curve } from './smooth-curve.ts';

/**
 * What p percent better means. `success`: p % more success at equal cost, s1(c) = min(1, (1 + p/100) s(c)). `failures`: p %
 * fewer failures at equal cost, s1(c) = 1 - (1 - p/100)(1 - s(c)). `cost`: the same success for p % less, s1(c) = s(c / (1 - p/100)).
 */
export const IMPROVEMENT_LAWS = ['success', 'failures', 'cost'] as const;
export type ImprovementLaw = (typeof IMPROVEMENT_LAWS)[number];

export interface Improvement {
  readonly law: ImprovementLaw;
  /** From 0 up; below 100 for `failures` and `cost`. */
  readonly percent: number;
}

/** A point of the new frontier, with its gains over the base. */
export interface Landing extends Operating, Gains {
  /** Slope of the new frontier at the landing: the price that holds the policy there. */
  readonly price: number;
}

/** Throws `invalid-config` on a percentage out of range. */
export function checkImprovement({ law, percent }: Improvement): void {
  const most = law === 'success' ? 1000 : 99;
  if (!(percent >= 0 && percent <= most))
    throw new HoneError(
      'invalid-config',
      `An improvement of ${percent} % by the law ${law} is not from 0 to ${most}.`,
      {
        cure: 'Give percentages such as --improve 10,25,50.',
      },
    );
}

/** The frontier after the improvement; concave and rising where the old one was. Throws as checkImprovement. */
export function improveCurve(curve: Curve, improvement: Improvement): Curve {
  checkImprovement(improvement);
  const share = improvement.percent / 100;
  switch (improvement.law) {
    case 'success':
      return {
        start: curve.start,
        value: (cost) => Math.min(1, (1 + share) * curve.value(cost)),
        slope: (cost) => ((1 + share) * curve.value(cost) < 1 ? (1 + share) * curve.slope(cost) : 0),
      };
    case 'failures':
      return {
        start: curve.start,
        value: (cost) => 1 - (1 - share) * (1 - curve.value(cost)),
        slope: (cost) => (1 - share) * curve.slope(cost),
      };
    case 'cost': {
      const start = curve.start * (1 - share);
      return {
        start,
        value: (cost) => curve.value(cost / (1 - share)),
        // The division must not fall below the old start by rounding.
        slope: (cost) => (cost < start ? 0 : curve.slope(Math.max(cost / (1 - share), curve.start)) / (1 - share)),
      };
    }
    default:
      return improvement.law satisfies never;
  }
}

/**
 * The point of `curve` with (1 - alpha) s/s0 + alpha c/c0 = 1: there (saving, gain) is parallel to (1 - alpha, alpha), and the
 * rule on the price stands still. The left side rises with cost, so there is one (the cheapest, where the curve is flat).
 * `curve` lies on or above the base point; cost 0 when success at no cost exceeds what alpha asks for. Throws on a base
 * or an alpha out of range.
 */
export function landSteered(curve: Curve, { base, alpha }: { base: Operating; alpha: number }): Landing {
  statedReference(base);
  requireAlpha(alpha);
  const isReached = (cost: number): boolean =>
    (1 - alpha) * (curve.value(cost) / base.success - 1) + alpha * (cost / base.cost - 1) >= 0;
  return landingAt(curve, { base, cost: lowestTrue(isReached, [0, base.cost]) });
}

/**
 * Where a policy that pays `price` for a unit of cost ends on `curve`: its slope there is the price. Cost 0 where the price
 * exceeds the slope everywhere: the policy stops trying. Throws on a base or a price that is not above 0.
 */
export function landFixed(curve: Curve, { base, price }: { base: Operating; price: number }): Landing {
  statedReference(base);
  if (!(price > 0 && Number.isFinite(price)))
    throw new HoneError('invalid-config', `A price of cost is ${price}, not a finite number above 0.`, {
      cure: 'Give the success that one unit of cost buys at the start.',
    });
  const isTooDear = (cost: number): boolean => curve.slope(cost) <= price;
  if (isTooDear(curve.start)) return landingAt(curve, { base, cost: 0 });
  let end = base.cost;
  while (!isTooDear(end)) end *= 2;
  return landingAt(curve, { base, cost: lowestTrue(isTooDear, [curve.start, end]) });
}

/** c s'(c) / s(c): the percentage of success that one per cent of cost buys at the base point. */
export function elasticityAt(curve: Curve, base: Operating): number {
  return (curve.slope(base.cost) * base.cost) / base.success;
}

function landingAt(curve: Curve, { base, cost }: { base: Operating; cost: number }): Landing {
  const success = curve.value(cost);
  return {
    cost,
    success,
    ...relativeGains({ success, cost }, base),
    price: curve.slope(cost),
  };
}

/**
 * How far a slope of success on cost can be trusted as a starting price: its band when tasks are few, and how many tasks
 * would tell it from 0. Invariant: a band is never narrower than the t distribution of its tasks says, so that a slope of 0
 * passes for one above 0 in about one case of forty, however few they are.
 */
import type { Interval } from '../domain/statistics.ts';

/** Tasks below which no price starts from their slope: the band of fewer rests on the shape of the noise. */
export const LEAST_TASKS = 10;

/**
 * A 95 % bootstrap band over `tasks` tasks, each side made longer by sqrt(G / (G - 1)) t(G - 1) / z: resampling sees the
 * spread of G tasks as smaller than it is by the root, and knows nothing of the tails that a spread from few tasks has.
 * With fewer than 2 tasks no band is known: infinite. Source: Hesterberg 2015, on narrowness bias.
 */
export function widenBand({ estimate, low, high }: Interval, tasks: number): Interval {
  if (tasks < 2) return { estimate, low: -Infinity, high: Infinity };
  const factor = Math.sqrt(tasks / (tasks - 1)) * (studentQuantile(tasks - 1) / NORMAL_QUANTILE);
  return { estimate, low: estimate - factor * (estimate - low), high: estimate + factor * (high - estimate) };
}

/**
 * Tasks at which a slope like this would be told from 0 in four of five tries, when `tasks` of them gave this band: its
 * half-width shrinks with the root of their number. The longer of half the band and its lower side counts, as a fitted curve
 * never has a lower side longer than its estimate. More than `tasks`; undefined unless the estimate is above 0 and the band
 * finite: no number of tasks is known to help then.
 */
export function tasksForSlope({ estimate, low, high }: Interval, tasks: number): number | undefined {
  const half = Math.max((high - low) / 2, estimate - low);
  if (!(estimate > 0 && Number.isFinite(half))) return undefined;
  return Math.max(Math.ceil(tasks * (POWER_FACTOR * (half / estimate)) ** 2), tasks + 1);
}

/** Of the normal distribution at 0.975. */
const NORMAL_QUANTILE = 1.959963984540054;

/** The half-widths that an estimate has to be away from 0 to be told from it in four of five tries: (z(0.975) + z(0.8)) / z(0.975). */
const POWER_FACTOR = (NORMAL_QUANTILE + 0.8416212335729143) / NORMAL_QUANTILE;

/**
 * Of Student's t at 0.975: in closed form for 1 and 2 degrees of freedom, else the expansion in their inverse, off by less
 * than 0.004 at 3 and 0.001 from 4 on. Source: Abramowitz and Stegun 26.7.5.
 */
function studentQuantile(degrees: number): number {
  if (degrees === 1) return Math.tan(0.475 * Math.PI);
  if (degrees === 2) return 0.95 * Math.sqrt(2 / (4 * 0.975 * 0.025));
  const z = NORMAL_QUANTILE;
  const square = z * z;
  const terms = [
    (z * (square + 1)) / 4,
    (z * ((5 * square + 16) * square + 3)) / 96,
    (z * (((3 * square + 19) * square + 17) * square - 15)) / 384,
    (z * ((((79 * square + 776) * square + 1482) * square - 1920) * square - 945)) / 92160,
  ];
  return terms.reduceRight((sum, term) => (sum + term) / degrees, 0) + z;
}

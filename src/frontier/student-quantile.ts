/**
 * Quantiles of Student's t for whole degrees of freedom, from the finite series of its distribution function (Abramowitz
 * and Stegun 26.7.3 and 26.7.4), inverted by bisection to the last bits. What a mean of few seeds needs for its interval.
 */
import { HoneError } from '../domain/errors.ts';

/**
 * The value that t stays below with chance `share` (0.5 to below 1). Throws `invalid-config` for other shares and for
 * degrees of freedom that are not a whole number above 0.
 */
export function studentQuantile(share: number, freedom: number): number {
  if (!(share >= 0.5 && share < 1) || !Number.isInteger(freedom) || freedom < 1) {
    throw new HoneError(
      'invalid-config',
      `There is no t quantile at share ${share} with ${freedom} degrees of freedom.`,
      {
        cure: 'The share lies in [0.5, 1), the degrees of freedom are a whole number above 0.',
      },
    );
  }
  // In the angle whose tangent is t / sqrt(freedom), so that the bracket is finite.
  const wanted = 2 * share - 1;
  let low = 0;
  let high = Math.PI / 2;
  for (;;) {
    const middle = (low + high) / 2;
    if (middle <= low || middle >= high) return Math.tan(middle) * Math.sqrt(freedom);
    if (centralShare(middle, freedom) < wanted) low = middle;
    else high = middle;
  }
}

/** The chance of |t| staying below sqrt(freedom) tan(angle). */
function centralShare(angle: number, freedom: number): number {
  const cosine = Math.cos(angle);
  const square = cosine * cosine;
  const isOdd = freedom % 2 === 1;
  let term = isOdd ? cosine : 1;
  let sum = freedom === 1 ? 0 : term;
  for (let order = isOdd ? 3 : 2; order < freedom; order += 2) {
    term *= ((order - 1) / order) * square;
    sum += term;
  }
  const series = Math.sin(angle) * sum;
  return isOdd ? (2 / Math.PI) * (angle + series) : series;
}

/**
 * Elementary functions whose every bit is defined here, by + - * / alone: Math.cos, Math.log and Math.pow may change
 * with the JavaScript engine. Used for rotation tables and initial weights; accurate to a few units in the last place
 * for moderate arguments.
 */

const LN2_HIGH = 0.69314718036912381649;
const LN2_LOW = 1.90821492927058770002e-10;

/** e^x for |x| < 700. */
export function exponential(x: number): number {
  const n = Math.round(x / Math.LN2);
  const r = x - n * LN2_HIGH - n * LN2_LOW;
  let sum = 1;
  for (let k = 18; k >= 1; k--) sum = 1 + (r / k) * sum;
  let scale = 1;
  for (let k = 0; k < Math.abs(n); k++) scale *= n > 0 ? 2 : 0.5;
  return sum * scale;
}

/** ln x for x > 0, finite. */
export function logarithm(x: number): number {
  let exponent = 0;
  let mantissa = x;
  while (mantissa > Math.SQRT2) {
    mantissa *= 0.5;
    exponent++;
  }
  while (mantissa < Math.SQRT1_2) {
    mantissa *= 2;
    exponent--;
  }
  const s = (mantissa - 1) / (mantissa + 1);
  let sum = 0;
  for (let k = 21; k >= 1; k -= 2) sum = sum * s * s + 1 / k;
  return exponent * Math.LN2 + 2 * s * sum;
}

const HALF_PI_HIGH = 1.57079632673412561417;
const HALF_PI_LOW = 6.07710050650619224932e-11;

/** [cos x, sin x] for 0 <= x < 1e6. */
export function cosineSine(x: number): readonly [number, number] {
  const n = Math.round(x / (Math.PI / 2));
  const r = x - n * HALF_PI_HIGH - n * HALF_PI_LOW;
  const q = -r * r;
  let cosine = 1;
  for (let k = 18; k >= 2; k -= 2) cosine = 1 + (q / (k * (k - 1))) * cosine;
  let sine = 1;
  for (let k = 19; k >= 3; k -= 2) sine = 1 + (q / (k * (k - 1))) * sine;
  sine *= r;
  const quadrant = n & 3;
  if (quadrant === 0) return [cosine, sine];
  if (quadrant === 1) return [-sine, cosine];
  if (quadrant === 2) return [-cosine, -sine];
  return [sine, -cosine];
}

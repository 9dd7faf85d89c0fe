/**
 * `hone frontier fit <evaluations>`: the frontier of a real policy from its own evaluations. Options, all strings but the
 * last: --cost <weights> (tokens=0.000002,turns=0.01 prices the counts; one word such as usd names the unit of costs that
 * are numbers already), --out <folder> (default runs/frontier-fit), --seed <integer> (default 1), --resamples <integer>
 * (default 2000), --json (print the result as JSON). Exits 1, after writing the page, when an effort has no usable slope.
 */
import { integerOption } from './options.ts';

export function fit(_path: string, options: Record<string, unknown>): void {
  integerOption('--seed', options['seed'] ?? '1', { min: 0, max: 0xffffffff });
  integerOption('--resamples', options['resamples'] ?? '2000', { min: 100, max: 100_000 });
}

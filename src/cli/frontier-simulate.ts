/**
 * `hone frontier simulate <curve>`: where each alpha would land, before anything is trained. Options, all strings but the
 * last: --alphas <list> (default 0,0.25,0.5,0.75,1), --improve <list of percent> (default 10,25,50), --law <success | failures
 * | cost> (default success), --half-life <steps> (default 75), --start-price <effort=price,...>, --slope-error <factor>
 * (default 3), --steps <integer> (default 1000), --actor-rate <number> (default 0.015), --out <folder> (default
 * runs/frontier-simulate), --json (print the result as JSON).
 */
import { integerOption, numberOption } from './options.ts';

export function simulate(_path: string, options: Record<string, unknown>): void {
  integerOption('--steps', options['steps'] ?? '1000', { min: 1, max: 100_000 });
  numberOption('--actor-rate', options['actorRate'] ?? '0.015', { above: 0, max: 1 });
}

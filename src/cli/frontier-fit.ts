/**
 * `hone frontier fit <evaluations>`: the frontier of a real policy from its own evaluations. Options, all strings but the
 * last: --cost <weights> (tokens=0.000002,turns=0.01 prices the counts; one word such as usd names the unit of costs that
 * are numbers already), --out <folder> (default runs/frontier-fit), --seed <integer> (default 1), --resamples <integer>
 * (default 2000), --svg <file> (the frontier alone, as a picture), --json (print the result as JSON). Exits 1, after writing
 * the page, when an effort that can be steered has no usable slope.
 */
import { HoneError } from '../domain/errors.ts';
import { parseCostOption, parseEvaluations } from '../frontier/evaluation-records.ts';
import { renderFitReport, renderFitSvg } from '../frontier/fit-report.ts';
import { renderFitText } from '../frontier/fit-tables.ts';
import { missingPrices } from '../frontier/fit-warnings.ts';
import { fitFrontier } from '../frontier/frontier-fit.ts';
import { checkPicturePlace, readInput, writeOutputs, writePicture } from './frontier-files.ts';
import { integerOption, pathOption } from './options.ts';

export function fit(path: string, options: Record<string, unknown>): void {
  const seed = integerOption('--seed', options['seed'] ?? '1', { min: 0, max: 0xffffffff });
  const resamples = integerOption('--resamples', options['resamples'] ?? '2000', { min: 100, max: 100_000 });
  const { cost: costText } = options;
  const out = pathOption('--out', options['out']) ?? 'runs/frontier-fit';
  const svg = pathOption('--svg', options['svg']);
  if (svg !== undefined) checkPicturePlace(svg);
  const cost = parseCostOption(typeof costText === 'string' ? costText : undefined);
  const text = readInput(path, 'evaluations as JSON Lines; hone eval --efforts --out writes them');
  const frontier = fitFrontier(parseEvaluations(text, { origin: path, cost }), { source: path, cost, seed, resamples });
  const written = writeOutputs(out, {
    'frontier.json': `${JSON.stringify(frontier, null, 2)}\n`,
    'fit.html': renderFitReport(frontier),
  });
  if (svg !== undefined) written.push(writePicture(svg, renderFitSvg(frontier)));
  process.stdout.write(options['json'] === true ? `${JSON.stringify(frontier)}\n` : renderFitText(frontier));
  process.stderr.write(`written to ${written.join(', ')}\n`);
  const missing = missingPrices(frontier.efforts);
  if (missing !== undefined) throw new HoneError('invalid-config', missing.what, { cure: missing.cure });
}

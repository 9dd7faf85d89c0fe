/**
 * `hone frontier simulate <curve>`: where each alpha would land, before anything is trained. Options, all strings but the
 * last: --alphas <list> (default 0,0.25,0.5,0.75,1), --improve <list of percent> (default 10,25,50), --law <success | failures
 * | cost> (default success), --half-life <steps> (default 75), --start-price <effort=price,...>, --slope-error <factor>
 * (default 3), --steps <integer> (default 1000), --actor-rate <number> (default 0.015), --config <file> (a run's config: take
 * the controller of its frontier term; the defaults if left out), --out <folder> (default runs/frontier-simulate), --svg <file> (landings under the middle improvement alone, as a picture), --json (print the result as JSON).
 */
import { HoneError } from '../domain/errors.ts';
import { parseCurve } from '../frontier/curve-input.ts';
import type { CurveInput } from '../frontier/curve-input.ts';
import { IMPROVEMENT_LAWS, checkImprovement } from '../frontier/landing.ts';
import { simulateLandings } from '../frontier/simulation.ts';
import type { SimulationOptions } from '../frontier/simulation.ts';
import { renderSimulationReport, renderSimulationSvg } from '../frontier/simulation-report.ts';
import { renderSimulationText } from '../frontier/simulation-tables.ts';
import type { Simulation } from '../frontier/simulation-tables.ts';
import { frontierTermOf } from '../reward/spec.ts';
import type { SteeringOptions } from '../reward/steering.ts';
import { controllerSchema } from '../reward/terms.ts';
import { checkPicturePlace, readInput, writeOutputs, writePicture } from './frontier-files.ts';
import { loadConfig } from './load-config.ts';
import { choiceOption, integerOption, numberListOption, numberOption, pathOption } from './options.ts';

export async function simulate(path: string, options: Record<string, unknown>): Promise<void> {
  const configPath = pathOption('--config', options['config']);
  const controller = configPath === undefined ? controllerSchema.parse({}) : await readController(configPath);
  // The dead zone is for the noise of a measured reference; a mean field has none.
  const settings = readSettings(options, { ...controller, deadZone: 0 });
  const out = pathOption('--out', options['out']) ?? 'runs/frontier-simulate';
  const svg = pathOption('--svg', options['svg']);
  if (svg !== undefined) checkPicturePlace(svg);
  const input = parseCurve(readInput(path, 'frontier.json of hone frontier fit, or points as JSON or CSV'), path);
  const prices = readStartPrices(options['startPrice'], input);
  const priced = input.efforts.map((effort) => {
    const given = prices.get(effort.effort);
    return given === undefined ? effort : { ...effort, startPrice: given };
  });
  const efforts = simulateLandings({ ...input, efforts: priced }, settings);
  const simulation: Simulation = { source: path, controllerSource: configPath, input, options: settings, efforts };
  const summary = summarise(simulation);
  const written = writeOutputs(out, {
    'simulation.json': `${JSON.stringify(summary, null, 2)}\n`,
    'simulation.html': renderSimulationReport(simulation),
  });
  if (svg !== undefined) written.push(writePicture(svg, renderSimulationSvg(simulation)));
  process.stdout.write(options['json'] === true ? `${JSON.stringify(summary)}\n` : renderSimulationText(simulation));
  process.stderr.write(`written to ${written.join(', ')}\n`);
}

/** The controller that a run of this config would have. Throws `invalid-config` where it steers nothing. */
async function readController(path: string): Promise<SteeringOptions> {
  const term = frontierTermOf((await loadConfig(path, {})).reward);
  if (term !== undefined) return term.controller;
  throw new HoneError('invalid-config', `${path} has no frontier term in reward.terms: its run would steer no price.`, {
    cure: 'Name a config with a term { kind: "frontier", ... }, or leave --config out for the default controller.',
  });
}

function readSettings(options: Record<string, unknown>, controller: SteeringOptions): SimulationOptions {
  const law = choiceOption('--law', options['law'] ?? 'success', IMPROVEMENT_LAWS);
  const alphas = numberListOption('--alphas', options['alphas'] ?? '0,0.25,0.5,0.75,1', {
    min: 0,
    max: 1,
    example: '0,0.5,1',
  });
  const percents = numberListOption('--improve', options['improve'] ?? '10,25,50', {
    min: 0,
    max: 1000,
    example: '10,25',
  });
  for (const percent of percents) checkImprovement({ law, percent });
  return {
    alphas,
    percents,
    law,
    halfLifeSteps: numberOption('--half-life', options['halfLife'] ?? '75', { above: 0, max: 1_000_000, example: 75 }),
    slopeError: numberOption('--slope-error', options['slopeError'] ?? '3', { above: 1, max: 1000, example: 3 }),
    steps: integerOption('--steps', options['steps'] ?? '1000', { min: 1, max: 100_000 }),
    actorRate: numberOption('--actor-rate', options['actorRate'] ?? '0.015', { above: 0, max: 1, example: 0.015 }),
    controller,
  };
}

function readStartPrices(value: unknown, { efforts }: CurveInput): Map<string, number> {
  const prices = new Map<string, number>();
  if (typeof value !== 'string') return prices;
  for (const part of value.split(',')) {
    const [effort = '', text = '', ...rest] = part.split('=').map((piece) => piece.trim());
    const price = text === '' || rest.length > 0 ? Number.NaN : Number(text);
    if (!(price > 0 && Number.isFinite(price)))
      throw new HoneError(
        'invalid-config',
        `--start-price has ${JSON.stringify(part)}, not an effort and a price above 0.`,
        {
          cure: `Give prices such as --start-price ${efforts[0]?.effort ?? 'low'}=0.01.`,
        },
      );
    if (!efforts.some((known) => known.effort === effort))
      throw new HoneError(
        'invalid-config',
        `--start-price names the effort ${JSON.stringify(effort)}, which the curve does not have.`,
        {
          cure: `Its efforts are ${efforts.map((known) => known.effort).join(', ')}.`,
        },
      );
    if (prices.has(effort))
      throw new HoneError('invalid-config', `--start-price names the effort ${effort} twice.`, {
        cure: 'Give each effort one price.',
      });
    prices.set(effort, price);
  }
  return prices;
}

/** What --json prints and simulation.json holds: landings and how courses ended, without the courses themselves. */
function summarise({ source, controllerSource, input, options, efforts }: Simulation): unknown {
  const { controller, ...settings } = options;
  return {
    format: 'hone-simulation-1',
    source,
    unit: input.unit,
    settings: { ...settings, controller, controllerFrom: controllerSource ?? 'defaults' },
    efforts: efforts.map(({ steered, ...effort }) => ({
      ...effort,
      steered: steered.map(({ courses, ...outcome }) => ({
        ...outcome,
        courses: courses.map(({ startFactor, settledAt, swings, costs, prices, gaps }) => ({
          startFactor,
          settledAt,
          swings,
          end: { cost: costs.at(-1), price: prices.at(-1), gap: gaps.at(-1) },
        })),
      })),
    })),
  };
}

/**
 * A simulation as tables and sentences: where each rule lands for each assumed improvement, how long it takes, and what all of
 * it rests on. The same cells for the terminal and the page.
 */
import type { CurveInput } from './curve-input.ts';
import type { ImprovementLaw, Landing } from './landing.ts';
import type { EffortSimulation, SimulationOptions, SteeredOutcome } from './simulation.ts';
import { factorName } from './study-arms.ts';
import { oneOf } from './fit-tables.ts';
import type { TitledTable } from './fit-tables.ts';
import { renderTextTable, wrapText } from './text-table.ts';
import { formatNumber } from './xy-scale.ts';

export interface Simulation {
  readonly source: string;
  /** The config that the controller comes from; the defaults where it is undefined. */
  readonly controllerSource?: string | undefined;
  readonly input: CurveInput;
  readonly options: SimulationOptions;
  readonly efforts: readonly EffortSimulation[];
}

const LAW_WORDS: Readonly<Record<ImprovementLaw, string>> = {
  success: 'more success at equal cost',
  failures: 'fewer failures at equal cost',
  cost: 'less cost at equal success',
};

export function improvementName(percent: number, law: ImprovementLaw): string {
  return `${percent} % ${LAW_WORDS[law]}`;
}

/** The improvement, and that success ends at 100 % where that takes something from it. */
export function assumptionName(simulation: Simulation, percent: number): string {
  const name = improvementName(percent, simulation.options.law);
  return cappedEfforts(simulation, percent).length === 0 ? name : `${name}, up to 100 %`;
}

/** What stands beside the table of an improvement that is cut off at 100 %; undefined where none is. */
export function capNote(simulation: Simulation, percent: number): string | undefined {
  const capped = cappedEfforts(simulation, percent);
  if (capped.length === 0) return undefined;
  return `Success reaches 100 % and ends there: ${capped.map(({ effort }) => `effort ${effort}`).join(', ')}.`;
}

/** Where success can't rise by the whole improvement, with the most it can; undefined where it can everywhere. */
function sayCap(simulation: Simulation, percent: number): string | undefined {
  const capped = cappedEfforts(simulation, percent);
  if (capped.length === 0) return undefined;
  const places = capped.map(
    ({ effort, base }) => `effort ${effort} (at most ${formatNumber(1 / base.success - 1, 'signed-percent')})`,
  );
  return `Success ends at 100 %, so ${improvementName(percent, simulation.options.law)} is not to be had everywhere: with ${percent} % the end is reached at ${places.join(', ')}.`;
}

/** Efforts that reach a success of 1 where they start or at one of their landings. */
function cappedEfforts({ efforts, options: { law } }: Simulation, percent: number): readonly EffortSimulation[] {
  if (law !== 'success') return [];
  return efforts.filter(
    ({ base, steered, fixed }) =>
      (1 + percent / 100) * base.success > 1 ||
      [...steered, ...fixed].some((outcome) => outcome.percent === percent && outcome.landing.success > 1 - 1e-9),
  );
}

/** `fixed price`, or with what it was multiplied by. */
function fixedName(startFactor: number): string {
  return startFactor === 1 ? 'fixed price' : `fixed price ${factorName(startFactor)}`;
}

/** Saving and gain of every rule, one column an effort: `12.3 / +4.5`. */
export function compactLandings(simulation: Simulation, percent: number): TitledTable {
  const { efforts, options } = simulation;
  const cell = ({ costSaving, successGain }: Landing): string => `${signed(costSaving)} / ${signed(successGain)}`;
  const ofPercent = <T extends { readonly percent: number }>(outcomes: readonly T[]): T[] =>
    outcomes.filter((outcome) => outcome.percent === percent);
  const steered = options.alphas.map((alpha, index) => [
    `α = ${alpha}`,
    ...efforts.map((effort) => optional(ofPercent(effort.steered)[index]?.landing, cell)),
  ]);
  const fixed = ofPercent(efforts[0]?.fixed ?? []).map(({ startFactor }, index) => [
    fixedName(startFactor),
    ...efforts.map((effort) => optional(ofPercent(effort.fixed)[index]?.landing, cell)),
  ]);
  return {
    title: `${assumptionName(simulation, percent)}: cost saved / success gained, in per cent`,
    heads: ['rule', ...efforts.map(({ effort }) => effort)],
    rows: [...steered, ...fixed],
  };
}

/** Every figure of the landings of one improvement, one row an effort and rule. */
export function fullLandings({ efforts, input }: Simulation, percent: number): Omit<TitledTable, 'title'> {
  const row = (name: string, { landing, start }: { landing: Landing; start: number }): string[] => [
    name,
    formatNumber(landing.cost, 'number'),
    formatNumber(landing.success, 'percent'),
    formatNumber(landing.costSaving, 'signed-percent'),
    formatNumber(landing.successGain, 'signed-percent'),
    formatNumber(landing.price / start, 'times'),
    isMeasured(landing, input) ? 'measured' : 'assumed',
  ];
  return {
    heads: ['effort, rule', 'cost', 'success', 'saving', 'gain', 'slope there over starting price', 'curve there'],
    rows: efforts.flatMap(({ effort, startPrice, steered, fixed }) => [
      ...steered
        .filter((outcome) => outcome.percent === percent)
        .map(({ alpha, landing }) => row(`${effort}, α = ${alpha}`, { landing, start: startPrice })),
      ...fixed
        .filter((outcome) => outcome.percent === percent)
        .map(({ startFactor, landing }) => row(`${effort}, ${fixedName(startFactor)}`, { landing, start: startPrice })),
    ]),
  };
}

/** When the gap comes to stay within a point, from each starting price; one column an effort. */
export function settlingTable(simulation: Simulation, percent: number): TitledTable {
  const { efforts } = simulation;
  const [first] = efforts;
  const rows = (first?.steered ?? []).flatMap((outcome, index) =>
    outcome.percent !== percent
      ? []
      : outcome.courses.map(({ startFactor }, course) => [
          `α = ${outcome.alpha}, start ${factorName(startFactor)}`,
          ...efforts.map(({ steered }) => settlingCell(steered[index]?.courses[course])),
        ]),
  );
  return {
    title: `${assumptionName(simulation, percent)}: step from which the gap stays within one point (swings across it)`,
    heads: ['rule', ...efforts.map(({ effort }) => effort)],
    rows,
  };
}

/** What is assumed, where each end lands, what a fixed price would do, what has not settled, where the curve is a guess. */
export function describeSimulation(simulation: Simulation): string[] {
  const { efforts, options, input } = simulation;
  const { law, percents, halfLifeSteps, slopeError } = options;
  const middle = percents[Math.floor((percents.length - 1) / 2)] ?? 0;
  const sentences = [
    `Without improvement every α stays where it started: (1 − α) s/s0 + α c/c0 = 1 holds there already. Where an α lands depends on how the frontier gets better, which nobody knows before training: here ${percents.map((percent) => `${percent} %`).join(', ')} ${LAW_WORDS[law]}, at every cost alike. Only the direction, saving to gain as 1 − α to α, does not depend on it.`,
  ];
  for (const percent of percents) {
    const note = sayCap(simulation, percent);
    if (note !== undefined) sentences.push(note);
  }
  for (const { effort, steered, fixed, elasticity } of efforts) {
    const at = steered.filter(({ percent }) => percent === middle);
    const ends = [at[0], at.at(-1)].filter((outcome) => outcome !== undefined);
    const landings = [...new Set(ends)].map(
      ({ alpha, landing }) =>
        `α = ${alpha} saves ${formatNumber(landing.costSaving, 'percent')} and gains ${formatNumber(landing.successGain, 'percent')}`,
    );
    const strays = fixed
      .filter(({ percent }) => percent === middle)
      .map(
        ({ startFactor, landing }) =>
          `${fixedName(startFactor).replace('fixed price', '').trim() || 'as it is'}: ${sayFixed(landing)}`,
      );
    sentences.push(
      `At effort ${effort}, with ${assumptionName(simulation, middle)}, ${landings.join(', ')} (one per cent of cost buys ${formatNumber(elasticity, 'number', 2)} per cent of success there). A price that stays fixed ends elsewhere: ${strays.join('; ')}.`,
    );
  }
  const unpriced = efforts.filter(
    ({ effort, startPrice, slope }) =>
      input.isFitted &&
      startPrice === slope &&
      input.efforts.find((fitted) => fitted.effort === effort)?.startPrice === undefined,
  );
  if (unpriced.length > 0)
    sentences.push(
      `The fit has no starting price for ${unpriced.map(({ effort }) => `effort ${effort}`).join(' and ')}, as no slope there lies above 0 for sure: the slope of the curve stands in for it, and may be far off. A run would refuse to start without a price.`,
    );
  const free = input.points.filter(({ cost }) => cost === 0).map(({ effort }) => effort);
  if (free.length > 0)
    sentences.push(
      `Nothing is spent at ${free.map((effort) => `effort ${effort}`).join(' and ')}: gains are relative to cost, so it is a point of the curve and cannot be steered.`,
    );
  const unsettled = efforts.flatMap(({ effort, steered }) =>
    steered
      .filter(({ courses }) => courses[0]?.settledAt === null && courses[0].swings <= 1)
      .map((outcome) => sayUnsettled(effort, outcome)),
  );
  const ringing = efforts.flatMap(({ effort, steered }) =>
    steered
      .filter(({ courses }) => (courses[0]?.swings ?? 0) > 1)
      .map(
        ({ alpha, percent, courses }) =>
          `effort ${effort} at α = ${alpha} with ${percent} % (${courses[0]?.swings} swings)`,
      ),
  );
  if (unsettled.length + ringing.length > 0) sentences.push(adviseController({ unsettled, ringing }, simulation));
  const wrong = efforts.filter(({ startPrice, slope }) => Math.abs(Math.log(startPrice / slope)) > Math.log(1.1));
  if (wrong.length > 0)
    sentences.push(
      `The starting price is not the slope of the curve at ${wrong.map(({ effort, startPrice, slope }) => `effort ${effort} (${formatNumber(startPrice / slope, 'times')} of it)`).join(', ')}: a fixed price would drift there even if nothing improved.`,
    );
  const assumed = efforts.flatMap(({ effort, steered }) => {
    const outside = steered.filter(({ landing }) => !isMeasured(landing, input)).length;
    return outside === 0 ? [] : [`${outside} of ${steered.length} at effort ${effort}`];
  });
  if (assumed.length > 0)
    sentences.push(
      `Points lie at costs from ${formatNumber(input.curve.from, 'number')} to ${formatNumber(input.curve.to, 'number')}. Outside of that the curve is assumed: towards no success for no cost below, flattening above. That is where these landings are: ${listed(assumed)}.`,
    );
  const off = input.points.filter(({ cost, success }) => Math.abs(input.curve.value(cost) / success - 1) > 0.01);
  if (off.length > 0)
    sentences.push(
      `The curve passes beside ${off.map(({ effort, cost, success }) => `effort ${effort} (${formatNumber(success, 'percent')} measured, ${formatNumber(input.curve.value(cost), 'percent')} on the curve)`).join(', ')}: the base of an effort is the point of the curve at its cost.`,
    );
  sentences.push(
    `The courses are a mean field: no noise of rollouts, an improvement that is half there after ${halfLifeSteps} steps, Adam on log cost at a rate of ${options.actorRate}, and ${sayController(simulation)}, without its dead zone, which needs measured noise. Steered prices are also started ${factorName(slopeError)} and ${factorName(1 / slopeError)}: they are drawn to the same point.`,
  );
  return sentences;
}

export function renderSimulationText(simulation: Simulation): string {
  const { source, efforts, input, options } = simulation;
  const { unit } = input;
  const starts: TitledTable = {
    title: 'Where it starts',
    heads: ['effort', 'cost', 'success', `price per ${oneOf(unit)}`, 'slope of the curve', 'elasticity'],
    rows: efforts.map(({ effort, base, startPrice, slope, elasticity }) => [
      effort,
      formatNumber(base.cost, 'number'),
      formatNumber(base.success, 'percent'),
      formatNumber(startPrice, 'number'),
      formatNumber(slope, 'number'),
      formatNumber(elasticity, 'number', 2),
    ]),
  };
  const last = options.percents.at(-1) ?? 0;
  const tables = [
    { ...starts, note: undefined },
    ...options.percents.map((percent) => ({
      ...compactLandings(simulation, percent),
      note: capNote(simulation, percent),
    })),
    { ...settlingTable(simulation, last), note: undefined },
  ].map(
    ({ title, heads, rows, note }) =>
      `${title}\n${renderTextTable(heads, rows)}${note === undefined ? '' : `\n${wrapText(note)}`}`,
  );
  const sentences = describeSimulation(simulation).map((sentence) => wrapText(`- ${sentence}`));
  return `${[`Landings on the frontier of ${source}`, ...tables, sentences.join('\n')].join('\n\n')}\n`;
}

function isMeasured({ cost }: Landing, { curve }: CurveInput): boolean {
  return cost >= curve.from * (1 - 1e-9) && cost <= curve.to * (1 + 1e-9);
}

function settlingCell(course: { settledAt: number | null; swings: number } | undefined): string {
  if (course === undefined) return '–';
  const when = course.settledAt === null ? 'not yet' : String(course.settledAt);
  return course.swings === 0 ? when : `${when} (${course.swings})`;
}

function sayFixed({ cost, costSaving, successGain }: Landing): string {
  if (cost === 0) return 'it spends nothing at all';
  return `${formatNumber(costSaving, 'signed-percent')} saving, ${formatNumber(successGain, 'signed-percent')} gain`;
}

function sayController({ controllerSource, options: { controller } }: Simulation): string {
  const values = `rate ${controller.rate}, proportional ${controller.proportional}`;
  return controllerSource === undefined
    ? `the default controller (${values}; --config takes the one of a run)`
    : `the controller of ${controllerSource} (${values})`;
}

/** Which rows need a faster controller and which a calmer one, and where that is set. */
function adviseController(
  { unsettled, ringing }: { readonly unsettled: readonly string[]; readonly ringing: readonly string[] },
  { options: { steps }, controllerSource }: Simulation,
): string {
  const slow = `Not settled after ${steps} steps, even from the intended price, and without ringing: ${listed(unsettled)}; these need more steps or a higher controller.rate`;
  const calm = `${unsettled.length === 0 ? 'The' : 'the'} gap rings, crossing more than a point to both sides: ${listed(ringing)}; these need a higher controller.proportional or a lower controller.rate`;
  const both =
    unsettled.length > 0 && ringing.length > 0
      ? ', and as one controller serves all efforts, raise proportional and plan more steps'
      : '';
  const needs = [...(unsettled.length > 0 ? [slow] : []), ...(ringing.length > 0 ? [calm] : [])].join('; ');
  return `${needs}${both}. Set it in the frontier term of reward.terms in ${controllerSource ?? "a run's config"} and try it here with --config.`;
}

function sayUnsettled(effort: string, { alpha, percent, courses }: SteeredOutcome): string {
  return `effort ${effort} at α = ${alpha} with ${percent} % (gap ${formatNumber(courses[0]?.gaps.at(-1) ?? Number.NaN, 'signed-percent')})`;
}

/** At most six, and how many more. */
function listed(items: readonly string[]): string {
  const told = items.slice(0, 6).join(', ');
  return items.length > 6 ? `${told} and ${items.length - 6} more` : told;
}

function optional<T>(value: T | undefined, format: (value: T) => string): string {
  return value === undefined ? '–' : format(value);
}

function signed(share: number): string {
  return formatNumber(share, 'signed-percent').replace(' %', '');
}

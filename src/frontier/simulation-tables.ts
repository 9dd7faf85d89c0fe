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

/** `fixed price`, or with what it was multiplied by. */
function fixedName(startFactor: number): string {
  return startFactor === 1 ? 'fixed price' : `fixed price ${factorName(startFactor)}`;
}

/** Saving and gain of every rule, one column an effort: `12.3 / +4.5`. */
export function compactLandings({ efforts, options }: Simulation, percent: number): TitledTable {
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
    title: `${improvementName(percent, options.law)}: cost saved / success gained, in per cent`,
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
export function settlingTable({ efforts, options }: Simulation, percent: number): TitledTable {
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
    title: `${improvementName(percent, options.law)}: step from which the gap stays within one point (swings across it)`,
    heads: ['rule', ...efforts.map(({ effort }) => effort)],
    rows,
  };
}

/** What is assumed, where each end lands, what a fixed price would do, what has not settled, where the curve is a guess. */
export function describeSimulation(simulation: Simulation): string[] {
  const { efforts, options, input } = simulation;
  const { law, percents, halfLifeSteps, steps, slopeError } = options;
  const middle = percents[Math.floor((percents.length - 1) / 2)] ?? 0;
  const sentences = [
    `Without improvement every α stays where it started: (1 − α) s/s0 + α c/c0 = 1 holds there already. Where an α lands depends on how the frontier gets better, which nobody knows before training: here ${percents.map((percent) => `${percent} %`).join(', ')} ${LAW_WORDS[law]}, at every cost alike. Only the direction, saving to gain as 1 − α to α, does not depend on it.`,
  ];
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
      `At ${effort} effort, with ${improvementName(middle, law)}, ${landings.join(', ')} (one per cent of cost buys ${formatNumber(elasticity, 'number', 2)} per cent of success there). A price that stays fixed ends elsewhere: ${strays.join('; ')}.`,
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
      `The fit has no starting price for ${unpriced.map(({ effort }) => effort).join(' and ')}, as no slope there lies above 0 for sure: the slope of the curve stands in for it, and may be far off. A run would refuse to start without a price.`,
    );
  const free = input.points.filter(({ cost }) => cost === 0).map(({ effort }) => effort);
  if (free.length > 0)
    sentences.push(
      `Nothing is spent at effort ${free.join(' and ')}: gains are relative to cost, so it is a point of the curve and cannot be steered.`,
    );
  const unsettled = efforts.flatMap(({ effort, steered }) =>
    steered.filter(({ courses }) => courses[0]?.settledAt === null).map((outcome) => sayUnsettled(effort, outcome)),
  );
  if (unsettled.length > 0)
    sentences.push(
      `Not settled after ${steps} steps, even from the intended price: ${listed(unsettled)}. Plan more steps or a faster controller there.`,
    );
  const ringing = efforts.flatMap(({ effort, steered }) =>
    steered
      .filter(({ courses }) => (courses[0]?.swings ?? 0) > 1)
      .map(
        ({ alpha, percent, courses }) => `${effort} at α = ${alpha} with ${percent} % (${courses[0]?.swings} swings)`,
      ),
  );
  if (ringing.length > 0)
    sentences.push(
      `The gap rings, crossing more than a point to both sides: ${listed(ringing)}. Slow the controller down.`,
    );
  const wrong = efforts.filter(({ startPrice, slope }) => Math.abs(Math.log(startPrice / slope)) > Math.log(1.1));
  if (wrong.length > 0)
    sentences.push(
      `The starting price is not the slope of the curve at ${wrong.map(({ effort, startPrice, slope }) => `${effort} (${formatNumber(startPrice / slope, 'times')} of it)`).join(', ')}: a fixed price would drift there even if nothing improved.`,
    );
  const assumed = efforts.flatMap(({ effort, steered }) => {
    const outside = steered.filter(({ landing }) => !isMeasured(landing, input)).length;
    return outside === 0 ? [] : [`${outside} of ${steered.length} at ${effort}`];
  });
  if (assumed.length > 0)
    sentences.push(
      `Points lie at costs from ${formatNumber(input.curve.from, 'number')} to ${formatNumber(input.curve.to, 'number')}. Outside of that the curve is assumed: towards no success for no cost below, flattening above. That is where these landings are: ${listed(assumed)}.`,
    );
  const off = input.points.filter(({ cost, success }) => Math.abs(input.curve.value(cost) / success - 1) > 0.01);
  if (off.length > 0)
    sentences.push(
      `The curve passes beside ${off.map(({ effort, cost, success }) => `${effort} (${formatNumber(success, 'percent')} measured, ${formatNumber(input.curve.value(cost), 'percent')} on the curve)`).join(', ')}: the base of an effort is the point of the curve at its cost.`,
    );
  sentences.push(
    `The courses are a mean field: no noise of rollouts, an improvement that is half there after ${halfLifeSteps} steps, Adam on log cost at a rate of ${options.actorRate}, and the controller's default safeguards without the dead zone, which needs measured noise. Steered prices are also started ${factorName(slopeError)} and ${factorName(1 / slopeError)}: they are drawn to the same point.`,
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
    starts,
    ...options.percents.map((percent) => compactLandings(simulation, percent)),
    settlingTable(simulation, last),
  ].map(({ title, heads, rows }) => `${title}\n${renderTextTable(heads, rows)}`);
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

function sayUnsettled(effort: string, { alpha, percent, courses }: SteeredOutcome): string {
  return `${effort} at α = ${alpha} with ${percent} % (gap ${formatNumber(courses[0]?.gaps.at(-1) ?? Number.NaN, 'signed-percent')})`;
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

/**
 * A fit as tables and sentences: the same cells for the terminal and for the page. Sentences are made from the numbers.
 */
import type { Interval } from '../domain/statistics.ts';
import type { FrontierFile } from './frontier-file.ts';
import { missingPrices } from './fit-warnings.ts';
import { renderTextTable, wrapText } from './text-table.ts';
import type { FigureTable } from './xy-chart.ts';
import { formatNumber } from './xy-scale.ts';

const SOURCES = { 'across-efforts': 'across efforts', 'within-task': 'within tasks' } as const;

export interface TitledTable extends FigureTable {
  readonly title: string;
}

/** Means, slopes, and what references need; one row an effort. */
export function fitTables({ efforts, cost: { unit } }: FrontierFile): TitledTable[] {
  const alphas = efforts.find(({ rolloutsNeeded }) => rolloutsNeeded.length > 0)?.rolloutsNeeded ?? [];
  return [
    {
      title: unit === 'cost' ? 'Success and cost of a rollout' : `Success and cost (${unit}) of a rollout`,
      heads: ['effort', 'tasks', 'rollouts', 'success', 'cost', 'beaten by'],
      rows: efforts.map(({ effort, tasks, rollouts, success, cost, dominated }) => [
        effort,
        count(tasks),
        count(rollouts),
        percentBand(success),
        numberBand(cost),
        dominated === null ? '–' : `${dominated.by.join(' + ')} (${formatNumber(dominated.share, 'percent', 0)})`,
      ]),
    },
    {
      title: `Slope: success that comes with one more ${oneOf(unit)}`,
      heads: ['effort', 'across efforts', 'within tasks', 'pooled', 'starting price', 'from'],
      rows: efforts.map(({ effort, slopes, startingPrice }) => [
        effort,
        slopeCell(slopes.acrossEfforts),
        slopeCell(slopes.withinTask),
        slopeCell(slopes.pooled),
        startingPrice === null ? 'none' : formatNumber(startingPrice.price, 'number'),
        startingPrice === null ? '–' : SOURCES[startingPrice.from],
      ]),
    },
    {
      title: 'Rollouts that a reference needs so that its noise moves the gap by less than one point',
      heads: ['effort', 'measured', ...alphas.map(({ alpha }) => `α = ${alpha}`)],
      rows: efforts.map(({ effort, rollouts, rolloutsNeeded }) => [
        effort,
        count(rollouts),
        ...alphas.map((_, index) => optionalCount(rolloutsNeeded[index]?.rollouts)),
      ]),
    },
  ];
}

/** The fit in sentences, warnings last; what stands in the way of a start comes first. */
export function describeFit(fit: FrontierFile): string[] {
  const missing = missingPrices(fit.efforts);
  return [...(missing === undefined ? [] : [`${missing.what} ${missing.cure}`]), ...describeFound(fit)];
}

function describeFound({ efforts, warnings, cost }: FrontierFile): string[] {
  const sentences: string[] = [];
  const [first] = efforts;
  const last = efforts.at(-1);
  if (first !== undefined && last !== undefined && first !== last)
    sentences.push(
      `From effort ${first.effort} to effort ${last.effort} the cost of a rollout goes from ${formatNumber(first.cost.estimate, 'number')} to ${formatNumber(last.cost.estimate, 'number')}${cost.unit === 'cost' ? '' : ` ${cost.unit}`} and success from ${formatNumber(first.success.estimate, 'percent')} to ${formatNumber(last.success.estimate, 'percent')}.`,
    );
  for (const { effort, startingPrice, success, cost: spent } of efforts) {
    if (startingPrice === null) continue;
    const elasticity = (startingPrice.price * spent.estimate) / success.estimate;
    sentences.push(
      `At effort ${effort} one per cent more cost buys ${formatNumber(elasticity, 'number', 2)} per cent more success: start from a price of ${formatNumber(startingPrice.price, 'number')} per ${oneOf(cost.unit)} (band ${formatNumber(startingPrice.low, 'number')} to ${formatNumber(startingPrice.high, 'number')}, ${SOURCES[startingPrice.from]}).`,
    );
  }
  return [...sentences, ...warnings];
}

/** For the terminal; without what stands in the way of a start, with which the command ends as an error. */
export function renderFitText(fit: FrontierFile): string {
  const { source, efforts, resamples } = fit;
  const rollouts = efforts.reduce((sum, effort) => sum + effort.rollouts, 0);
  const head = `Frontier of ${source}: ${efforts.length} ${efforts.length === 1 ? 'effort' : 'efforts'}, ${count(rollouts)} rollouts; 95 % bands from ${count(resamples)} resamples of tasks`;
  const tables = fitTables(fit).map(({ title, heads, rows }) => `${title}\n${renderTextTable(heads, rows)}`);
  const sentences = describeFound(fit).map((sentence) => wrapText(`- ${sentence}`));
  return `${[head, ...tables, sentences.join('\n'), ...sayUse(fit)].join('\n\n')}\n`;
}

/** What a run's config takes from a fit that can start; nothing while a price is missing. */
function sayUse(fit: FrontierFile): string[] {
  const { rewardTerm } = fit;
  if (rewardTerm !== null)
    return [
      `${wrapText('For hone.config.ts, inside reward: { terms: [ ... ] }; set alpha to the share of the improvement that is to be success:')}\n${JSON.stringify(rewardTerm, null, 2)}`,
    ];
  return missingPrices(fit.efforts) === undefined ? [wrapText(rewardAdvice(fit))] : [];
}

/** Why there is no term for a reward. */
export function rewardAdvice({ efforts, cost }: FrontierFile): string {
  if (missingPrices(efforts) !== undefined) return 'There is no term for a reward: an effort has no starting price.';
  return `Costs are plain numbers in ${cost.unit}. A run prices what it counts itself: give reward.terms a frontier term whose cost weights come out in ${cost.unit}, and these starting prices as given.`;
}

const SINGULARS: Readonly<Record<string, string>> = {
  cost: 'unit of cost',
  tokens: 'token',
  sampledTokens: 'sampled token',
  turns: 'turn',
  toolSeconds: 'tool second',
  lookups: 'look-up',
};

/** What a price is per: `turn` for turns, `usd` for usd, `unit of cost` for priced counts. */
export function oneOf(unit: string): string {
  return SINGULARS[unit] ?? unit;
}

function count(value: number): string {
  return value.toLocaleString('en-US');
}

function optionalCount(value: number | undefined): string {
  return value === undefined ? '–' : count(value);
}

function percentBand({ estimate, low, high }: Interval): string {
  return `${formatNumber(estimate, 'percent')} [${(100 * low).toFixed(1)}, ${(100 * high).toFixed(1)}]`;
}

function numberBand({ estimate, low, high }: Interval): string {
  return `${formatNumber(estimate, 'number')} [${formatNumber(low, 'number')}, ${formatNumber(high, 'number')}]`;
}

function slopeCell(slope: Interval | null): string {
  return slope === null ? 'not measured' : numberBand(slope);
}

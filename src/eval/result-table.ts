/**
 * The results of a run as one value - policies, controls, differences, rankings - and as plain text of at most 100 columns.
 * Rows carry a letter, so that the narrow tables can refer to the wide one. JSON of the value is what --json prints.
 */
import type { MeasureIntervals } from './comparison.ts';
import type { Landing } from './landing.ts';
import type { RankingIntervals, RankingSummary } from './line-scores.ts';
import type { Scores } from './scores.ts';
import { excludesZero } from '../domain/statistics.ts';
import type { Interval } from '../domain/statistics.ts';

export interface ResultRow {
  readonly label: string;
  readonly role: 'policy' | 'control';
  readonly scores: Scores;
  readonly intervals: MeasureIntervals;
}

export interface DifferenceRow {
  /** What minus what: `after - before, sampled`. */
  readonly label: string;
  readonly scope: 'all' | 'elsewhere' | 'without-directional';
  /** Said in a sentence above the table; the others stand in it. */
  readonly isHeadline?: boolean;
  readonly intervals: MeasureIntervals;
}

export interface RankingRow {
  readonly label: string;
  readonly summary: RankingSummary;
  readonly intervals: RankingIntervals;
}

export interface ResultTable {
  /** What was evaluated on: `held-out packages`. */
  readonly title: string;
  readonly tasks: number;
  readonly packages: number;
  readonly beta: number;
  readonly resamples: number;
  readonly rows: readonly ResultRow[];
  readonly differences: readonly DifferenceRow[];
  readonly rankings: readonly RankingRow[];
  /** Differences of forced choice and AUC on the same lines. */
  readonly rankingDifferences: readonly { readonly label: string; readonly intervals: RankingIntervals }[];
  /** Of a steered run, one an effort; absent without a frontier term, and from a file of a version that measured none. */
  readonly landings?: readonly Landing[];
}

export const SCOPE_LABELS: Readonly<Record<DifferenceRow['scope'], string>> = {
  all: 'all kinds',
  elsewhere: 'elsewhere kinds',
  'without-directional': 'without directional',
};

/** Widest that each table leaves to its labels within 100 columns. */
const LABEL_WIDTHS = { scores: 30, differences: 36, others: 33 };
const SHORT_SCOPES: typeof SCOPE_LABELS = {
  all: 'all kinds',
  elsewhere: 'elsewhere',
  'without-directional': 'no directional',
};

export const rowLetter = (index: number): string => String.fromCharCode(65 + (index % 26));
export const formatScore = (value: number): string => (Number.isFinite(value) ? value.toFixed(3) : '-');
export const formatSigned = (value: number): string =>
  Number.isFinite(value) ? `${value < 0 ? '-' : '+'}${Math.abs(value).toFixed(3)}` : '-';
export const formatInterval = ({ low, high }: Interval, format = formatScore): string =>
  `[${format(low)}, ${format(high)}]`;
/** Three digits after the point where there is something to divide by. */
export const formatRatio = (numerator: number, denominator: number): string =>
  denominator === 0 ? '-' : formatScore(numerator / denominator);

export function renderTable(table: ResultTable): string {
  const f = `F${table.beta}`;
  const interval = '95 % paired bootstrap intervals';
  const title = `${table.title}: ${table.tasks} tasks from ${table.packages} packages; ${interval}, ${table.resamples} resamples`;
  const sections = [
    title,
    renderScores(table, f),
    renderDifferences(table, f),
    renderRankings(table),
    renderLookups(table),
    renderKinds(table),
  ];
  return `${sections.filter((section) => section !== '').join('\n\n')}\n`;
}

function renderScores({ rows }: ResultTable, f: string): string {
  const head = [
    `${label('', LABEL_WIDTHS.scores)}${' '.repeat(6)}averaged over samples${' '.repeat(18)}pooled${' '.repeat(9)}per task`,
    `${label('', LABEL_WIDTHS.scores)}${columns(['P', 'R', f], 7)} ${'[95 %]'.padStart(14)}${columns(['P', 'R', f], 7)} turns tokens`,
  ];
  const lines = rows.map(({ label: name, scores, intervals }, index) => {
    const { sample, pooled, predicted, actual, truePositives } = scores;
    const averaged = columns([sample.precision, sample.recall, sample.fBeta].map(formatScore), 7);
    const counts = [
      formatRatio(truePositives, predicted),
      formatRatio(truePositives, actual),
      formatScore(pooled.fBeta),
    ];
    const cost =
      scores.tokensPerTask === 0 ? ['-', '-'] : [scores.turnsPerTask.toFixed(1), scores.tokensPerTask.toFixed(0)];
    return `${label(`${rowLetter(index)} ${name}`, LABEL_WIDTHS.scores)}${averaged} ${formatInterval(intervals.sampleFBeta).padStart(14)}${columns(counts, 7)}${columns(cost.slice(0, 1), 6)}${columns(cost.slice(1), 7)}`;
  });
  return [...head, ...lines].join('\n');
}

function renderDifferences({ differences }: ResultTable, f: string): string {
  if (differences.length === 0) return '';
  const cell = (interval: Interval): string => {
    const mark = excludesZero(interval) ? '*' : ' ';
    return `${formatSigned(interval.estimate)}${mark}${formatInterval(interval, formatSigned)}`.padStart(24);
  };
  const head = `${label('differences', LABEL_WIDTHS.differences)}${[`averaged ${f}`, 'pooled P'].map((text) => text.padStart(24)).join('')}  over`;
  const lines = differences.map(({ label: name, scope, intervals }) => {
    const cells = cell(intervals.sampleFBeta) + cell(intervals.pooledPrecision);
    return `${label(name, LABEL_WIDTHS.differences)}${cells}  ${SHORT_SCOPES[scope]}`;
  });
  return [
    head,
    ...lines,
    '* the interval excludes 0; directional: missing-return and missing-guard, which the edit gives away',
  ].join('\n');
}

function renderRankings({ rankings, rankingDifferences }: ResultTable): string {
  if (rankings.length === 0) return '';
  const head = `${label('what no threshold can move')}${columns(['choice', 'chance'], 8)}${'[95 %]'.padStart(16)}${columns(['AUC'], 8)}${'[95 %]'.padStart(16)}  elsewhere`;
  const lines = rankings.map(({ label: name, summary, intervals }) => {
    const choice = columns([summary.forcedChoice.share, summary.forcedChoice.chance].map(formatScore), 8);
    const auc = columns([formatScore(summary.auc ?? Number.NaN)], 8);
    const elsewhere = formatScore(summary.elsewhere.auc ?? Number.NaN).padStart(11);
    return `${label(name)}${choice}${formatInterval(intervals.forcedChoice).padStart(16)}${auc}${formatInterval(intervals.auc).padStart(16)}${elsewhere}`;
  });
  const moved = rankingDifferences.map(({ label: name, intervals: { forcedChoice, auc } }) => {
    const choice = `${formatSigned(forcedChoice.estimate).padStart(8)}${formatInterval(forcedChoice, formatSigned).padStart(24)}`;
    return `${label(name)}${choice}${formatSigned(auc.estimate).padStart(8)} ${formatInterval(auc, formatSigned)}`;
  });
  const note = 'choice: a bug line outranks all others of its task; elsewhere: AUC on the elsewhere kinds';
  return [head, ...lines, ...moved, note].join('\n');
}

function renderLookups({ rows }: ResultTable): string {
  const lines = rows.flatMap(({ label: name, role, scores: { lookups }, intervals }, index) => {
    if (role === 'control' || lookups.elsewhere.lookedUp + lookups.other.lookedUp === 0) return [];
    const rates = [lookups.elsewhere, lookups.other].map(({ lookedUp, lines: changed }) =>
      formatRatio(lookedUp, changed),
    );
    const gap = `${formatSigned(intervals.lookupGap.estimate)} ${formatInterval(intervals.lookupGap, formatSigned)}`;
    return [`${label(`${rowLetter(index)} ${name}`)}${columns(rates, 11)}   ${gap}`];
  });
  if (lines.length === 0) return '';
  return [`${label('changed lines looked up')}${columns(['elsewhere', 'other'], 11)}   difference`, ...lines].join(
    '\n',
  );
}

function renderKinds({ rows }: ResultTable): string {
  const policies = rows
    .map((row, index) => ({ row, letter: rowLetter(index) }))
    .filter(({ row }) => row.role === 'policy');
  const [first] = policies;
  if (first === undefined) return '';
  const head = `${label('recall by kind')}${columns(['bugs', ...policies.map(({ letter }) => letter)], 8)}`;
  const lines = first.row.scores.byKind.map(({ kind, bugs }) => {
    const recalls = policies.map(({ row }) => {
      const entry = row.scores.byKind.find((candidate) => candidate.kind === kind);
      return formatRatio(entry?.found ?? 0, entry?.bugs ?? 0);
    });
    return `${label(kind)}${columns([String(bugs), ...recalls], 8)}`;
  });
  const without = policies.map(({ row }) => formatScore(row.scores.withoutDirectional.sample.fBeta));
  const elsewhere = policies.map(({ row }) => formatScore(row.scores.elsewhere.sample.fBeta));
  const shares = [
    `${label('averaged F, elsewhere kinds')}${columns(['', ...elsewhere], 8)}`,
    `${label('averaged F, no directional')}${columns(['', ...without], 8)}`,
    `${label('category named right')}${columns(['', ...policies.map(({ row }) => formatScore(row.scores.categoryAccuracy ?? Number.NaN))], 8)}`,
    `${label('reports that cannot be read')}${columns(['', ...policies.map(({ row }) => formatScore(row.scores.invalidShare))], 8)}`,
  ];
  return [head, ...lines, ...shares].join('\n');
}

function label(text: string, width: number = LABEL_WIDTHS.others): string {
  return text.length > width ? `${text.slice(0, width - 1)}…` : text.padEnd(width);
}

function columns(values: readonly string[], width: number): string {
  return values.map((value) => value.padStart(width)).join('');
}

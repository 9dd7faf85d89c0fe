/**
 * The results table as HTML: the same value that the terminal shows, with an interval under every score. Bold marks an
 * interval that excludes 0. Rows keep their letters, so that the smaller tables can refer to the wide one.
 */
import { escapeHtml } from './charts.ts';
import type { Measure, MeasureIntervals } from './comparison.ts';
import { SCOPE_LABELS, formatInterval, formatRatio, formatScore, formatSigned, rowLetter } from './result-table.ts';
import type { ResultRow, ResultTable } from './result-table.ts';
import { excludesZero } from '../domain/statistics.ts';
import type { Interval } from '../domain/statistics.ts';

const SCORE_MEASURES = [
  'samplePrecision',
  'sampleRecall',
  'sampleFBeta',
  'pooledPrecision',
  'pooledRecall',
  'pooledFBeta',
] as const satisfies readonly Measure[];

export function renderResultSections(table: ResultTable): string {
  const f = `F${table.beta}`;
  const note = `${table.tasks} tasks from ${table.packages} packages; 95 % paired bootstrap intervals over tasks, ${table.resamples} resamples. Averaged over samples is what the reward climbs; pooled divides summed counts. Controls are grey.`;
  const blocks = [
    `<p class="soft">${escapeHtml(note)}</p>`,
    scoreTable(table, f),
    table.differences.length === 0
      ? ''
      : `<h3>Differences</h3><p class="soft">Bold: the interval excludes 0.</p>${differenceTable(table, f)}`,
    table.rankings.length === 0
      ? ''
      : `<h3>What no threshold can move</h3><p class="soft">Forced choice: in a task with a bug, a bug line outranks all others. Bold: the interval of a difference excludes 0.</p>${rankingTable(table)}`,
    lookupTable(table),
    `<h3>Recall by kind</h3>${kindTable(table, f)}`,
    `<h3>How it behaves</h3>${behaviourTable(table, f)}`,
  ];
  return `<section><h2>Results on ${escapeHtml(table.title)}</h2>${blocks.join('')}</section>`;
}

function scoreTable({ rows }: ResultTable, f: string): string {
  const head = headRow([
    '',
    'P, averaged',
    'R, averaged',
    `${f}, averaged`,
    'P, pooled',
    'R, pooled',
    `${f}, pooled`,
    'turns',
    'tokens',
  ]);
  const body = rows.map((result, index) => {
    const { scores, intervals } = result;
    const isSilent = scores.predicted === 0;
    const cells = SCORE_MEASURES.map((measure) =>
      measure === 'pooledPrecision' && isSilent ? '–' : scoreCell(intervals[measure]),
    );
    const cost =
      scores.tokensPerTask === 0 ? ['–', '–'] : [scores.turnsPerTask.toFixed(1), scores.tokensPerTask.toFixed(0)];
    return bodyRow(rowName(result, index), [...cells, ...cost], result.role === 'control' ? 'control' : '');
  });
  return wrap(head, body);
}

function differenceTable({ differences }: ResultTable, f: string): string {
  const head = headRow([
    '',
    'over',
    'P, averaged',
    'R, averaged',
    `${f}, averaged`,
    'P, pooled',
    'R, pooled',
    `${f}, pooled`,
  ]);
  const body = differences.map(({ label, scope, intervals }) =>
    bodyRow(escapeHtml(label), [
      SCOPE_LABELS[scope],
      ...SCORE_MEASURES.map((measure) => signedCell(intervals[measure])),
    ]),
  );
  return wrap(head, body);
}

function rankingTable({ rankings, rankingDifferences }: ResultTable): string {
  const head = headRow(['', 'forced choice', 'chance', 'AUC', 'AUC, no directional', 'AUC, elsewhere']);
  const body = rankings.map(({ label, summary, intervals }) =>
    bodyRow(escapeHtml(label), [
      scoreCell(intervals.forcedChoice),
      formatScore(summary.forcedChoice.chance),
      scoreCell(intervals.auc),
      ...[summary.withoutDirectional, summary.elsewhere].map(({ auc }) => dash(formatScore(auc ?? Number.NaN))),
    ]),
  );
  const moved = rankingDifferences.map(({ label, intervals }) =>
    bodyRow(escapeHtml(label), [signedCell(intervals.forcedChoice), '', signedCell(intervals.auc), '', '']),
  );
  return wrap(head, [...body, ...moved]);
}

function lookupTable({ rows }: ResultTable): string {
  const body = rows.flatMap((result, index) => {
    const { lookups } = result.scores;
    if (lookups.elsewhere.lookedUp + lookups.other.lookedUp === 0) return [];
    const { lookupRateElsewhere, lookupRateOther, lookupGap }: MeasureIntervals = result.intervals;
    return [
      bodyRow(rowName(result, index), [
        scoreCell(lookupRateElsewhere),
        scoreCell(lookupRateOther),
        signedCell(lookupGap),
      ]),
    ];
  });
  if (body.length === 0) return '';
  const head = headRow(['', 'evidence elsewhere', 'others', 'difference']);
  return `<h3>Changed lines looked up</h3>${wrap(head, body)}`;
}

function kindTable({ rows }: ResultTable, f: string): string {
  const policies = rows.map((result, index) => ({ result, index })).filter(({ result }) => result.role === 'policy');
  const kinds = policies[0]?.result.scores.byKind ?? [];
  const head = headRow(['', 'bugs', ...policies.map(({ index }) => rowLetter(index))]);
  const body = kinds.map(({ kind, bugs }) => {
    const recalls = policies.map(({ result }) => {
      const entry = result.scores.byKind.find((candidate) => candidate.kind === kind);
      return dash(formatRatio(entry?.found ?? 0, entry?.bugs ?? 0));
    });
    return bodyRow(kind, [String(bugs), ...recalls]);
  });
  const restricted = (['elsewhere', 'withoutDirectional'] as const).map((scope) => {
    const name = scope === 'elsewhere' ? `${f} averaged, elsewhere kinds` : `${f} averaged, without directional kinds`;
    return bodyRow(name, ['', ...policies.map(({ result }) => formatScore(result.scores[scope].sample.fBeta))]);
  });
  return wrap(head, [...body, ...restricted]);
}

function behaviourTable({ rows }: ResultTable, f: string): string {
  const percent = (value: number): string => `${(100 * value).toFixed(1)} %`;
  const head = headRow([
    '',
    'reports that cannot be read',
    'silent',
    'category named right',
    'sampled tokens',
    `${f}, no directional`,
  ]);
  const body = rows.flatMap((result, index) => {
    if (result.role === 'control') return [];
    const { invalidShare, silentShare, categoryAccuracy, sampledTokensPerTask, withoutDirectional } = result.scores;
    const accuracy = categoryAccuracy === undefined ? '–' : percent(categoryAccuracy);
    const cells = [
      percent(invalidShare),
      percent(silentShare),
      accuracy,
      sampledTokensPerTask.toFixed(0),
      formatScore(withoutDirectional.sample.fBeta),
    ];
    return [bodyRow(rowName(result, index), cells)];
  });
  return wrap(head, body);
}

function rowName({ label }: ResultRow, index: number): string {
  return `<span class="letter">${rowLetter(index)}</span>${escapeHtml(label)}`;
}

function scoreCell(interval: Interval): string {
  return `${dash(formatScore(interval.estimate))}<br><small>${formatInterval(interval)}</small>`;
}

function signedCell(interval: Interval): string {
  const estimate = dash(formatSigned(interval.estimate));
  const shown = excludesZero(interval) ? `<span class="clear">${estimate}</span>` : estimate;
  // A true minus sign is as wide as the plus sign above it.
  return `${shown}<br><small>${formatInterval(interval, formatSigned)}</small>`.replaceAll('-', '−');
}

function dash(text: string): string {
  return text === '-' ? '–' : text;
}

/** Cells are HTML already. */
function bodyRow(name: string, cells: readonly string[], className = ''): string {
  const attribute = className === '' ? '' : ` class="${className}"`;
  return `<tr${attribute}><th scope="row">${name}</th>${cells.map((cell) => `<td>${cell}</td>`).join('')}</tr>`;
}

function headRow(cells: readonly string[]): string {
  return `<tr>${cells.map((cell) => `<th scope="col">${escapeHtml(cell)}</th>`).join('')}</tr>`;
}

function wrap(head: string, body: readonly string[]): string {
  return `<div class="scroll" tabindex="0"><table><thead>${head}</thead><tbody>${body.join('')}</tbody></table></div>`;
}

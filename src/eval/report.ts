/**
 * The report of a run: one HTML page that needs nothing else - no network, no script. What the run says in words, the table
 * of results with its controls, and every curve with its numbers. Words are made from the numbers, never written by hand.
 */
import { escapeHtml, renderChart, renderChartTable } from './charts.ts';
import type { Chart } from './charts.ts';
import { curveGroups } from './curves.ts';
import type { StepEvent } from './events.ts';
import { describeLanding } from './landing.ts';
import { PAGE_STYLE } from './report-style.ts';
import { renderResultSections } from './result-sections.ts';
import { SCOPE_LABELS, formatInterval, formatSigned } from './result-table.ts';
import type { ResultTable } from './result-table.ts';
import { excludesZero, mean } from '../domain/statistics.ts';
import type { Interval } from '../domain/statistics.ts';

export interface ReportInput {
  readonly title: string;
  readonly subtitle?: string;
  readonly facts: readonly { readonly name: string; readonly value: string }[];
  readonly steps: readonly StepEvent[];
  /** The direction that a frontier term steers in; absent without one. */
  readonly alpha?: number;
  /** Absent while a run has not been evaluated. */
  readonly table?: ResultTable;
  /** Where everything was written. */
  readonly files: readonly { readonly name: string; readonly path: string }[];
}

export function renderReport(input: ReportInput): string {
  const { title, subtitle, facts, steps, alpha, table, files } = input;
  const curves = { ...(table === undefined ? {} : { beta: table.beta }), ...(alpha === undefined ? {} : { alpha }) };
  const verdicts = describeRun(input).map((sentence) => `<li>${escapeHtml(sentence)}</li>`);
  const sections = [
    verdicts.length === 0 ? '' : section('What it says', `<ul class="verdict">${verdicts.join('')}</ul>`),
    table === undefined ? '' : renderResultSections(table),
    ...(steps.length === 0
      ? []
      : curveGroups(steps, curves).map((group) => section(group.title, renderFigures(group.charts)))),
    section(
      'Where it is',
      definitions(files.map(({ name, path }) => ({ name, value: `<code>${escapeHtml(path)}</code>` }))),
    ),
  ];
  const shownFacts = definitions(facts.map(({ name, value }) => ({ name, value: escapeHtml(value) })));
  return [
    '<!doctype html><html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width,initial-scale=1">',
    `<title>${escapeHtml(title)} · hone report</title><style>${PAGE_STYLE}</style></head><body>`,
    `<header><h1>${escapeHtml(title)}</h1>${subtitle === undefined ? '' : `<p class="soft">${escapeHtml(subtitle)}</p>`}${shownFacts}</header>`,
    `<main>${sections.join('')}</main>`,
    '<footer class="soft">Made by hone report from the run folder alone.</footer></body></html>\n',
  ].join('');
}

/** The run in sentences: where it landed, each difference with its interval, and whether the policy stayed open. Also for the terminal. */
export function describeRun({ steps, table }: Pick<ReportInput, 'steps' | 'table'>): string[] {
  const all = table?.differences ?? [];
  const headlines = all.filter(({ isHeadline }) => isHeadline === true);
  const differences = (headlines.length === 0 ? all : headlines).map(
    ({ label, scope, intervals: { sampleFBeta, pooledPrecision } }) => {
      const verdict = excludesZero(sampleFBeta)
        ? 'the interval excludes 0'
        : 'the interval includes 0: no difference shown';
      const averaged = `sample-averaged F${table?.beta} ${formatSigned(sampleFBeta.estimate)} ${formatInterval(sampleFBeta, formatSigned)}`;
      return `${capitalise(label)}, ${SCOPE_LABELS[scope]}: ${averaged}, ${verdict}; pooled precision ${formatSigned(pooledPrecision.estimate)} ${formatInterval(pooledPrecision, formatSigned)}.`;
    },
  );
  const rankings = (table?.rankingDifferences ?? []).map(({ label, intervals: { forcedChoice, auc } }) => {
    const change = (name: string, interval: Interval): string =>
      `${name} ${formatSigned(interval.estimate)} ${formatInterval(interval, formatSigned)}`;
    return `${capitalise(label)}: ${change('AUC', auc)}, ${change('forced choice', forcedChoice)}: ${judgeRanking([auc, forcedChoice])}.`;
  });
  const landings = (table?.landings ?? []).map(describeLanding);
  return [...landings, ...differences, ...rankings, ...describeOpenness(steps)];
}

function judgeRanking(changes: readonly Interval[]): string {
  if (changes.some(({ high }) => high < 0)) return 'lines are ranked worse than before';
  if (changes.some(({ low }) => low > 0)) return 'more than a moved threshold can do';
  return 'no better ranking shown: what changed is where the line is drawn';
}

/** Compares the first and the last tenth of the steps. */
function describeOpenness(steps: readonly StepEvent[]): string[] {
  if (steps.length < 2) return [];
  const count = Math.max(1, Math.floor(steps.length / 10));
  const ends = (key: 'rollout/groups_with_variance' | 'policy/entropy'): [number | undefined, number | undefined] => {
    const average = (part: readonly StepEvent[]): number | undefined =>
      mean(part.flatMap(({ metrics }) => metrics[key] ?? []));
    return [average(steps.slice(0, count)), average(steps.slice(-count))];
  };
  const [varianceBefore = 0, varianceAfter = 0] = ends('rollout/groups_with_variance');
  const [entropyBefore, entropyAfter] = ends('policy/entropy');
  const held =
    varianceAfter >= varianceBefore / 2
      ? 'above half of where they started'
      : 'BELOW half of where they started: entropy has collapsed';
  const entropy =
    entropyBefore === undefined || entropyAfter === undefined
      ? ''
      : `; entropy ${entropyBefore.toFixed(3)} → ${entropyAfter.toFixed(3)} nats`;
  const percent = (value: number): string => `${(100 * value).toFixed(0)} %`;
  return [
    `Groups with variance: ${percent(varianceBefore)} → ${percent(varianceAfter)} (first and last ${count} of ${steps.length} steps), ${held}${entropy}.`,
  ];
}

function renderFigures(charts: readonly Chart[]): string {
  const figures = charts.map((chart) => {
    const caption = `<figcaption><h3>${escapeHtml(chart.title)}</h3>${escapeHtml(chart.caption)}</figcaption>`;
    const numbers = `<details><summary>Numbers</summary><div class="scroll" tabindex="0">${renderChartTable(chart)}</div></details>`;
    return `<figure id="${chart.id}">${caption}${renderChart(chart)}${numbers}</figure>`;
  });
  return `<div class="grid-of-charts">${figures.join('')}</div>`;
}

function section(title: string, body: string): string {
  return `<section><h2>${escapeHtml(title)}</h2>${body}</section>`;
}

/** Values are HTML already. */
function definitions(entries: readonly { readonly name: string; readonly value: string }[]): string {
  if (entries.length === 0) return '';
  const items = entries.map(({ name, value }) => `<div><dt>${escapeHtml(name)}</dt><dd>${value}</dd></div>`);
  return `<dl class="facts">${items.join('')}</dl>`;
}

function capitalise(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/**
 * The report of a study: one HTML page that needs nothing else - no network, no script. It tells someone who has never seen
 * the study what was run, where every arm ended, how far that is from the published figures and from the closed form, and
 * how steering got there. Words are made from the numbers, never written by hand.
 */
import { escapeHtml } from '../eval/charts.ts';
import { PAGE_STYLE } from '../eval/report-style.ts';
import { FRONTIER_PAGE_STYLE, XY_CHART_STYLE } from './frontier-style.ts';
import { PUBLISHED } from './published-figures.ts';
import { mainArms } from './study-arms.ts';
import { priceFigure, trajectoryFigure, wrongPriceFigure } from './study-courses.ts';
import { directionFigure, gainAgainstSaving } from './study-figures.ts';
import type { DecaySchedule, StudyPlan, StudyRecord } from './study-record.ts';
import type { StudySummary } from './study-summary.ts';
import { compareWithPublished, compareWrongPrices, fixed, renderComparisonTable } from './study-table.ts';
import { describeStudy } from './study-words.ts';
import type { StudyWords } from './study-words.ts';
import { renderFigure, renderFigureTable, renderStandaloneSvg } from './xy-chart.ts';
import { formatNumber } from './xy-scale.ts';

export interface StudyReportInput {
  readonly record: StudyRecord;
  readonly summary: StudySummary;
  /** `mean-field` follows expectations and has no noise; the page says so. */
  readonly form: 'sampled' | 'mean-field';
  /** How it was run beyond the plan, in the order that is shown: seconds, workers, nanoseconds a rollout. */
  readonly facts: readonly { readonly name: string; readonly value: string }[];
  /** Where everything was written. */
  readonly files: readonly { readonly name: string; readonly path: string }[];
}

/** The whole page as text; a few hundred kilobytes for 100 problems x 3 seeds x 10 arms. */
export function renderStudyReport(input: StudyReportInput): string {
  const { record, summary, files } = input;
  const { plan } = record;
  const { rows, obstacle } = compareWithPublished(summary, plan);
  const wrong = wrongPriceFigure(record);
  const isSteered = mainArms(plan).some(({ arm }) => arm.rule.kind === 'steered');
  const title = 'Steering along the success-cost frontier';
  const sections = [
    section('What it says', renderWords(describeStudy(input))),
    section('Where each rule lands', renderFigure(gainAgainstSaving(record))),
    section('Beside the published figures', renderPublished(rows, obstacle) + renderAveraged(summary, plan)),
    section(
      'How it gets there',
      [...(isSteered ? [priceFigure(record)] : []), trajectoryFigure(record)].map(renderFigure).join(''),
    ),
    wrong === undefined
      ? ''
      : section('A wrong starting price', renderFigure(wrong) + renderWrongPrices(summary, plan)),
    section(
      'Order and direction',
      renderFigure(directionFigure(record)) + renderOrder(summary) + renderDirections(summary, plan),
    ),
    section('How it was run', definitions(runFacts(input))),
    section('Where it is', definitions(files.map(({ name, path }) => ({ name, value: path, isCode: true })))),
  ];
  return [
    '<!doctype html><html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width,initial-scale=1">',
    `<title>${title} · hone frontier study</title><style>${PAGE_STYLE}${XY_CHART_STYLE}${FRONTIER_PAGE_STYLE}</style></head><body>`,
    `<header><h1>${title}</h1><p class="soft">A study on a toy task whose frontier is known in closed form${input.form === 'mean-field' ? ', followed as expectations without sampling' : ''}.</p></header>`,
    `<main>${sections.join('')}</main>`,
    '<footer class="soft">Made by hone frontier study from the recorded runs alone.</footer></body></html>\n',
  ].join('');
}

/** Gain against saving as one SVG file, for documents. */
export function renderStudySvg({ record }: Pick<StudyReportInput, 'record'>): string {
  return renderStandaloneSvg(gainAgainstSaving(record));
}

function renderPublished(rows: Parameters<typeof renderComparisonTable>[0], obstacle: string | undefined): string {
  const marks =
    obstacle === undefined
      ? 'A star marks a figure that is further from the published one than the seeds of both explain (95 % of the difference; the published table has three seeds). Arms share their random numbers, so stars of one effort come together: they are one event.'
      : `This plan is not the published one: ${obstacle}. Differences are therefore not marked.`;
  const intervals =
    'Per cent of the start, mean over problems. ± seeds is half of the 95 % interval over seeds with the problems fixed, ± problems the same for problems drawn anew. The closed form is where training would end with the skill fully learned.';
  return `<p>${escapeHtml(intervals)} ${escapeHtml(marks)}</p>${scroll(renderComparisonTable(rows, { compared: 'published', hasSeeds: true }))}<p class="soft small">Published: ${escapeHtml(PUBLISHED.source)}</p>`;
}

/** Low effort goes on ringing, so the mean over the end of training says more than the last step there. */
function renderAveraged({ arms }: StudySummary, plan: StudyPlan): string {
  const rows = mainArms(plan).flatMap(({ index, name }) =>
    (arms[index]?.efforts ?? []).map(({ effort, last, averaged }) => [
      `${name}, ${effort}`,
      ...([last.savingPercent, averaged.savingPercent, last.gainPercent, averaged.gainPercent] as const).map(
        ({ mean }) => fixed(mean, 1),
      ),
    ]),
  );
  const heads = [
    'arm and effort',
    'saving %, last step',
    'saving %, averaged',
    'gain %, last step',
    'gain %, averaged',
  ];
  return `<details><summary>The same, averaged over the last fifth of training</summary>${scroll(renderFigureTable({ heads, rows }))}</details>`;
}

function renderWords({ lead, findings }: StudyWords): string {
  const items = findings.map((sentence) => `<li>${unbroken(sentence)}</li>`);
  return `<p class="lead">${unbroken(lead)}</p><ul class="verdict">${items.join('')}</ul>`;
}

/** A number stays on one line with its unit, and α with its value. */
function unbroken(text: string): string {
  return escapeHtml(text).replaceAll(' %', '\u00a0%').replaceAll('α = ', 'α\u00a0=\u00a0');
}

function renderWrongPrices(summary: StudySummary, plan: StudyPlan): string {
  const rows = compareWrongPrices(summary, plan);
  const caption =
    'The reference for a price that is right (×1) is the published table. For a wrong one it is an independent prototype of the same study, whose figures are rounded to whole points.';
  return `<h3>Where they end</h3><p>${escapeHtml(caption)}</p>${scroll(renderComparisonTable(rows, { compared: 'reference', hasSeeds: false }))}`;
}

function renderOrder({ order }: StudySummary): string {
  if (order.length === 0) return '';
  const rows = order.map(({ effort, strictShare, endsShare }) => [
    effort,
    formatNumber(strictShare, 'percent', 0),
    formatNumber(endsShare, 'percent', 0),
  ]);
  return `<h3>Share of problems where a larger α brings more success for less saving</h3>${scroll(renderFigureTable({ heads: ['effort', 'at every α', 'largest against smallest'], rows }))}`;
}

function renderDirections({ arms }: StudySummary, plan: StudyPlan): string {
  const rows = mainArms(plan).flatMap(({ index, name }) =>
    (arms[index]?.efforts ?? []).map(({ effort, direction, costlierShare, largestLogPriceChange }) => [
      `${name}, ${effort}`,
      direction === null || direction.targetDegrees === null ? 'none' : `${fixed(direction.targetDegrees, 0)}°`,
      ...(direction === null
        ? ['–', '–', '–', '–', '0']
        : [
            `${fixed(direction.meanDegrees, 0)}°`,
            `${fixed(direction.deviationDegrees, 0)}°`,
            direction.worstErrorDegrees === null ? '–' : `${fixed(direction.worstErrorDegrees, 0)}°`,
            `${fixed(direction.lowestDegrees, 0)}° to ${fixed(direction.highestDegrees, 0)}°`,
            String(direction.problems),
          ]),
      formatNumber(costlierShare, 'percent', 0),
      fixed(largestLogPriceChange, 2),
    ]),
  );
  const heads = [
    'arm and effort',
    'asked for',
    'mean',
    'deviation',
    'worst error',
    'range',
    'problems',
    'got dearer',
    'largest |ln price change|',
  ];
  return `<h3>Direction, price and cost of every arm</h3><p>Directions count problems that moved by more than 5 %; 0° saves cost only, 90° gains success only. Got dearer is the share of problems that cost more at the last step than at the start.</p>${scroll(renderFigureTable({ heads, rows }))}`;
}

function runFacts({ record, summary, form, facts }: StudyReportInput): { name: string; value: string }[] {
  const { plan, runs } = record;
  const { actor, controller } = plan;
  const capped = summary.arms.reduce((sum, { cappedRollouts }) => sum + cappedRollouts, 0);
  const rollouts =
    form === 'sampled' ? formatNumber(runs.length * plan.steps * plan.batch, 'number', 3) : 'none: expectations';
  const safeguards = [
    controller.proportional === 0 ? [] : [`proportional term ${controller.proportional}`],
    controller.slewLimit === null
      ? []
      : [`slew limit ${controller.slewLimit === 'actor' ? 'of the actor’s rate' : controller.slewLimit}`],
    controller.clip === null ? [] : [`clip ×${controller.clip}`],
    controller.deadZone === 0 ? [] : [`dead zone ${controller.deadZone} deviations`],
  ].flat();
  return [
    { name: 'Problems', value: String(plan.problems.length) },
    { name: 'Arms', value: String(plan.arms.length) },
    { name: 'Runs', value: formatNumber(runs.length, 'number', 6) },
    { name: 'Steps a run', value: formatNumber(plan.steps, 'number', 6) },
    { name: 'Rollouts a step', value: formatNumber(plan.batch, 'number', 6) },
    { name: 'Rollouts in all', value: rollouts },
    { name: 'Rollouts cut at the cap', value: formatNumber(capped, 'number', 6) },
    { name: 'Actor', value: `${actor.optimizer}, rate ${describeSchedule(actor)}, baseline: ${plan.baseline}` },
    {
      name: 'Controller',
      value: `rate ${describeSchedule(controller)}${safeguards.length === 0 ? ', no safeguards' : `, ${safeguards.join(', ')}`}`,
    },
    {
      name: 'References',
      value:
        plan.referenceRollouts === null
          ? 'exact'
          : `${formatNumber(plan.referenceRollouts, 'number', 6)} rollouts an effort`,
    },
    { name: 'Seed', value: String(plan.seed) },
    ...facts,
  ];
}

function describeSchedule({ rate, decay }: DecaySchedule): string {
  return decay === null ? `${rate}, constant` : `${rate} × (1 + (t − 1) / ${decay.steps})^−${decay.power}`;
}

function section(title: string, body: string): string {
  return `<section><h2>${escapeHtml(title)}</h2>${body}</section>`;
}

function scroll(table: string): string {
  return `<div class="scroll" tabindex="0">${table}</div>`;
}

function definitions(
  entries: readonly { readonly name: string; readonly value: string; readonly isCode?: boolean }[],
): string {
  const items = entries.map(({ name, value, isCode = false }) => {
    const text = isCode ? `<code>${escapeHtml(value)}</code>` : escapeHtml(value);
    return `<div><dt>${escapeHtml(name)}</dt><dd>${text}</dd></div>`;
  });
  return `<dl class="facts">${items.join('')}</dl>`;
}

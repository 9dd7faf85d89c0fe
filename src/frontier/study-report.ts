/**
 * The report of a study: one HTML page that needs nothing else - no network, no script. It tells someone who has never seen
 * the study what was run, where every arm ended, how far that is from the published figures and from the closed form, and
 * how steering got there. Words are made from the numbers, never written by hand.
 */
import { escapeHtml } from '../eval/charts.ts';
import { renderDefinitions, renderFrontierPage, renderScrolling } from './frontier-page.ts';
import { PUBLISHED } from './published-figures.ts';
import { mainArms } from './study-arms.ts';
import { priceFigure, trajectoryFigure, wrongPriceFigure } from './study-courses.ts';
import { directionFigure, gainAgainstSaving } from './study-figures.ts';
import type { DecaySchedule, StudyPlan, StudyRecord } from './study-record.ts';
import type { StudySummary } from './study-summary.ts';
import { compareWithPublished, compareWrongPrices, fixed, renderComparisonTable } from './study-table.ts';
import { describeStudy } from './study-words.ts';
import { countRollouts } from './toy-run.ts';
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
  const { lead, findings } = describeStudy(input);
  return renderFrontierPage({
    title: 'Steering along the success-cost frontier',
    subtitle: `A study on a toy task whose frontier is known in closed form${input.form === 'mean-field' ? ', followed as expectations without sampling' : ''}.`,
    lead,
    verdicts: findings,
    sections: [
      { title: 'Where each rule lands', html: renderFigure(gainAgainstSaving(record)) },
      {
        title: 'Beside the published figures',
        html: renderPublished(rows, obstacle) + renderAveraged(summary, plan),
      },
      {
        title: 'How it gets there',
        html: [...(isSteered ? [priceFigure(record)] : []), trajectoryFigure(record)].map(renderFigure).join(''),
      },
      {
        title: 'A wrong starting price',
        html: wrong === undefined ? '' : renderFigure(wrong) + renderWrongPrices(summary, plan),
      },
      {
        title: 'Order and direction',
        html: renderFigure(directionFigure(record)) + renderOrder(summary) + renderDirections(summary, plan),
      },
      { title: 'How it was run', html: renderDefinitions(runFacts(input)) },
      {
        title: 'Where it is',
        html: renderDefinitions(files.map(({ name, path }) => ({ name, value: path, isCode: true }))),
      },
    ],
    footer: 'Made by hone frontier study from the recorded runs alone.',
  });
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
  return `<p>${escapeHtml(intervals)} ${escapeHtml(marks)}</p>${renderScrolling(renderComparisonTable(rows, { compared: 'published', hasSeeds: true }))}<p class="soft small">Published: ${escapeHtml(PUBLISHED.source)}</p>`;
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
  return `<details><summary>The same, averaged over the last fifth of training</summary>${renderScrolling(renderFigureTable({ heads, rows }))}</details>`;
}

function renderWrongPrices(summary: StudySummary, plan: StudyPlan): string {
  const rows = compareWrongPrices(summary, plan);
  const caption =
    'The reference for a price that is right (×1) is the published table. For a wrong one it is an independent prototype of the same study, whose figures are rounded to whole points.';
  return `<h3>Where they end</h3><p>${escapeHtml(caption)}</p>${renderScrolling(renderComparisonTable(rows, { compared: 'reference', hasSeeds: false }))}`;
}

function renderOrder({ order }: StudySummary): string {
  if (order.length === 0) return '';
  const rows = order.map(({ effort, strictShare, endsShare }) => [
    effort,
    formatNumber(strictShare, 'percent', 0),
    formatNumber(endsShare, 'percent', 0),
  ]);
  return `<h3>Share of problems where a larger α brings more success for less saving</h3>${renderScrolling(renderFigureTable({ heads: ['effort', 'at every α', 'largest against smallest'], rows }))}`;
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
  return `<h3>Direction, price and cost of every arm</h3><p>Directions count problems that moved by more than 5 %; 0° saves cost only, 90° gains success only. Got dearer is the share of problems that cost more at the last step than at the start.</p>${renderScrolling(renderFigureTable({ heads, rows }))}`;
}

function runFacts({ record, summary, form, facts }: StudyReportInput): { name: string; value: string }[] {
  const { plan, runs } = record;
  const { actor, controller } = plan;
  const { training, reference } = countRollouts(plan);
  const capped = summary.arms.reduce((sum, { cappedRollouts }) => sum + cappedRollouts, 0);
  const rollouts =
    form === 'sampled'
      ? `${count(training + reference)}: ${count(training)} of training and ${count(reference)} of references`
      : 'none: expectations';
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

function count(value: number): string {
  return value.toLocaleString('en-US');
}

function describeSchedule({ rate, decay }: DecaySchedule): string {
  return decay === null ? `${rate}, constant` : `${rate} × (1 + (t − 1) / ${decay.steps})^−${decay.power}`;
}

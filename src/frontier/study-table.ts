/**
 * The results of a study as a table, beside the published one and the closed form: as text of at most 100 columns for a
 * terminal, and as HTML for the report. A figure is marked when it differs from the published one by more than the seeds
 * of both explain, and only where the plan is the published one.
 */
import { escapeHtml } from '../eval/charts.ts';
import { PUBLISHED, PUBLISHED_SEEDS, WRONG_SLOPE, publishedRow } from './published-figures.ts';
import type { PublishedTable } from './published-figures.ts';
import { factorName, mainArms, slopeErrorArms } from './study-arms.ts';
import { STUDY_EFFORTS } from './study-record.ts';
import type { StudyArm, StudyPlan } from './study-record.ts';
import type { Estimate, StudySummary } from './study-summary.ts';
import { renderTextTable } from './text-table.ts';
import { TOY_PROBLEM_COUNT } from './toy-task.ts';

/** One figure, in per cent. */
export interface ComparedFigure extends Estimate {
  /** Undefined where the published table has no such arm. */
  readonly published: number | undefined;
  readonly closedForm: number;
  /** Further from the published figure than the 95 % interval of their difference: both have the noise of their seeds. */
  readonly isBeyondSeeds: boolean;
}

export interface ComparedRow {
  readonly name: string;
  readonly effort: number;
  readonly saving: ComparedFigure;
  readonly gain: ComparedFigure;
  /** ln(price / starting price) at the last step. */
  readonly logPriceChange: Estimate;
}

/** What a row is compared with: the arms from the right price with the published table, the others with the notes' prototype. */
export interface Comparison {
  readonly rows: readonly ComparedRow[];
  /** Why differences are not marked, as the end of a sentence; undefined when they are. */
  readonly obstacle: string | undefined;
}

const PUBLISHED_STEPS = 1000;
const PUBLISHED_BATCH = 1024;

/** The main arms, fixed first, then by rising alpha; efforts from low to high within an arm. */
export function compareWithPublished(summary: StudySummary, plan: StudyPlan): Comparison {
  const obstacle = obstacleOf(summary, plan);
  const rows = mainArms(plan).flatMap(({ index, arm, name }) =>
    compareArm(summary, { index, arm, name, table: PUBLISHED, isMarked: obstacle === undefined }),
  );
  return { rows, obstacle };
}

/** Rules that were also run from a wrong starting price; never marked, since the prototype's figures are rounded to points. */
export function compareWrongPrices(summary: StudySummary, plan: StudyPlan): ComparedRow[] {
  return slopeErrorArms(plan).flatMap(({ arms }) =>
    arms.flatMap(({ index, arm, name }) =>
      compareArm(summary, {
        index,
        arm,
        name: `${name}, ${factorName(arm.slopeFactor)}`,
        table: arm.slopeFactor === 1 ? PUBLISHED : WRONG_SLOPE,
        isMarked: false,
      }),
    ),
  );
}

/** Text of at most 100 columns, with a line on how to read it. */
export function renderStudyTable(summary: StudySummary, plan: StudyPlan): string {
  const { rows, obstacle } = compareWithPublished(summary, plan);
  const wrong = compareWrongPrices(summary, plan).filter(({ name }) => !name.endsWith('×1'));
  const cellsOf = ({ name, effort, saving, gain, logPriceChange }: ComparedRow): string[] => [
    name,
    STUDY_EFFORTS[effort] ?? '',
    ...textCells(saving),
    ...textCells(gain),
    ascii(fixed(logPriceChange.mean, 2)),
  ];
  const columns = (first: string): string[] => [`${first} `, 'seeds', 'probl.', 'publ.', 'q = 1'];
  const heads = ['per cent', 'effort', ...columns('saving'), ...columns('gain'), 'ln λ'];
  const lines = renderTextTable(heads, [...rows, ...wrong].map(cellsOf), { leftColumns: 2, gap: 1 }).split('\n');
  const mainLines = 1 + rows.length;
  const notes = [
    'seeds, probl.: half of the 95 % interval from seeds, and between problems; q = 1: closed form;',
    'ln λ: mean logarithm of the price over its start',
    obstacle === undefined
      ? '*: further from the published figure than the seeds of both explain (95 %)'
      : `The published figures belong to another plan: ${obstacle}.`,
  ];
  const wrongLines =
    wrong.length === 0 ? [] : ['', 'from a wrong starting price (publ.: a prototype)', ...lines.slice(mainLines)];
  return [...lines.slice(0, mainLines), ...wrongLines, '', ...notes].join('\n');
}

/** The rows as HTML, to be wrapped in a scrolling box; `compared` heads the column of the figures beside. */
export function renderComparisonTable(
  rows: readonly ComparedRow[],
  { compared, hasSeeds }: { readonly compared: string; readonly hasSeeds: boolean },
): string {
  const names = ['this study', ...(hasSeeds ? ['± seeds'] : []), '± problems', compared, 'closed form'];
  const heads = names.map((name) => `<th scope="col">${escapeHtml(name)}</th>`).join('');
  const group = (title: string): string => `<th scope="colgroup" colspan="${names.length}">${title}</th>`;
  const body = rows.map(({ name, effort, saving, gain, logPriceChange }) => {
    const label = `${escapeHtml(name)}, ${STUDY_EFFORTS[effort] ?? ''}`;
    const figures = [saving, gain].map((figure) => cells(figure, hasSeeds));
    const isFirst = effort === 0 ? ' class="first"' : '';
    return `<tr${isFirst}><th scope="row">${label}</th>${figures.join('')}<td>${fixed(logPriceChange.mean, 2)}</td></tr>`;
  });
  return [
    `<table class="compared"><thead><tr><th scope="col" rowspan="2">arm and effort</th>${group('relative cost saving, %')}${group('relative success gain, %')}`,
    `<th scope="col" rowspan="2">ln of the<br>price change</th></tr><tr>${heads}${heads}</tr></thead><tbody>${body.join('')}</tbody></table>`,
  ].join('');
}

/** Digits with a true minus; a dash for what is not there. */
export function fixed(value: number | null | undefined, digits: number): string {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace('-', '') : text.replace('-', '−');
}

/** `1 unit`, `2 units`. */
export function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`;
}

function compareArm(
  { arms }: StudySummary,
  options: { index: number; arm: StudyArm; name: string; table: PublishedTable; isMarked: boolean },
): ComparedRow[] {
  const { index, arm, name, table, isMarked } = options;
  const alpha = arm.rule.kind === 'fixed' ? null : arm.rule.alpha;
  const row = publishedRow(table, { alpha, slopeFactor: arm.slopeFactor });
  return (arms[index]?.efforts ?? []).map(({ last, closedForm, logPriceChange }, effort): ComparedRow => {
    const figure = (key: 'savingPercent' | 'gainPercent'): ComparedFigure => {
      const estimate = last[key];
      const published = row?.[key][effort];
      const distance = published === undefined ? 0 : Math.abs(estimate.mean - published);
      // The published mean spreads like ours, over its own number of seeds.
      const spread = (estimate.seedHalfWidth ?? Number.NaN) * Math.sqrt(1 + arm.seeds / PUBLISHED_SEEDS);
      const isBeyondSeeds = isMarked && distance > spread;
      return { ...estimate, published, closedForm: closedForm[key], isBeyondSeeds };
    };
    return { name, effort, saving: figure('savingPercent'), gain: figure('gainPercent'), logPriceChange };
  });
}

/** The published table stands for one plan; a study of another one lands elsewhere without being wrong. */
function obstacleOf(summary: StudySummary, plan: StudyPlan): string | undefined {
  if (plan.problems.length !== TOY_PROBLEM_COUNT)
    return `it has ${plan.problems.length} of its ${TOY_PROBLEM_COUNT} problems`;
  if (plan.steps !== PUBLISHED_STEPS) return `it has ${counted(plan.steps, 'step')} instead of ${PUBLISHED_STEPS}`;
  if (plan.batch !== PUBLISHED_BATCH)
    return `it has ${counted(plan.batch, 'rollout')} a step instead of ${PUBLISHED_BATCH}`;
  if (plan.isSkillFrozen) return 'its skill is frozen';
  if (plan.costFloor !== null || plan.costCeiling !== null) return 'its cost is bounded';
  const hasSeeds = mainArms(plan).some(
    ({ index }) => typeof summary.arms[index]?.efforts[0]?.last.savingPercent.seedHalfWidth === 'number',
  );
  return hasSeeds ? undefined : 'it has one seed, so there is no interval to compare by';
}

function cells(figure: ComparedFigure, hasSeeds: boolean): string {
  const { mean, seedHalfWidth, problemHalfWidth, published, closedForm, isBeyondSeeds } = figure;
  const own = isBeyondSeeds ? `<td class="clear">${fixed(mean, 1)}<i>*</i></td>` : `<td>${fixed(mean, 1)}</td>`;
  const widths = [...(hasSeeds ? [fixed(seedHalfWidth, 2)] : []), fixed(problemHalfWidth, 1)];
  const soft = widths.map((text) => `<td class="soft">${text}</td>`);
  return `${own}${soft.join('')}<td>${fixed(published, 1)}</td><td>${fixed(closedForm, 1)}</td>`;
}

function textCells(figure: ComparedFigure): string[] {
  const { mean, seedHalfWidth, problemHalfWidth, published, closedForm, isBeyondSeeds } = figure;
  return [
    `${fixed(mean, 1)}${isBeyondSeeds ? '*' : ' '}`,
    `±${fixed(seedHalfWidth, 1)}`,
    `±${fixed(problemHalfWidth, 1)}`,
    fixed(published, 1),
    fixed(closedForm, 1),
  ].map((cell) => ascii(cell.replace('±–', '–')));
}

/** A terminal's fonts and a reader's search know the plain minus. */
function ascii(text: string): string {
  return text.replaceAll('−', '-').replaceAll('–', '-');
}

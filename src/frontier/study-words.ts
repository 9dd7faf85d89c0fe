/**
 * A study in sentences, for the top of its report: what was run, and what the numbers say. Every sentence is made from the
 * summary, including those that say that something did not hold.
 */
import { factorName, mainArms, slopeErrorArms } from './study-arms.ts';
import { STUDY_EFFORTS } from './study-record.ts';
import type { StudyPlan, StudyRecord } from './study-record.ts';
import type { EffortSummary, StudySummary } from './study-summary.ts';
import { compareWithPublished, fixed } from './study-table.ts';
import { formatNumber } from './xy-scale.ts';

export interface StudyWords {
  /** One paragraph: the task, the rules, the size. */
  readonly lead: string;
  /** One sentence or two each. */
  readonly findings: readonly string[];
}

const MEDIUM = Math.floor(STUDY_EFFORTS.length / 2);
const LOW = 0;
/** Of the mean direction at medium effort; a fixed price is off by tens. */
const MOST_DEGREES_OFF = 5;

export function describeStudy({
  record,
  summary,
  form,
}: {
  readonly record: StudyRecord;
  readonly summary: StudySummary;
  readonly form: 'sampled' | 'mean-field';
}): StudyWords {
  const { plan } = record;
  return {
    lead: describeRun(record, form),
    findings: [
      ...describeFixed(summary, plan),
      ...describeSteered(summary, plan),
      ...describeOrder(summary),
      ...describePublished(summary, plan),
      ...describeWrongPrices(summary, plan),
    ],
  };
}

function describeRun({ plan, runs }: StudyRecord, form: 'sampled' | 'mean-field'): string {
  const alphas = mainArms(plan).flatMap(({ arm: { rule } }) => (rule.kind === 'steered' ? [String(rule.alpha)] : []));
  const seeds = Math.max(...mainArms(plan).map(({ arm }) => arm.seeds), 1);
  const size =
    form === 'sampled'
      ? `${formatNumber(runs.length, 'number', 6)} runs of ${formatNumber(plan.steps, 'number', 6)} steps with ${formatNumber(plan.batch, 'number', 6)} rollouts each, ${plural(seeds, 'seed')} a problem`
      : `${formatNumber(runs.length, 'number', 6)} runs of ${formatNumber(plan.steps, 'number', 6)} steps, each step the exact expectation`;
  return [
    'An agent picks one of two actions, only one of which suits the input, and then tries a number of candidates; it succeeds if one of them is right, and every candidate costs.',
    'It is paid success minus a price times cost, at three levels of effort with a price each.',
    `On ${plural(plan.problems.length, 'problem')} the price was either fixed at the slope of the success-cost frontier where training starts, or steered after every step with a target α: 0 asks for saved cost at the same success, 1 for more success at the same cost, values between for a mix.`,
    `The rules that were run: ${listOf([...(mainArms(plan).some(({ arm }) => arm.rule.kind === 'fixed') ? ['the fixed price'] : []), ...(alphas.length === 0 ? [] : [`α = ${listOf(alphas)}`])])}: ${size}.`,
  ].join(' ');
}

function describeFixed(summary: StudySummary, plan: StudyPlan): string[] {
  const drawn = mainArms(plan).find(({ arm }) => arm.rule.kind === 'fixed');
  const medium = drawn === undefined ? undefined : summary.arms[drawn.index]?.efforts[MEDIUM];
  if (medium === undefined) return [];
  const range =
    medium.direction === null
      ? ''
      : ` Its direction depends on the problem: from ${fixed(medium.direction.lowestDegrees, 0)} to ${fixed(medium.direction.highestDegrees, 0)} degrees, where 0 saves cost only and 90 gains success only.`;
  return [
    `A fixed price chooses no direction. At medium effort it ends at ${sayMove(medium)}, and ${formatNumber(medium.costlierShare, 'percent', 0)} of the problems cost more than at the start.${range}`,
  ];
}

function describeSteered(summary: StudySummary, plan: StudyPlan): string[] {
  const steered = mainArms(plan).filter(({ arm }) => arm.rule.kind === 'steered');
  if (steered.length === 0) return [];
  const places = steered.flatMap(({ index, name }) => {
    const medium = summary.arms[index]?.efforts[MEDIUM];
    return medium === undefined ? [] : [`for ${name}, at ${sayMove(medium)}`];
  });
  const errors = STUDY_EFFORTS.map((_, effort) => {
    const found = steered.flatMap(({ index }) => {
      const direction = summary.arms[index]?.efforts[effort]?.direction;
      if (direction === null || direction === undefined || direction.targetDegrees === null) return [];
      return [Math.abs(direction.meanDegrees - direction.targetDegrees)];
    });
    return found.length === 0 ? Number.NaN : Math.max(...found);
  });
  const said = STUDY_EFFORTS.map((name, effort) => `${fixed(errors[effort], 1)} degrees at ${name} effort`);
  const verdict =
    (errors[MEDIUM] ?? Number.NaN) <= MOST_DEGREES_OFF
      ? 'Steering lands where α points'
      : 'Steering does not land where α points';
  return [
    `${verdict}. At medium effort it ends, ${places.join('; ')}.`,
    `Averaged over problems, the direction taken differs from the one asked for by at most ${listOf(said)}, over all α.`,
  ];
}

function describeOrder({ order }: StudySummary): string[] {
  if (order.length === 0) return [];
  const shares = order.map(
    ({ effort, strictShare }) => `${formatNumber(strictShare, 'percent', 0)} at ${effort} effort`,
  );
  return [
    `From each α to the next larger one, success rises and saving falls, in this share of the problems: ${listOf(shares)}.`,
  ];
}

function describePublished(summary: StudySummary, plan: StudyPlan): string[] {
  const { rows, obstacle } = compareWithPublished(summary, plan);
  const figures = rows.flatMap(({ effort, saving, gain }) =>
    [saving, gain].flatMap(({ mean, published, isBeyondSeeds }) =>
      published === undefined ? [] : [{ effort, distance: Math.abs(mean - published), isBeyondSeeds }],
    ),
  );
  if (figures.length === 0) return [];
  const largest = (isLow: boolean): number =>
    Math.max(...figures.filter(({ effort }) => (effort === LOW) === isLow).map(({ distance }) => distance));
  const distances = `The largest distance from the published figures is ${fixed(largest(false), 1)} points at medium and high effort and ${fixed(largest(true), 1)} points at low effort`;
  if (obstacle !== undefined) return [`${distances}; the plan is not the published one, as ${obstacle}.`];
  const within = figures.filter(({ isBeyondSeeds }) => !isBeyondSeeds).length;
  return [`${distances}; ${within} of ${figures.length} figures agree within what the seeds of both explain (95 %).`];
}

/** The fixed price by where it ends, the steered ones by how far they end from where the right price leads. */
function describeWrongPrices(summary: StudySummary, plan: StudyPlan): string[] {
  const rules = slopeErrorArms(plan);
  const wrong = rules.flatMap(({ arms }) => arms.filter(({ arm }) => arm.slopeFactor !== 1));
  const said = wrong.flatMap(({ index, arm }) => {
    const medium = summary.arms[index]?.efforts[MEDIUM];
    if (arm.rule.kind === 'steered' || medium === undefined) return [];
    return [`from ${factorName(arm.slopeFactor)} at ${sayMove(medium)}`];
  });
  const drift =
    said.length === 0 ? [] : [`A fixed price that starts wrong stays wrong. At medium effort it ends ${listOf(said)}.`];
  const distances = STUDY_EFFORTS.map((_, effort) => {
    const found = rules.flatMap(({ arms }) => {
      const right = arms.find(({ arm }) => arm.slopeFactor === 1);
      const home = right === undefined ? undefined : summary.arms[right.index]?.efforts[effort];
      if (home === undefined || right?.arm.rule.kind !== 'steered') return [];
      return arms.flatMap(({ index }) => distanceBetween(home, summary.arms[index]?.efforts[effort]));
    });
    return found.length === 0 ? undefined : Math.max(...found);
  });
  const errors = distances.flatMap((distance, effort) =>
    distance === undefined ? [] : [`${fixed(distance, 1)} points at ${STUDY_EFFORTS[effort]} effort`],
  );
  if (errors.length === 0) return drift;
  const factors = [...new Set(wrong.map(({ arm }) => factorName(arm.slopeFactor)))];
  return [
    ...drift,
    `Steered from prices that are wrong by ${listOf(factors)}, saving and gain end within ${listOf(errors)} of where they end from the right price, over all α that were run so.`,
  ];
}

/** The larger of the distances in saving and in gain, in points. */
function distanceBetween(one: EffortSummary, other: EffortSummary | undefined): number[] {
  if (other === undefined) return [];
  const saving = Math.abs(one.last.savingPercent.mean - other.last.savingPercent.mean);
  return [Math.max(saving, Math.abs(one.last.gainPercent.mean - other.last.gainPercent.mean))];
}

function sayMove({ last: { savingPercent, gainPercent } }: EffortSummary): string {
  return `${signed(savingPercent.mean)} % saving and ${signed(gainPercent.mean)} % gain`;
}

function signed(value: number): string {
  const text = fixed(value, 1);
  return value > 0 && text !== '0.0' ? `+${text}` : text;
}

function plural(count: number, noun: string): string {
  return `${formatNumber(count, 'number', 6)} ${noun}${count === 1 ? '' : 's'}`;
}

function listOf(parts: readonly string[]): string {
  if (parts.length <= 1) return parts.join('');
  return `${parts.slice(0, -1).join(', ')} and ${parts.at(-1)}`;
}

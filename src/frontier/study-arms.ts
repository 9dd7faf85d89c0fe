/**
 * The arms of a study as they are named and drawn: which of them belong to the main comparison, which started from a wrong
 * price, and one look an arm - the same colour, mark and dash in every picture and table.
 */
import { STUDY_EFFORTS } from './study-record.ts';
import type { StudyArm, StudyPlan } from './study-record.ts';
import type { Look } from './xy-look.ts';

export interface DrawnArm {
  /** Position in the plan's arms. */
  readonly index: number;
  readonly arm: StudyArm;
  readonly name: string;
  readonly look: Look;
}

const FIXED_LOOK: Look = { colour: 4, mark: 'cross', dash: 'dotted' };
const STEERED_LOOKS: readonly Look[] = [
  { colour: 0, mark: 'circle', dash: 'solid' },
  { colour: 2, mark: 'square', dash: 'long-dashed' },
  { colour: 3, mark: 'triangle', dash: 'dashed' },
  { colour: 5, mark: 'diamond', dash: 'dash-dotted' },
  { colour: 1, mark: 'triangle-down', dash: 'solid' },
];

/** Arms that start from the right price: the fixed one first, then by rising alpha. */
export function mainArms(plan: Pick<StudyPlan, 'arms'>): DrawnArm[] {
  const arms = [...plan.arms.entries()]
    .filter(([, { slopeFactor }]) => slopeFactor === 1)
    .toSorted(([, left], [, right]) => alphaOf(left) - alphaOf(right));
  const steered = arms.filter(([, { rule }]) => rule.kind === 'steered');
  return arms.map(([index, arm]) => ({ index, arm, name: ruleName(arm), look: lookOf(steered, index) }));
}

/** Rules that were also run from a wrong starting price, each with its arms by rising factor, the right one among them. */
export function slopeErrorArms(plan: Pick<StudyPlan, 'arms'>): { rule: string; arms: DrawnArm[] }[] {
  const main = mainArms(plan);
  const rules = new Map<string, DrawnArm[]>();
  for (const [index, arm] of plan.arms.entries()) {
    const name = ruleName(arm);
    const look = main.find((drawn) => drawn.name === name)?.look ?? lookOf([], index);
    rules.set(name, [...(rules.get(name) ?? []), { index, arm, name, look }]);
  }
  return [...rules]
    .filter(([, arms]) => arms.some(({ arm }) => arm.slopeFactor !== 1))
    .map(([rule, arms]) => ({ rule, arms: arms.toSorted((a, b) => a.arm.slopeFactor - b.arm.slopeFactor) }));
}

function ruleName({ rule }: Pick<StudyArm, 'rule'>): string {
  return rule.kind === 'fixed' ? 'fixed price' : `α = ${rule.alpha}`;
}

/** ×3, ×⅓: thirds and tenths as fractions, others as they are. */
export function factorName(factor: number): string {
  const inverse = Math.round(1 / factor);
  const isFraction = factor < 1 && Math.abs(inverse * factor - 1) < 1e-6;
  if (isFraction && inverse === 3) return '×⅓';
  return isFraction ? `×1/${inverse}` : `×${Number(factor.toPrecision(3))}`;
}

/** The direction of a steered arm in (saving, gain), not normalised; undefined for a fixed price, which has none. */
export function targetDirection({ rule }: StudyArm): { readonly saving: number; readonly gain: number } | undefined {
  return rule.kind === 'fixed' ? undefined : { saving: 1 - rule.alpha, gain: rule.alpha };
}

export function effortTitle(effort: number): string {
  const name = STUDY_EFFORTS[effort] ?? `effort ${effort}`;
  return `${name.slice(0, 1).toUpperCase()}${name.slice(1)} effort`;
}

function alphaOf({ rule }: StudyArm): number {
  return rule.kind === 'fixed' ? -1 : rule.alpha;
}

/** Looks are spread over the list so that five alphas take all five; more than five share from the start again. */
function lookOf(steered: readonly (readonly [number, StudyArm])[], index: number): Look {
  const place = steered.findIndex(([position]) => position === index);
  if (place < 0) return FIXED_LOOK;
  const looks = STEERED_LOOKS.length;
  const spread =
    steered.length <= 1 || steered.length > looks ? place : Math.round((place * (looks - 1)) / (steered.length - 1));
  return STEERED_LOOKS[spread % looks] ?? FIXED_LOOK;
}

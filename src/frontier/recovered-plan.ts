/**
 * The configuration of the public study, recovered from its recorded results: what `hone frontier study` runs unless told
 * otherwise, and what its verification varies. Adam's betas and the baseline are not known; these reproduce its figures.
 */
import type { StudyArm, StudyPlan } from './study-record.ts';
import { TOY_PROBLEM_COUNT } from './toy-task.ts';

const DECAY = { steps: 500, power: 0.6 };

export const RECOVERED_ALPHAS = [0, 0.25, 0.5, 0.75, 1] as const;

/** 100 problems x 3 seeds x 1,000 steps x {fixed, alpha 0, 1/4, 1/2, 3/4, 1}, 1,024 rollouts a step. */
export const RECOVERED_PLAN: StudyPlan = {
  seed: 1,
  problems: Array.from({ length: TOY_PROBLEM_COUNT }, (_, index) => index),
  arms: armsFrom({ slopeFactor: 1, seeds: 3 }),
  steps: 1000,
  batch: 1024,
  actor: { rate: 0.015, decay: DECAY, optimizer: 'adam', beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
  baseline: 'effort',
  controller: { rate: 0.02, decay: DECAY, proportional: 0, slewLimit: null, clip: null, deadZone: 0 },
  referenceRollouts: 200_000,
  isSkillFrozen: false,
  costFloor: null,
  costCeiling: null,
  recordEvery: 20,
};

/** The fixed price and the five alphas from one starting price: the true slope times `slopeFactor`. */
export function armsFrom(start: Pick<StudyArm, 'slopeFactor' | 'seeds'>): StudyArm[] {
  return [
    { rule: { kind: 'fixed' }, ...start },
    ...RECOVERED_ALPHAS.map((alpha): StudyArm => ({ rule: { kind: 'steered', alpha }, ...start })),
  ];
}

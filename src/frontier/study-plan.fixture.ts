/** For tests only: the recovered configuration of the public study, on the whole grid or a part of it. */
import type { StudyArm, StudyPlan } from './study-record.ts';

const decay = { steps: 500, power: 0.6 };

export const SIX_ARMS: readonly StudyArm[] = [
  { rule: { kind: 'fixed' }, slopeFactor: 1, seeds: 1 },
  ...[0, 0.25, 0.5, 0.75, 1].map((alpha): StudyArm => ({ rule: { kind: 'steered', alpha }, slopeFactor: 1, seeds: 1 })),
];

export function studyPlan(changes: Partial<StudyPlan> = {}): StudyPlan {
  return {
    seed: 1,
    problems: Array.from({ length: 100 }, (_, index) => index),
    arms: SIX_ARMS,
    steps: 1000,
    batch: 1024,
    actor: { rate: 0.015, decay, optimizer: 'adam', beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
    baseline: 'effort',
    controller: { rate: 0.02, decay, proportional: 0, slewLimit: null, clip: null, deadZone: 0 },
    referenceRollouts: null,
    isSkillFrozen: false,
    costFloor: null,
    costCeiling: null,
    recordEvery: 20,
    ...changes,
  };
}

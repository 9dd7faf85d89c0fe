/** For tests only: the recovered configuration with one seed, exact references, and what a test changes. */
import { armsFrom, RECOVERED_PLAN } from './recovered-plan.ts';
import type { StudyArm, StudyPlan } from './study-record.ts';

const SIX_ARMS: readonly StudyArm[] = armsFrom({ slopeFactor: 1, seeds: 1 });

export function studyPlan(changes: Partial<StudyPlan> = {}): StudyPlan {
  return { ...RECOVERED_PLAN, arms: SIX_ARMS, referenceRollouts: null, ...changes };
}

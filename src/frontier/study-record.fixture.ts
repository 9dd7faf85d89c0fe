/**
 * For tests only: a study's record that looks like a sampled one's, made from its mean field by shaking each recorded
 * point with noise from a seed. None of it is ever shown as a result.
 */
import { createRandom, deriveSeed } from '../domain/ids.ts';
import { meanFieldStudy } from './mean-field.ts';
import { studyPlan } from './study-plan.fixture.ts';
import { RECORD_COLUMNS } from './study-record.ts';
import type { StudyArm, StudyPlan, StudyRecord, StudyRun } from './study-record.ts';

const STEERED_HALF = { kind: 'steered', alpha: 0.5 } as const;
const WRONG_SLOPE_ARMS: readonly StudyArm[] = [3, 1 / 3].flatMap((slopeFactor): StudyArm[] => [
  { rule: { kind: 'fixed' }, slopeFactor, seeds: 1 },
  { rule: STEERED_HALF, slopeFactor, seeds: 1 },
]);

/** Main arms with three seeds and, unless left out, four arms from wrong slopes with one. */
export function inventRecord(
  changes: Partial<StudyPlan> = {},
  { hasWrongSlopes = true }: { readonly hasWrongSlopes?: boolean } = {},
): StudyRecord {
  const base = studyPlan(changes);
  const main = changes.arms ?? base.arms.map((arm) => ({ ...arm, seeds: 3 }));
  const plan: StudyPlan = { ...base, arms: hasWrongSlopes ? [...main, ...WRONG_SLOPE_ARMS] : main };
  const runs = meanFieldStudy(plan).runs.flatMap((run): StudyRun[] => {
    const seeds = plan.arms[run.arm]?.seeds ?? 1;
    return Array.from({ length: seeds }, (_, seed) => ({
      ...run,
      seed,
      values: shake(run, { seed, isPriceFixed: plan.arms[run.arm]?.rule.kind === 'fixed' }),
    }));
  });
  const ascending = runs.toSorted((a, b) => a.problem - b.problem || a.seed - b.seed || a.arm - b.arm);
  return { plan, runs: ascending };
}

/** Costs and prices move by a few hundredths, more at low effort; the first row stays, as it is known. */
function shake(
  { problem, values }: StudyRun,
  { seed, isPriceFixed }: { seed: number; isPriceFixed: boolean },
): Float64Array {
  const shaken = values.slice();
  const random = createRandom(deriveSeed(seed, 'shake', problem));
  const columns = RECORD_COLUMNS.length;
  const drift = Array.from({ length: columns }, () => 0);
  for (let index = columns; index < shaken.length; index++) {
    const column = index % columns;
    if (column === 0 || (isPriceFixed && column > 3)) continue;
    const scale = 0.05 / (1 + ((column - 1) % 3));
    drift[column] = 0.8 * (drift[column] ?? 0) + scale * (random.next() + random.next() - 1);
    shaken[index] = (shaken[index] ?? 0) * Math.exp(drift[column] ?? 0);
  }
  return shaken;
}

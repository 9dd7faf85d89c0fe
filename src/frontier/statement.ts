/**
 * What a statement about the study is: a claim, a check of evidence that is handed to it, and the words for what was
 * observed and what the bound is. Checks compute nothing at random, so each can be shown to fail.
 */
import type { fBeta, linearise } from '../reward/f-beta.ts';
import type { fixedLanding, steeredLanding } from './equilibrium.ts';
import type { StudyRecord } from './study-record.ts';
import type { ArmSummary } from './study-summary.ts';
import type {
  expectedGradient,
  successCurvature,
  successRate,
  successSlope,
  toyProblem,
  toyStart,
} from './toy-task.ts';

/** The closed forms under test. */
export interface Formulas {
  readonly toyProblem: typeof toyProblem;
  readonly toyStart: typeof toyStart;
  readonly successRate: typeof successRate;
  readonly successSlope: typeof successSlope;
  readonly successCurvature: typeof successCurvature;
  readonly expectedGradient: typeof expectedGradient;
  readonly fixedLanding: typeof fixedLanding;
  readonly steeredLanding: typeof steeredLanding;
  readonly fBeta: typeof fBeta;
  readonly linearise: typeof linearise;
}

export interface Evidence {
  readonly formulas: Formulas;
  /** Mean field of problem 0 with plain gradient steps (rate 1, constant) and of problem 99 with Adam (decaying). */
  readonly golden: { readonly sgd: StudyRecord; readonly adam: StudyRecord };
  /** Mean field of the whole grid, the actor's rate constant, the controller's decaying. */
  readonly meanField: StudyRecord;
  /** Sampled: the six arms. */
  readonly main: StudyRecord;
  /** Sampled, skill frozen: the six arms from the true slope, then from three times it. */
  readonly frozen: StudyRecord;
  /** Sampled, alpha 0 with a cost floor at 0.9 c0: without a clip, and with the price clipped at 20. */
  readonly floor: StudyRecord;
  readonly clippedFloor: StudyRecord;
}

export interface StatementResult {
  readonly passed: boolean;
  readonly observed: string;
  readonly bound: string;
}

export interface Statement {
  readonly id: number;
  readonly statement: string;
  readonly kind: 'exact' | 'statistical';
  check(evidence: Evidence): StatementResult;
}

/** The arm from the true slope with this alpha (null = fixed). Throws where it is missing: evidence without it is a mistake of the caller, not a failed statement. */
export function armOf(arms: readonly ArmSummary[], { alpha }: { readonly alpha: number | null }): ArmSummary {
  const found = arms.find(({ arm: { rule, slopeFactor } }) => {
    if (slopeFactor !== 1) return false;
    return rule.kind === 'fixed' ? alpha === null : rule.alpha === alpha;
  });
  if (found === undefined) throw new RangeError(`the evidence has no arm with alpha ${alpha ?? 'fixed'}`);
  return found;
}

/** NaN for an empty list or one with a NaN, so that no comparison with it passes. */
export function largest(values: readonly number[]): number {
  return values.length === 0 ? Number.NaN : Math.max(...values);
}

/** The result of a figure that must not exceed a bound; small bounds print the figure with its exponent. NaN fails. */
export function atMost(
  value: number,
  { bound, what }: { readonly bound: number; readonly what: string },
): StatementResult {
  const digits = bound < 0.01 ? scientific(value) : points(value);
  return { passed: value <= bound, observed: `${what} ${digits}`, bound: `at most ${bound}` };
}

/** Two digits and an exponent, for errors. */
export function scientific(value: number): string {
  return value.toExponential(1);
}

/** Two decimals, for percentage points and log prices. */
export function points(value: number): string {
  return value.toFixed(2);
}

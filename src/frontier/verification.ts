/**
 * Gathers the evidence for the thirteen statements and has them checked: the closed forms, mean-field runs, and sampled
 * studies of 20 problems with batches of 256 rollouts, about 3 x 10^8 rollouts in all. Owns the plans of that
 * evidence; statements and bounds are in exact-statements.ts and sampled-statements.ts. Same seed, same report.
 */
import { HoneError } from '../domain/errors.ts';
import { fBeta, linearise } from '../reward/f-beta.ts';
import { fixedLanding, steeredLanding } from './equilibrium.ts';
import { EXACT_STATEMENTS } from './exact-statements.ts';
import { meanFieldStudy } from './mean-field.ts';
import { armsFrom, RECOVERED_PLAN } from './recovered-plan.ts';
import { SAMPLED_STATEMENTS } from './sampled-statements.ts';
import type { Evidence, Formulas, Statement, StatementResult } from './statement.ts';
import type { StudyArm, StudyPlan, StudyRecord } from './study-record.ts';
import {
  expectedGradient,
  successCurvature,
  successRate,
  successSlope,
  toyProblem,
  toyStart,
  TOY_PROBLEM_COUNT,
} from './toy-task.ts';

export interface VerifiedStatement extends StatementResult {
  readonly id: number;
  readonly statement: string;
  readonly kind: Statement['kind'];
}

export interface VerificationReport {
  readonly seed: number;
  /** Whether every statement holds. */
  readonly passed: boolean;
  readonly statements: readonly VerifiedStatement[];
}

export interface VerificationOptions {
  /** Runs a sampled study; seeds are paired across arms. */
  readonly simulate: (plan: StudyPlan) => Promise<StudyRecord>;
  readonly meanField?: (plan: StudyPlan) => StudyRecord;
  readonly seed: number;
  /** Told before each sampled study: its name, and how many of them are done of how many. */
  readonly onProgress?: (progress: { readonly study: string; readonly done: number; readonly total: number }) => void;
  readonly signal?: AbortSignal;
}

/** In the order of their numbers. */
export const STATEMENTS: readonly Statement[] = [...EXACT_STATEMENTS, ...SAMPLED_STATEMENTS];

const FORMULAS: Formulas = {
  toyProblem,
  toyStart,
  successRate,
  successSlope,
  successCurvature,
  expectedGradient,
  fixedLanding,
  steeredLanding,
  fBeta,
  linearise,
};

/** With one seed, the largest of many means passes its bound by noise alone once in some twenty studies. */
const SEEDS = 3;

const ALPHA_0: StudyArm = { rule: { kind: 'steered', alpha: 0 }, slopeFactor: 1, seeds: 1 };

/** Every fifth problem p of the grid, its ratio moved on with pGood so that all ten ratios occur: two problems a pGood. */
export const VERIFICATION_PROBLEMS: readonly number[] = Array.from({ length: TOY_PROBLEM_COUNT / 5 }, (_, place) => {
  const problem = 5 * place;
  const row = Math.floor(problem / 10);
  return 10 * row + ((3 * row + problem) % 10);
});

/** The sampled studies that the statements need, by name. */
export function verificationPlans(seed: number): Record<'main' | 'frozen' | 'floor' | 'clippedFloor', StudyPlan> {
  const main: StudyPlan = {
    ...RECOVERED_PLAN,
    seed,
    problems: VERIFICATION_PROBLEMS,
    arms: armsFrom({ slopeFactor: 1, seeds: SEEDS }),
    batch: 256,
    referenceRollouts: null,
  };
  const floor = { ...main, arms: [ALPHA_0], costFloor: 0.9 };
  return {
    main,
    frozen: {
      ...main,
      arms: [1, 3].flatMap((slopeFactor) => armsFrom({ slopeFactor, seeds: SEEDS })),
      isSkillFrozen: true,
    },
    floor,
    clippedFloor: { ...floor, controller: { ...main.controller, clip: 20 } },
  };
}

/**
 * All statements, in order. A statement that does not hold is reported, not thrown; throws `aborted` when the signal
 * fires between studies, and whatever `simulate` throws.
 */
export async function verifyStudy(options: VerificationOptions): Promise<VerificationReport> {
  const evidence = await gatherEvidence(options);
  const statements = STATEMENTS.map((statement) => verifyStatement(statement, evidence));
  return { seed: options.seed, passed: statements.every(({ passed }) => passed), statements };
}

export function verifyStatement(statement: Statement, evidence: Evidence): VerifiedStatement {
  const { id, statement: text, kind } = statement;
  return { id, statement: text, kind, ...statement.check(evidence) };
}

/** Runs the mean-field and the sampled studies of the verification. Throws as `verifyStudy`. */
export async function gatherEvidence(options: VerificationOptions): Promise<Evidence> {
  const { simulate, meanField = meanFieldStudy, seed, onProgress, signal } = options;
  const plans = Object.entries(verificationPlans(seed));
  const records: Record<string, StudyRecord> = {};
  for (const [done, [study, plan]] of plans.entries()) {
    if (signal?.aborted === true) {
      throw new HoneError('aborted', `The verification was stopped after ${done} of ${plans.length} studies.`);
    }
    onProgress?.({ study, done, total: plans.length });
    // In turn and not at once: each study takes all cores.
    records[study] = await simulate(plan);
  }
  const { main, frozen, floor, clippedFloor } = records;
  if (main === undefined || frozen === undefined || floor === undefined || clippedFloor === undefined) {
    throw new RangeError('a study of the verification is missing');
  }
  return { ...exactEvidence(meanField), main, frozen, floor, clippedFloor };
}

/** The part of the evidence that is computed without sampling. */
function exactEvidence(
  meanField: (plan: StudyPlan) => StudyRecord = meanFieldStudy,
): Pick<Evidence, 'formulas' | 'golden' | 'meanField'> {
  const { actor, controller } = RECOVERED_PLAN;
  const one = (problem: number, alpha: number): Pick<StudyPlan, 'problems' | 'arms' | 'referenceRollouts'> => ({
    problems: [problem],
    arms: [{ rule: { kind: 'steered', alpha }, slopeFactor: 1, seeds: 1 }],
    referenceRollouts: null,
  });
  return {
    formulas: FORMULAS,
    golden: {
      sgd: meanField({
        ...RECOVERED_PLAN,
        ...one(0, 0.25),
        actor: { ...actor, optimizer: 'sgd', rate: 1, decay: null },
        controller: { ...controller, decay: null },
      }),
      adam: meanField({ ...RECOVERED_PLAN, ...one(99, 1) }),
    },
    meanField: meanField({ ...RECOVERED_PLAN, actor: { ...actor, decay: null } }),
  };
}

/** A text table: number, statement, what was observed, the bound, and whether it holds. */
export function renderVerification({ seed, statements, passed }: VerificationReport): string {
  const lines = statements.flatMap(({ id, statement, kind, observed, bound, passed: holds }) => [
    `${holds ? 'holds' : 'FAILS'}  ${String(id).padStart(2)}  ${statement} [${kind}]`,
    `           observed: ${observed}`,
    `           bound:    ${bound}`,
  ]);
  const held = statements.filter(({ passed: holds }) => holds).length;
  const verdict = passed
    ? `All ${statements.length} statements hold`
    : `${held} of ${statements.length} statements hold`;
  return [...lines, `${verdict} (seed ${seed}).`, ''].join('\n');
}

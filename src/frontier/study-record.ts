/**
 * The nouns of the toy study: what is run (plan), by which rule (arm), and what was recorded (runs). Plain values; whoever
 * simulates writes them, whoever sums up, checks or draws reads them. Seeds are paired: the same problem and seed draws
 * the same random numbers under every arm, so that arms differ by their rule alone.
 */

export const STUDY_EFFORTS = ['low', 'medium', 'high'] as const;
/** Mean numbers of candidates that the three efforts start from. */
export const STARTING_COSTS = [2, 6, 15] as const;

/** One row of the problem grid: chance that a candidate is right after the good action, and after the bad one. */
export interface ToyProblem {
  /** Place in the grid of 100: i = floor(index / 10) picks pGood, index mod 10 picks the ratio. */
  readonly index: number;
  readonly pGood: number;
  readonly pBad: number;
}

/** Who sets the price of cost, and from which start. */
export interface StudyArm {
  /** `fixed` keeps the starting price; `steered` follows the rule with this alpha in [0, 1]. */
  readonly rule: { readonly kind: 'fixed' } | { readonly kind: 'steered'; readonly alpha: number };
  /** The starting price is the true slope times this; 1 = right. */
  readonly slopeFactor: number;
  /** Seeds that the arm is run with: 0 .. seeds - 1. */
  readonly seeds: number;
}

/** rate x (1 + (t - 1) / steps)^-power at update t = 1, 2, ...; `steps` infinite = constant. */
export interface DecaySchedule {
  readonly rate: number;
  /** Null = no decay. */
  readonly decay: { readonly steps: number; readonly power: number } | null;
}

export interface StudyPlan {
  readonly seed: number;
  readonly problems: readonly number[];
  readonly arms: readonly StudyArm[];
  readonly steps: number;
  /** Rollouts of one step, all efforts together; each draws its effort uniformly. */
  readonly batch: number;
  readonly actor: DecaySchedule & {
    readonly optimizer: 'adam' | 'sgd';
    readonly beta1: number;
    readonly beta2: number;
    readonly epsilon: number;
  };
  readonly baseline: 'none' | 'batch' | 'effort' | 'leave-one-out' | 'length-weighted' | 'deviation';
  readonly controller: DecaySchedule & {
    /** Weight of the change of the gap, in log price; 0 = none. */
    readonly proportional: number;
    /** Largest change of log price in one step; `actor` = the actor's rate at that step; null = none. */
    readonly slewLimit: number | 'actor' | null;
    /** Price stays within [start / clip, start x clip]; null = none. */
    readonly clip: number | null;
    /** No move while |gap| is below this many standard deviations of the reference's noise; 0 = none. */
    readonly deadZone: number;
  };
  /** Monte Carlo rollouts per effort that s0 and c0 are measured from; null = exact. */
  readonly referenceRollouts: number | null;
  /** The action's parameters do not move: the frontier stays where it is. */
  readonly isSkillFrozen: boolean;
  /** Mean cost cannot leave these multiples of its start; null = free. */
  readonly costFloor: number | null;
  readonly costCeiling: number | null;
  /** Steps between two recorded points. */
  readonly recordEvery: number;
}

/** Columns of one recorded point. */
export const RECORD_COLUMNS = [
  'q',
  'costLow',
  'costMedium',
  'costHigh',
  'priceLow',
  'priceMedium',
  'priceHigh',
] as const;

export interface StudyRun {
  /** Index of the problem in the grid. */
  readonly problem: number;
  readonly seed: number;
  /** Position in the plan's arms. */
  readonly arm: number;
  /** Points x RECORD_COLUMNS, row by row, at `recordedSteps(plan)`; q is the chance of the good action. */
  readonly values: Float64Array;
  /** Rollouts whose number of candidates was cut at the cap. */
  readonly capped: number;
  /** s0 and c0 that the controller measured against, by effort. */
  readonly references: readonly { readonly success: number; readonly cost: number }[];
}

export interface StudyRecord {
  readonly plan: StudyPlan;
  /** Ascending by problem, seed, arm. */
  readonly runs: readonly StudyRun[];
}

/** Step 0 is the start; step t is the state after t updates. The last step is always among them. */
export function recordedSteps({ steps, recordEvery }: Pick<StudyPlan, 'steps' | 'recordEvery'>): number[] {
  const recorded: number[] = [];
  for (let step = 0; step < steps; step += recordEvery) recorded.push(step);
  recorded.push(steps);
  return recorded;
}

/**
 * The random numbers of the toy study, and what a batch of rollouts adds up to. One batch of draws serves every arm of a
 * problem and seed, so that arms are paired by construction; a policy turns the draws into rollouts without drawing again.
 * Everything an actor or a controller needs of a batch are whole-number sums by (effort, input, action): exact, and the
 * same in any order. Three 32-bit words make a rollout. This file holds the hot loops; bench/frontier.ts times them.
 */
import { deriveSeed } from '../domain/ids.ts';
import { STUDY_EFFORTS } from './study-record.ts';
import type { Candidates } from './toy-task.ts';

/** Cells of a batch: effort x input, cell = 2 effort + input. */
export const CELL_COUNT = 2 * STUDY_EFFORTS.length;

/** A number of candidates above this is cut, and counted: sums stay exact and nothing overflows. */
export const CANDIDATE_CAP = 2 ** 20;

/** Largest batch for which every sum of the plain loop fits in 32 bits, and every sum of squares in a double. */
export const MAX_BATCH = 2 ** 16;

/** Candidates that have a tabulated chance of success; 0 .. SUCCESS_TABLE_LENGTH - 1. */
const SUCCESS_TABLE_LENGTH = 4096;

/** -ln of the smallest uniform number that is drawn, 2^-32, rounded up: no draw is larger. */
const LARGEST_EXPONENTIAL = 22.1808;

const LOG_2_POW_32 = 32 * Math.LN2;
const ACTION_SCALE = 2 ** 30;
/** One less than 2^31, so that a difference of two such numbers is an int32 and its sign says which is larger. */
const SUCCESS_SCALE = 2 ** 31 - 1;

/** Four words of state of xoshiro128++ (Blackman and Vigna, 2019). Not all 0. */
export type Generator = Int32Array;

/** A generator for a path such as ('study', problem, seed): the same path gives the same draws. */
export function createGenerator(seed: number, ...path: readonly (string | number)[]): Generator {
  const state = Int32Array.from({ length: 4 }, (_, word) => deriveSeed(seed, ...path, word));
  if (state.every((word) => word === 0)) state[0] = 1;
  return state;
}

/** A batch before any policy: by cell, `capacity` places a cell of which the first `counts[cell]` are filled. */
export interface Draws {
  readonly capacity: number;
  readonly counts: Int32Array;
  /** 30 bits: the action is 1 where this is below rho x 2^30. */
  readonly actions: Int32Array;
  /**
   * -ln U with U uniform on the odd multiples of 2^-32, and K = floor(this / ln(1 + 1 / c)): every P(K >= k) is within 2^-32
   * of the geometric law's. The logarithm's own rounding, about 4e-15, moves less than that.
   */
  readonly exponentials: Float64Array;
  /** 31 bits: a success where this is below the chance of success x (2^31 - 1). */
  readonly successes: Int32Array;
}

/** Room for batches of up to `capacity` rollouts, 1 .. MAX_BATCH. */
export function createDraws(capacity: number): Draws {
  const places = CELL_COUNT * capacity;
  return {
    capacity,
    counts: new Int32Array(CELL_COUNT),
    actions: new Int32Array(places),
    exponentials: new Float64Array(places),
    successes: new Int32Array(places),
  };
}

/**
 * Draws `count` <= capacity rollouts. Effort and input are uniform, or the input alone when `effort` is given. The cell and
 * the action come from one word w: the high part of w x cells is the cell, the low part is uniform within it. Shares are
 * off by less than 2^-29.
 */
export function drawBatch(
  generator: Generator,
  draws: Draws,
  { count, effort }: { readonly count: number; readonly effort?: number },
): void {
  const { capacity, counts, actions, exponentials, successes } = draws;
  const cells = effort === undefined ? CELL_COUNT : 2;
  const firstCell = effort === undefined ? 0 : 2 * effort;
  counts.fill(0);
  let s0 = generator[0]!;
  let s1 = generator[1]!;
  let s2 = generator[2]!;
  let s3 = generator[3]!;
  for (let index = 0; index < count; index++) {
    // Three steps of xoshiro128++, written out: state in locals is what makes them cheap.
    let sum = (s0 + s3) | 0;
    const word = (((sum << 7) | (sum >>> 25)) + s0) | 0;
    let shifted = s1 << 9;
    s2 ^= s0;
    s3 ^= s1;
    s1 ^= s2;
    s0 ^= s3;
    s2 ^= shifted;
    s3 = (s3 << 11) | (s3 >>> 21);

    sum = (s0 + s3) | 0;
    const uniform = ((((sum << 7) | (sum >>> 25)) + s0) | 1) >>> 0;
    shifted = s1 << 9;
    s2 ^= s0;
    s3 ^= s1;
    s1 ^= s2;
    s0 ^= s3;
    s2 ^= shifted;
    s3 = (s3 << 11) | (s3 >>> 21);

    sum = (s0 + s3) | 0;
    const success = (((sum << 7) | (sum >>> 25)) + s0) >>> 1;
    shifted = s1 << 9;
    s2 ^= s0;
    s3 ^= s1;
    s1 ^= s2;
    s0 ^= s3;
    s2 ^= shifted;
    s3 = (s3 << 11) | (s3 >>> 21);

    const high = Math.imul(word >>> 16, cells) + (Math.imul(word & 0xffff, cells) >>> 16);
    const cell = firstCell + (high >>> 16);
    const filled = counts[cell]!;
    counts[cell] = filled + 1;
    const place = cell * capacity + filled;
    actions[place] = Math.imul(word, cells) >>> 2;
    exponentials[place] = LOG_2_POW_32 - Math.log(uniform);
    successes[place] = success;
  }
  generator[0] = s0;
  generator[1] = s1;
  generator[2] = s2;
  generator[3] = s3;
}

/** Chance of success after K candidates of one kind, 1 - (1 - p)^K, in units of 1 / (2^31 - 1). */
export interface SuccessTable {
  readonly pGood: number;
  readonly pBad: number;
  /** Two entries a number of candidates: after the good action, after the bad one. */
  readonly thresholds: Int32Array;
}

/** Tables of one problem; pGood in (0, 1], pBad in [0, 1]. */
export function createSuccessTable({ pGood, pBad }: Candidates): SuccessTable {
  const thresholds = new Int32Array(2 * SUCCESS_TABLE_LENGTH);
  for (let candidates = 0; candidates < SUCCESS_TABLE_LENGTH; candidates++) {
    thresholds[2 * candidates] = successThreshold(pGood, candidates);
    thresholds[2 * candidates + 1] = successThreshold(pBad, candidates);
  }
  return { pGood, pBad, thresholds };
}

function successThreshold(chance: number, candidates: number): number {
  if (candidates === 0) return 0;
  return Math.round(-Math.expm1(candidates * Math.log1p(-chance)) * SUCCESS_SCALE);
}

/** Columns of a cell's sums: a = action, S = success, K = candidates. */
export const TALLY = {
  count: 0,
  /** Sum of a. */
  actions: 1,
  /** Sum of S. */
  successes: 2,
  /** Sum of a S. */
  actionSuccesses: 3,
  /** Sum of K. */
  candidates: 4,
  /** Sum of a K. */
  actionCandidates: 5,
  /** Sum of K^2. */
  squares: 6,
  /** Sum of S K. */
  successCandidates: 7,
} as const;
export const TALLY_COLUMNS = 8;

/** Sums of a batch, CELL_COUNT x TALLY_COLUMNS. */
export function createTally(): Float64Array {
  return new Float64Array(CELL_COUNT * TALLY_COLUMNS);
}

/** What of a policy decides about rollouts. */
export interface SamplingPolicy {
  /** rho: chance of action 1 for inputs 0 and 1, in [0, 1]. */
  readonly actionChances: Float64Array;
  /** c: mean number of candidates by effort, above 0. */
  readonly costs: Float64Array;
}

/** The rollouts of a policy on a batch, summed into `tally`, which is overwritten. Returns how many were cut at the cap. */
export function tallyBatch(
  draws: Draws,
  policy: SamplingPolicy,
  { table, tally }: { readonly table: SuccessTable; readonly tally: Float64Array },
): number {
  const { capacity, counts } = draws;
  let capped = 0;
  for (let cell = 0; cell < CELL_COUNT; cell++) {
    const input = cell & 1;
    const perExponential = 1 / Math.log1p(1 / policy.costs[cell >> 1]!);
    const actionBound = Math.round(policy.actionChances[input]! * ACTION_SCALE);
    const first = cell * capacity;
    const span: CellSpan = { first, end: first + counts[cell]!, input, actionBound, perExponential };
    const isTabulated = perExponential * LARGEST_EXPONENTIAL < SUCCESS_TABLE_LENGTH;
    if (isTabulated) tallyTabulated(draws, span, { table, tally, row: cell * TALLY_COLUMNS });
    else capped += tallyLong(draws, span, { table, tally, row: cell * TALLY_COLUMNS });
  }
  return capped;
}

interface CellSpan {
  readonly first: number;
  readonly end: number;
  readonly input: number;
  readonly actionBound: number;
  readonly perExponential: number;
}

interface CellTarget {
  readonly table: SuccessTable;
  readonly tally: Float64Array;
  readonly row: number;
}

/** No branch depends on a draw: signs of differences are the coins, and a mask is the product with one. */
function tallyTabulated({ actions, exponentials, successes }: Draws, span: CellSpan, target: CellTarget): void {
  const { first, end, input, actionBound, perExponential } = span;
  const { thresholds } = target.table;
  let actionSum = 0;
  let successSum = 0;
  let actionSuccessSum = 0;
  let candidateSum = 0;
  let actionCandidateSum = 0;
  let squareSum = 0;
  let successCandidateSum = 0;
  for (let place = first; place < end; place++) {
    const action = (actions[place]! - actionBound) >>> 31;
    const candidates = (exponentials[place]! * perExponential) | 0;
    const success = (successes[place]! - thresholds[(candidates << 1) | (action ^ input)]!) >>> 31;
    actionSum = (actionSum + action) | 0;
    successSum = (successSum + success) | 0;
    actionSuccessSum = (actionSuccessSum + (action & success)) | 0;
    candidateSum = (candidateSum + candidates) | 0;
    actionCandidateSum = (actionCandidateSum + (candidates & -action)) | 0;
    squareSum += candidates * candidates;
    successCandidateSum = (successCandidateSum + (candidates & -success)) | 0;
  }
  const { tally, row } = target;
  tally[row + TALLY.count] = end - first;
  tally[row + TALLY.actions] = actionSum;
  tally[row + TALLY.successes] = successSum;
  tally[row + TALLY.actionSuccesses] = actionSuccessSum;
  tally[row + TALLY.candidates] = candidateSum;
  tally[row + TALLY.actionCandidates] = actionCandidateSum;
  tally[row + TALLY.squares] = squareSum;
  tally[row + TALLY.successCandidates] = successCandidateSum;
}

/** The same for costs so large that candidates may leave the table: chances are computed, and candidates cut at the cap. */
function tallyLong({ actions, exponentials, successes }: Draws, span: CellSpan, target: CellTarget): number {
  const { first, end, input, actionBound, perExponential } = span;
  const { tally, row, table } = target;
  tally.fill(0, row, row + TALLY_COLUMNS);
  tally[row + TALLY.count] = end - first;
  let capped = 0;
  for (let place = first; place < end; place++) {
    const action = actions[place]! < actionBound ? 1 : 0;
    let candidates = Math.floor(exponentials[place]! * perExponential);
    if (!(candidates <= CANDIDATE_CAP)) {
      candidates = CANDIDATE_CAP;
      capped++;
    }
    const chance = action === input ? table.pGood : table.pBad;
    const success = successes[place]! < successThreshold(chance, candidates) ? 1 : 0;
    tally[row + TALLY.actions]! += action;
    tally[row + TALLY.successes]! += success;
    tally[row + TALLY.actionSuccesses]! += action * success;
    tally[row + TALLY.candidates]! += candidates;
    tally[row + TALLY.actionCandidates]! += action * candidates;
    tally[row + TALLY.squares]! += candidates * candidates;
    tally[row + TALLY.successCandidates]! += success * candidates;
  }
  return capped;
}

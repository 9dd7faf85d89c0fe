/**
 * How long a user waits, from what a rollout counted: T = overhead + tokens / tokensPerSecond + turns x secondsPerTurn.
 * Tool calls made in parallel are one turn. Fitted from recorded rollouts, so that a reward sees the latency of the
 * product and not that of a busy training machine. No coefficient is negative.
 */
import { z } from 'zod';

import { HoneError } from '../domain/errors.ts';

export const latencyModelSchema = z.strictObject({
  overheadSeconds: z.number().nonnegative().default(0).describe('seconds that every rollout takes'),
  tokensPerSecond: z.number().positive().describe('tokens that the policy writes in a second'),
  secondsPerTurn: z
    .number()
    .nonnegative()
    .default(0)
    .describe('seconds that an assistant turn adds: request, prefill and tools; parallel tool calls are one turn'),
});
export type LatencyModel = z.output<typeof latencyModelSchema>;

export interface LatencyCounts {
  /** Tokens that the policy wrote. */
  readonly sampledTokens: number;
  readonly turns: number;
}

export interface LatencyFit {
  readonly model: LatencyModel;
  /** Share of the latencies' variance that the model explains, at most 1. */
  readonly rSquared: number;
  readonly meanAbsoluteErrorSeconds: number;
  readonly samples: number;
  /** The turns that every sample had: their time is then part of the overhead, and secondsPerTurn 0. Null where turns varied. */
  readonly constantTurns: number | null;
}

/** Seconds, at least 0. Throws `invalid-rollout` on a count that is negative or not finite. */
export function predictLatency(model: LatencyModel, { sampledTokens, turns }: LatencyCounts): number {
  checkMeasured(sampledTokens, 'sampled tokens');
  checkMeasured(turns, 'turns');
  return model.overheadSeconds + sampledTokens / model.tokensPerSecond + turns * model.secondsPerTurn;
}

/**
 * Non-negative least squares of latency on 1, sampled tokens and turns; exact: the optimum is the least-squares solution
 * on its own support, so it is the best of the eight supports whose solution has no negative coefficient.
 * Where all samples have as many turns, the time of these cannot be told from the overhead and is fitted as part of it: right
 * for a product that always takes so many. Throws `invalid-config`, naming what to record, when the coefficients cannot be
 * told apart (fewer than 3 samples, tokens or a latency that never vary, tokens and turns that move together) or when tokens
 * explain nothing.
 */
export function fitLatencyModel(samples: readonly (LatencyCounts & { readonly latencySeconds: number })[]): LatencyFit {
  for (const { sampledTokens, turns, latencySeconds } of samples) {
    checkMeasured(sampledTokens, 'sampled tokens');
    checkMeasured(turns, 'turns');
    checkMeasured(latencySeconds, 'seconds of latency');
  }
  const columns = {
    overhead: new Float64Array(samples.length).fill(1),
    turns: Float64Array.from(samples, ({ turns }) => turns),
    tokens: Float64Array.from(samples, ({ sampledTokens }) => sampledTokens),
  };
  const latencies = Float64Array.from(samples, ({ latencySeconds }) => latencySeconds);
  const constantTurns = isConstant(columns.turns) ? (columns.turns[0] ?? null) : null;
  checkIdentified(columns, latencies);

  let best = { squares: Infinity, overhead: 0, turns: 0, tokens: 0 };
  for (let support = 7; support > 0; support--) {
    const names = (['overhead', 'turns', 'tokens'] as const).filter((_, bit) => (support >> bit) & 1);
    if (constantTurns !== null && names.includes('turns')) continue;
    const { coefficients, squares } = leastSquares(
      names.map((name) => columns[name]),
      latencies,
    );
    if (coefficients.some((coefficient) => coefficient < 0) || squares >= best.squares) continue;
    best = { squares, overhead: 0, turns: 0, tokens: 0 };
    for (const [index, name] of names.entries()) best[name] = coefficients[index] ?? 0;
  }
  const tokensPerSecond = 1 / best.tokens;
  if (!Number.isFinite(tokensPerSecond)) {
    throw new HoneError(
      'invalid-config',
      `Latency does not grow with sampled tokens over the ${samples.length} recorded rollouts, so tokensPerSecond cannot be fitted.`,
      {
        cure: 'Record rollouts of more different lengths on an unloaded engine, or give the latency model as numbers.',
      },
    );
  }
  const model = { overheadSeconds: best.overhead, tokensPerSecond, secondsPerTurn: best.turns };
  let absolute = 0;
  for (const sample of samples) absolute += Math.abs(sample.latencySeconds - predictLatency(model, sample));
  const { squares: spread } = leastSquares([columns.overhead], latencies);
  return {
    model,
    rSquared: 1 - best.squares / spread,
    meanAbsoluteErrorSeconds: absolute / samples.length,
    samples: samples.length,
    constantTurns,
  };
}

/**
 * Least squares by modified Gram-Schmidt on the columns with the target as the last one (Bjorck 1967: backward stable).
 * The columns must be independent. `squares` is the sum of squared residuals.
 */
function leastSquares(
  columns: readonly Float64Array[],
  target: Float64Array,
): { readonly coefficients: readonly number[]; readonly squares: number } {
  const rest = [...columns, target].map((column) => column.slice());
  const residual = rest[columns.length] ?? target;
  const triangle = columns.map((_, index) => {
    const pivot = rest[index] ?? target;
    const norm = Math.sqrt(dot(pivot, pivot));
    return rest.map((column, other) => {
      if (other < index) return 0;
      if (other === index) return norm;
      const projection = dot(pivot, column) / norm;
      for (let row = 0; row < column.length; row++)
        column[row] = (column[row] ?? 0) - (projection / norm) * (pivot[row] ?? 0);
      return projection;
    });
  });
  const coefficients = columns.map(() => 0);
  for (let index = columns.length - 1; index >= 0; index--) {
    const row = triangle[index] ?? [];
    let value = row[columns.length] ?? 0;
    for (let other = index + 1; other < columns.length; other++)
      value -= (row[other] ?? 0) * (coefficients[other] ?? 0);
    coefficients[index] = value / (row[index] ?? 1);
  }
  return { coefficients, squares: dot(residual, residual) };
}

function checkIdentified(
  { overhead, turns, tokens }: Record<'overhead' | 'turns' | 'tokens', Float64Array>,
  latencies: Float64Array,
): void {
  const refuse = (what: string, cure: string): never => {
    throw new HoneError('invalid-config', `The latency model cannot be fitted: ${what}.`, {
      cure: `${cure}, or give the latency model as numbers.`,
    });
  };
  if (latencies.length < 3) {
    refuse(
      `${latencies.length} recorded rollouts for 3 coefficients`,
      'Record the latency of at least 3 rollouts, better of 100',
    );
  }
  if (isConstant(latencies)) {
    refuse(
      `every one of ${latencies.length} rollouts took ${latencies[0]} seconds`,
      'Record rollouts that differ in length, with a clock that resolves them',
    );
  }
  if (isConstant(tokens)) {
    refuse(`every rollout has ${tokens[0]} sampled tokens`, 'Record rollouts that differ in sampled tokens');
  }
  if (isConstant(turns)) return;
  const alone = leastSquares([overhead], tokens).squares;
  const besideTurns = leastSquares([overhead, turns], tokens).squares;
  if (besideTurns <= COLLINEAR_SHARE * alone) {
    refuse(
      'sampled tokens and turns move together, so their times cannot be told apart',
      'Record rollouts with the same turns and different lengths',
    );
  }
}

function isConstant(column: Float64Array): boolean {
  return column.every((value) => value === column[0]);
}

/** Share of the tokens' variance that turns leave unexplained below which the two count as one. */
const COLLINEAR_SHARE = 1e-12;

function dot(a: Float64Array, b: Float64Array): number {
  let sum = 0;
  for (let index = 0; index < a.length; index++) sum += (a[index] ?? 0) * (b[index] ?? 0);
  return sum;
}

function checkMeasured(value: number, what: string): void {
  if (value >= 0 && Number.isFinite(value)) return;
  throw new HoneError('invalid-rollout', `A rollout has ${value} ${what}.`, {
    cure: 'These are finite and at least 0; look at the recorder that measured them.',
  });
}

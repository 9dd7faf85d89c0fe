/**
 * Where the frontier term stands: what the initial policy did at each effort, and the price of each cost there. Success is
 * kept by its parts, so that a new weight of precision expresses the same reference anew, exactly; prices go on from where
 * they are, as steering finds the new balance by itself.
 */
import { z } from 'zod';

import { HoneError } from '../domain/errors.ts';
import type { Effort } from '../domain/effort.ts';
import { weightedCost } from './cost.ts';
import { gapsOf } from './objectives.ts';
import { clusteredMoments, gapError } from './reference.ts';
import type { Reference, ReferenceMoments } from './reference.ts';
import { relativeGains } from './relative-gain.ts';
import { partWeights, successParts } from './scored-rollout.ts';
import type { ScoredRollout } from './scored-rollout.ts';
import { priceOf, steer } from './steering.ts';
import type { SteeringState } from './steering.ts';
import type { FrontierTerm, RewardBase } from './terms.ts';

const steeringStateSchema = z.strictObject({
  logPrice: z.number(),
  startLogPrice: z.number(),
  updates: z.int().nonnegative(),
  previousGap: z.number().nullable(),
  pinned: z.enum(['low', 'high']).nullable(),
  reported: z.enum(['low', 'high']).nullable(),
});

const momentsSchema = z.strictObject({
  tasks: z.int().positive(),
  rollouts: z.int().positive(),
  means: z.array(z.number()),
  covariances: z.array(z.array(z.number())),
});

export interface EffortFrontier {
  /** What the initial policy did; never moves. */
  readonly reference: ReferenceMoments;
  /** By the name of the cost. */
  readonly prices: Readonly<Record<string, SteeringState>>;
}

/** By effort. Plain JSON. */
export type FrontierState = Readonly<Record<Effort, EffortFrontier>>;

export const frontierStateSchema = z.record(
  z.string(),
  z.strictObject({ reference: momentsSchema, prices: z.record(z.string(), steeringStateSchema) }),
) satisfies z.ZodType<FrontierState>;

/** Mean operating point of a batch at one effort, and where it stands against the reference. Records are by cost name. */
export interface FrontierMeasurement {
  readonly successGain: number;
  readonly cost: Readonly<Record<string, number>>;
  readonly costSaving: Readonly<Record<string, number>>;
  readonly gap: Readonly<Record<string, number>>;
  /** Standard deviation of the gap from the noise of the reference alone. */
  readonly gapError: Readonly<Record<string, number>>;
  /** That the rollouts were charged, or would have been in a phase that has the term. */
  readonly price: Readonly<Record<string, number>>;
}

/**
 * Recorded when the price comes to the end of its clip: what the direction asks for is out of reach. Once, until the price
 * has been a quarter of the log clip away from there.
 */
export interface ConstraintEvent {
  readonly event: 'frontier-constraint-not-binding';
  readonly effort: Effort;
  readonly cost: string;
  readonly bound: 'low' | 'high';
  readonly price: number;
}

/** Means over rollouts of the parts of success and then of the costs, in the order of the term, and their covariances. */
export function measureMoments(
  rollouts: readonly ScoredRollout[],
  { term, base }: { readonly term: FrontierTerm; readonly base: RewardBase },
): ReferenceMoments {
  return clusteredMoments(
    rollouts.map(({ taskId, outcome, cost }) => ({
      taskId,
      values: [...successParts(base, outcome), ...term.costs.map(({ weights }) => weightedCost(cost, weights))],
    })),
  );
}

/** The reference of one cost of the term, by its position, under a weight of precision. */
export function referenceOf(
  { tasks, rollouts, means, covariances }: ReferenceMoments,
  {
    base,
    precisionWeight,
    cost,
  }: { readonly base: RewardBase; readonly precisionWeight: number; readonly cost: number },
): Reference {
  const weights = partWeights(base, precisionWeight);
  const column = weights.length + cost;
  const at = (row: number, other: number): number => covariances[row]?.[other] ?? 0;
  let success = 0;
  let successVariance = 0;
  let covariance = 0;
  for (const [part, weight] of weights.entries()) {
    success += weight * (means[part] ?? 0);
    covariance += weight * at(part, column);
    for (const [other, otherWeight] of weights.entries()) successVariance += weight * otherWeight * at(part, other);
  }
  return {
    success,
    cost: means[column] ?? 0,
    // Rounding can leave parts that vary against each other just below 0.
    successError: Math.sqrt(Math.max(successVariance, 0)),
    costError: Math.sqrt(at(column, column)),
    covariance,
    tasks,
    rollouts,
  };
}

/** Shares of the improvement: success first, then the costs; they sum to 1. */
export function directionOf({ alpha, costs }: FrontierTerm): number[] {
  return [alpha, ...costs.map(({ share = 1 / costs.length }) => (1 - alpha) * share)];
}

/** Success per unit of each cost, by its name. Throws `invalid-rollout` for an effort that has no price. */
export function pricesAt(term: FrontierTerm, state: FrontierState, effort: Effort): Record<string, number> {
  const at = state[effort];
  if (at === undefined) {
    throw new HoneError('invalid-rollout', `A rollout has the effort ${effort}, at which cost has no price.`, {
      cure: `Prices were started for ${Object.keys(state).join(', ')}; score rollouts of these efforts only.`,
    });
  }
  return Object.fromEntries(
    term.costs.map(({ name }) => {
      const price = at.prices[name];
      if (price === undefined) throw new RangeError(`no price of ${name} at effort ${effort}`);
      return [name, priceOf(price)];
    }),
  );
}

export interface EffortBatch {
  readonly effort: Effort;
  /** At least one, all of the effort. */
  readonly rollouts: readonly ScoredRollout[];
  /** Mean over them, raw. */
  readonly success: number;
}

/** Where a batch stands at its effort; nothing moves. */
export function measureFrontier(
  batch: EffortBatch,
  { term, state, base, precisionWeight }: FrontierContext,
): FrontierMeasurement {
  const at = state[batch.effort];
  const price = pricesAt(term, state, batch.effort);
  const direction = directionOf(term);
  const cost: Record<string, number> = {};
  const costSaving: Record<string, number> = {};
  const gap: Record<string, number> = {};
  const errors: Record<string, number> = {};
  const gains = term.costs.map(({ name, weights }, index) => {
    const reference = referenceOf(at?.reference ?? EMPTY_MOMENTS, { base, precisionWeight, cost: index });
    const mean =
      batch.rollouts.reduce((sum, rollout) => sum + weightedCost(rollout.cost, weights), 0) / batch.rollouts.length;
    const gain = relativeGains({ success: batch.success, cost: mean }, reference);
    cost[name] = mean;
    costSaving[name] = gain.costSaving;
    errors[name] = errorOfGap(term, { reference, gains: gain, cost: index });
    return gain;
  });
  const successGain = gains[0]?.successGain ?? 0;
  const gaps = gapsOf({
    gains: [successGain, ...gains.map(({ costSaving: saving }) => saving)],
    direction,
    reference: 0,
  });
  for (const [index, { name }] of term.costs.entries()) gap[name] = gaps[index + 1] ?? 0;
  return { successGain, cost, costSaving, gap, gapError: errors, price };
}

export interface FrontierContext {
  readonly term: FrontierTerm;
  readonly state: FrontierState;
  readonly base: RewardBase;
  readonly precisionWeight: number;
}

/**
 * The sd of a cost's gap a_i u - a_0 v_i from the noise of its reference: that of (1 - alpha') u - alpha' v_i with the two
 * shares scaled to sum 1, scaled back.
 */
export function errorOfGap(
  term: FrontierTerm,
  {
    reference,
    gains,
    cost,
  }: { readonly reference: Reference; readonly gains: ReturnType<typeof relativeGains>; readonly cost: number },
): number {
  if (term.costs.length === 1) return gapError(reference, gains, term.alpha);
  const scale = term.alpha + (directionOf(term)[cost + 1] ?? 0);
  return scale * gapError(reference, gains, term.alpha / scale);
}

/** One update of the prices at the measured efforts; the others stay bit for bit. */
export function steerFrontier(
  { term, state }: Pick<FrontierContext, 'term' | 'state'>,
  measured: Readonly<Record<Effort, FrontierMeasurement>>,
): { readonly state: FrontierState; readonly events: readonly ConstraintEvent[] } {
  const next: Record<Effort, EffortFrontier> = { ...state };
  const events: ConstraintEvent[] = [];
  for (const [effort, measurement] of Object.entries(measured)) {
    const before = state[effort];
    if (before === undefined) continue;
    const prices: Record<string, SteeringState> = {};
    for (const [name, price] of Object.entries(before.prices)) {
      const step = steer(price, measurement.gap[name], term.controller, { gapError: measurement.gapError[name] ?? 0 });
      prices[name] = step.state;
      if (step.event !== undefined) {
        const { bound, logPrice } = step.event;
        events.push({
          event: 'frontier-constraint-not-binding',
          effort,
          cost: name,
          bound,
          price: Math.exp(logPrice),
        });
      }
    }
    next[effort] = { ...before, prices };
  }
  return { state: next, events };
}

/**
 * The same prices without a memory of the last gap: for when the next gap cannot be compared with it, because the scale of
 * success has changed or the term was out of force meanwhile. The proportional term then starts anew instead of jumping.
 */
export function forgetGaps(state: FrontierState): FrontierState {
  return Object.fromEntries(
    Object.entries(state).map(([effort, { reference, prices }]) => [
      effort,
      {
        reference,
        prices: Object.fromEntries(
          Object.entries(prices).map(([name, price]) => [name, { ...price, previousGap: null }]),
        ),
      },
    ]),
  );
}

const EMPTY_MOMENTS: ReferenceMoments = { tasks: 0, rollouts: 0, means: [], covariances: [] };

/**
 * Where the frontier term starts: the reference of each effort and the price of each cost, measured on the initial policy
 * or given. A slope that may be 0 starts nothing: it is refused, with what more data would help.
 */
import type { Effort } from '../domain/effort.ts';
import { HoneError } from '../domain/errors.ts';
import { deriveSeed } from '../domain/ids.ts';
import { requireEffortSlope, slopesAcrossEfforts } from './concave-fit.ts';
import { weightedCost } from './cost.ts';
import { figure } from './figure.ts';
import { errorOfGap, measureMoments, referenceOf } from './frontier-state.ts';
import type { EffortFrontier, FrontierState } from './frontier-state.ts';
import { requireReference, rolloutsForNoise } from './reference.ts';
import type { OperatingSample, ReferenceMoments } from './reference.ts';
import { successOf } from './scored-rollout.ts';
import type { ScoredRollout } from './scored-rollout.ts';
import { measureSlope, requireSlope } from './slope.ts';
import { startSteering } from './steering.ts';
import type { SteeringState } from './steering.ts';
import type { FrontierTerm, RewardBase } from './terms.ts';

/** One point of gap: the noise that a reference is worth being measured down to. */
const GAP_ERROR = 0.01;

export interface FrontierStart {
  /** Rollouts of the initial policy, some at every effort. */
  readonly baseline: readonly ScoredRollout[];
  readonly efforts: readonly Effort[];
  /** Of the bootstraps. */
  readonly seed: number;
  readonly base: RewardBase;
  readonly precisionWeight: number;
}

/**
 * References and starting prices of every effort; adds to the report what they are and how sure. Throws `invalid-config` for
 * a reference of 0, a slope whose band includes 0, or given prices that are not for these efforts.
 */
export function startFrontier(term: FrontierTerm, input: FrontierStart, report: string[]): FrontierState {
  const { baseline, efforts, base, precisionWeight } = input;
  // References first: a mean of 0 is what a user can mend, and a slope would only say that it may be 0.
  const references = new Map<Effort, ReferenceMoments>();
  for (const effort of efforts) {
    const rollouts = baseline.filter((rollout) => rollout.effort === effort);
    const reference = measureMoments(rollouts, { term, base });
    for (const cost of term.costs.keys())
      requireReference(referenceOf(reference, { base, precisionWeight, cost }), { effort });
    references.set(effort, reference);
  }
  const prices = startingPrices(term, input);
  const state: Record<Effort, EffortFrontier> = {};
  for (const [effort, reference] of references) {
    const started: Record<string, SteeringState> = {};
    for (const [index, { name }] of term.costs.entries()) {
      const at = referenceOf(reference, { base, precisionWeight, cost: index });
      const start = prices[effort]?.[index];
      if (start === undefined) throw new RangeError(`no starting price of ${name} at effort ${effort}`);
      started[name] = startSteering(start.price);
      const error = errorOfGap(term, { reference: at, gains: { successGain: 0, costSaving: 0 }, cost: index });
      const needed = rolloutsForNoise(at.rollouts, { present: error, target: GAP_ERROR });
      report.push(
        `Effort ${effort}: success ${figure(at.success)} ± ${figure(at.successError)} at a mean cost of ${figure(at.cost)} ± ${figure(at.costError)} (${name}; standard errors, ${at.rollouts} rollouts of ${at.tasks} tasks); ${start.sentence}.`,
        `Effort ${effort}: the gap that moves the price of ${name} has a noise of ${figure(error)} from this reference${deadZoneClause(term, error)}; ${needed > at.rollouts ? `about ${needed} rollouts would bring it to ${GAP_ERROR}` : `it is at most ${GAP_ERROR}`}.`,
      );
    }
    state[effort] = { reference, prices: started };
  }
  return state;
}

function deadZoneClause({ controller: { deadZone } }: FrontierTerm, error: number): string {
  return deadZone === 0 ? '' : `, and the price rests while the gap is within ${figure(deadZone * error)}`;
}

interface StartingPrice {
  readonly price: number;
  /** Where it came from. */
  readonly sentence: string;
}

/** By effort, in the order of the term's costs. */
function startingPrices(term: FrontierTerm, input: FrontierStart): Record<Effort, StartingPrice[]> {
  const { startingPrice } = term;
  switch (startingPrice.from) {
    case 'given':
      return givenPrices(term, startingPrice.prices, input.efforts);
    case 'within-task':
      return withinTaskPrices(term, input);
    case 'across-efforts':
      return acrossEffortPrices(term, input);
    default:
      return startingPrice satisfies never;
  }
}

function givenPrices(
  term: FrontierTerm,
  prices: Readonly<Record<Effort, number | Readonly<Record<string, number>>>>,
  efforts: readonly Effort[],
): Record<Effort, StartingPrice[]> {
  const missing = efforts.filter((effort) => prices[effort] === undefined);
  const extra = Object.keys(prices).filter((effort) => !efforts.includes(effort));
  if (missing.length > 0 || extra.length > 0) {
    throw new HoneError(
      'invalid-config',
      `The starting prices of the term ${term.name} are for ${Object.keys(prices).join(', ')}, and the run has the efforts ${efforts.join(', ')}.`,
      { cure: 'Give one price for each effort of the run, and no other.' },
    );
  }
  return Object.fromEntries(
    efforts.map((effort) => [
      effort,
      term.costs.map(({ name }) => {
        const at = prices[effort];
        const price = (typeof at === 'number' ? at : at?.[name]) ?? Number.NaN;
        return { price, sentence: `the price of ${name} starts at ${figure(price)}, as given` };
      }),
    ]),
  );
}

function withinTaskPrices(term: FrontierTerm, input: FrontierStart): Record<Effort, StartingPrice[]> {
  const { baseline, efforts, seed } = input;
  return Object.fromEntries(
    efforts.map((effort) => {
      const rollouts = baseline.filter((rollout) => rollout.effort === effort);
      const prices = samplesOf(rollouts, term, input).map((samples, index): StartingPrice => {
        const name = term.costs[index]?.name ?? '';
        const slope = measureSlope(samples, { seed: deriveSeed(seed, 'slope', effort, name) });
        const price = sharedPrice(term, index, requireSlope(slope, { effort }));
        const { low, high } = slope.withinTask;
        return {
          price,
          sentence: `the price of ${name} starts at ${figure(price)}, from the slope within tasks (band ${figure(low)} to ${figure(high)}; ${slope.usableTasks} of ${slope.tasks} tasks have rollouts that differ in it; without telling tasks apart ${figure(slope.pooled.estimate)})`,
        };
      });
      return [effort, prices];
    }),
  );
}

function acrossEffortPrices(term: FrontierTerm, input: FrontierStart): Record<Effort, StartingPrice[]> {
  const { baseline, efforts, seed } = input;
  const byEffort = efforts.map((effort) =>
    samplesOf(
      baseline.filter((rollout) => rollout.effort === effort),
      term,
      input,
    ),
  );
  const tasks = new Set(baseline.map(({ taskId }) => taskId)).size;
  const slopes = term.costs.map(({ name }, index) =>
    slopesAcrossEfforts(
      Object.fromEntries(efforts.map((effort, position) => [effort, byEffort[position]?.[index] ?? []])),
      { seed: deriveSeed(seed, 'slopes', name) },
    ),
  );
  return Object.fromEntries(
    efforts.map((effort) => [
      effort,
      slopes.map((slope, index): StartingPrice => {
        const name = term.costs[index]?.name ?? '';
        const interval = slope[effort];
        if (interval === undefined) throw new RangeError(`no slope at effort ${effort}`);
        const price = sharedPrice(term, index, requireEffortSlope(interval, { effort, tasks }));
        return {
          price,
          sentence: `the price of ${name} starts at ${figure(price)}, from the concave curve through the efforts (band of the slope ${figure(interval.low)} to ${figure(interval.high)})`,
        };
      }),
    ]),
  );
}

/**
 * A slope against one cost alone tells what success costs when all costs move together, so each cost of several takes its
 * share of it: together they then price a move along the frontier as a single cost would.
 */
function sharedPrice({ costs }: FrontierTerm, index: number, slope: number): number {
  return costs.length === 1 ? slope : slope * (costs[index]?.share ?? 1 / costs.length);
}

/** For each cost of the term the rollouts as steering sees them. */
function samplesOf(
  rollouts: readonly ScoredRollout[],
  { costs }: FrontierTerm,
  { base, precisionWeight }: { readonly base: RewardBase; readonly precisionWeight: number },
): OperatingSample[][] {
  return costs.map(({ weights }) =>
    rollouts.map(({ taskId, outcome, cost }) => ({
      taskId,
      success: successOf(base, outcome, precisionWeight),
      cost: weightedCost(cost, weights),
    })),
  );
}

/**
 * The reward as data: a base, terms and phases, in a form that a run's config carries and JSON keeps. What is declared is
 * read: a term that is in no phase, a phase that names no term that exists and an option that nothing looks at are errors
 * with a cure. Problems are told together in two rounds: all keys and values of the wrong form first, and once every one has
 * its form, all that contradict each other.
 */
import { z } from 'zod';

import { budgetProblem } from './budget.ts';
import { COST_COUNTS } from './cost.ts';
import type { CostCounts } from './cost.ts';
import { overlongProblem } from './overlong.ts';
import { rewardBaseSchema, rewardPhaseSchema, rewardTermSchema } from './terms.ts';
import type { FrontierTerm, RewardTerm } from './terms.ts';

const rewardFieldsSchema = z.strictObject({
  base: rewardBaseSchema,
  terms: z.array(rewardTermSchema).default([]).describe('what is added to the base, and taken from it; default none'),
  phases: z
    .array(rewardPhaseSchema)
    .default([])
    .describe('which terms are in force when, in order; default all of them always'),
  repeatPhases: z
    .boolean()
    .default(false)
    .describe('begin with the first phase again after the last; then each phase ends by steps'),
});

/** JSON in, JSON out. Every problem has the path of its key and one sentence with the cure. */
export const rewardSpecSchema = rewardFieldsSchema.superRefine((spec, context) => {
  for (const { path, message } of [...baseProblems(spec), ...termProblems(spec), ...phaseProblems(spec)])
    context.addIssue({ code: 'custom', path: [...path], message });
});
export type RewardSpec = z.output<typeof rewardSpecSchema>;

/** What has to be measured before a run with this reward can start. */
export interface RequiredMeasurements {
  /** Rollouts of the initial policy, at every effort; for a recorded latency alone one of each is enough. */
  readonly baseline: boolean;
  /** Of the baseline: a slope within tasks compares at least two. */
  readonly rolloutsPerTask: 1 | 2;
  /** A fixed pool of tasks, each of them in the baseline. */
  readonly perTaskBudgets: boolean;
  /** `latencySeconds` on every rollout; that they are recorded is seen on the baseline, before anything is trained. */
  readonly recordedLatency: boolean;
  /** `latencySeconds` on the rollouts of the baseline. */
  readonly measuredLatency: boolean;
  /** At least two efforts. */
  readonly efforts: boolean;
}

/** Pure; never throws. */
export function requiredMeasurements({ base, terms }: RewardSpec): RequiredMeasurements {
  const frontier = frontierTermOf({ terms });
  const budgets = terms.filter((term) => term.kind === 'budget');
  const latencies = terms.filter((term) => term.kind === 'latency');
  const measuredLatency = latencies.some(({ latency }) => latency.from === 'measured');
  const recordedLatency = latencies.some(({ latency }) => latency.from === 'recorded');
  const isWeightMeasured = base.kind === 'detection' && base.precisionWeight === 'measured';
  return {
    baseline: isWeightMeasured || frontier !== undefined || budgets.length > 0 || measuredLatency || recordedLatency,
    rolloutsPerTask: frontier?.startingPrice.from === 'within-task' ? 2 : 1,
    perTaskBudgets: budgets.some(({ scope }) => scope === 'task'),
    recordedLatency,
    measuredLatency,
    efforts: frontier?.startingPrice.from === 'across-efforts',
  };
}

/** The term that steers; there is at most one. */
export function frontierTermOf({ terms }: Pick<RewardSpec, 'terms'>): FrontierTerm | undefined {
  return terms.find((term) => term.kind === 'frontier');
}

/**
 * Counts that terms of these kinds charge by, in the order of `CostCounts`: frontier, budget, overlong (sampled tokens) and
 * latency by a model (sampled tokens and turns). By them rollouts of one outcome earn differently, so the filter of groups
 * reads them: where a price is steered, groups that everybody solves are the very ones to save on, and those that nobody
 * solves belong to the mean cost that the controller measures. A `cost` term adds none: its price is fixed whatever becomes
 * of success, so groups that all fail would only learn to stop early; with it the published filter on outcomes stays. Neither
 * does a `recorded` latency, as a clock never shows the same twice. For the terms of one phase give those of `phaseInForce`.
 */
export function pricedCountsOf({ terms }: Pick<RewardSpec, 'terms'>): readonly (keyof CostCounts)[] {
  return COST_COUNTS.filter((count) => terms.some((term) => isCharged(term, count)));
}

function isCharged(term: RewardTerm, count: keyof CostCounts): boolean {
  switch (term.kind) {
    case 'frontier':
      return term.costs.some(({ weights }) => weights[count] > 0);
    case 'budget':
      return term.weights[count] > 0;
    case 'overlong':
      return count === 'sampledTokens';
    case 'latency':
      if (term.latency.from === 'recorded') return false;
      if (count === 'turns') return term.latency.from === 'measured' || term.latency.secondsPerTurn > 0;
      return count === 'sampledTokens';
    case 'cost':
      return false;
    default:
      return term satisfies never;
  }
}

interface Problem {
  readonly path: readonly (string | number)[];
  readonly message: string;
}

/** Names that the base and the void for cheating report under. */
const RESERVED_NAMES: ReadonlySet<string> = new Set(['precision', 'recall', 'correct', 'cheating']);

function baseProblems({ base }: RewardSpec): Problem[] {
  if (base.kind !== 'detection' || base.precisionWeight === 'measured') return [];
  const defaults = rewardBaseSchema.parse({ kind: 'detection' });
  return (['recalibrationBand', 'recalibrationPatience'] as const).flatMap((key) =>
    defaults.kind !== 'detection' || base[key] === defaults[key]
      ? []
      : [
          {
            path: ['base', key],
            message: `is ${base[key]}, but a precisionWeight that is a number never moves: leave it out`,
          },
        ],
  );
}

function termProblems({ terms }: RewardSpec): Problem[] {
  const problems: Problem[] = [];
  const names = new Set<string>();
  for (const [index, term] of terms.entries()) {
    const at = (key: string, message: string): number => problems.push({ path: ['terms', index, key], message });
    if (RESERVED_NAMES.has(term.name)) at('name', `is ${term.name}, which the reward itself reports: choose another`);
    if (names.has(term.name)) at('name', `is ${term.name}, the name of an earlier term: give each term its own`);
    names.add(term.name);
    switch (term.kind) {
      case 'frontier':
        if (terms.findIndex(({ kind }) => kind === 'frontier') < index)
          at('kind', 'is frontier for the second time: put all costs into the costs of one frontier term');
        for (const { path, message } of frontierProblems(term))
          problems.push({ path: ['terms', index, ...path], message });
        break;
      case 'budget': {
        const problem = budgetProblem(term);
        if (problem !== undefined) problems.push({ path: ['terms', index], message: problem });
        break;
      }
      case 'overlong': {
        const problem = overlongProblem(term);
        if (problem !== undefined) problems.push({ path: ['terms', index], message: problem });
        break;
      }
      case 'cost':
      case 'latency':
        break;
      default:
        term satisfies never;
    }
  }
  return problems;
}

function frontierProblems({ alpha, costs, startingPrice }: FrontierTerm): Problem[] {
  const problems: Problem[] = [];
  const names = costs.map(({ name }) => name);
  for (const [index, name] of names.entries())
    if (names.indexOf(name) < index)
      problems.push({
        path: ['costs', index, 'name'],
        message: `is ${name}, the name of an earlier cost: give each its own`,
      });
  if (alpha === 0 && costs.length > 1)
    problems.push({
      path: ['alpha'],
      message: `is 0 with ${costs.length} costs, which leaves the ratios of their prices undetermined: use one cost with weights for all of them, or an alpha above 0`,
    });
  const shares = costs.flatMap(({ share }) => share ?? []);
  const sum = shares.reduce((total, share) => total + share, 0);
  if (shares.length > 0 && shares.length < costs.length)
    problems.push({
      path: ['costs'],
      message: `have ${shares.length} shares for ${costs.length} costs: give each one, or none for equal shares`,
    });
  else if (shares.length > 0 && !(Math.abs(sum - 1) <= 1e-9))
    problems.push({ path: ['costs'], message: `have shares that sum to ${sum}: make them sum to 1` });
  if (startingPrice.from !== 'given') return problems;
  for (const [effort, price] of Object.entries(startingPrice.prices)) {
    const path = ['startingPrice', 'prices', effort];
    if (typeof price === 'number') {
      if (names.length > 1)
        problems.push({
          path,
          message: `is one price for ${names.length} costs: give an object with ${names.join(', ')}`,
        });
      continue;
    }
    for (const name of names)
      if (price[name] === undefined) problems.push({ path, message: `has no price of ${name}: give one` });
    for (const name of Object.keys(price))
      if (!names.includes(name))
        problems.push({
          path: [...path, name],
          message: `is the price of no cost of the term (${names.join(', ')}): leave it out`,
        });
  }
  return problems;
}

function phaseProblems({ base, terms, phases, repeatPhases }: RewardSpec): Problem[] {
  const problems: Problem[] = [];
  const names = phases.map(({ name }) => name);
  for (const [index, phase] of phases.entries()) {
    const at = (key: string, message: string): number => problems.push({ path: ['phases', index, key], message });
    const isLast = index === phases.length - 1;
    if (names.indexOf(phase.name) < index)
      at('name', `is ${phase.name}, the name of an earlier phase: give each its own`);
    for (const [position, term] of phase.terms.entries()) {
      if (!terms.some(({ name }) => name === term))
        at('terms', `name ${term}, which no term is called (${listed(terms)})`);
      if (phase.terms.indexOf(term) < position) at('terms', `name ${term} twice: name it once`);
    }
    const { until } = phase;
    if (until === undefined) {
      if (!isLast) at('until', 'is missing, so the phases after it would never begin: say when this one ends');
      else if (repeatPhases) at('until', 'is missing while repeatPhases is true: give it { steps }');
      continue;
    }
    if (repeatPhases && !('steps' in until))
      at('until', `waits for ${until.metric} while repeatPhases is true: give it { steps }`);
    if (!repeatPhases && isLast)
      at('until', 'ends the last phase, and nothing follows it: leave it out, or set repeatPhases to true');
    if ('metric' in until && until.metric === 'f_beta' && base.kind !== 'detection')
      at('until', `waits for f_beta, but a base of kind ${base.kind} has no beta: wait for success`);
  }
  if (repeatPhases && phases.length < 2)
    problems.push({
      path: ['repeatPhases'],
      message: `is true with ${phases.length} phases: name two or more, or leave it out`,
    });
  if (phases.length > 0)
    for (const [index, { name }] of terms.entries())
      if (!phases.some((phase) => phase.terms.includes(name)))
        problems.push({
          path: ['terms', index],
          message: `(${name}) is in no phase, so it would never count: name it in one, or leave it out`,
        });
  return problems;
}

function listed(terms: readonly RewardTerm[]): string {
  return terms.length === 0 ? 'there are no terms' : `there are ${terms.map(({ name }) => name).join(', ')}`;
}

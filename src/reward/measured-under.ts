/**
 * The part of a spec that a state's measurements depend on, kept in the state as plain values: figures that were measured
 * under other weights mean something else now, though their form still fits. What may change in a run without measuring anew
 * (alpha, the controller, phases, prices that stay fixed) is not in it.
 */
import { COST_COUNTS } from './cost.ts';
import type { CostWeights } from './cost.ts';
import type { RewardSpec } from './spec.ts';
import type { FrontierTerm, RewardBase, RewardTerm } from './terms.ts';

/** By what was measured, then by the key in the spec. JSON. */
export type MeasuredUnder = Readonly<Record<string, Readonly<Record<string, number | string>>>>;

export function measuredUnder({ base, terms }: Pick<RewardSpec, 'base' | 'terms'>): MeasuredUnder {
  return Object.fromEntries([['base', baseKeys(base)], ...terms.flatMap(termKeys)]);
}

/**
 * One sentence part for each value that differs, of what both have: what only one of them measures is for the checks of the
 * measurements themselves to name.
 */
export function measuredDifferences(stored: MeasuredUnder, wanted: MeasuredUnder): string[] {
  return Object.entries(wanted).flatMap(([what, keys]) => {
    const before = stored[what];
    if (before === undefined) return [];
    return [...new Set([...Object.keys(before), ...Object.keys(keys)])]
      .filter((key) => before[key] !== keys[key])
      .map(
        (key) =>
          `its ${what} was measured with ${key} ${before[key] ?? 'unset'}, and the spec has ${keys[key] ?? 'none'}`,
      );
  });
}

function baseKeys(base: RewardBase): Record<string, number | string> {
  if (base.kind === 'correct') return { kind: base.kind };
  return { kind: base.kind, beta: base.beta, precisionWeight: base.precisionWeight };
}

function termKeys(term: RewardTerm): [string, Record<string, number | string>][] {
  switch (term.kind) {
    case 'frontier':
      return frontierKeys(term);
    case 'budget': {
      const { percentile, scope, weights } = term;
      return [[`term ${term.name}`, { percentile, scope, ...weightKeys(weights) }]];
    }
    case 'cost':
    case 'latency':
    case 'overlong':
      return [];
    default:
      return term satisfies never;
  }
}

function frontierKeys({ name, costs, startingPrice }: FrontierTerm): [string, Record<string, number | string>][] {
  const start: Record<string, number | string> = { 'startingPrice.from': startingPrice.from };
  if (startingPrice.from === 'given')
    for (const [effort, price] of Object.entries(startingPrice.prices))
      for (const cost of costs) {
        const value = typeof price === 'number' ? price : price[cost.name];
        if (value !== undefined) start[`startingPrice.prices.${effort}.${cost.name}`] = value;
      }
  return [
    [`term ${name}`, start],
    ...costs.map((cost): [string, Record<string, number | string>] => [
      `cost ${cost.name} of the term ${name}`,
      { share: cost.share ?? 1 / costs.length, ...weightKeys(cost.weights) },
    ]),
  ];
}

/** Those above 0. */
function weightKeys(weights: CostWeights): Record<string, number> {
  return Object.fromEntries(
    COST_COUNTS.filter((count) => weights[count] > 0).map((count) => [`weights.${count}`, weights[count]]),
  );
}

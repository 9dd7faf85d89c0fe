/**
 * Levels of effort in a run: which there are, which one a group draws, and the limits that each sets on the harness. The
 * draw depends on the run's seed and the group's place alone, so a run that is killed and resumed draws the same.
 */
import type { RunConfig } from './config.ts';
import { STANDARD_EFFORT } from '../domain/effort.ts';
import type { Effort } from '../domain/effort.ts';
import type { Budget } from '../domain/harness.ts';
import { createRandom, deriveSeed } from '../domain/ids.ts';

type EffortConfig = Pick<RunConfig, 'efforts' | 'harness'>;

/** In the order of the config; `standard` alone where it names none. */
export function effortsOf({ efforts }: Pick<RunConfig, 'efforts'>): Effort[] {
  const named = Object.keys(efforts);
  return named.length === 0 ? [STANDARD_EFFORT] : named;
}

/** The level of the group at a place of the stream: uniform over the levels. */
export function effortAt(config: Pick<RunConfig, 'efforts' | 'seed'>, ordinal: number): Effort {
  // Sorted, so that the order in which a config names them changes nothing.
  return createRandom(deriveSeed(config.seed, 'effort', ordinal)).pick(effortsOf(config).toSorted());
}

/** The limits of a level, where it sets none those of `harness`. */
export function effortBudget({ efforts, harness }: EffortConfig, effort: Effort): Budget {
  const limits = efforts[effort];
  const maxLookups = limits?.maxLookups ?? harness.maxLookups;
  return {
    maxTurns: limits?.maxTurns ?? harness.maxTurns,
    maxTokens: limits?.maxTokens ?? harness.maxTokens,
    maxSeconds: harness.maxSeconds,
    ...(maxLookups === undefined ? {} : { maxLookups }),
  };
}

/** A policy that knows one level only is told none: its prompts stay as it was trained on. */
export function tellsEffort({ efforts }: Pick<RunConfig, 'efforts'>): boolean {
  return Object.keys(efforts).length > 0;
}

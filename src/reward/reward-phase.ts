/**
 * Which terms are in force: phases in order, each until a number of optimizer steps or until a raw metric has held for
 * some steps in a row; the last one stays, or the first begins again. Pure: the clock is the number of steps advanced.
 */
import type { RewardSpec } from './spec.ts';
import type { RewardPhase, RewardTerm } from './terms.ts';

export interface PhaseState {
  /** Position in the spec's phases; 0 where there are none. */
  readonly index: number;
  /** Optimizer steps done since the phase began. */
  readonly steps: number;
  /** Measurements in a row, up to now, that reached what the phase waits for. */
  readonly reached: number;
}

/** Means over the rollouts of a step, raw. Undefined = no rollout, or a base that has no such figure. */
export type PhaseMetrics = Readonly<Record<'precision' | 'recall' | 'f_beta' | 'success', number | undefined>>;

/** Recorded when a phase ends. */
export interface PhaseEvent {
  readonly event: 'reward-phase';
  readonly from: string;
  readonly to: string;
  readonly reason: string;
}

export interface PhaseInForce {
  readonly name: string;
  /** In the order of the spec. */
  readonly terms: readonly RewardTerm[];
}

/** The phase of a spec that names none: all terms, always. */
const ONLY_PHASE = 'all';

/** The first phase, before its first step. */
export function startPhase(): PhaseState {
  return { index: 0, steps: 0, reached: 0 };
}

/** The phase and its terms; a spec without phases is in one, `all`, that has every term. Never throws. */
export function phaseInForce({ terms, phases }: RewardSpec, { index }: PhaseState): PhaseInForce {
  const phase = phases[index];
  if (phase === undefined) return { name: ONLY_PHASE, terms };
  return { name: phase.name, terms: terms.filter(({ name }) => phase.terms.includes(name)) };
}

/** One optimizer step later. A metric that was not measured leaves the count of those in a row as it is. */
export function advancePhase(
  { phases, repeatPhases }: RewardSpec,
  state: PhaseState,
  metrics: PhaseMetrics,
): { readonly state: PhaseState; readonly event?: PhaseEvent } {
  const phase = phases[state.index];
  const steps = state.steps + 1;
  const reached = countReached(phase?.until, state.reached, metrics);
  const stayed = { index: state.index, steps, reached };
  const reason = endOf(phase?.until, stayed, metrics);
  const index = state.index + 1 === phases.length && repeatPhases ? 0 : state.index + 1;
  const next = phases[index];
  if (phase === undefined || next === undefined || reason === undefined) return { state: stayed };
  return {
    state: { index, steps: 0, reached: 0 },
    event: { event: 'reward-phase', from: phase.name, to: next.name, reason },
  };
}

type Until = RewardPhase['until'];

function countReached(until: Until, before: number, metrics: PhaseMetrics): number {
  if (until === undefined || !('metric' in until)) return 0;
  const value = metrics[until.metric];
  if (value === undefined) return before;
  return value >= until.atLeast ? before + 1 : 0;
}

/** Why the phase is over, or undefined while it is not. */
function endOf(until: Until, { steps, reached }: PhaseState, metrics: PhaseMetrics): string | undefined {
  if (until === undefined) return undefined;
  if ('steps' in until) return steps >= until.steps ? `${until.steps} steps are done` : undefined;
  if (reached < until.patience) return undefined;
  const value = metrics[until.metric];
  return `${until.metric} is ${value?.toFixed(4)}, at least ${until.atLeast} for ${reached} steps in a row`;
}

/** Phases by steps, by a metric that has to hold, and in turn. */
import { describe, expect, it } from 'vitest';

import { advancePhase, phaseInForce, startPhase } from './reward-phase.ts';
import type { PhaseMetrics, PhaseState } from './reward-phase.ts';
import { rewardSpecSchema } from './spec.ts';
import type { RewardSpec } from './spec.ts';

const NOTHING: PhaseMetrics = { precision: undefined, recall: undefined, f_beta: undefined, success: undefined };

function specWith(phases: unknown, repeatPhases = false): RewardSpec {
  return rewardSpecSchema.parse({
    terms: [
      { kind: 'cost', weights: { turns: 0.01 } },
      { kind: 'overlong', limit: 400, buffer: 100 },
    ],
    phases,
    repeatPhases,
  });
}

/** The names of the phases that the steps ran in, and the reasons why phases ended. */
function walk(spec: RewardSpec, metrics: readonly Partial<PhaseMetrics>[]): { names: string[]; reasons: string[] } {
  let state: PhaseState = startPhase();
  const names: string[] = [];
  const reasons: string[] = [];
  for (const each of metrics) {
    names.push(phaseInForce(spec, state).name);
    const step = advancePhase(spec, state, { ...NOTHING, ...each });
    state = step.state;
    if (step.event !== undefined) reasons.push(step.event.reason);
  }
  return { names, reasons };
}

describe('phases', () => {
  it('are one with all terms where none is named', () => {
    const spec = specWith([]);
    const state = { index: 0, steps: 41, reached: 0 };
    expect(phaseInForce(spec, state)).toEqual({ name: 'all', terms: spec.terms });
    expect(advancePhase(spec, state, NOTHING)).toEqual({ state: { index: 0, steps: 42, reached: 0 } });
  });

  it('follow each other by steps, and the last one stays', () => {
    const spec = specWith([
      { name: 'capability', terms: ['overlong'], until: { steps: 2 } },
      { name: 'product', terms: ['cost', 'overlong'] },
    ]);
    const { names, reasons } = walk(
      spec,
      Array.from({ length: 5 }, () => ({})),
    );
    expect(names).toEqual(['capability', 'capability', 'product', 'product', 'product']);
    expect(reasons).toEqual(['2 steps are done']);
    expect(phaseInForce(spec, startPhase()).terms.map(({ name }) => name)).toEqual(['overlong']);
  });

  it('wait until a metric has held, count a lapse from 0, and let a step without rollouts pass', () => {
    const spec = specWith([
      { name: 'capability', terms: ['overlong'], until: { metric: 'recall', atLeast: 0.5, patience: 2 } },
      { name: 'product', terms: ['cost', 'overlong'] },
    ]);
    const recalls = [0.6, 0.4, 0.5, undefined, 0.7, 0.1];
    const { names, reasons } = walk(
      spec,
      recalls.map((recall) => ({ recall, precision: 0 })),
    );
    expect(names).toEqual([...Array.from({ length: 5 }, () => 'capability'), 'product']);
    expect(reasons).toEqual(['recall is 0.7000, at least 0.5 for 2 steps in a row']);
  });

  it('take turns when they repeat', () => {
    const spec = specWith(
      [
        { name: 'short', terms: ['cost', 'overlong'], until: { steps: 2 } },
        { name: 'free', terms: [], until: { steps: 1 } },
      ],
      true,
    );
    const { names, reasons } = walk(
      spec,
      Array.from({ length: 7 }, () => ({})),
    );
    expect(names).toEqual(['short', 'short', 'free', 'short', 'short', 'free', 'short']);
    expect(reasons).toHaveLength(4);
  });

  it('say from where to where', () => {
    const spec = specWith([
      { name: 'one', terms: ['cost'], until: { steps: 1 } },
      { name: 'two', terms: ['overlong'] },
    ]);
    expect(advancePhase(spec, startPhase(), NOTHING)).toEqual({
      state: { index: 1, steps: 0, reached: 0 },
      event: { event: 'reward-phase', from: 'one', to: 'two', reason: '1 steps are done' },
    });
  });
});

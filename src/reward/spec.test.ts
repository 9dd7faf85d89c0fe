/** The reward spec: defaults, JSON, and every combination that would be read wrongly or not at all. */
import { describe, expect, it } from 'vitest';
import { z } from 'zod';

import { frontierTermOf, pricedCountsOf, requiredMeasurements, rewardSpecSchema } from './spec.ts';

const lookups = { lookups: 0.02 };

/** Paths and messages of what is wrong, one line each. */
function problemsOf(spec: unknown): string {
  const parsed = rewardSpecSchema.safeParse(spec);
  return parsed.success
    ? ''
    : parsed.error.issues.map(({ path, message }) => `${path.join('.')} ${message}`).join('\n');
}

describe('the reward spec', () => {
  it('is the detection score alone by default', () => {
    expect(rewardSpecSchema.parse({})).toEqual({
      base: {
        kind: 'detection',
        beta: 0.5,
        precisionWeight: 'measured',
        recalibrationBand: 1.25,
        recalibrationPatience: 3,
      },
      terms: [],
      phases: [],
      repeatPhases: false,
    });
  });

  it('fills the defaults of a term, and survives JSON as it was written and as it was resolved', () => {
    const written = {
      base: { kind: 'correct' },
      terms: [
        { kind: 'frontier', alpha: 0.5, costs: [{ weights: lookups }] },
        {
          kind: 'latency',
          name: 'waiting',
          kappa: 0.25,
          dropOff: { edges: [0, 5, 'inf'], counts: [3, 1] },
          latency: { from: 'model', tokensPerSecond: 50 },
        },
        { kind: 'budget', form: 'ramp', scope: 'task', weights: { tokens: 1 }, rampWidth: 100, kappa: 0.5 },
        { kind: 'overlong', limit: 400, buffer: 100 },
        { kind: 'cost', weights: { turns: 0.01 } },
      ],
      phases: [
        { name: 'capability', terms: ['overlong'], until: { metric: 'success', atLeast: 0.6 } },
        { name: 'product', terms: ['frontier', 'waiting', 'budget', 'overlong', 'cost'] },
      ],
    };
    const spec = rewardSpecSchema.parse(JSON.parse(JSON.stringify(written)));
    expect(rewardSpecSchema.parse(JSON.parse(JSON.stringify(spec)))).toEqual(spec);
    expect(frontierTermOf(spec)).toEqual({
      kind: 'frontier',
      name: 'frontier',
      alpha: 0.5,
      costs: [{ name: 'cost', weights: { tokens: 0, sampledTokens: 0, turns: 0, toolSeconds: 0, lookups: 0.02 } }],
      startingPrice: { from: 'within-task' },
      controller: {
        rate: 0.02,
        decay: { steps: 500, power: 0.6 },
        proportional: 0.2,
        slewLimit: 0.05,
        clip: 20,
        deadZone: 1,
      },
    });
    expect(spec.phases[0]?.until).toEqual({ metric: 'success', atLeast: 0.6, patience: 3 });
  });

  it('describes every field in its JSON Schema', () => {
    const undescribed: string[] = [];
    const visit = (node: unknown, path: string): void => {
      // z.toJSONSchema returns plain JSON.
      const { properties, ...rest } = node as { properties?: Record<string, { description?: string }> };
      for (const [name, property] of Object.entries(properties ?? {})) {
        if (property.description === undefined && !('const' in property)) undescribed.push(`${path}.${name}`);
        visit(property, `${path}.${name}`);
      }
      for (const value of Object.values(rest))
        for (const child of Array.isArray(value) ? value : [value])
          if (typeof child === 'object' && child !== null) visit(child, path);
    };
    visit(z.toJSONSchema(rewardSpecSchema, { io: 'input' }), 'reward');
    expect(undescribed).toEqual([]);
  });

  const cost = { kind: 'cost', weights: lookups };
  const frontier = { kind: 'frontier', alpha: 0.5, costs: [{ weights: lookups }] };
  const two = [
    { name: 'looks', weights: lookups },
    { name: 'words', weights: { tokens: 1 } },
  ];
  it.each<[string, unknown, RegExp]>([
    ['an unknown key', { lookupPrice: 0.02 }, /lookupPrice/],
    ['an unknown kind of term', { terms: [{ kind: 'price' }] }, /terms\.0\.kind/],
    ['a cost of nothing', { terms: [{ kind: 'cost', weights: {} }] }, /terms\.0\.weights has no weight above 0/],
    [
      'a recalibration that a stated weight never has',
      { base: { kind: 'detection', precisionWeight: 4, recalibrationPatience: 5 } },
      /base\.recalibrationPatience is 5, but a precisionWeight that is a number never moves: leave it out/,
    ],
    ['beta without detection', { base: { kind: 'correct', beta: 1 } }, /beta/],
    ['the same name twice', { terms: [cost, cost] }, /terms\.1\.name is cost, the name of an earlier term: give each/],
    [
      "a name of the reward's own",
      { terms: [{ ...cost, name: 'recall' }] },
      /terms\.0\.name is recall, which the reward/,
    ],
    [
      'two frontiers',
      { terms: [frontier, { ...frontier, name: 'other' }] },
      /terms\.1\.kind is frontier for the second/,
    ],
    ['alpha above 1', { terms: [{ ...frontier, alpha: 1.5 }] }, /terms\.0\.alpha/],
    ['no cost to save', { terms: [{ ...frontier, costs: [] }] }, /terms\.0\.costs is empty/],
    [
      'alpha 0 with several costs',
      { terms: [{ ...frontier, alpha: 0, costs: two }] },
      /terms\.0\.alpha is 0 with 2 costs, which leaves the ratios/,
    ],
    [
      'two costs of one name',
      { terms: [{ ...frontier, costs: [{ weights: lookups }, { weights: { tokens: 1 } }] }] },
      /terms\.0\.costs\.1\.name is cost/,
    ],
    [
      'shares of some costs',
      { terms: [{ ...frontier, costs: [{ ...two[0], share: 0.5 }, two[1]] }] },
      /terms\.0\.costs have 1 shares for 2 costs/,
    ],
    [
      'shares that do not sum to 1',
      { terms: [{ ...frontier, costs: two.map((each) => ({ ...each, share: 0.4 })) }] },
      /terms\.0\.costs have shares that sum to 0\.8/,
    ],
    [
      'one price for two costs',
      { terms: [{ ...frontier, costs: two, startingPrice: { from: 'given', prices: { low: 0.1 } } }] },
      /startingPrice\.prices\.low is one price for 2 costs: give an object with looks, words/,
    ],
    [
      'prices of other costs',
      {
        terms: [{ ...frontier, costs: two, startingPrice: { from: 'given', prices: { low: { looks: 1, turns: 1 } } } }],
      },
      /prices\.low has no price of words: give one\n.*prices\.low\.turns is the price of no cost/,
    ],
    [
      'a ramp without width',
      { terms: [{ kind: 'budget', form: 'ramp', scope: 'effort', weights: lookups }] },
      /terms\.0 form ramp needs rampWidth and kappa/,
    ],
    ['a buffer above the limit', { terms: [{ kind: 'overlong', limit: 10, buffer: 20 }] }, /terms\.0 buffer is 20/],
    [
      'a phase of unknown terms',
      { terms: [cost], phases: [{ name: 'only', terms: ['cost', 'price'] }] },
      /phases\.0\.terms name price, which no term is called \(there are cost\)/,
    ],
    [
      'a term that no phase has',
      { terms: [cost], phases: [{ name: 'only', terms: [] }] },
      /terms\.0 \(cost\) is in no phase, so it would never count/,
    ],
    [
      'a phase after one that never ends',
      {
        terms: [cost],
        phases: [
          { name: 'first', terms: [] },
          { name: 'second', terms: ['cost'] },
        ],
      },
      /phases\.0\.until is missing, so the phases after it would never begin/,
    ],
    [
      'an end of the last phase',
      { terms: [cost], phases: [{ name: 'only', terms: ['cost'], until: { steps: 3 } }] },
      /phases\.0\.until ends the last phase, and nothing follows it/,
    ],
    [
      'repeating by a metric',
      {
        terms: [cost],
        phases: [
          { name: 'first', terms: [], until: { metric: 'recall', atLeast: 0.5 } },
          { name: 'second', terms: ['cost'], until: { steps: 3 } },
        ],
        repeatPhases: true,
      },
      /phases\.0\.until waits for recall while repeatPhases is true/,
    ],
    [
      'a mistyped metric, by name',
      { terms: [cost], phases: [{ name: 'first', terms: [], until: { metric: 'sucess', atLeast: 0.5 } }] },
      /phases\.0\.until must be \{ steps \} or .*: metric is "sucess": .*"precision"\|"recall"\|"f_beta"\|"success"/,
    ],
    [
      'an end of the wrong form, by the key that is wrong',
      { terms: [cost], phases: [{ name: 'first', terms: [], until: { metric: 'recall', atleast: 2 } }] },
      /phases\.0\.until .*: atLeast is missing: .*; Unrecognized key: "atleast"/,
    ],
    [
      'steps that are none',
      { terms: [cost], phases: [{ name: 'first', terms: [], until: { steps: 0 } }] },
      /phases\.0\.until.*steps/,
    ],
    [
      'an end that is neither',
      { terms: [cost], phases: [{ name: 'first', terms: [], until: { after: 3 } }] },
      /phases\.0\.until must be \{ steps \} or \{ metric, atLeast, patience \}$/m,
    ],
    ['repeating nothing', { repeatPhases: true }, /repeatPhases is true with 0 phases/],
    [
      'f_beta of a base without beta',
      {
        base: { kind: 'correct' },
        terms: [cost],
        phases: [
          { name: 'first', terms: [], until: { metric: 'f_beta', atLeast: 0.5 } },
          { name: 'second', terms: ['cost'] },
        ],
      },
      /phases\.0\.until waits for f_beta, but a base of kind correct has no beta/,
    ],
  ])('refuses %s', (_, spec, message) => {
    expect(problemsOf(spec)).toMatch(message);
  });

  it('tells all problems at once', () => {
    const spec = { terms: [cost, cost], repeatPhases: true };
    expect(problemsOf(spec).split('\n')).toHaveLength(2);
  });

  it('names the counts that rollouts of one outcome earn differently by, but those of a fixed price', () => {
    const priced = (...terms: unknown[]): readonly string[] => pricedCountsOf(rewardSpecSchema.parse({ terms }));
    const latency = { kind: 'latency', kappa: 1, dropOff: { edges: [0, 1], counts: [1] } };
    const model = { from: 'model', tokensPerSecond: 50 };
    expect(priced()).toEqual([]);
    expect(priced(cost)).toEqual([]);
    expect(priced(cost, { ...frontier, costs: [{ weights: { lookups: 1, tokens: 1 } }] })).toEqual([
      'tokens',
      'lookups',
    ]);
    expect(priced({ kind: 'budget', form: 'hard', scope: 'effort', weights: { turns: 1, toolSeconds: 2 } })).toEqual([
      'turns',
      'toolSeconds',
    ]);
    expect(priced({ kind: 'overlong', limit: 400, buffer: 100 })).toEqual(['sampledTokens']);
    expect(priced({ ...latency, latency: model })).toEqual(['sampledTokens']);
    expect(priced({ ...latency, latency: { ...model, secondsPerTurn: 1 } })).toEqual(['sampledTokens', 'turns']);
    expect(priced({ ...latency, latency: { from: 'measured' } })).toEqual(['sampledTokens', 'turns']);
    expect(priced({ ...latency, latency: { from: 'recorded' } })).toEqual([]);
  });

  it('says what has to be measured', () => {
    const required = (spec: unknown): unknown => requiredMeasurements(rewardSpecSchema.parse(spec));
    const nothing = {
      baseline: false,
      rolloutsPerTask: 1,
      perTaskBudgets: false,
      recordedLatency: false,
      measuredLatency: false,
      efforts: false,
    };
    const base = { kind: 'correct' };
    const latency = { kind: 'latency', kappa: 1, dropOff: { edges: [0, 1], counts: [1] } };
    expect(required({ base, terms: [cost] })).toEqual(nothing);
    expect(required({ base: { kind: 'detection', precisionWeight: 4 } })).toEqual(nothing);
    expect(required({})).toEqual({ ...nothing, baseline: true });
    expect(required({ base, terms: [frontier] })).toEqual({ ...nothing, baseline: true, rolloutsPerTask: 2 });
    expect(required({ base, terms: [{ ...frontier, startingPrice: { from: 'across-efforts' } }] })).toEqual({
      ...nothing,
      baseline: true,
      efforts: true,
    });
    expect(required({ base, terms: [{ ...latency, latency: { from: 'recorded' } }] })).toEqual({
      ...nothing,
      baseline: true,
      recordedLatency: true,
    });
    expect(required({ base, terms: [{ ...latency, latency: { from: 'measured' } }] })).toEqual({
      ...nothing,
      baseline: true,
      measuredLatency: true,
    });
    expect(required({ base, terms: [{ kind: 'budget', form: 'hard', scope: 'task', weights: lookups }] })).toEqual({
      ...nothing,
      baseline: true,
      perTaskBudgets: true,
    });
  });
});

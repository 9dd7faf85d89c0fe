import { expect, test } from 'vitest';

import { resolveConfig } from './config.ts';

const minimal = { name: 'r', model: 'models/nano' };
const messageOf = (input: unknown): string => {
  try {
    resolveConfig(input, 'hone.config.ts');
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
  return 'accepted';
};

test('defaults are resolved, the staleness bound from the mode', () => {
  expect(resolveConfig(minimal, 'x').schedule).toMatchObject({ mode: 'async', maxStaleness: 1 });
  expect(resolveConfig({ ...minimal, schedule: { mode: 'sync' } }, 'x').schedule.maxStaleness).toBe(0);
});

test('a mistyped key is refused with its path and the key that was meant', () => {
  expect(messageOf({ ...minimal, sampling: { temprature: 0.7 } })).toContain(
    'sampling.temprature is not a known option (did you mean temperature?)',
  );
  expect(messageOf({ ...minimal, algorithm: { flux: 1 } })).toContain('algorithm.flux is not a known option.');
});

test('every problem is reported at once', () => {
  const message = messageOf({ name: 'r', sampling: { topP: 0 }, algorithm: { groupSize: 1, steps: 'many' } });
  expect(message).toContain('4 problems');
  for (const key of ['model', 'sampling.topP', 'algorithm.groupSize', 'algorithm.steps'])
    expect(message).toContain(key);
});

test('impossible mixes are refused, each with its cure', () => {
  expect(messageOf({ ...minimal, replay: { keptSets: false } })).toMatch(
    /replay\.keptSets is false while sampling is truncated \(topP 0\.98.*Set replay\.keptSets to true, or replay\.acknowledgeMismatch/u,
  );
  expect(messageOf({ ...minimal, replay: { keptSets: false, acknowledgeMismatch: true } })).toBe('accepted');
  expect(messageOf({ ...minimal, replay: { keptSets: false }, sampling: { topP: 1 } })).toBe('accepted');
  expect(messageOf({ ...minimal, schedule: { mode: 'async', maxStaleness: 0 } })).toMatch(
    /schedule\.maxStaleness is 0 while schedule\.mode is async.*use schedule\.mode sync/u,
  );
  expect(messageOf({ ...minimal, schedule: { mode: 'sync', maxStaleness: 2 } })).toMatch(
    /schedule\.maxStaleness is 2 while schedule\.mode is sync/u,
  );
  expect(messageOf({ ...minimal, schedule: { concurrency: 200 } })).toMatch(
    /engine\.slots is 96, fewer than schedule\.concurrency 200/u,
  );
});

test('an option that another one makes meaningless is refused, not ignored', () => {
  expect(
    messageOf({ ...minimal, reward: { base: { kind: 'detection', precisionWeight: 2, recalibrationBand: 2 } } }),
  ).toMatch(/reward\.base\.recalibrationBand is 2, but .* leave it out/u);
  expect(messageOf({ ...minimal, eval: { controls: false, controlTasks: 9 } })).toContain('eval.controlTasks');
  expect(messageOf({ ...minimal, replay: { acknowledgeMismatch: true } })).toContain('no mismatch to acknowledge');
});

const frontier = { kind: 'frontier', alpha: 0.5, costs: [{ weights: { lookups: 1 } }] };
const steered = (startingPrice: unknown): object => ({
  ...minimal,
  reward: { terms: [{ ...frontier, startingPrice }] },
});
const latency = (from: object): object => ({
  ...minimal,
  schedule: { mode: 'sync' },
  reward: { terms: [{ kind: 'latency', kappa: 0.1, dropOff: { edges: [0, 5, 10], counts: [1, 1] }, latency: from }] },
});
const budget = { kind: 'budget', form: 'hard', scope: 'task', weights: { lookups: 1 } };

test('what the reward has to measure and the run could not is refused at start', () => {
  expect(messageOf(steered({ from: 'within-task' }))).toMatch(
    /baseline\.rolloutsPerTask is 1, and a starting price from within tasks compares rollouts of the same task\. Set it to 4/u,
  );
  expect(messageOf({ ...steered({ from: 'within-task' }), baseline: { rolloutsPerTask: 4 } })).toBe('accepted');
  expect(messageOf(steered({ from: 'across-efforts' }))).toMatch(/efforts names 0, and a starting price from across/u);
  expect(messageOf(steered({ from: 'given', prices: { low: 0.1 } }))).toMatch(
    /reward\.terms\.0\.startingPrice\.prices price low, and the run's efforts are standard\. Give each/u,
  );
  expect(messageOf(steered({ from: 'given', prices: { standard: 0.1 } }))).toBe('accepted');
  expect(messageOf({ ...minimal, reward: { terms: [budget] } })).toMatch(/tasks\.pool is 0, .* Set tasks\.pool to/u);
  expect(messageOf({ ...minimal, reward: { terms: [budget] }, tasks: { pool: 300 } })).toMatch(
    /baseline\.tasks is 256, fewer than the 300 tasks of tasks\.pool/u,
  );
  expect(messageOf({ ...minimal, reward: { terms: [budget] }, tasks: { pool: 100 } })).toBe('accepted');
});

test('wall time is not read by a run that must repeat to the bit', () => {
  for (const from of ['measured', 'recorded'])
    expect(messageOf(latency({ from }))).toMatch(
      /reward\.terms\.0\.latency\.from is \w+ while schedule\.mode is sync: .* Give \{ from: 'model' \}/u,
    );
  expect(messageOf(latency({ from: 'model', tokensPerSecond: 100 }))).toBe('accepted');
  const toolSeconds = { ...minimal, reward: { terms: [{ kind: 'cost', weights: { toolSeconds: 1 } }] } };
  expect(messageOf({ ...toolSeconds, schedule: { mode: 'sync' } })).toMatch(
    /reward\.terms\.0\.weights prices toolSeconds while schedule\.mode is sync/u,
  );
  expect(messageOf(toolSeconds)).toBe('accepted');
});

test('levels of effort: limits that nothing reads, and controls that tell no effort, are refused', () => {
  const efforts = { low: { maxLookups: 0 }, high: {} };
  expect(messageOf({ ...minimal, efforts })).toMatch(
    /eval\.controls is true while efforts are named: .* Set it to false/u,
  );
  expect(messageOf({ ...minimal, efforts, eval: { controls: false } })).toBe('accepted');
  expect(messageOf({ ...minimal, efforts, eval: { controls: false }, harness: { lookups: 'off' } })).toContain(
    'efforts.low.maxLookups, as harness.lookups is off',
  );
  const priced = { reward: { terms: [{ kind: 'cost', weights: { lookups: 0.1, turns: 0.1 } }] } };
  expect(messageOf({ ...minimal, ...priced, harness: { lookups: 'off' } })).toContain(
    'reward.terms.0.weights.lookups, as harness.lookups is off',
  );
  expect(messageOf({ ...minimal, efforts: { Low: {} }, eval: { controls: false } })).toContain('lower-case letters');
  expect(
    messageOf({
      ...minimal,
      reward: { base: { kind: 'detection', precisionWeight: 1 } },
      baseline: { tasks: 9 },
    }),
  ).toContain('baseline.tasks, as nothing in reward is measured at start');
});

test('a mistyped key inside a list or a choice is told with the key that was meant', () => {
  expect(messageOf({ ...minimal, reward: { terms: [{ kind: 'cost', weights: { lookup: 1 } }] } })).toContain(
    'reward.terms.0.weights.lookup is not a known option (did you mean lookups?)',
  );
  expect(messageOf({ ...minimal, efforts: { low: { maxLookup: 1 } } })).toContain(
    'efforts.low.maxLookup is not a known option (did you mean maxLookups?)',
  );
});

test('a value out of its range is told with the value and the bound', () => {
  const terms = [{ kind: 'frontier', alpha: 1.5, costs: [{ weights: { turns: -1 } }] }];
  expect(messageOf({ ...minimal, reward: { terms } })).toContain(
    'reward.terms.0.alpha is 1.5, must be at most 1; reward.terms.0.costs.0.weights.turns is -1, must be at least 0',
  );
  expect(messageOf({ ...minimal, reward: { terms: [{ kind: 'frontire' }] } })).toMatch(
    /reward\.terms\.0\.kind is "frontire", must be "cost", "frontier", /u,
  );
  expect(messageOf([])).toContain('the config is an empty list, must be an object');
});

test('a term that could never charge anything, and references of one task, are refused', () => {
  const overlong = (limit: number): unknown => ({
    ...minimal,
    reward: { terms: [{ kind: 'overlong', limit, buffer: 64 }] },
  });
  expect(messageOf(overlong(320))).toMatch(/reward\.terms\.0, as no rollout samples more than 256 tokens/u);
  expect(messageOf(overlong(319))).toBe('accepted');
  const frontier = { terms: [{ kind: 'frontier', alpha: 1, costs: [{ weights: { turns: 1 } }] }] };
  expect(messageOf({ ...minimal, reward: frontier, baseline: { tasks: 1, rolloutsPerTask: 4 } })).toMatch(
    /baseline\.tasks is 1, and references need several tasks/u,
  );
});

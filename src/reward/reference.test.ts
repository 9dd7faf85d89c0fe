/** References: means, errors that know about tasks, the noise of the gap against a simulation, and what cannot be measured. */
import { describe, expect, it } from 'vitest';

import { createRandom } from '../domain/ids.ts';
import { gapError, measureReference, rolloutsForError, statedReference } from './reference.ts';
import type { OperatingSample, Reference } from './reference.ts';
import { gapOf, relativeGains } from './relative-gain.ts';

const still = { successGain: 0, costSaving: 0 };

/** Tasks of unequal difficulty: hard ones fail more and cost more. */
function drawSamples(seed: number, { tasks, attempts }: { tasks: number; attempts: number }): OperatingSample[] {
  const random = createRandom(seed);
  return Array.from({ length: tasks }, (_, task) => {
    const ease = 0.2 + 0.7 * random.next();
    return Array.from({ length: attempts }, () => ({
      taskId: `task-${task}`,
      success: random.next() < ease ? 1 : 0,
      cost: (2 - ease) * (1 + random.next()),
    }));
  }).flat();
}

function spread(values: readonly number[]): number {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1));
}

describe('measureReference', () => {
  it('gives the textbook error when every rollout is a task of its own', () => {
    const samples = [1, 0, 1, 1, 0].map((success, index) => ({ taskId: `t${index}`, success, cost: index + 1 }));
    const reference = measureReference(samples);
    expect(reference).toMatchObject({ success: 0.6, cost: 3, tasks: 5, rollouts: 5 });
    // Sample variances 0.3 and 2.5, sample covariance -0.25, each over 5.
    expect(reference.successError).toBeCloseTo(Math.sqrt(0.3 / 5), 14);
    expect(reference.costError).toBeCloseTo(Math.sqrt(2.5 / 5), 14);
    expect(reference.covariance).toBeCloseTo(-0.25 / 5, 14);
  });

  it('does not count the same rollout again as new evidence', () => {
    const once = measureReference(drawSamples(1, { tasks: 20, attempts: 1 }));
    const samples = drawSamples(1, { tasks: 20, attempts: 1 });
    const thrice = measureReference([...samples, ...samples, ...samples]);
    expect(thrice.rollouts).toBe(60);
    expect(thrice.successError).toBeCloseTo(once.successError, 14);
    expect(thrice.costError).toBeCloseTo(once.costError, 14);
    expect(thrice.covariance).toBeCloseTo(once.covariance, 14);
  });

  it('states the spread that repeated measurements really have, and that of the gap at any alpha', () => {
    const point = { success: 0.6, cost: 1.8 };
    const alphas = [0, 0.25, 0.5, 0.75, 1];
    const references = Array.from({ length: 400 }, (_, seed) =>
      measureReference(drawSamples(seed + 1, { tasks: 60, attempts: 6 })),
    );
    const average = (read: (reference: Reference) => number): number =>
      references.reduce((sum, reference) => sum + read(reference), 0) / references.length;
    // A spread from 400 draws is itself known to 4 %.
    const agrees = (stated: number, seen: number): void => expect(Math.abs(stated / seen - 1)).toBeLessThan(0.12);
    agrees(
      average((reference) => reference.successError),
      spread(references.map(({ success }) => success)),
    );
    agrees(
      average((reference) => reference.costError),
      spread(references.map(({ cost }) => cost)),
    );
    for (const alpha of alphas) {
      agrees(
        average((reference) => gapError(reference, relativeGains(point, reference), alpha)),
        spread(references.map((reference) => gapOf(relativeGains(point, reference), alpha))),
      );
    }
  });

  it('names the effort, the value and the cure when there is nothing to be relative to', () => {
    const failed = [0, 0, 0].map((success, index) => ({ taskId: `t${index}`, success, cost: 1 }));
    expect(() => measureReference(failed, { effort: 'low' })).toThrow(
      'The mean success of the initial policy at effort low is 0 over 3 rollouts, must be above 0',
    );
    const free = failed.map((sample) => ({ ...sample, success: 1, cost: 0 }));
    expect(() => measureReference(free, { effort: 'low' })).toThrow(
      'The mean cost of the initial policy at effort low is 0 over 3 rollouts, must be above 0',
    );
    const alone = [1, 0, 1].map((success) => ({ taskId: 'only', success, cost: 1 }));
    expect(() => measureReference(alone, { effort: 'low' })).toThrow(
      'The reference at effort low was measured on 1 task, needs at least 2.',
    );
    expect(() => measureReference([])).toThrow('The reference was measured on 0 tasks, needs at least 2.');
  });

  it('refuses a rollout that was not measured', () => {
    const sound = { taskId: 'a', success: 1, cost: 1 };
    const withSample = (sample: Partial<OperatingSample>) => () => measureReference([sound, { ...sound, ...sample }]);
    expect(withSample({ taskId: 'b', success: Number.NaN })).toThrow(
      'A rollout of task b has the success NaN, not in [0, 1].',
    );
    expect(withSample({ taskId: 'b', success: 2 })).toThrow('A rollout of task b has the success 2, not in [0, 1].');
    expect(withSample({ taskId: 'b', cost: -1 })).toThrow('A rollout of task b has the cost -1.');
    expect(withSample({ taskId: 'b', cost: Infinity })).toThrow('A rollout of task b has the cost Infinity.');
  });
});

describe('statedReference', () => {
  it('is exact, and must be within reach', () => {
    expect(gapError(statedReference({ success: 0.4, cost: 6 }), still, 0.5)).toBe(0);
    expect(() => statedReference({ success: 1.2, cost: 6 }, { effort: 'high' })).toThrow(
      'The reference success at effort high is 1.2, must lie in (0, 1].',
    );
    expect(() => statedReference({ success: 0, cost: 6 })).toThrow('The reference success is 0');
    expect(() => statedReference({ success: 0.4, cost: 0 })).toThrow(
      'The reference cost is 0, must be finite and above 0',
    );
  });
});

describe('gapError', () => {
  const reference = { success: 0.5, cost: 4, successError: 0.05, costError: 0.2, tasks: 9, rollouts: 9 };

  it('has only the noise of the end that alpha weighs', () => {
    const noisy = { ...reference, covariance: 0 };
    expect(gapError(noisy, { successGain: 1, costSaving: Number.NaN }, 0)).toBeCloseTo(2 * 0.1, 15);
    expect(gapError(noisy, { successGain: Number.NaN, costSaving: 0.5 }, 1)).toBeCloseTo(0.5 * 0.05, 15);
    expect(gapError(noisy, still, 0.5)).toBeCloseTo(Math.hypot(0.05, 0.025), 15);
  });

  it('counts errors that go together twice, and lets opposite ones cancel', () => {
    expect(gapError({ ...reference, covariance: 0.01 }, still, 0.5)).toBeCloseTo(0.05 + 0.025, 15);
    expect(gapError({ ...reference, costError: 0.4, covariance: -0.02 }, still, 0.5)).toBeCloseTo(0, 7);
  });

  it('refuses alpha outside [0, 1]', () => {
    expect(() => gapError({ ...reference, covariance: 0 }, still, 1.5)).toThrow('alpha is 1.5, must lie in [0, 1].');
  });
});

describe('rolloutsForError', () => {
  it('is (1 - s0) / s0 x 10,000 for one point at alpha 0 with independent rollouts', () => {
    for (const [success, expected] of [
      [0.5, 10_000],
      [0.05, 190_000],
    ] as const) {
      const samples = Array.from({ length: 1000 }, (_, index) => ({
        taskId: `t${index}`,
        success: index < success * 1000 ? 1 : 0,
        cost: 1,
      }));
      const needed = rolloutsForError(measureReference(samples), { alpha: 0, gapError: 0.01 });
      // The measured variance is the sample's, n / (n - 1) of the population's.
      expect(Math.abs(needed / expected - 1)).toBeLessThan(0.002);
    }
  });

  it('needs four times as many for half the error, and more when rollouts share tasks', () => {
    const reference = measureReference(drawSamples(3, { tasks: 50, attempts: 8 }));
    const needed = rolloutsForError(reference, { alpha: 0.5, gapError: 0.02 });
    expect(rolloutsForError(reference, { alpha: 0.5, gapError: 0.01 }) / needed).toBeCloseTo(4, 1);
    const independent = { ...reference, successError: Math.sqrt((0.25 * 0.999) / 400), costError: 0, covariance: 0 };
    expect(rolloutsForError(reference, { alpha: 0, gapError: 0.02 })).toBeGreaterThan(
      rolloutsForError(independent, { alpha: 0, gapError: 0.02 }),
    );
    expect(() => rolloutsForError(reference, { alpha: 0.5, gapError: 0 })).toThrow('The error of the gap is to be 0');
  });
});

import fc from 'fast-check';
import { expect, test } from 'vitest';

import {
  ObjectiveSums,
  countTrained,
  objectiveGradient,
  toObjectiveSequence,
  toObjectiveSequences,
} from './objective.ts';
import type { ObjectiveOptions } from './objective.ts';
import { policyVersion, rolloutId } from '../domain/ids.ts';
import type { Segment } from '../domain/rollout.ts';

const options: ObjectiveOptions = { importanceCap: 2, entropyCoefficient: 0.01 };

/** Prompt token 3, sampled 4 and 5 (5 not trained), environment 6, sampled 7 by a later version. */
function segment(): Segment {
  return {
    tokens: Int32Array.of(3, 4, 5, 6, 7),
    trained: Uint8Array.of(0, 1, 0, 0, 1),
    logprobs: Float32Array.of(0, -0.7, -0.2, 0, -1.1),
    kept: { ids: Int32Array.of(4, 8, 5, 7, 9), offsets: Int32Array.of(0, 0, 2, 3, 3, 5) },
    versions: [
      { version: policyVersion(4), start: 1, end: 3 },
      { version: policyVersion(5), start: 4, end: 5 },
    ],
    temperature: 1,
  };
}

test('positions, rows and staleness of a three-turn segment, by hand', () => {
  const sequence = toObjectiveSequence(segment(), 1, 6);
  expect([...sequence.positions]).toEqual([1, 2, 4]);
  expect([...sequence.kept.offsets]).toEqual([0, 2, 3, 5]);
  expect([...sequence.kept.ids]).toEqual([4, 8, 5, 7, 9]);
  expect([...sequence.trained]).toEqual([1, 0, 1]);
  // A token counts as old as the oldest token before it: its keys and values were computed then.
  expect([...sequence.staleness]).toEqual([2, 2, 2]);
  expect(countTrained([sequence])).toBe(2);
});

test('the gradient is -min(r, C) A / N at trained positions and exactly 0 elsewhere', () => {
  const sequence = toObjectiveSequence(segment(), -0.5, 5);
  const sums = new ObjectiveSums();
  const trainer = Float32Array.of(-0.7, -0.1, -0.1);
  const gradient = objectiveGradient(
    sequence,
    { logprobs: trainer, entropies: Float32Array.of(0.3, 0.2, 0.9) },
    4,
    options,
    sums,
  );
  // r = 1 at the first; e^1.0 = 2.718, truncated to 2, at the last.
  expect([...gradient.logprobs]).toEqual([0.125, 0, 0.25]);
  expect([...gradient.entropies].map((value) => Math.fround(value))).toEqual([
    Math.fround(-0.0025),
    0,
    Math.fround(-0.0025),
  ]);
  expect(sums).toMatchObject({ trained: 2, sampled: 3, singletons: 0, kept: 4, truncated: 1 });
  expect(sums.entropy).toBeCloseTo(1.2, 6);
  expect(sums.mismatch().map(({ staleness, tokens }) => ({ staleness, tokens }))).toEqual([
    { staleness: 1, tokens: 3 },
  ]);
});

test('equal log-probabilities give a mismatch of exactly 0, and k3 is never negative', () => {
  fc.assert(
    fc.property(fc.array(fc.float({ min: -30, max: 0, noNaN: true }), { minLength: 3, maxLength: 3 }), (values) => {
      const base = segment();
      const sampled = Float32Array.of(0, -0.7, -0.2, 0, -1.1);
      const sequence = toObjectiveSequence({ ...base, logprobs: sampled }, 1, 6);
      const same = new ObjectiveSums();
      objectiveGradient(
        sequence,
        { logprobs: sequence.samplerLogprobs, entropies: new Float32Array(3) },
        2,
        options,
        same,
      );
      expect(same.mismatch()[0]).toMatchObject({ k3: 0, maxAbsDelta: 0 });
      const other = new ObjectiveSums();
      objectiveGradient(
        sequence,
        { logprobs: Float32Array.from(values), entropies: new Float32Array(3) },
        2,
        options,
        other,
      );
      for (const { k3 } of other.mismatch()) expect(k3).toBeGreaterThanOrEqual(0);
      expect(Number.isFinite(other.loss)).toBe(true);
    }),
  );
});

test('batches are put in the order of rollout ids, and a broken segment is refused by name', () => {
  const samples = ['b', 'a'].map((id, index) => ({
    rolloutId: rolloutId(id),
    advantage: index,
    segments: [segment()],
  }));
  expect(toObjectiveSequences(samples, 6).map((sequence) => sequence.advantage)).toEqual([1, 0]);
  const broken = {
    ...segment(),
    kept: { ids: Int32Array.of(4, 8, 6, 7, 9), offsets: Int32Array.of(0, 0, 2, 3, 3, 5) },
  };
  expect(() => toObjectiveSequence(broken, 1, 6)).toThrow(/sampled id 5 at position 2 is not in its kept row/u);
  expect(() => toObjectiveSequence({ ...segment(), logprobs: Float32Array.of(0, Number.NaN, 0, 0, 0) }, 1, 6)).toThrow(
    /position 1 is not finite/u,
  );
});

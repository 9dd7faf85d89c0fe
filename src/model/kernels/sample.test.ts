import { readFileSync } from 'node:fs';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { createRandom } from '../../domain/ids.ts';
import type { Sampling } from '../../domain/policy.ts';
import { createEngine, type Engine } from '../engine.ts';
import { keptSet } from './reference.ts';

let engine: Engine;
beforeAll(async () => {
  engine = await createEngine({ build: 'plain', threads: 1 });
});
afterAll(() => engine.close());

/** Runs the sampling kernel on given logits: kept row, drawn id, log-probability. */
function sampleRow(
  logits: readonly number[],
  sampling: Partial<Sampling>,
): { kept: number[]; id: number; logprob: number } {
  const { temperature = 1, topK = 0, topP = 1, minP = 0 } = sampling;
  const start = engine.mark();
  const settings = engine.alloc(64);
  engine.f64(settings, 8).set([1 / temperature, topK, topP, minP, 0, 1, 2]);
  const [ids, logprobs, counts, kept] = [
    engine.alloc(4),
    engine.alloc(4),
    engine.alloc(4),
    engine.alloc(logits.length * 4),
  ] as const;
  engine.run('sample', 1, 1, ids, logprobs, counts, kept, engine.allocF32(logits), logits.length, settings);
  const result = {
    kept: [...engine.i32(kept, engine.i32(counts, 1)[0] ?? 0)],
    id: engine.i32(ids, 1)[0] ?? -1,
    logprob: engine.f32(logprobs, 1)[0] ?? 0,
  };
  engine.release(start);
  return result;
}

const vector = (name: string): { in: Record<string, never>; out: Record<string, never> }[] =>
  readFileSync(new URL(`../../../test/vectors/${name}.jsonl`, import.meta.url), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as { in: Record<string, never>; out: Record<string, never> }); // a file of this repository

describe('kept sets', () => {
  it('follow the vectors, and so do log-probabilities and gradients over them', () => {
    for (const { in: input, out } of vector('topP')) {
      const logits: number[] = input['logits'] ?? [];
      expect(sampleRow(logits, { topP: input['topP'] ?? 1 }).kept).toEqual(out['keep']);
      const { logprob, gradient } = overKept(logits, out['keep'] ?? [], input['a'] ?? 0);
      expect(logprob).toBeCloseTo(out['logProbKept'] ?? 0, 5);
      for (const [id, expected] of ((out['grad'] ?? []) as number[]).entries())
        expect(gradient[id]).toBeCloseTo(expected, 5);
    }
    for (const { in: input, out } of vector('topPReplay')) {
      expect(sampleRow(input['rolloutLogits'] ?? [], { topP: input['topP'] ?? 1 }).kept).toEqual(out['keep']);
      const { logprob, gradient } = overKept(input['trainerLogits'] ?? [], out['keep'] ?? [], input['a'] ?? 0);
      expect(logprob).toBeCloseTo(out['logProbTrainReplay'] ?? 0, 5);
      for (const [id, expected] of ((out['grad'] ?? []) as number[]).entries())
        expect(gradient[id]).toBeCloseTo(expected, 5);
    }
  });

  function overKept(logits: number[], keep: number[], id: number): { logprob: number; gradient: number[] } {
    const start = engine.mark();
    const row = [
      engine.allocF32(logits),
      logits.length,
      engine.allocI32([id]),
      engine.allocF32([1]),
      engine.allocI32(keep),
      engine.allocI32([0, keep.length]),
    ] as const;
    const [logprobs, entropies, dLogits] = [
      engine.alloc(4),
      engine.alloc(4),
      engine.allocFloats(logits.length),
    ] as const;
    engine.run('head_logprob', 1, 1, logprobs, entropies, ...row);
    engine.run('head_gradient', 1, 1, dLogits, ...row, engine.allocF32([1]), engine.allocF32([0]));
    const result = { logprob: engine.f32(logprobs, 1)[0] ?? 0, gradient: [...engine.f32(dLogits, logits.length)] };
    engine.release(start);
    return result;
  }

  it('of 300 random rows are those of the plain definition', () => {
    const random = createRandom(31);
    for (let round = 0; round < 300; round++) {
      const logits = Array.from({ length: 3 + random.below(300) }, () =>
        Math.fround((random.next() - 0.5) * random.pick([1, 8, 30])),
      );
      if (random.next() < 0.3) logits.fill(logits[0] ?? 0, 0, 3);
      const rules = {
        topK: random.pick([0, 1, 3, 50]),
        topP: random.pick([1, 0.999, 0.9, 0.3]),
        minP: random.pick([0, 0.02, 0.5]),
      };
      const { kept, id, logprob } = sampleRow(logits, rules);
      expect(kept, JSON.stringify(rules)).toEqual(keptSet(logits, { ...rules, inverseTemperature: 1 }));
      expect(kept).toContain(id);
      expect(logprob).toBeLessThanOrEqual(1e-6);
    }
  });

  it('end where the mass before is exactly top-p, and go by rising id among equals', () => {
    expect(sampleRow([0, 0], { topP: 0.5 }).kept).toEqual([0]);
    expect(sampleRow([1, 1, 1, 1], { topP: 0.5 }).kept).toEqual([0, 1]);
    expect(sampleRow([1, 2, 1, 2], { topK: 3 }).kept).toEqual([0, 1, 3]);
  });

  it('survive extreme logits; those that are not finite are reported', () => {
    expect(sampleRow([3e38, -3e38, 0, 1], { topP: 0.9 })).toEqual({ kept: [0], id: 0, logprob: 0 });
    expect(sampleRow([-3e38, -3e38, -3e38], {}).kept).toEqual([0, 1, 2]);
    expect(sampleRow([0, Number.NaN, 1], {}).id).toBe(-1);
    expect(sampleRow([0, Infinity, 1], {}).id).toBe(-1);
  });
});

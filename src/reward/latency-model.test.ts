/** The latency model: exact recovery, the true optimum under non-negativity, and what cannot be identified. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { createRandom } from '../domain/ids.ts';
import { fitLatencyModel, latencyModelSchema, predictLatency } from './latency-model.ts';
import type { LatencyModel } from './latency-model.ts';

const counts = [
  [120, 1],
  [900, 3],
  [450, 2],
  [2000, 9],
  [60, 1],
  [1500, 4],
].map(([sampledTokens = 0, turns = 0]) => ({ sampledTokens, turns }));

function record(
  model: LatencyModel,
): (LatencyModel & { sampledTokens: number; turns: number; latencySeconds: number })[] {
  return counts.map((sample) => ({ ...model, ...sample, latencySeconds: predictLatency(model, sample) }));
}

describe('the fit', () => {
  it.each([
    { overheadSeconds: 0.3, tokensPerSecond: 1000, secondsPerTurn: 0.4 },
    { overheadSeconds: 0, tokensPerSecond: 55, secondsPerTurn: 2 },
    { overheadSeconds: 4, tokensPerSecond: 12_000, secondsPerTurn: 0 },
  ])('recovers $overheadSeconds, $tokensPerSecond, $secondsPerTurn from latencies without noise', (truth) => {
    const { model, rSquared, meanAbsoluteErrorSeconds, samples } = fitLatencyModel(record(truth));
    expect(Math.abs(model.overheadSeconds - truth.overheadSeconds)).toBeLessThan(1e-11);
    expect(Math.abs(model.tokensPerSecond / truth.tokensPerSecond - 1)).toBeLessThan(1e-11);
    expect(Math.abs(model.secondsPerTurn - truth.secondsPerTurn)).toBeLessThan(1e-11);
    expect(rSquared).toBeGreaterThan(1 - 1e-12);
    expect(meanAbsoluteErrorSeconds).toBeLessThan(1e-11);
    expect(samples).toBe(counts.length);
    expect(latencyModelSchema.parse(model)).toEqual(model);
  });

  it('is the optimum among non-negative coefficients: no feasible step lowers the squared error', () => {
    const samples = fc.array(
      fc.record({
        sampledTokens: fc.integer({ min: 0, max: 3000 }),
        turns: fc.integer({ min: 1, max: 12 }),
        latencySeconds: fc.double({ min: 0, max: 60, noNaN: true }),
      }),
      { minLength: 5, maxLength: 25 },
    );
    let fitted = 0;
    fc.assert(
      fc.property(samples, (list) => {
        let fit;
        try {
          fit = fitLatencyModel(list);
        } catch {
          return;
        }
        fitted++;
        const at = [fit.model.overheadSeconds, 1 / fit.model.tokensPerSecond, fit.model.secondsPerTurn];
        expect(at.every((coefficient) => coefficient >= 0)).toBe(true);
        // Karush-Kuhn-Tucker: the gradient is 0 where a coefficient is above 0, and at least 0 where it is 0.
        const columns = list.map(({ sampledTokens, turns }) => [1, sampledTokens, turns]);
        const residuals = list.map(
          ({ latencySeconds }, row) =>
            (columns[row] ?? []).reduce((sum, value, index) => sum + value * (at[index] ?? 0), 0) - latencySeconds,
        );
        for (const [index, coefficient] of at.entries()) {
          const gradient = residuals.reduce((sum, residual, row) => sum + residual * (columns[row]?.[index] ?? 0), 0);
          const scale = residuals.reduce(
            (sum, residual, row) => sum + Math.abs(residual * (columns[row]?.[index] ?? 0)),
            1e-9,
          );
          if (coefficient > 0) expect(Math.abs(gradient) / scale).toBeLessThan(1e-6);
          else expect(gradient / scale).toBeGreaterThan(-1e-6);
        }
      }),
      { numRuns: 300, seed: 9 },
    );
    expect(fitted).toBeGreaterThan(100);
  });

  it('comes near the truth through noise, and says how well it explains', () => {
    const random = createRandom(1);
    const truth = { overheadSeconds: 0.5, tokensPerSecond: 100, secondsPerTurn: 0.8 };
    const samples = Array.from({ length: 400 }, () => {
      const sample = { sampledTokens: 50 + random.below(2000), turns: 1 + random.below(8) };
      return { ...sample, latencySeconds: predictLatency(truth, sample) + random.next() - 0.5 };
    });
    const { model, rSquared, meanAbsoluteErrorSeconds } = fitLatencyModel(samples);
    expect(model.tokensPerSecond).toBeCloseTo(100, 0);
    expect(Math.abs(model.secondsPerTurn - 0.8)).toBeLessThan(0.02);
    expect(Math.abs(model.overheadSeconds - 0.5)).toBeLessThan(0.1);
    expect(rSquared).toBeGreaterThan(0.99);
    // Noise is uniform over one second, so the mean absolute error is a quarter of one.
    expect(meanAbsoluteErrorSeconds).toBeCloseTo(0.25, 1);
  });
});

describe('a product of one turn', () => {
  const truth = { overheadSeconds: 0.5, tokensPerSecond: 100, secondsPerTurn: 0.75 };
  const single = counts.map((sample) => ({ ...sample, turns: 1 }));

  it('has the time of its turn in the overhead, and says so', () => {
    const samples = single.map((sample) => ({ ...sample, latencySeconds: predictLatency(truth, sample) }));
    const { model, constantTurns, rSquared } = fitLatencyModel(samples);
    expect(constantTurns).toBe(1);
    expect(model.secondsPerTurn).toBe(0);
    expect(model.overheadSeconds).toBeCloseTo(1.25, 10);
    expect(model.tokensPerSecond).toBeCloseTo(100, 8);
    expect(rSquared).toBeGreaterThan(1 - 1e-12);
    for (const sample of single) expect(predictLatency(model, sample)).toBeCloseTo(predictLatency(truth, sample), 10);
    expect(fitLatencyModel(record(truth)).constantTurns).toBeNull();
  });

  it('still needs tokens that vary and explain something', () => {
    expect(() => fitLatencyModel(single.map((sample) => ({ ...sample, latencySeconds: 7 })))).toThrow(/took 7 seconds/);
    expect(() =>
      fitLatencyModel(single.map((sample) => ({ ...sample, latencySeconds: 100 - sample.sampledTokens / 50 }))),
    ).toThrow(/does not grow with sampled tokens/);
  });
});

describe('what cannot be identified', () => {
  const exact = record({ overheadSeconds: 1, tokensPerSecond: 100, secondsPerTurn: 1 });

  it.each([
    ['too few', exact.slice(0, 2), /2 recorded rollouts for 3 coefficients/],
    ['none', [], /0 recorded rollouts/],
    [
      'all the same',
      exact.map(() => exact[0] ?? { sampledTokens: 1, turns: 1, latencySeconds: 1 }),
      /took 3.2 seconds/,
    ],
    ['equal tokens', exact.map((sample) => ({ ...sample, sampledTokens: 7 })), /has 7 sampled tokens/],
    [
      'tokens in step with turns',
      exact.map((sample) => ({ ...sample, sampledTokens: 130 + 210 * sample.turns })),
      /move together/,
    ],
    [
      'latency that falls with tokens',
      exact.map((sample) => ({ ...sample, latencySeconds: 100 - sample.sampledTokens / 50 })),
      /does not grow with sampled tokens/,
    ],
  ])('refuses %s', (_, samples, message) => {
    expect(() => fitLatencyModel(samples)).toThrow(message);
  });

  it('refuses counts and latencies that are none', () => {
    expect(() => fitLatencyModel([...exact, { sampledTokens: 1, turns: 1, latencySeconds: Number.NaN }])).toThrow(
      /NaN seconds of latency/,
    );
    const model = { overheadSeconds: 0, tokensPerSecond: 1, secondsPerTurn: 0 };
    expect(() => predictLatency(model, { sampledTokens: -5, turns: 1 })).toThrow(/-5 sampled tokens/);
    expect(() => predictLatency(model, { sampledTokens: 5, turns: Infinity })).toThrow(/Infinity turns/);
  });
});

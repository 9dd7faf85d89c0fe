/** The latency penalty: vectors, the shape that every histogram must give, censoring, and each refused histogram. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { readVectors, vectorError } from '../../test/read-vectors.fixture.ts';
import { createRandom } from '../domain/ids.ts';
import { dropOffSchema, fitDropOff, latencyPenalty } from './drop-off.ts';
import type { DropOffHistogram } from './drop-off.ts';
import { predictLatency } from './latency-model.ts';

type Histogram = { edges: (number | 'inf')[]; counts: number[] };
const VARIANTS = ['minmax', 'origin', 'mid'] as const;

describe('the vectors', () => {
  it.each(['latencyPenalty', 'latencyPenaltyOpenTail'])('%s', (file) => {
    type Output = Record<(typeof VARIANTS)[number], number>;
    const vectors = readVectors<Histogram & { t: number }, Output>(file);
    expect(vectors.length).toBeGreaterThan(6);
    for (const { in: input, out } of vectors)
      for (const variant of VARIANTS) {
        const dropOff = fitDropOff({ edges: input.edges, counts: input.counts, variant });
        expect(vectorError(latencyPenalty(dropOff, input.t), out[variant])).toBeLessThanOrEqual(1e-12);
        expect(dropOff.fallback).toBe(false);
      }
  });

  it('latencyPenaltyDegenerate: one bucket falls back to origin', () => {
    for (const { in: input, out } of readVectors<Histogram & { t: number }, { fallbackOrigin: number }>(
      'latencyPenaltyDegenerate',
    )) {
      const dropOff = fitDropOff({ edges: input.edges, counts: input.counts });
      expect(dropOff.fallback).toBe(true);
      expect(vectorError(latencyPenalty(dropOff, input.t), out.fallbackOrigin)).toBeLessThanOrEqual(1e-12);
    }
  });

  it('phase2Reward: base minus kappa x penalty of the predicted latency', () => {
    type Input = Histogram & {
      tokens: number;
      turns: number;
      tokensPerSecond: number;
      secondsPerTurn: number;
      overhead: number;
      P: number;
      R: number;
      kappa: number;
    };
    for (const { in: input, out } of readVectors<Input, { latency: number; penalty: number; reward: number }>(
      'phase2Reward',
    )) {
      const { tokensPerSecond, secondsPerTurn, overhead: overheadSeconds, tokens: sampledTokens, turns } = input;
      const latency = predictLatency({ overheadSeconds, tokensPerSecond, secondsPerTurn }, { sampledTokens, turns });
      const penalty = latencyPenalty(fitDropOff({ edges: input.edges, counts: input.counts }), latency);
      expect(vectorError(latency, out.latency)).toBeLessThanOrEqual(1e-12);
      expect(vectorError(penalty, out.penalty)).toBeLessThanOrEqual(1e-12);
      expect(vectorError(0.5 * input.P + input.R - input.kappa * penalty, out.reward)).toBeLessThanOrEqual(1e-12);
    }
  });
});

/** Any histogram: widths, counts with empty buckets among them, an open or a closed tail, censored sessions or none. */
const histograms = fc
  .array(fc.tuple(fc.integer({ min: 1, max: 50 }), fc.integer({ min: 0, max: 30 }), fc.integer({ min: 0, max: 30 })), {
    minLength: 1,
    maxLength: 10,
  })
  .filter((buckets) => buckets.some(([, departed]) => departed > 0))
  .chain((buckets) =>
    fc
      .record({ start: fc.integer({ min: 0, max: 5 }), isOpen: fc.boolean(), isCensored: fc.boolean() })
      .map((shape) => {
        const edges: (number | 'inf')[] = [shape.start];
        let end = shape.start;
        for (const [width] of buckets) edges.push((end += width));
        if (shape.isOpen && buckets.length > 1) edges[edges.length - 1] = 'inf';
        const counts = buckets.map(([, departed]) => departed);
        const censored = buckets.map(([, , lost]) => lost);
        return { edges, counts, ...(shape.isCensored ? { censored } : {}) };
      }),
  );

describe('every histogram and variant', () => {
  const cases = fc.tuple(histograms, fc.constantFrom(...VARIANTS));

  it('starts at 0, ends at 1, meets its knots exactly and never falls', () => {
    fc.assert(
      fc.property(cases, fc.array(fc.double({ min: 0, max: 600, noNaN: true }), { maxLength: 40 }), (drawn, times) => {
        const dropOff = fitDropOff({ ...drawn[0], variant: drawn[1] });
        expect(latencyPenalty(dropOff, 0)).toBe(0);
        expect(latencyPenalty(dropOff, Infinity)).toBe(1);
        for (const { seconds, penalty } of dropOff.knots) expect(latencyPenalty(dropOff, seconds)).toBe(penalty);
        const ascending = [...times, ...dropOff.knots.map(({ seconds }) => seconds)].sort((a, b) => a - b);
        let previous = 0;
        for (const seconds of ascending) {
          const penalty = latencyPenalty(dropOff, seconds);
          expect(penalty).toBeGreaterThanOrEqual(previous);
          expect(penalty).toBeLessThanOrEqual(1);
          previous = penalty;
        }
      }),
      { numRuns: 300, seed: 5 },
    );
  });

  it('is continuous: no step is larger than the steepest knot-to-knot slope allows', () => {
    fc.assert(
      fc.property(cases, fc.double({ min: 0, max: 600, noNaN: true }), ([histogram, variant], seconds) => {
        const dropOff = fitDropOff({ ...histogram, variant });
        const step = 1e-6;
        // Midpoints of integer edges are at least half a second apart, and the penalty's whole range is 1.
        const rise = latencyPenalty(dropOff, seconds + step) - latencyPenalty(dropOff, seconds);
        expect(rise).toBeLessThanOrEqual(2 * step + 1e-12);
      }),
      { numRuns: 300, seed: 6 },
    );
  });

  it('does not depend on how many sessions were counted, only on their shares', () => {
    fc.assert(
      fc.property(cases, fc.double({ min: 0.01, max: 1000, noNaN: true }), ([histogram, variant], scale) => {
        const scaled = {
          ...histogram,
          counts: histogram.counts.map((value) => value * scale),
          ...(histogram.censored === undefined ? {} : { censored: histogram.censored.map((value) => value * scale) }),
        };
        const knots = fitDropOff({ ...histogram, variant }).knots;
        for (const [index, knot] of fitDropOff({ ...scaled, variant }).knots.entries())
          expect(Math.abs(knot.penalty - (knots[index]?.penalty ?? Number.NaN))).toBeLessThan(1e-12);
      }),
      { numRuns: 200, seed: 7 },
    );
  });

  it('is the plain distribution of departures where nobody was censored', () => {
    fc.assert(
      fc.property(histograms, ({ edges, counts }) => {
        const total = counts.reduce((sum, value) => sum + value, 0);
        const { knots } = fitDropOff({ edges, counts, variant: 'origin' });
        const { knots: withZeros } = fitDropOff({ edges, counts, censored: counts.map(() => 0), variant: 'origin' });
        let departed = 0;
        for (const [index, value] of counts.entries()) {
          departed += value;
          expect(Math.abs((knots[index + 1]?.penalty ?? Number.NaN) - departed / total)).toBeLessThan(1e-14);
        }
        expect(withZeros).toEqual(knots);
      }),
      { numRuns: 200, seed: 8 },
    );
  });
});

it('does not overshoot a knot by rounding just before it', () => {
  // Edges in tenths, for which the line through two knots passes the second one by an ulp.
  const dropOff = fitDropOff({ edges: [0.1, 0.6, 3.1, 5.4, 7.2], counts: [21, 10, 25, 14] });
  const knot = dropOff.knots[1] ?? { seconds: Number.NaN, penalty: Number.NaN };
  expect(latencyPenalty(dropOff, knot.seconds * (1 - 2 ** -53))).toBeLessThanOrEqual(knot.penalty);
});

it('survives JSON and has a default for every optional field but the tail', () => {
  const dropOff = fitDropOff({ edges: [0, 1, 3, 'inf'], counts: [3, 2, 1] });
  expect(JSON.parse(JSON.stringify(dropOff))).toEqual(dropOff);
  expect(dropOffSchema.parse({ edges: [0, 1], counts: [1] }).variant).toBe('minmax');
});

it('gives an open tail the width that was asked for', () => {
  const histogram = { edges: [0, 2, 'inf'], counts: [1, 1] } satisfies DropOffHistogram;
  expect(fitDropOff(histogram).knots.at(-1)?.seconds).toBe(3);
  expect(fitDropOff({ ...histogram, openTailSeconds: 10 }).knots.at(-1)?.seconds).toBe(7);
  const alone = fitDropOff({ edges: [0, 'inf'], counts: [4], openTailSeconds: 10 });
  expect(latencyPenalty(alone, 2.5)).toBe(0.5);
});

describe('sessions that ended before their user left', () => {
  it('follows a life table by hand: at risk through their own bucket, not after it', () => {
    // 20 sessions. At risk 20, 13, 5; leaving 4, 6, 3; so survival 0.8, 0.8 x 7/13, 0.8 x 7/13 x 2/5.
    const { knots } = fitDropOff({ edges: [0, 2, 4, 6], counts: [4, 6, 3], censored: [3, 2, 2], variant: 'origin' });
    const last = 1 - ((0.8 * 7) / 13) * 0.4;
    const expected = [0, 0.2 / last, (1 - (0.8 * 7) / 13) / last, 1];
    for (const [index, { penalty }] of knots.entries()) expect(penalty).toBeCloseTo(expected[index] ?? Number.NaN, 14);
  });

  it('does not bias the penalty, as leaving them out or taking them for departures does', () => {
    // Users leave after an exponential time of mean 20 s; sessions end for other reasons after one of mean 15 s.
    // Buckets of a tenth of a second, so that what a session misses of the bucket it was censored in is little.
    const random = createRandom(4);
    const edges = Array.from({ length: 401 }, (_, index) => index / 10);
    const counts = Array.from<number>({ length: 400 }).fill(0);
    const censored = counts.slice();
    for (let session = 0; session < 200_000; session++) {
      const leaves = -20 * Math.log(1 - random.next());
      const ends = -15 * Math.log(1 - random.next());
      // The histogram is cut at 40 s: who is still there is censored in the last bucket.
      const column = leaves <= ends && leaves < 40 ? counts : censored;
      const bucket = Math.min(Math.floor(10 * Math.min(leaves, ends)), 399);
      column[bucket] = (column[bucket] ?? 0) + 1;
    }
    const left = (seconds: number): number => 1 - Math.exp(-seconds / 20);
    const truth = (seconds: number): number => (left(seconds) - left(0.05)) / (left(39.95) - left(0.05));
    const worst = (histogram: DropOffHistogram): number => {
      const dropOff = fitDropOff({ ...histogram, variant: 'mid' });
      return Math.max(...[2, 5, 10, 15, 20, 30].map((t) => Math.abs(latencyPenalty(dropOff, t) - truth(t))));
    };
    // Sampling noise alone is about 0.003 where fewest sessions are left.
    expect(worst({ edges, counts, censored })).toBeLessThan(0.006);
    expect(worst({ edges, counts })).toBeGreaterThan(0.2);
    const departed = counts.map((value, index) => value + (censored[index] ?? 0));
    expect(worst({ edges, counts: departed })).toBeGreaterThan(0.2);
  });
});

describe('bad input', () => {
  it.each<[string, unknown, RegExp]>([
    ['edges that descend', { edges: [0, 10, 5], counts: [1, 1] }, /edges go from 10 to 5: sort/],
    ['edges that repeat', { edges: [0, 5, 5], counts: [1, 1] }, /edges go from 5 to 5/],
    ['a NaN edge', { edges: [0, Number.NaN], counts: [1] }, /edges\.1 is neither a finite number nor 'inf'/],
    ['a negative edge', { edges: [-1, 5], counts: [1] }, /edges begin at -1/],
    ['inf before the end', { edges: [0, 'inf', 5], counts: [1, 1] }, /only the last may be open/],
    ['one edge', { edges: [0], counts: [] }, /fewer than 2 edges/],
    ['a negative count', { edges: [0, 5], counts: [-2] }, /counts\.0 is below 0/],
    ['a NaN count', { edges: [0, 5], counts: [Number.NaN] }, /counts\.0 is not a finite number/],
    ['an empty histogram', { edges: [0, 5, 9], counts: [0, 0] }, /counts add up to 0: record/],
    ['nothing at all', { edges: [], counts: [] }, /edges has fewer than 2 edges(?!.*-1 buckets)/],
    ['a count too few', { edges: [0, 5, 9], counts: [1] }, /counts has 1 entries for 2 buckets/],
    ['censored of another length', { edges: [0, 5], counts: [1], censored: [1, 2] }, /censored has 2 entries/],
    ['one open bucket', { edges: [0, 'inf'], counts: [1] }, /the only bucket is open/],
    ['a tail width that nothing reads', { edges: [0, 5], counts: [1], openTailSeconds: 3 }, /no bucket is open/],
    ['an unknown key', { edges: [0, 5], counts: [1], variants: 'mid' }, /variants/],
  ])('refuses %s', (_, histogram, message) => {
    // The cast lets a test say what a hand-written config may say.
    expect(() => fitDropOff(histogram as DropOffHistogram)).toThrow(message);
  });

  it('refuses a latency that is negative or NaN', () => {
    const dropOff = fitDropOff({ edges: [0, 5, 9], counts: [1, 2] });
    expect(() => latencyPenalty(dropOff, -1)).toThrow(/latency of -1 seconds/);
    expect(() => latencyPenalty(dropOff, Number.NaN)).toThrow(/latency of NaN/);
  });
});

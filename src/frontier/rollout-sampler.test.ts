/**
 * The sampler against its definitions: a reference generator in 64-bit arithmetic, a plain loop over rollouts, and the
 * laws that the draws claim to follow. Statistical bounds are the upper 10^-4 points; seeds are fixed, so they never flake.
 */
import { describe, expect, it } from 'vitest';

import { createRandom } from '../domain/ids.ts';
import {
  CANDIDATE_CAP,
  CELL_COUNT,
  createDraws,
  createGenerator,
  createSuccessTable,
  createTally,
  drawBatch,
  TALLY,
  TALLY_COLUMNS,
  tallyBatch,
} from './rollout-sampler.ts';
import type { Draws, SamplingPolicy } from './rollout-sampler.ts';

const CANDIDATES = { pGood: 0.2, pBad: 0.05 };
const TABLE = createSuccessTable(CANDIDATES);
const POLICY: SamplingPolicy = {
  actionChances: Float64Array.of(0.3, 0.8),
  costs: Float64Array.of(2, 6, 15),
};

/** xoshiro128++ from its definition, on big integers. */
function* referenceWords(state: readonly number[]): Generator<number, never> {
  const s = state.map((word) => BigInt(word >>> 0));
  const mask = 0xffffffffn;
  const rotate = (x: bigint, by: bigint): bigint => ((x << by) | (x >> (32n - by))) & mask;
  for (;;) {
    const [s0, s1, s2, s3] = s as [bigint, bigint, bigint, bigint]; // four words of state
    yield Number((rotate((s0 + s3) & mask, 7n) + s0) & mask);
    const t2 = s2 ^ s0;
    const t3 = s3 ^ s1;
    s[1] = s1 ^ t2;
    s[0] = s0 ^ t3;
    s[2] = t2 ^ ((s1 << 9n) & mask);
    s[3] = rotate(t3, 11n);
  }
}

interface Rollout {
  readonly effort: number;
  readonly input: number;
  readonly action: number;
  readonly candidates: number;
  readonly success: number;
}

/** Rollouts one at a time: batches of one, read back from their sums. */
function* sampleRollouts(seed: number, policy = POLICY): Generator<Rollout, never> {
  const generator = createGenerator(seed, 'test');
  const draws = createDraws(1);
  const tally = createTally();
  for (;;) {
    drawBatch(generator, draws, { count: 1 });
    tallyBatch(draws, policy, { table: TABLE, tally });
    const cell = draws.counts.indexOf(1);
    const row = cell * TALLY_COLUMNS;
    yield {
      effort: cell >> 1,
      input: cell & 1,
      action: tally[row + TALLY.actions]!,
      candidates: tally[row + TALLY.candidates]!,
      success: tally[row + TALLY.successes]!,
    };
  }
}

function take<T>(source: Generator<T, never>, count: number): T[] {
  return Array.from({ length: count }, () => source.next().value);
}

/** The value that chi-square with so many degrees of freedom exceeds once in 10^4 (Wilson and Hilferty). */
function chiSquareBound(freedom: number): number {
  const spread = 2 / (9 * freedom);
  return freedom * (1 - spread + 3.719 * Math.sqrt(spread)) ** 3;
}

/** Pearson's statistic of counts against chances that sum to 1. */
function chiSquare(counts: readonly number[], chances: readonly number[]): number {
  const total = counts.reduce((sum, count) => sum + count, 0);
  return counts.reduce((sum, count, index) => {
    const expected = total * (chances[index] ?? 0);
    return sum + (count - expected) ** 2 / expected;
  }, 0);
}

function tallyPlainly(draws: Draws, policy: SamplingPolicy): { tally: Float64Array; capped: number } {
  const tally = createTally();
  let capped = 0;
  for (let cell = 0; cell < CELL_COUNT; cell++) {
    const cost = policy.costs[cell >> 1]!;
    const rho = policy.actionChances[cell & 1]!;
    for (let place = cell * draws.capacity; place < cell * draws.capacity + draws.counts[cell]!; place++) {
      const action = draws.actions[place]! / 2 ** 30 < rho ? 1 : 0;
      const unlimited = Math.floor(draws.exponentials[place]! / Math.log1p(1 / cost));
      const candidates = Math.min(unlimited, CANDIDATE_CAP);
      if (unlimited > CANDIDATE_CAP) capped++;
      const chance = action === (cell & 1) ? CANDIDATES.pGood : CANDIDATES.pBad;
      const success = draws.successes[place]! / (2 ** 31 - 1) < 1 - (1 - chance) ** candidates ? 1 : 0;
      const sums = [1, action, success, action * success, candidates, action * candidates];
      for (const [column, value] of [...sums, candidates ** 2, success * candidates].entries()) {
        tally[cell * TALLY_COLUMNS + column]! += value;
      }
    }
  }
  return { tally, capped };
}

describe('drawBatch', () => {
  it('is xoshiro128++, three words a rollout, whatever becomes of them', () => {
    const published = [641, 1573767, 3222811527, 3517856514, 836907274, 4247214768, 3867114732, 1355841295, 495546011];
    const words = referenceWords([1, 2, 3, 4]);
    expect(take(words, 9)).toEqual(published);

    const generator = Int32Array.of(1, 2, 3, 4);
    const draws = createDraws(64);
    for (let index = 0; index < 3; index++) {
      drawBatch(generator, draws, { count: 1 });
      const [word, uniform, success] = published.slice(3 * index);
      const cell = Math.floor((word! * 6) / 2 ** 32);
      expect([...draws.counts]).toEqual(Array.from({ length: 6 }, (_, at) => (at === cell ? 1 : 0)));
      const place = cell * 64;
      expect(draws.actions[place]).toBe(Math.floor(((word! * 6) % 2 ** 32) / 4));
      expect(draws.exponentials[place]).toBeCloseTo(-Math.log((uniform! | 1) >>> 0) + 32 * Math.LN2, 13);
      expect(draws.successes[place]).toBe(success! >>> 1);
    }
    drawBatch(generator, draws, { count: 50 });
    const after = referenceWords([1, 2, 3, 4]);
    take(after, 3 * 53);
    drawBatch(generator, draws, { count: 1, effort: 0 });
    const [first] = take(after, 1);
    expect(draws.counts[Math.floor(first! / 2 ** 31)]).toBe(1);
  });

  it('spreads rollouts evenly over efforts and inputs, or over the inputs of one effort', () => {
    const draws = createDraws(60_000);
    drawBatch(createGenerator(2, 'cells'), draws, { count: 60_000 });
    expect(chiSquare([...draws.counts], Array(6).fill(1 / 6))).toBeLessThan(chiSquareBound(5));
    drawBatch(createGenerator(2, 'cells'), draws, { count: 60_000, effort: 1 });
    expect([draws.counts[0], draws.counts[1], draws.counts[4], draws.counts[5]]).toEqual([0, 0, 0, 0]);
    expect(chiSquare([draws.counts[2]!, draws.counts[3]!], [0.5, 0.5])).toBeLessThan(chiSquareBound(1));
  });

  it('draws the three parts of a rollout, and rollouts in a row, independently', () => {
    const draws = createDraws(200_000);
    drawBatch(createGenerator(3, 'parts'), draws, { count: 200_000 });
    const quarter = {
      action: (place: number) => draws.actions[place]! >>> 28,
      candidates: (place: number) => Math.floor(4 * Math.exp(-draws.exponentials[place]!)),
      success: (place: number) => draws.successes[place]! >>> 29,
    };
    const parts = Object.values(quarter);
    for (const [at, left] of parts.entries()) {
      for (const [to, right] of parts.entries()) {
        for (const lag of [0, 1, 2]) {
          if (lag === 0 && at <= to) continue;
          const counts = Array<number>(16).fill(0);
          for (let cell = 0; cell < CELL_COUNT; cell++) {
            const first = cell * draws.capacity;
            for (let place = first; place + lag < first + draws.counts[cell]!; place++) {
              counts[4 * left(place) + right(place + lag)]!++;
            }
          }
          expect(chiSquare(counts, Array(16).fill(1 / 16)), `${at} ${to} ${lag}`).toBeLessThan(chiSquareBound(15));
        }
      }
    }
  });

  it('gives other draws for another path, the same for the same', () => {
    const drawn = (...path: readonly (string | number)[]): number[] => {
      const draws = createDraws(8);
      drawBatch(createGenerator(1, ...path), draws, { count: 8, effort: 0 });
      return [...draws.successes.subarray(0, 8)];
    };
    expect(drawn('study', 3, 1)).toEqual(drawn('study', 3, 1));
    expect(drawn('study', 3, 1)).not.toEqual(drawn('study', 1, 3));
  });
});

describe('tallyBatch', () => {
  it('equals a plain loop over rollouts, in the table, beyond it and at the cap', () => {
    const random = createRandom(4);
    const draws = createDraws(2000);
    const tally = createTally();
    const scales = [0.01, 1, 20, 300, 3000, 1e6];
    const all = scales.map((scale, index) => {
      const policy = {
        actionChances: Float64Array.of(random.next(), random.next()),
        costs: Float64Array.of(scale * (0.5 + random.next()), scale * 3, scale * 7),
      };
      drawBatch(createGenerator(index, 'plain'), draws, { count: 2000 });
      const expected = tallyPlainly(draws, policy);
      const capped = tallyBatch(draws, policy, { table: TABLE, tally });
      expect([...tally]).toEqual([...expected.tally]);
      expect(capped).toBe(expected.capped);
      return capped;
    });
    expect(all[0]).toBe(0);
    expect(all.at(-1)).toBeGreaterThan(100);
  });

  it('draws candidates from the geometric law', () => {
    const counts = [0, 1, 2].map(() => Array<number>(400).fill(0));
    const rollouts = take(sampleRollouts(5), 300_000);
    for (const { effort, candidates } of rollouts) counts[effort]![Math.min(candidates, 399)]!++;
    for (const [effort, cost] of POLICY.costs.entries()) {
      // r (1 - r)^k up to where about 20 rollouts are left, then the tail.
      const r = 1 / (1 + cost);
      const bins = Math.floor(Math.log(20 / 1e5) / Math.log(1 - r));
      const chances = Array.from({ length: bins }, (_, candidates) => r * (1 - r) ** candidates);
      const tail = counts[effort]!.slice(bins).reduce((sum, count) => sum + count, 0);
      const statistic = chiSquare([...counts[effort]!.slice(0, bins), tail], [...chances, (1 - r) ** bins]);
      expect(statistic).toBeLessThan(chiSquareBound(bins));
      // A law that is off by two hundredths of its mean is told apart.
      const wrong = 1 / (1 + 1.02 * cost);
      const off = chances.map((_, candidates) => wrong * (1 - wrong) ** candidates);
      expect(chiSquare([...counts[effort]!.slice(0, bins), tail], [...off, (1 - wrong) ** bins])).toBeGreaterThan(
        statistic,
      );
    }
  });

  it('has the moments c and c (1 + c) over four million rollouts', () => {
    const generator = createGenerator(6, 'moments');
    const draws = createDraws(65_536);
    const tally = createTally();
    const sums = new Float64Array(CELL_COUNT * TALLY_COLUMNS);
    for (let batch = 0; batch < 64; batch++) {
      drawBatch(generator, draws, { count: 65_536 });
      tallyBatch(draws, POLICY, { table: TABLE, tally });
      for (const [index, value] of tally.entries()) sums[index]! += value;
    }
    const sum = (effort: number, column: number): number =>
      sums[2 * effort * TALLY_COLUMNS + column]! + sums[(2 * effort + 1) * TALLY_COLUMNS + column]!;
    for (const [effort, cost] of POLICY.costs.entries()) {
      const count = sum(effort, TALLY.count);
      const mean = sum(effort, TALLY.candidates) / count;
      const variance = cost * (1 + cost);
      expect(Math.abs(mean - cost)).toBeLessThan(4 * Math.sqrt(variance / count));
      // Var of the squared deviation of a geometric law: mu4 - sigma^4 with excess kurtosis 6 + 1 / variance.
      const spread = Math.sqrt(((8 + 1 / variance) * variance ** 2) / count);
      expect(Math.abs(sum(effort, TALLY.squares) / count - mean ** 2 - variance)).toBeLessThan(4 * spread);
      // Success: the closed form with the share of good actions, (1 - rho0 + rho1) / 2.
      const rate = (p: number): number => (p * cost) / (1 + p * cost);
      const success = 0.75 * rate(CANDIDATES.pGood) + 0.25 * rate(CANDIDATES.pBad);
      const deviation = Math.sqrt((success * (1 - success)) / count);
      expect(Math.abs(sum(effort, TALLY.successes) / count - success)).toBeLessThan(4 * deviation);
    }
  });

  it('takes actions and succeeds as often as it should, given the candidates', () => {
    const rollouts = take(sampleRollouts(7), 200_000);
    for (const input of [0, 1]) {
      const actions = rollouts.filter((rollout) => rollout.input === input).map(({ action }) => action);
      const ones = actions.reduce((sum, action) => sum + action, 0);
      const rho = POLICY.actionChances[input]!;
      expect(chiSquare([ones, actions.length - ones], [rho, 1 - rho])).toBeLessThan(chiSquareBound(1));
    }
    for (const isGood of [true, false]) {
      let statistic = 0;
      for (let candidates = 1; candidates <= 20; candidates++) {
        const same = rollouts.filter(
          (rollout) => rollout.candidates === candidates && (rollout.action === rollout.input) === isGood,
        );
        const wins = same.reduce((sum, { success }) => sum + success, 0);
        const chance = 1 - (1 - (isGood ? CANDIDATES.pGood : CANDIDATES.pBad)) ** candidates;
        statistic += chiSquare([wins, same.length - wins], [chance, 1 - chance]);
      }
      expect(statistic).toBeLessThan(chiSquareBound(20));
    }
    expect(rollouts.filter(({ candidates, success }) => candidates === 0 && success === 1)).toEqual([]);
  });

  it('cuts at the cap and says so, for a cost that has exploded', () => {
    const draws = createDraws(300);
    drawBatch(createGenerator(8, 'cap'), draws, { count: 300 });
    const tally = createTally();
    const costs = Float64Array.of(2, Infinity, 1e12);
    const capped = tallyBatch(draws, { ...POLICY, costs }, { table: TABLE, tally });
    const rows = [2, 3, 4, 5].map((cell) => cell * TALLY_COLUMNS);
    expect(capped).toBe(rows.reduce((sum, row) => sum + tally[row]!, 0));
    for (const row of rows) expect(tally[row + TALLY.candidates]).toBe(tally[row]! * CANDIDATE_CAP);
  });
});

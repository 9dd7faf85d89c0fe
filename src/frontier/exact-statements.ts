/**
 * The six exact statements: formulas, mean-field runs and F-beta against figures from independent arithmetic. They hold
 * to rounding or they do not hold. The figures are data in this file; the full set of vectors is met by the tests.
 */
import { atMost, armOf, largest, scientific } from './statement.ts';
import type { Formulas, Statement, StatementResult } from './statement.ts';
import { RECORD_COLUMNS, STARTING_COSTS } from './study-record.ts';
import type { StudyRecord } from './study-record.ts';
import { summariseStudy } from './study-summary.ts';
import { TOY_PROBLEM_COUNT } from './toy-task.ts';

export const EXACT_STATEMENTS: readonly Statement[] = [
  {
    id: 1,
    statement: 'The formulas meet their vectors (a sample of them)',
    kind: 'exact',
    check: ({ formulas }) => atMost(formulaError(formulas), { bound: 1e-12, what: 'largest relative error' }),
  },
  {
    id: 2,
    statement: 'Mean-field runs meet the golden runs at step 1,000',
    kind: 'exact',
    check: ({ golden }) => {
      const sgd = goldenError(golden.sgd, GOLDEN_SGD);
      const adam = goldenError(golden.adam, GOLDEN_ADAM);
      return {
        passed: sgd <= 1e-12 && adam <= 1e-9,
        observed: `gradient steps ${scientific(sgd)}, Adam ${scientific(adam)}`,
        bound: 'at most 1e-12 and 1e-9',
      };
    },
  },
  {
    id: 3,
    statement: 'The mean-field study lands on its known figures (fixed, alpha 0.5, alpha 1; all efforts)',
    kind: 'exact',
    check: ({ meanField }) => {
      const { arms } = summariseStudy(meanField);
      const distances = MEAN_FIELD_FIGURES.flatMap(({ alpha, saving, gain }) => {
        const { efforts } = armOf(arms, { alpha });
        return efforts.flatMap(({ last }, effort) => [
          Math.abs(last.savingPercent.mean - (saving[effort] ?? Number.NaN)),
          Math.abs(last.gainPercent.mean - (gain[effort] ?? Number.NaN)),
        ]);
      });
      return atMost(largest(distances), { bound: 0.1, what: 'largest distance in points' });
    },
  },
  {
    id: 4,
    statement: 'The grid starts at 24.76776 / 44.439982 / 62.042487 % success',
    kind: 'exact',
    check: ({ formulas }) => {
      const means = STARTING_COSTS.map((_, effort) => {
        let sum = 0;
        for (let index = 0; index < TOY_PROBLEM_COUNT; index++) {
          sum += formulas.toyStart(formulas.toyProblem(index)).successes[effort] ?? Number.NaN;
        }
        return (100 * sum) / TOY_PROBLEM_COUNT;
      });
      const distance = largest(means.map((mean, effort) => Math.abs(mean - (BASE_SUCCESS[effort] ?? Number.NaN))));
      return {
        passed: distance <= 1e-5,
        observed: means.map((mean) => mean.toFixed(6)).join(' / '),
        bound: 'within 1e-5 of each',
      };
    },
  },
  {
    id: 5,
    statement: 'A fixed price raises cost exactly where c0 < 1 / sqrt(pGood pBad)',
    kind: 'exact',
    check: ({ formulas }) => {
      let agreeing = 0;
      for (let index = 0; index < TOY_PROBLEM_COUNT; index++) {
        const problem = formulas.toyProblem(index);
        for (const startingCost of STARTING_COSTS) {
          const isRaised = formulas.fixedLanding({ ...problem, startingCost }).cost > startingCost;
          if (isRaised === startingCost < 1 / Math.sqrt(problem.pGood * problem.pBad)) agreeing++;
        }
      }
      const cells = TOY_PROBLEM_COUNT * STARTING_COSTS.length;
      return { passed: agreeing === cells, observed: `${agreeing} of ${cells} cells`, bound: `${cells} of ${cells}` };
    },
  },
  {
    id: 6,
    statement: 'F-beta: its tangent is never below it, misses by the exact error, and weighs 1/2 on one ray only',
    kind: 'exact',
    check: ({ formulas }) => tangentCheck(formulas),
  },
];

/** In per cent, efforts low / medium / high. */
const BASE_SUCCESS = [24.76776, 44.439982, 62.042487] as const;

/** Constant Adam rate 0.015, controller 0.02 decaying, 100 problems, 1,000 steps. */
const MEAN_FIELD_FIGURES = [
  { alpha: null, saving: [-63.9, -16.5, 1.7], gain: [99.3, 42.1, 22.1] },
  { alpha: 0.5, saving: [15.7, 14.8, 13.0], gain: [15.8, 15.0, 13.1] },
  { alpha: 1, saving: [0, 0, 0.1], gain: [33.4, 26.9, 20.0] },
] as const;

/** State after 1,000 updates in the order of the record's columns, from 40-digit arithmetic. */
const GOLDEN_SGD = [
  0.9862075667944731, 1.0554995911365663, 3.339945995217827, 7.570280960627686, 0.036305573841833715,
  0.036223235720534604, 0.025988682924212435,
] as const;
const GOLDEN_ADAM = [
  0.987762310780373, 1.999905399700817, 5.998901804957241, 14.995946753850538, 0.11838180267429764, 0.02380871609281708,
  0.00474144241998439,
] as const;

function formulaError(formulas: Formulas): number {
  const candidates = { pGood: 0.05, pBad: 0.0025 };
  const point = { ...candidates, q: 0.5, cost: 6 };
  const curve = { pGood: 0.3, pBad: 0, q: 0.99, cost: 3.5 };
  const fixed = formulas.fixedLanding({ pGood: 0.2, pBad: 0.05, startingCost: 6 });
  const steered = formulas.steeredLanding({ pGood: 0.2, pBad: 0.05, startingCost: 6, alpha: 0.5 });
  const gradient = formulas.expectedGradient(candidates, {
    parameters: { logits: [0, 0], logCosts: [0.6931471805599453, 1.791759469228055, 2.70805020110221] },
    prices: [0.02, 0.016, 0.009],
  });
  const pairs: readonly (readonly [number, number])[] = [
    [formulas.successRate(point), 0.12277377794619175],
    [formulas.successSlope(point), 0.01600622659409295],
    [formulas.successCurvature(point), -0.0011438923203096526],
    [formulas.successRate(curve), 0.5070731707317073],
    [formulas.successSlope(curve), 0.07067221891731112],
    [formulas.successCurvature(curve), -0.020684551878237402],
    [fixed.cost, 6.8755036190848156],
    [fixed.successGain, 0.4917482361448382],
    [steered.cost, 4.595836177709834],
    [steered.price, 0.054300565737450464],
    [steered.successGain, 0.23402730371502764],
    [steered.costSaving, 0.23402730371502764],
    [gradient.objective, 0.04402462967737758],
    [gradient.logits[0], -0.028931321768134795],
    [gradient.logCosts[0] ?? Number.NaN, 0.001265833435784225],
    [gradient.logCosts[2] ?? Number.NaN, 0.0016226844925806042],
  ];
  return largest(pairs.map(([actual, expected]) => relativeError(actual, expected)));
}

function goldenError({ runs }: StudyRecord, expected: readonly number[]): number {
  const values = runs[0]?.values ?? new Float64Array(0);
  const last = values.subarray(values.length - RECORD_COLUMNS.length);
  return largest(expected.map((value, column) => relativeError(last[column] ?? Number.NaN, value)));
}

/** Over a lattice of tangency points, figures and betas. */
function tangentCheck({ linearise, fBeta }: Formulas): StatementResult {
  const shares = [0.1, 0.3, 0.5, 0.7, 0.9, 1];
  let lowest = 0;
  let identityError = 0;
  let strayHalves = 0;
  let rayError = 0;
  for (const beta of [0.5, 1, 2]) {
    for (const precision of shares) {
      for (const recall of shares) {
        const tangent = linearise({ precision, recall, beta });
        if (Math.abs(tangent.precisionWeight - 0.5) < 1e-9) strayHalves++;
        for (const here of shares) {
          for (const there of shares) {
            const figures = { precision: here, recall: there };
            const excess = tangent.value(figures) - fBeta(figures, beta);
            lowest = Math.min(lowest, excess);
            identityError = Math.max(identityError, Math.abs(excess + tangent.exactError(figures)));
          }
        }
      }
      const onRay = linearise({ precision: precision / 2, recall: (beta * precision) / 2 / Math.SQRT2, beta });
      rayError = Math.max(rayError, Math.abs(onRay.precisionWeight - 0.5));
    }
  }
  const error = Math.max(-lowest, identityError, rayError);
  return {
    passed: error <= 1e-12 && strayHalves === 0,
    observed: `largest error ${scientific(error)}, weight 1/2 off the ray ${strayHalves} times`,
    bound: 'at most 1e-12, never',
  };
}

function relativeError(actual: number, expected: number): number {
  return Math.abs(actual - expected) / Math.max(Math.abs(expected), 1e-3);
}

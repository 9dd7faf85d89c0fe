/**
 * A run before it is run: for each effort, assumed improvement and alpha the landing on the new frontier, what a fixed
 * price would do instead, and a mean-field time course of the price with the controller that a real run has. No rollout
 * noise: what is shown is the drift. Every assumption is an option, and the pages say them.
 */
import { statedReference } from '../reward/reference.ts';
import { gapOf, relativeGains } from '../reward/relative-gain.ts';
import type { Operating } from '../reward/relative-gain.ts';
import { startSteering, steer } from '../reward/steering.ts';
import type { SteeringOptions } from '../reward/steering.ts';
import { HoneError } from '../domain/errors.ts';
import { createAscent, createAscentState } from './ascent.ts';
import type { Ascent } from './ascent.ts';
import { elasticityAt, improveCurve, landFixed, landSteered } from './landing.ts';
import type { ImprovementLaw, Landing } from './landing.ts';
import type { Curve, MeasuredCurve } from './smooth-curve.ts';

export interface SimulatedEffort {
  readonly effort: string;
  /** Mean cost of the starting policy; its success is the curve's there. */
  readonly cost: number;
  /** The curve's slope there unless given. */
  readonly startPrice?: number;
}

export interface SimulationOptions {
  readonly alphas: readonly number[];
  /** Improvements in percent, by the law. */
  readonly percents: readonly number[];
  readonly law: ImprovementLaw;
  /** Steps after which half of the improvement is there; the rest halves again in as many. */
  readonly halfLifeSteps: number;
  /** Starting prices are also tried this many times too high and too low. */
  readonly slopeError: number;
  readonly steps: number;
  /** Rate of Adam on log cost, decaying as the controller's: about the most that log cost moves in a step. */
  readonly actorRate: number;
  readonly controller: SteeringOptions;
}

/** One price over one training; index 0 is the start, index t the state after t steps. */
export interface Course {
  /** The starting price over the intended one. */
  readonly startFactor: number;
  readonly costs: Float64Array;
  readonly prices: Float64Array;
  /** d = (1 - alpha) u - alpha v on the frontier of that step; 0.01 = one point. */
  readonly gaps: Float64Array;
  /** The first step from which on |d| stays within a point; null when it does not by the end. */
  readonly settledAt: number | null;
  /** Times that the gap left one point on the other side than before; from 2 on it rings. */
  readonly swings: number;
}

export interface SteeredOutcome {
  readonly percent: number;
  readonly alpha: number;
  readonly landing: Landing;
  /** From the starting price, from one too high and from one too low, in this order. */
  readonly courses: readonly Course[];
}

export interface FixedOutcome {
  readonly percent: number;
  readonly startFactor: number;
  readonly landing: Landing;
}

export interface EffortSimulation {
  readonly effort: string;
  readonly base: Operating;
  /** s'(c0). */
  readonly slope: number;
  /** Per cent of success that one per cent of cost buys at the base. */
  readonly elasticity: number;
  readonly startPrice: number;
  readonly steered: readonly SteeredOutcome[];
  readonly fixed: readonly FixedOutcome[];
}

const SETTLED = 0.01;
const ADAM = { optimizer: 'adam', beta1: 0.9, beta2: 0.999, epsilon: 1e-8 } as const;

/**
 * Simulates every effort on one curve. Throws `invalid-config` on a flat curve at an effort (no price fits it), and as
 * landings and steering do on values out of range.
 */
export function simulateLandings(
  input: {
    readonly curve: MeasuredCurve;
    readonly efforts: readonly SimulatedEffort[];
    /** What the curve was fitted to, to say why it is flat. */
    readonly points?: readonly (Operating & { readonly effort: string })[];
  },
  options: SimulationOptions,
): EffortSimulation[] {
  const { curve, efforts, points = [] } = input;
  const factors = [...new Set([1, options.slopeError, 1 / options.slopeError])];
  const { steps, actorRate, controller } = options;
  const ascend = createAscent({ ...ADAM, rate: actorRate, decay: controller.decay }, { steps });
  return efforts.map(({ effort, cost, startPrice: given }) => {
    const base = { cost, success: curve.value(cost) };
    statedReference(base, { effort });
    const slope = curve.slope(cost);
    const startPrice = given ?? slope;
    if (!(startPrice > 0))
      throw new HoneError(
        'invalid-config',
        `${whyFlat({ effort, cost }, points)}, which leaves no price to start from.`,
        {
          cure: `More cost buys nothing there; leave the effort out, or give a price: --start-price ${effort}=0.01.`,
        },
      );
    const improved = options.percents.map((percent) => ({
      percent,
      curve: improveCurve(curve, { law: options.law, percent }),
    }));
    return {
      effort,
      base,
      slope,
      elasticity: elasticityAt(curve, base),
      startPrice,
      steered: improved.flatMap(({ percent, curve: better }) =>
        options.alphas.map((alpha) => ({
          percent,
          alpha,
          landing: landSteered(better, { base, alpha }),
          courses: factors.map((startFactor) =>
            runCourse(curve, { base, alpha, percent, startPrice, startFactor, ascend }, options),
          ),
        })),
      ),
      fixed: improved.flatMap(({ percent, curve: better }) =>
        factors.map((startFactor) => ({
          percent,
          startFactor,
          landing: landFixed(better, { base, price: startPrice * startFactor }),
        })),
      ),
    };
  });
}

function whyFlat(
  { effort, cost }: { readonly effort: string; readonly cost: number },
  points: readonly (Operating & { readonly effort: string })[],
): string {
  const falls = points
    .filter((cheaper) => cheaper.cost <= cost)
    .flatMap((cheaper) => points.filter((dearer) => dearer.cost >= cost).map((dearer) => ({ cheaper, dearer })))
    .filter(({ cheaper, dearer }) => cheaper.success > dearer.success);
  const [fall] = falls;
  if (fall === undefined) return `The curve is flat at effort ${effort} (cost ${cost})`;
  const { cheaper, dearer } = fall;
  return `Success falls from ${cheaper.success} at effort ${cheaper.effort} (cost ${cheaper.cost}) to ${dearer.success} at effort ${dearer.effort} (cost ${dearer.cost}), and the curve, which never falls, is flat at effort ${effort}`;
}

/**
 * The mean field of one effort: at step t the frontier is the old one improved by p (1 - 2^(-t / halfLife)) per cent; the actor
 * climbs c (s'(c) - price) by Adam on log c; the price moves by `steer` from the same point's gap, as from one batch.
 */
function runCourse(
  curve: Curve,
  run: { base: Operating; alpha: number; percent: number; startPrice: number; startFactor: number; ascend: Ascent },
  options: SimulationOptions,
): Course {
  const { base, alpha, percent, startPrice, startFactor, ascend } = run;
  const { steps, law, halfLifeSteps, controller } = options;
  const costs = new Float64Array(steps + 1);
  const prices = new Float64Array(steps + 1);
  const gaps = new Float64Array(steps + 1);
  const ascent = createAscentState(1);
  ascent.parameters[0] = Math.log(base.cost);
  let state = startSteering(startPrice * startFactor);
  for (let step = 0; ; step++) {
    const better = improveCurve(curve, { law, percent: percent * (1 - 2 ** (-step / halfLifeSteps)) });
    const cost = Math.exp(ascent.parameters[0] ?? Number.NaN);
    const price = Math.exp(state.logPrice);
    const gap = gapOf(relativeGains({ success: better.value(cost), cost }, base), alpha);
    costs[step] = cost;
    prices[step] = price;
    gaps[step] = gap;
    if (step === steps) break;
    ascent.gradient[0] = cost * (better.slope(cost) - price);
    ascend(ascent, step + 1);
    state = steer(state, gap, controller).state;
  }
  return { startFactor, costs, prices, gaps, ...settling(gaps) };
}

/** When the gap came to stay within a point, and how often it left it on the other side. */
export function settling(gaps: Float64Array): Pick<Course, 'settledAt' | 'swings'> {
  let last = gaps.length - 1;
  while (last >= 0 && Math.abs(gaps[last] ?? 0) <= SETTLED) last--;
  let swings = 0;
  let side = 0;
  for (const gap of gaps) {
    if (Math.abs(gap) <= SETTLED || Math.sign(gap) === side) continue;
    if (side !== 0) swings++;
    side = Math.sign(gap);
  }
  return { settledAt: last === gaps.length - 1 ? null : last + 1, swings };
}

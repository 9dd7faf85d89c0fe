/**
 * The unit of the sampled study: one problem with one seed, trained under every arm at once. The arms march in step and
 * read the same draws; the references are measured once and shared. A unit's result depends on the plan and on the
 * unit's name alone, so units may run anywhere, in any order.
 */
import {
  createDraws,
  createGenerator,
  createSuccessTable,
  createTally,
  drawBatch,
  TALLY,
  TALLY_COLUMNS,
  tallyBatch,
} from './rollout-sampler.ts';
import type { Draws, SuccessTable } from './rollout-sampler.ts';
import { RECORD_COLUMNS, recordedSteps, STARTING_COSTS, STUDY_EFFORTS } from './study-record.ts';
import type { StudyPlan, StudyRun } from './study-record.ts';
import { batchGradient, createToyActor, createToyOptimizer } from './toy-actor.ts';
import type { ToyActor } from './toy-actor.ts';
import { createToyController, resetController, updatePrices } from './toy-controller.ts';
import type { ToyController } from './toy-controller.ts';
import { toyProblem, toyStart } from './toy-task.ts';
import type { ToyStart } from './toy-task.ts';

const EFFORTS = STUDY_EFFORTS.length;
const COLUMNS = RECORD_COLUMNS.length;

export interface StudyUnit {
  readonly problem: number;
  readonly seed: number;
}

/** All units of a plan, ascending by problem, then seed: as many seeds as the arm with the most has. */
export function studyUnits({ problems, arms }: Pick<StudyPlan, 'problems' | 'arms'>): StudyUnit[] {
  const seeds = Math.max(0, ...arms.map((arm) => arm.seeds));
  return problems
    .toSorted((left, right) => left - right)
    .flatMap((problem) => Array.from({ length: seeds }, (_, seed) => ({ problem, seed })));
}

/** Rollouts that a unit samples: training of its arms, and its references. */
export function unitRollouts(plan: StudyPlan, { seed }: StudyUnit): { training: number; reference: number } {
  const arms = plan.arms.filter((arm) => seed < arm.seeds).length;
  return { training: arms * plan.steps * plan.batch, reference: EFFORTS * (plan.referenceRollouts ?? 0) };
}

interface ArmState {
  readonly index: number;
  readonly actor: ToyActor;
  readonly controller: ToyController;
  /** Starting prices, and those in force. */
  readonly startPrices: Float64Array;
  readonly prices: Float64Array;
  readonly values: Float64Array;
  capped: number;
}

/**
 * Trains every arm that has this seed; one run an arm, in the order of the plan. A step: rollouts at (theta, lambda), the
 * actor's step, then the controller's from the same batch.
 */
export function runUnit(plan: StudyPlan, unit: StudyUnit): StudyRun[] {
  const problem = toyProblem(unit.problem);
  const start = toyStart(problem);
  const table = createSuccessTable(problem);
  const draws = createDraws(plan.batch);
  const tally = createTally();
  const references = measureReferences(plan, unit, { start, table });
  const generator = createGenerator(plan.seed, 'study', unit.problem, unit.seed);
  const optimizer = createToyOptimizer(plan);
  const recorded = recordedSteps(plan);
  const arms = plan.arms.flatMap((arm, index): ArmState[] => {
    if (unit.seed >= arm.seeds) return [];
    const controller = createToyController(plan, arm);
    resetController(controller, start, plan.referenceRollouts);
    const startPrices = Float64Array.from(start.prices, (price) => price * arm.slopeFactor);
    const values = new Float64Array(recorded.length * COLUMNS);
    return [
      { index, actor: createToyActor(), controller, startPrices, prices: startPrices.slice(), values, capped: 0 },
    ];
  });

  let row = 0;
  for (let step = 0; ; step++) {
    if (recorded[row] === step) {
      for (const arm of arms) recordPoint(arm, row);
      row++;
    }
    if (step === plan.steps) break;
    drawBatch(generator, draws, { count: plan.batch });
    for (const arm of arms) {
      const { actor, controller, prices, startPrices } = arm;
      arm.capped += tallyBatch(draws, actor, { table, tally });
      batchGradient(actor, tally, { prices, baseline: plan.baseline });
      optimizer.step(actor, step + 1);
      for (let effort = 0; effort < EFFORTS; effort++) {
        const { success, cost } = references[effort]!;
        controller.successGains[effort] = (actor.successes[effort]! - success) / success;
        controller.costSavings[effort] = (cost - actor.candidates[effort]!) / cost;
      }
      updatePrices(controller, step + 1);
      for (let effort = 0; effort < EFFORTS; effort++) {
        prices[effort] = startPrices[effort]! * Math.exp(controller.logPrices[effort]!);
      }
    }
  }
  return arms.map(({ index, values, capped }) => ({ ...unit, arm: index, values, capped, references }));
}

/** Rollouts that a sampled study draws, of training and of the references that it is measured against. */
export function countRollouts(plan: StudyPlan): { training: number; reference: number } {
  const counts = { training: 0, reference: 0 };
  for (const unit of studyUnits(plan)) {
    const { training, reference } = unitRollouts(plan, unit);
    counts.training += training;
    counts.reference += reference;
  }
  return counts;
}

/** s0 and c0 as the controller knows them: counted over `referenceRollouts` an effort of the untrained policy, or exact. */
function measureReferences(
  plan: StudyPlan,
  unit: StudyUnit,
  { start, table }: { readonly start: ToyStart; readonly table: SuccessTable },
): StudyRun['references'] {
  const { referenceRollouts } = plan;
  if (referenceRollouts === null) {
    return STARTING_COSTS.map((cost, effort) => ({ success: start.successes[effort]!, cost }));
  }
  const generator = createGenerator(plan.seed, 'reference', unit.problem, unit.seed);
  const draws: Draws = createDraws(Math.min(referenceRollouts, REFERENCE_BATCH));
  const policy = createToyActor();
  const tally = createTally();
  return STARTING_COSTS.map((_, effort) => {
    let successSum = 0;
    let candidateSum = 0;
    for (let done = 0; done < referenceRollouts; done += draws.capacity) {
      drawBatch(generator, draws, { count: Math.min(draws.capacity, referenceRollouts - done), effort });
      tallyBatch(draws, policy, { table, tally });
      for (let cell = 2 * effort; cell < 2 * effort + 2; cell++) {
        successSum += tally[cell * TALLY_COLUMNS + TALLY.successes]!;
        candidateSum += tally[cell * TALLY_COLUMNS + TALLY.candidates]!;
      }
    }
    return { success: successSum / referenceRollouts, cost: candidateSum / referenceRollouts };
  });
}

/** Rollouts of one draw of the references: few enough to stay in the processor's cache. */
const REFERENCE_BATCH = 1024;

function recordPoint({ actor, prices, values }: ArmState, row: number): void {
  const first = row * COLUMNS;
  values[first] = (1 - actor.actionChances[0]! + actor.actionChances[1]!) / 2;
  for (let effort = 0; effort < EFFORTS; effort++) {
    values[first + 1 + effort] = actor.costs[effort]!;
    values[first + 1 + EFFORTS + effort] = prices[effort]!;
  }
}

/**
 * The toy study without sampling: every step uses the expected gradient and the expected success and cost, so a run is a
 * deterministic map and 600 runs take well under a second. What only noise would change (batch, seeds, the baseline,
 * measured references) has no effect here. The order of a step is the sampled study's: gradient and gains at (theta,
 * lambda), then the actor moves, then the prices move by the gains from before the actor's move.
 */
import { HoneError } from '../domain/errors.ts';
import { createAscent, createAscentState } from './ascent.ts';
import { RECORD_COLUMNS, recordedSteps, STARTING_COSTS } from './study-record.ts';
import type { StudyArm, StudyPlan, StudyRecord, StudyRun } from './study-record.ts';
import { createToyController, resetController, updatePrices } from './toy-controller.ts';
import { toyProblem, toyStart } from './toy-task.ts';
import type { Candidates } from './toy-task.ts';

/** All runs of a plan as expectations, one a problem and arm; the record's plan says seeds = 1 for every arm. */
export function meanFieldStudy(plan: StudyPlan): StudyRecord {
  const runners = plan.arms.map((arm) => createMeanField(plan, arm));
  const runs: StudyRun[] = [];
  for (const index of plan.problems.toSorted((left, right) => left - right)) {
    const problem = toyProblem(index);
    const { successes, costs } = toyStart(problem);
    const references = costs.map((cost, effort) => ({ success: successes[effort] ?? Number.NaN, cost }));
    for (const [arm, run] of runners.entries()) {
      runs.push({ problem: index, seed: 0, arm, values: run(problem), capped: 0, references });
    }
  }
  return { plan: { ...plan, arms: plan.arms.map((arm) => ({ ...arm, seeds: 1 })) }, runs };
}

/**
 * A runner of one arm: takes the chances of a problem, gives recorded points x RECORD_COLUMNS, row by row. Throws
 * `invalid-config` on advantages over their deviation with plain gradient steps, whose size depends on the noise.
 */
export function createMeanField(plan: StudyPlan, arm: StudyArm): (candidates: Candidates) => Float64Array {
  const { steps, actor, isSkillFrozen } = plan;
  if (plan.baseline === 'deviation' && actor.optimizer === 'sgd') {
    throw new HoneError(
      'invalid-config',
      'Advantages over their deviation have no mean field under plain gradient steps.',
      {
        cure: 'Take the optimizer adam, which does not depend on their scale, or another baseline.',
      },
    );
  }
  const controller = createToyController(plan, arm);
  const { logPrices, successGains, costSavings } = controller;
  const ascend = createAscent(actor, { steps, firstMoved: isSkillFrozen ? 2 : 0 });
  const recorded = recordedSteps(plan);
  const efforts = STARTING_COSTS.length;
  const columns = RECORD_COLUMNS.length;
  const lowestLogCost = plan.costFloor === null ? -Infinity : Math.log(plan.costFloor);
  const highestLogCost = plan.costCeiling === null ? Infinity : Math.log(plan.costCeiling);
  // The two logits, then log(cost / c0) by effort: relative to the start, so that the first cost gradient is exactly 0.
  const ascent = createAscentState(2 + efforts);
  const { parameters, gradient, firstMoments, secondMoments } = ascent;

  return ({ pGood, pBad }) => {
    const start = toyStart({ pGood, pBad });
    const startSuccesses = Float64Array.from(start.successes);
    const startPrices = Float64Array.from(start.prices, (price) => price * arm.slopeFactor);
    resetController(controller, start, plan.referenceRollouts);
    parameters.fill(0);
    firstMoments.fill(0);
    secondMoments.fill(0);
    const values = new Float64Array(recorded.length * columns);
    let row = 0;

    for (let step = 0; ; step++) {
      const rho0 = 1 / (1 + Math.exp(-parameters[0]!));
      const rho1 = 1 / (1 + Math.exp(-parameters[1]!));
      const q = (1 - rho0 + rho1) / 2;
      const isRecorded = recorded[row] === step;
      if (isRecorded) values[row * columns] = q;
      let actionValue = 0;
      for (let effort = 0; effort < efforts; effort++) {
        const startCost = STARTING_COSTS[effort]!;
        const cost = startCost * Math.exp(parameters[2 + effort]!);
        const price = startPrices[effort]! * Math.exp(logPrices[effort]!);
        const good = 1 / (1 + pGood * cost);
        const bad = 1 / (1 + pBad * cost);
        const goodSuccess = pGood * cost * good;
        const badSuccess = pBad * cost * bad;
        const slope = q * pGood * good * good + (1 - q) * pBad * bad * bad;
        actionValue += goodSuccess - badSuccess;
        gradient[2 + effort] = (cost * (slope - price)) / efforts;
        const startSuccess = startSuccesses[effort]!;
        successGains[effort] = (q * goodSuccess + (1 - q) * badSuccess - startSuccess) / startSuccess;
        costSavings[effort] = (startCost - cost) / startCost;
        if (isRecorded) {
          values[row * columns + 1 + effort] = cost;
          values[row * columns + 1 + efforts + effort] = price;
        }
      }
      if (isRecorded) row++;
      if (step === steps) return values;

      gradient[0] = (-rho0 * (1 - rho0) * actionValue) / (2 * efforts);
      gradient[1] = (rho1 * (1 - rho1) * actionValue) / (2 * efforts);
      ascend(ascent, step + 1);
      for (let effort = 0; effort < efforts; effort++) {
        const logCost = parameters[2 + effort]!;
        if (logCost < lowestLogCost) parameters[2 + effort] = lowestLogCost;
        else if (logCost > highestLogCost) parameters[2 + effort] = highestLogCost;
      }
      updatePrices(controller, step + 1);
    }
  };
}

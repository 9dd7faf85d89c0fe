/**
 * A worker thread of the sampled study: gets the plan once, then one unit a message, and answers each with its runs.
 * Knows nothing of other units; an exception ends the thread and reaches the pool as its cause.
 */
import { parentPort, workerData } from 'node:worker_threads';

import { runUnit } from './toy-run.ts';
import type { StudyUnit } from './toy-run.ts';
import type { StudyPlan, StudyRun } from './study-record.ts';

export interface UnitRuns {
  readonly unit: StudyUnit;
  /** One an arm that has this seed, in the order of the plan. */
  readonly runs: readonly StudyRun[];
}

export interface UnitResult extends UnitRuns {
  /** Time that the unit took on its thread. */
  readonly milliseconds: number;
}

if (parentPort !== null) {
  const port = parentPort;
  // The pool of study-runner.ts is the only one that starts this file, and it passes a plan.
  const plan = workerData as StudyPlan;
  port.on('message', (unit: StudyUnit) => {
    const started = performance.now();
    const runs = runUnit(plan, unit);
    const result: UnitResult = { unit, runs, milliseconds: performance.now() - started };
    port.postMessage(
      result,
      runs.map(({ values }) => values.buffer as ArrayBuffer), // made by runUnit, never shared
    );
  });
}

/**
 * The toy study's speed, as ratios to a bare loop of the same generator with one draw and one Math.log, interleaved in
 * one run on one core: drawing and summing a rollout, a whole unit with its references and its training steps; then the
 * time of the whole study, projected from a unit or, with --full, run on all cores; then 600 mean-field runs. Exits
 * non-zero when a bound is missed.
 */
import { availableParallelism } from 'node:os';

import { meanFieldStudy } from '../src/frontier/mean-field.ts';
import { RECOVERED_PLAN } from '../src/frontier/recovered-plan.ts';
import {
  createDraws,
  createGenerator,
  createSuccessTable,
  createTally,
  drawBatch,
  tallyBatch,
} from '../src/frontier/rollout-sampler.ts';
import { createStudyPlan } from '../src/frontier/study-plan.ts';
import type { StudyPlan } from '../src/frontier/study-record.ts';
import { runStudy } from '../src/frontier/study-runner.ts';
import { createToyActor } from '../src/frontier/toy-actor.ts';
import { runUnit, studyUnits, unitRollouts } from '../src/frontier/toy-run.ts';
import { toyProblem } from '../src/frontier/toy-task.ts';

const BOUNDS = { nanoseconds: 70, studySeconds: 75, meanFieldSeconds: 1 };
const ROUNDS = 9;
/** Rounds that let the compiler settle; not counted. */
const WARM_ROUNDS = 3;

const plan: StudyPlan = RECOVERED_PLAN;
const ARMS = plan.arms.length;
const units = studyUnits(plan);
const rolloutsOf = (study: StudyPlan): number =>
  studyUnits(study).reduce((sum, unit) => {
    const { training, reference } = unitRollouts(study, unit);
    return sum + training + reference;
  }, 0);

function seconds(work: () => void): number {
  const started = performance.now();
  work();
  return (performance.now() - started) / 1000;
}

function median(values: readonly number[]): number {
  return values.toSorted((left, right) => left - right)[Math.floor(values.length / 2)] ?? Number.NaN;
}

/** What no loop can leave out that draws one exponential number a turn; the sum keeps it from being dropped. */
function bareLoop(state: Int32Array, count: number): number {
  let [s0, s1, s2, s3] = [state[0]!, state[1]!, state[2]!, state[3]!];
  let sum = 0;
  for (let index = 0; index < count; index++) {
    const mixed = (s0 + s3) | 0;
    sum += Math.log(((((mixed << 7) | (mixed >>> 25)) + s0) | 1) >>> 0);
    const shifted = s1 << 9;
    s2 ^= s0;
    s3 ^= s1;
    s1 ^= s2;
    s0 ^= s3;
    s2 ^= shifted;
    s3 = (s3 << 11) | (s3 >>> 21);
  }
  state.set([s0, s1, s2, s3]);
  return sum;
}

const generator = createGenerator(1, 'bench');
const draws = createDraws(plan.batch);
const table = createSuccessTable(toyProblem(45));
const tally = createTally();
const actor = createToyActor();
let sink = 0;

/** Batches drawn once and summed for so many arms; nanoseconds a rollout. */
function innerLoop(arms: number, batches: number): number {
  const time = seconds(() => {
    for (let batch = 0; batch < batches; batch++) {
      drawBatch(generator, draws, { count: plan.batch });
      for (let arm = 0; arm < arms; arm++) {
        // Another cost each time, as after a step, so that nothing can be kept from the arm before.
        actor.costs[0] = 2 + arm / 8;
        sink += tallyBatch(draws, actor, { table, tally });
      }
    }
  });
  return (time * 1e9) / (batches * arms * plan.batch);
}

const rounds: Record<'bare' | 'shared' | 'alone' | 'unit', number[]> = { bare: [], shared: [], alone: [], unit: [] };
const unitMilliseconds: number[] = [];
for (let round = -WARM_ROUNDS; round < ROUNDS; round++) {
  const bareCount = 1_000_000;
  const bare = (seconds(() => (sink += bareLoop(generator, bareCount))) * 1e9) / bareCount;
  const shared = innerLoop(ARMS, 300);
  const alone = innerLoop(1, 1000);
  const unit = units[(round + WARM_ROUNDS) * 25] ?? { problem: 0, seed: 0 };
  const { training, reference } = unitRollouts(plan, unit);
  const unitSeconds = seconds(() => (sink += runUnit(plan, unit).length));
  if (round < 0) continue;
  rounds.bare.push(bare);
  rounds.shared.push(shared);
  rounds.alone.push(alone);
  rounds.unit.push((unitSeconds * 1e9) / (training + reference));
  unitMilliseconds.push(unitSeconds * 1000);
}

const bare = median(rounds.bare);
const cores = availableParallelism();
const held: boolean[] = [];
console.log(
  `bare loop, one draw and one Math.log: ${bare.toFixed(1)} ns; medians of ${ROUNDS} rounds, each figure against the bare loop of its round`,
);
const line = (name: string, value: string, holds: boolean, note: string): void => {
  console.log(`${name.padEnd(44)} ${value.padStart(9)}   ${holds ? 'held' : 'MISSED'}   ${note}`);
  held.push(holds);
};
const rate = (name: string, values: readonly number[]): void => {
  const ratio = median(values.map((value, round) => value / (rounds.bare[round] ?? Number.NaN)));
  const nanoseconds = median(values);
  line(
    name,
    `${ratio.toFixed(2)} x`,
    nanoseconds <= BOUNDS.nanoseconds,
    `${nanoseconds.toFixed(1)} ns, bound ${BOUNDS.nanoseconds} ns a rollout`,
  );
};
rate(`a rollout, draws shared by ${ARMS} arms`, rounds.shared);
rate('a rollout, one arm alone', rounds.alone);
rate('a rollout of a whole unit, all included', rounds.unit);

const projected = (median(unitMilliseconds) * units.length) / 1000 / cores;
line(
  'the whole study, projected',
  `${projected.toFixed(1)} s`,
  projected <= BOUNDS.studySeconds,
  `${(rolloutsOf(plan) / 1e9).toFixed(2)} billion rollouts on ${cores} cores, bound ${BOUNDS.studySeconds} s`,
);
if (process.argv.includes('--full')) {
  for (const [name, study] of Object.entries({
    'the whole study, run': plan,
    'the same with wrong starting prices, run': createStudyPlan(),
  })) {
    const started = performance.now();
    await runStudy(study, { workers: cores });
    const wallSeconds = (performance.now() - started) / 1000;
    line(
      name,
      `${wallSeconds.toFixed(1)} s`,
      wallSeconds <= BOUNDS.studySeconds,
      `${(rolloutsOf(study) / 1e9).toFixed(2)} billion rollouts on ${cores} cores, bound ${BOUNDS.studySeconds} s`,
    );
  }
}

const meanField = median(
  Array.from({ length: 3 }, () =>
    seconds(() => (sink += meanFieldStudy({ ...plan, referenceRollouts: null }).runs.length)),
  ),
);
line(
  `${plan.problems.length * ARMS} mean-field runs`,
  `${meanField.toFixed(2)} s`,
  meanField <= BOUNDS.meanFieldSeconds,
  `bound ${BOUNDS.meanFieldSeconds} s on one core`,
);
if (!Number.isFinite(sink)) throw new Error('the loops gave no number');
if (held.includes(false)) process.exitCode = 1;

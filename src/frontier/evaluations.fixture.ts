/**
 * For tests: evaluations of a policy whose frontier is known. Rollouts of the toy task at the three efforts, as JSON Lines; and
 * an agent that stops when it succeeds, on tasks of differing difficulty, which breaks the simple slopes.
 */
import { createRandom, deriveSeed } from '../domain/ids.ts';
import type { Random } from '../domain/ids.ts';
import { STARTING_COSTS, STUDY_EFFORTS } from './study-record.ts';
import { STARTING_Q, toyProblem } from './toy-task.ts';

interface EvaluationOptions {
  readonly tasks: number;
  readonly rolloutsPerTask: number;
  readonly seed: number;
}

/** Every task is the same toy problem; mean costs 2, 6, 15; costs are counts: one turn a candidate. */
export function toyEvaluations(
  problem: number,
  { tasks, rolloutsPerTask, seed }: EvaluationOptions,
  efforts: readonly string[] = STUDY_EFFORTS,
): string {
  const { pGood, pBad } = toyProblem(problem);
  const random = createRandom(deriveSeed(seed, 'evaluations'));
  const lines: string[] = [];
  for (let task = 0; task < tasks; task++)
    for (const [index, effort] of STUDY_EFFORTS.entries())
      for (let rollout = 0; rollout < rolloutsPerTask; rollout++) {
        const turns = geometric(random, STARTING_COSTS[index] ?? 1);
        const chance = random.next() < STARTING_Q ? pGood : pBad;
        const success = random.next() < 1 - (1 - chance) ** turns;
        if (efforts.includes(effort))
          lines.push(JSON.stringify({ task: `t${task}`, effort, success, cost: { turns, tokens: 900 * turns } }));
      }
  return `${lines.join('\n')}\n`;
}

/** Tries until it succeeds or its budget ends: within a task cost goes with failure, while more budget does buy success. */
export function stoppingEvaluations({ tasks, rolloutsPerTask, seed }: EvaluationOptions): string {
  const random = createRandom(deriveSeed(seed, 'evaluations'));
  const lines: string[] = [];
  for (let task = 0; task < tasks; task++) {
    const chance = 0.05 + 0.5 * random.next() ** 2;
    for (const [effort, budget] of [
      ['low', 2],
      ['medium', 5],
      ['high', 12],
    ] as const)
      for (let rollout = 0; rollout < rolloutsPerTask; rollout++) {
        let tries = 0;
        let success = false;
        while (tries < budget && !success) {
          tries++;
          success = random.next() < chance;
        }
        lines.push(JSON.stringify({ task: `t${task}`, effort, success, cost: 0.01 * tries }));
      }
  }
  return `${lines.join('\n')}\n`;
}

/** Mean c: P(K = k) = r (1 - r)^k with r = 1 / (1 + c). */
function geometric(random: Random, mean: number): number {
  return Math.floor(Math.log(1 - random.next()) / Math.log(mean / (1 + mean)));
}

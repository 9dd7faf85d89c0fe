/**
 * The starting policy's rollouts, and the reward state that is made from them: everything that the reward measures at
 * start. Rollouts are stored whole in baseline.json, so a resumed run measures nothing twice and starts from the same bits.
 */
import { effortsOf } from './efforts.ts';
import { evaluateRollouts } from './evaluate.ts';
import type { RunParts } from './run-parts.ts';
import { scoredRollout } from './scored-rollout.ts';
import { deriveSeed } from '../domain/ids.ts';
import { steeringWarnings } from '../reward/advantage.ts';
import { createRewardState } from '../reward/reward-start.ts';
import type { RewardState } from '../reward/reward-state.ts';
import type { ScoredRollout } from '../reward/scored-rollout.ts';
import { requiredMeasurements } from '../reward/spec.ts';
import { drawTasks } from '../tasks/draw.ts';

const BASELINE_FILE = 'baseline.json';

/** The state before step 1. What it was made from is told once, in words and as the event `reward-start`. */
export async function startReward(parts: RunParts, stop: AbortSignal): Promise<RewardState> {
  const { folder, observer, pool } = parts;
  const { config } = folder;
  const baseline = requiredMeasurements(config.reward).baseline ? await measureBaseline(parts, stop) : undefined;
  const { state, report } = createRewardState(config.reward, {
    ...(baseline === undefined ? {} : { baseline }),
    ...(pool.length === 0 ? {} : { taskIds: pool.map(({ id }) => id) }),
    efforts: effortsOf(config),
    seed: deriveSeed(config.seed, 'reward'),
  });
  const warnings = steeringWarnings({
    isSteered: config.reward.terms.some(({ kind }) => kind === 'frontier'),
    deviation: config.algorithm.deviation,
  });
  for (const sentence of report) observer.note(`  ${sentence}`);
  for (const warning of warnings) observer.note(`  warning: ${warning}`);
  // Killed before its first step, a run starts the reward again, from the same rollouts.
  if (!folder.events().some(({ event }) => event === 'reward-start'))
    folder.append({ event: 'reward-start', report, warnings });
  return state;
}

async function measureBaseline(parts: RunParts, stop: AbortSignal): Promise<readonly ScoredRollout[]> {
  const { folder, observer, stack, training, pool } = parts;
  const { config } = folder;
  // Written below.
  const stored = folder.readJson(BASELINE_FILE) as { rollouts: ScoredRollout[] } | undefined;
  if (stored !== undefined) return stored.rollouts;
  const seed = deriveSeed(config.seed, 'baseline');
  const { bugShare, elsewhereShare } = config.tasks;
  // From where training draws its tasks: a reference from elsewhere would be one of other tasks.
  const tasks =
    pool.length > 0
      ? pool.slice(0, config.baseline.tasks)
      : drawTasks(training, { seed, count: config.baseline.tasks, bugShare, elsewhereShare });
  const efforts = effortsOf(config);
  const { rolloutsPerTask } = config.baseline;
  const total = efforts.length * tasks.length * rolloutsPerTask;
  observer.phase(
    `measuring the starting policy on ${tasks.length} training tasks${rolloutsPerTask > 1 ? `, ${rolloutsPerTask} rollouts each` : ''}${efforts.length > 1 ? `, at ${efforts.length} efforts` : ''}`,
  );
  const rollouts: ScoredRollout[] = [];
  for (const effort of efforts) {
    const before = rollouts.length;
    const evaluated = await evaluateRollouts(
      tasks,
      stack.setting({ greedy: false, lookups: config.harness.lookups, effort }),
      {
        label: efforts.length > 1 ? `baseline-${effort}` : 'baseline',
        seed,
        concurrency: config.schedule.concurrency,
        signal: stop,
        rolloutsPerTask,
        onProgress: (done) => observer.progress(before + done, total, 'rollouts'),
      },
    );
    rollouts.push(...evaluated.map(({ rollout }) => scoredRollout(rollout)));
  }
  folder.writeJson(BASELINE_FILE, { rollouts });
  return rollouts;
}

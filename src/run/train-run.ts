/**
 * One run: baseline and first evaluation, the training loop, last evaluation, results. Everything that a step did is
 * durable before the next one counts on it, in this order: batch assigned, weights moved, checkpoint, version published,
 * groups marked as trained. Killed anywhere, the run resumes from its newest checkpoint and trains nothing twice.
 */
import { buildResults } from './results.ts';
import type { RunResults } from './results.ts';
import type { RunEvent } from './run-folder.ts';
import { startReward } from './baseline.ts';
import { effortAt } from './efforts.ts';
import { evaluateAt } from './run-evaluation.ts';
import { functionSize, trainingTask } from './run-inputs.ts';
import { openRunParts } from './run-parts.ts';
import type { RunParts, RunPartsOptions } from './run-parts.ts';
import { isScored, scoredRollout } from './scored-rollout.ts';
import { stepMetrics, withSynchronisation } from './step-metrics.ts';
import type { ObservedLookups } from './step-metrics.ts';
import { recoverStepRecord, writeStepRecord } from './step-record.ts';
import { evaluateStep, toSamples } from './step-reward.ts';
import { HoneError } from '../domain/errors.ts';
import { deriveSeed, groupId } from '../domain/ids.ts';
import type { StepMetrics } from '../eval/events.ts';
import { advanceRewardState } from '../reward/reward-advance.ts';
import type { RewardState } from '../reward/reward-state.ts';
import { pricedCountsOf } from '../reward/spec.ts';
import { runEpisode } from '../rollout/episode.ts';
import { RolloutManager } from '../rollout/manager.ts';
import type { StepBatch } from '../rollout/manager.ts';
import { openCorpus } from '../tasks/corpus.ts';

/** Aborting `stop` finishes the step at hand, then stops; the run can be resumed. */
export type TrainRunOptions = RunPartsOptions;

export type TrainRunOutcome =
  | { readonly kind: 'finished'; readonly results: RunResults | undefined }
  | { readonly kind: 'stopped'; readonly step: number };

export async function trainRun(options: TrainRunOptions): Promise<TrainRunOutcome> {
  const { folder, stop } = options;
  const parts = await openRunParts(options);
  try {
    return await runPhases(parts, stop);
  } catch (error) {
    const isStop =
      error === stop.reason ||
      (error instanceof HoneError ? error.code === 'aborted' : error instanceof Error && error.name === 'AbortError');
    if (stop.aborted && isStop) return { kind: 'stopped', step: folder.checkpoints().at(-1) ?? 0 };
    throw error;
  } finally {
    await parts.close();
  }
}

async function runPhases(parts: RunParts, stop: AbortSignal): Promise<TrainRunOutcome> {
  const { folder, observer, checkpoint, buffer, published, pool, evalTasks } = parts;
  const { config } = folder;
  const { requeued } = buffer.recover(checkpoint);
  folder.append({ event: checkpoint === 0 ? 'run-start' : 'run-resume', step: checkpoint });
  if (checkpoint > 0) observer.note(`  resuming after step ${checkpoint}; ${requeued} groups go back to the queue`);
  // First, as a reward that cannot be measured ends the run here.
  const stored = recoverStepRecord(folder, { step: checkpoint, version: published.version, pool });
  const start = stored?.reward ?? (await startReward(parts, stop));
  if (config.eval.tasks > 0) await evaluateAt(parts, 'before', evalTasks, stop);
  if (stop.aborted) return { kind: 'stopped', step: checkpoint };
  const step = await trainSteps(parts, { start, stop });
  if (stop.aborted) return { kind: 'stopped', step };
  let results: RunResults | undefined;
  if (config.eval.tasks > 0) {
    await evaluateAt(parts, 'after', evalTasks, stop);
    if (stop.aborted) return { kind: 'stopped', step };
    observer.phase('comparing');
    results = buildResults({
      folder,
      evalTasks,
      pretraining: await openCorpus({ split: 'pretrain', ...functionSize(config) }),
    });
    folder.writeJson('results.json', results.table);
  }
  folder.append({ event: 'run-end', step });
  return { kind: 'finished', results };
}

/** Trains on from the given state of the reward; returns the last step that was trained. */
async function trainSteps(
  parts: RunParts,
  { start, stop }: { start: RewardState; stop: AbortSignal },
): Promise<number> {
  const { folder, observer, now, stack, trainer, published, follow, buffer, checkpoint } = parts;
  const { source } = stack;
  const { config } = folder;
  const { algorithm, schedule } = config;
  let rewardState = start;
  if (stop.aborted || checkpoint >= algorithm.steps) return checkpoint;
  const lookedUp = new Map<string, readonly number[]>();
  const manager = new RolloutManager(buffer, {
    groupSize: algorithm.groupSize,
    groupsPerStep: algorithm.groupsPerStep,
    maxStaleness: schedule.maxStaleness,
    concurrency: schedule.concurrency,
    infraRetries: schedule.infraRetries,
    taskAt: (ordinal) => trainingTask(parts, ordinal, config),
    currentVersion: () => source.version,
    pricedCounts: pricedCountsOf(config.reward),
    runEpisode: async ({ id, ordinal, attempt, task, signal }) => {
      // A replica that is gone ends the run at once; retries and drops are for failures that pass.
      if (source.failure !== undefined) throw source.failure;
      const seed = deriveSeed(config.seed, 'rollout', ordinal, attempt);
      const { rollout, submission } = await runEpisode(
        task,
        { id, groupId: groupId(`g${ordinal}`), attempt, seed, admittedVersion: source.version, signal },
        stack.setting({ greedy: false, lookups: config.harness.lookups, effort: effortAt(config, ordinal) }),
      );
      lookedUp.set(id, submission?.lookups.map(({ line }) => line) ?? []);
      return rollout;
    },
  });
  // Training is the longer half: it keeps all threads, and the sampler gives way while both work. No bit depends on it.
  const samplerThreads =
    schedule.mode === 'async' ? Math.max(1, Math.floor(config.engine.threads / 2)) : config.engine.threads;
  source.allowLag(schedule.maxStaleness);
  await Promise.all([source.setThreads(samplerThreads), trainer.setThreads(config.engine.threads)]);
  observer.phase(
    `training: ${algorithm.steps} steps of ${algorithm.groupsPerStep} groups of ${algorithm.groupSize} (${schedule.mode}, staleness at most ${schedule.maxStaleness})`,
    checkpoint,
  );
  const started = now();
  let step = checkpoint;
  let sampledBefore = await source.sampledTokens();
  let stepStart = now();
  try {
    while (step < algorithm.steps && !stop.aborted) {
      // Each start trains at least one step, so that resuming always gets further.
      if (schedule.maxMinutes !== undefined && step > checkpoint && now() - started > schedule.maxMinutes * 60_000) {
        observer.note(`  stopped training after ${schedule.maxMinutes} minutes, at step ${step} of ${algorithm.steps}`);
        break;
      }
      const batch = await manager.nextBatch(step + 1);
      step++;
      const evaluations = evaluateStep(config, rewardState, batch);
      const report = await trainer.step({ step, samples: toSamples(batch, evaluations, config) });
      const trained = now();
      const usedState = rewardState;
      const advanced = advanceRewardState(
        config.reward,
        usedState,
        batch.observed
          .map(({ rollout }) => rollout)
          .filter(isScored)
          .map(scoredRollout),
      );
      rewardState = advanced.state;
      const rewardEvents = advanced.events.map((event): RunEvent => ({ ...event, step }));
      const lookups = takeLookups(batch, lookedUp);
      const sampledNow = await source.sampledTokens();
      const measurements = (wallMs: number, split: Readonly<Record<string, number>>): StepMetrics =>
        stepMetrics({
          batch,
          lookups,
          report,
          reward: { spec: config.reward, state: usedState, evaluations, advance: advanced },
          sampledTokens: sampledNow - sampledBefore,
          wallMs,
          timeSplitMs: { wait: batch.waitMs, train: trained - stepStart - batch.waitMs, ...split },
        });
      // What the step measured lies beside the checkpoint that it belongs to, and is there before it.
      writeStepRecord(folder, step, {
        reward: rewardState,
        events: rewardEvents,
        metrics: measurements(trained - stepStart, {}),
      });
      await trainer.save(folder.checkpointPath(step));
      const saved = now();
      const publication = await published.publish(await trainer.served());
      const pauseMs = await follow();
      const synced = now();
      manager.stepTrained(step);
      for (const event of rewardEvents) folder.append(event);
      if (!report.applied)
        folder.append({
          event: 'step-skipped',
          step,
          reason: 'a gradient was not finite; weights and moments did not move',
        });
      const metrics = withSynchronisation(
        measurements(synced - stepStart, { checkpoint: saved - trained, publish: synced - saved }),
        { published: publication, pauseMs },
      );
      folder.append({ event: 'step-end', step, version: published.version, metrics });
      folder.pruneCheckpoints(config.checkpoints.keep);
      observer.progress(step, algorithm.steps, progressText(metrics));
      sampledBefore = sampledNow;
      stepStart = now();
    }
  } finally {
    await manager.stop();
  }
  return step;
}

function takeLookups(batch: StepBatch, lookedUp: Map<string, readonly number[]>): ObservedLookups[] {
  return batch.observed.flatMap(({ task, rollout }) => {
    const lines = lookedUp.get(rollout.id);
    lookedUp.delete(rollout.id);
    // Rollouts that an earlier process finished: how many look-ups they made is stored, not on which lines.
    return lines === undefined ? [] : [{ task, rollout, lines }];
  });
}

function progressText(metrics: StepMetrics): string {
  const looked = metrics['rollout/lookup_rate_elsewhere'];
  const parts = [
    `reward ${metrics['rollout/reward_mean'].toFixed(3)}`,
    `P ${metrics['rollout/precision'].toFixed(3)}`,
    `R ${metrics['rollout/recall'].toFixed(3)}`,
    `entropy ${(metrics['policy/entropy'] ?? 0).toFixed(3)}`,
  ];
  if (looked !== null)
    parts.push(
      `look-ups ${(100 * looked).toFixed(0)} % elsewhere, ${(100 * (metrics['rollout/lookup_rate_other'] ?? 0)).toFixed(0)} % other`,
    );
  const gains = metrics['frontier/success_gain'] ?? {};
  const savings = Object.entries(metrics['frontier/cost_saving'] ?? {});
  for (const [effort, gain] of Object.entries(gains)) {
    const saved = savings.filter(([name]) => name.startsWith(`${effort}/`)).map(([, saving]) => signedPercent(saving));
    parts.push(`${effort} gain ${signedPercent(gain)}, saving ${saved.join(' ')}`);
  }
  parts.push(`${Math.round(metrics['speed/sampled_tokens_per_second'])} tok/s`);
  return parts.join(', ');
}

function signedPercent(share: number): string {
  return `${share < 0 ? '-' : '+'}${Math.abs(100 * share).toFixed(0)} %`;
}

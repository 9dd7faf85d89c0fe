/**
 * What a run's config may not combine, and what it sets that nothing would read. Each problem is told with its key, its
 * value and the cure; all of them at once. Pure: whether files and models fit is checked when they are loaded.
 */
import type { RunConfigFields } from './config-fields.ts';
import { effortsOf } from './efforts.ts';
import type { CostWeights } from '../reward/cost.ts';
import { frontierTermOf, requiredMeasurements } from '../reward/spec.ts';
import type { RewardTerm } from '../reward/terms.ts';

export interface ConfigProblem {
  readonly path: readonly string[];
  readonly message: string;
}

export function impossibleMixes(config: RunConfigFields): ConfigProblem[] {
  return [...samplingMixes(config), ...effortMixes(config), ...rewardMixes(config), ...fleetMixes(config)];
}

function fleetMixes({ serve, weights }: RunConfigFields): ConfigProblem[] {
  if (serve.routers.length === 0 || weights.store !== undefined) return [];
  return [
    {
      path: ['weights', 'store'],
      message:
        'is left out while serve.routers is set: replicas elsewhere would never see a version of this run. Name the store that they follow',
    },
  ];
}

function samplingMixes({ sampling, replay, schedule, harness, engine }: RunConfigFields): ConfigProblem[] {
  const problems: ConfigProblem[] = [];
  const fail = (path: string[], message: string): void => {
    problems.push({ path, message });
  };
  const truncated = sampling.topP < 1 || sampling.topK > 0 || sampling.minP > 0;
  if (truncated && !replay.keptSets && !replay.acknowledgeMismatch)
    fail(
      ['replay', 'keptSets'],
      `is false while sampling is truncated (topP ${sampling.topP}, topK ${sampling.topK}, minP ${sampling.minP}): the trainer would see other probabilities than the sampler. Set replay.keptSets to true, or replay.acknowledgeMismatch to true`,
    );
  if (schedule.mode === 'async' && schedule.maxStaleness === 0)
    fail(
      ['schedule', 'maxStaleness'],
      'is 0 while schedule.mode is async: nothing could be sampled while training. Set it to 1 or more, or use schedule.mode sync',
    );
  if (schedule.mode === 'sync' && (schedule.maxStaleness ?? 0) > 0)
    fail(
      ['schedule', 'maxStaleness'],
      `is ${schedule.maxStaleness} while schedule.mode is sync, which trains on no stale token. Leave it out, or use schedule.mode async`,
    );
  if (harness.strategy === 'report' && harness.instructions === 'none')
    fail(['harness', 'instructions'], 'is none, but the report strategy always explains itself. Set it to full');
  if (replay.acknowledgeMismatch && replay.keptSets)
    fail(
      ['replay', 'acknowledgeMismatch'],
      'is true while replay.keptSets is true, so there is no mismatch to acknowledge. Leave it out',
    );
  if (schedule.concurrency > engine.slots)
    fail(
      ['engine', 'slots'],
      `is ${engine.slots}, fewer than schedule.concurrency ${schedule.concurrency}: rollouts would evict each other's keys and values. Raise slots or lower concurrency`,
    );
  return problems;
}

function effortMixes({ efforts, eval: evaluation }: RunConfigFields): ConfigProblem[] {
  if (Object.keys(efforts).length === 0 || evaluation.tasks === 0 || !evaluation.controls) return [];
  return [
    {
      path: ['eval', 'controls'],
      message:
        'is true while efforts are named: the controls ask about lines in prompts that tell no effort, which this policy is not trained on. Set it to false',
    },
  ];
}

function rewardMixes({ reward, efforts, tasks, baseline, schedule }: RunConfigFields): ConfigProblem[] {
  const problems: ConfigProblem[] = [];
  const fail = (path: string[], message: string): void => {
    problems.push({ path, message });
  };
  const required = requiredMeasurements(reward);
  if (required.rolloutsPerTask > baseline.rolloutsPerTask)
    fail(
      ['baseline', 'rolloutsPerTask'],
      `is ${baseline.rolloutsPerTask}, and a starting price from within tasks compares rollouts of the same task. Set it to 4 or more, or give the frontier term's startingPrice { from: 'given', prices }`,
    );
  if (required.efforts && Object.keys(efforts).length < 2)
    fail(
      ['efforts'],
      `names ${Object.keys(efforts).length}, and a starting price from across efforts needs a curve through several. Name two or more, or use startingPrice { from: 'within-task' }`,
    );
  const startingPrice = frontierTermOf(reward)?.startingPrice;
  if (startingPrice?.from === 'given') {
    const priced = Object.keys(startingPrice.prices);
    const named = effortsOf({ efforts });
    const missing = named.filter((effort) => !priced.includes(effort));
    const unknown = priced.filter((effort) => !named.includes(effort));
    const path = ['reward', 'terms', String(reward.terms.findIndex(({ kind }) => kind === 'frontier'))];
    if (missing.length > 0 || unknown.length > 0)
      fail(
        [...path, 'startingPrice', 'prices'],
        `price ${priced.join(', ') || 'no effort'}, and the run's efforts are ${named.join(', ')}. Give each of these its price, and no other`,
      );
  }
  if (required.perTaskBudgets && tasks.pool === 0)
    fail(
      ['tasks', 'pool'],
      "is 0, a stream in which no task comes twice, while a budget's scope is task: no budget could be measured for a task before it comes. Set tasks.pool to a number of tasks, or the budget's scope to effort",
    );
  if (required.perTaskBudgets && tasks.pool > baseline.tasks)
    fail(
      ['baseline', 'tasks'],
      `is ${baseline.tasks}, fewer than the ${tasks.pool} tasks of tasks.pool, and a budget for each task is measured from its own rollouts. Set baseline.tasks to ${tasks.pool} or more`,
    );
  if (frontierTermOf(reward) !== undefined && baseline.tasks < 2)
    fail(['baseline', 'tasks'], `is ${baseline.tasks}, and references need several tasks. Set it to 256 or more`);
  if (schedule.mode === 'sync') problems.push(...wallTimeMixes(reward));
  return problems;
}

/** A synchronous run has the same bits when it is run again, and a clock never shows the same twice. */
function wallTimeMixes({ terms }: RunConfigFields['reward']): ConfigProblem[] {
  const problems: ConfigProblem[] = [];
  for (const [index, term] of terms.entries()) {
    const path = ['reward', 'terms', String(index)];
    if (term.kind === 'latency' && term.latency.from !== 'model')
      problems.push({
        path: [...path, 'latency', 'from'],
        message: `is ${term.latency.from} while schedule.mode is sync: wall time does not repeat, so the run would not. Give { from: 'model' } with numbers, or use schedule.mode async`,
      });
    for (const { at, weights } of pricesIn(term))
      if (weights.toolSeconds > 0)
        problems.push({
          path: [...path, ...at],
          message:
            'prices toolSeconds while schedule.mode is sync: wall time does not repeat, so the run would not. Price turns or look-ups, or use schedule.mode async',
        });
  }
  return problems;
}

/** The weights of a term's costs, each with its path inside the term. */
function pricesIn(term: RewardTerm): { readonly at: readonly string[]; readonly weights: CostWeights }[] {
  if (term.kind === 'frontier')
    return term.costs.map(({ weights }, index) => ({ at: ['costs', String(index), 'weights'], weights }));
  return term.kind === 'cost' || term.kind === 'budget' ? [{ at: ['weights'], weights: term.weights }] : [];
}

/** Options that differ from their defaults although another one makes them mean nothing. */
export function unreadOptions(config: RunConfigFields, defaults: RunConfigFields): string[] {
  const { reward, eval: evaluation, baseline, harness, efforts } = config;
  const unread: string[] = [];
  if (config.weights.store === undefined && config.weights.wake.length > 0)
    unread.push('weights.wake, as weights.store is left out and nobody else follows the run folder');
  if (config.weights.store === undefined && config.weights.fork)
    unread.push('weights.fork, as weights.store is left out and a new run folder belongs to no other run');
  if (config.serve.routers.length === 0 && config.serve.deadlineSeconds !== defaults.serve.deadlineSeconds)
    unread.push('serve.deadlineSeconds, as serve.routers names none');
  if (config.serve.routers.length === 0 && config.serve.keptSets !== defaults.serve.keptSets)
    unread.push('serve.keptSets, as serve.routers names none');
  if (config.serve.routers.length > 0 && config.engine.slots !== defaults.engine.slots)
    unread.push('engine.slots, as the replicas behind serve.routers have their own');
  if (!evaluation.controls && evaluation.controlTasks !== defaults.eval.controlTasks)
    unread.push('eval.controlTasks, as eval.controls is false');
  if (!requiredMeasurements(reward).baseline)
    for (const key of ['tasks', 'rolloutsPerTask'] as const)
      if (baseline[key] !== defaults.baseline[key])
        unread.push(`baseline.${key}, as nothing in reward is measured at start`);
  const most = Math.max(harness.maxTokens, ...Object.values(efforts).map(({ maxTokens }) => maxTokens ?? 0));
  for (const [index, term] of reward.terms.entries())
    if (term.kind === 'overlong' && term.limit - term.buffer >= most)
      unread.push(
        `reward.terms.${index}, as no rollout samples more than ${most} tokens (harness.maxTokens) and it charges nothing up to ${term.limit - term.buffer}`,
      );
  if (harness.lookups === 'off') {
    if (harness.maxLookups !== undefined) unread.push('harness.maxLookups, as harness.lookups is off');
    for (const [index, term] of reward.terms.entries())
      for (const { at, weights } of pricesIn(term))
        if (weights.lookups > 0)
          unread.push(`reward.terms.${index}.${at.join('.')}.lookups, as harness.lookups is off`);
    for (const [name, { maxLookups }] of Object.entries(efforts))
      if (maxLookups !== undefined) unread.push(`efforts.${name}.maxLookups, as harness.lookups is off`);
  }
  return unread;
}

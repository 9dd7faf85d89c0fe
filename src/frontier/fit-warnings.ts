/**
 * What a reader of a fit must know besides its numbers, as sentences: estimates that contradict each other and why, efforts
 * that buy nothing, what could not be measured, and what to evaluate next where an effort has no price.
 */
import type { Interval } from '../domain/statistics.ts';
import { LEAST_TASKS, tasksForSlope } from '../reward/slope-band.ts';
import type { SlopeEstimate } from '../reward/slope.ts';
import type { EvaluationRecord } from './evaluation-records.ts';
import type { EffortFit } from './frontier-file.ts';
import { formatNumber } from './xy-scale.ts';

/** Steering repairs a starting price that is wrong by this factor. */
const REPAIRED_FACTOR = 3;

/** One sentence or two each, in the order in which they matter. Pure; never throws. */
export function fitWarnings(input: {
  readonly efforts: readonly EffortFit[];
  /** By effort, in the same order. */
  readonly slopes: readonly SlopeEstimate[];
  readonly records: readonly EvaluationRecord[];
}): string[] {
  const { efforts, slopes, records } = input;
  const warnings: string[] = [];
  const costs = new Set(efforts.map(({ cost }) => cost.estimate));
  if (efforts.length === 1)
    warnings.push(
      `There is one effort, ${efforts[0]?.effort}: no curve can be fitted, and the price comes from slopes within tasks alone. Evaluate at another effort to see the frontier.`,
    );
  else if (costs.size === 1)
    warnings.push('All efforts cost the same on average: no curve can be fitted. Evaluate at efforts that differ.');
  else if (costs.size === 2)
    warnings.push(
      'There are two different costs: how the curve bends between and beyond them comes from the assumption that nothing spent achieves nothing. A third effort would measure it.',
    );
  const free = efforts.filter(({ reference }) => reference === null).map(({ effort }) => effort);
  if (free.length > 0)
    warnings.push(
      `Nothing is spent at ${free.map((effort) => `effort ${effort}`).join(' and ')} (c0 = 0): it is a point of the curve, but gains are relative to cost, so it cannot be steered on this cost and has no starting price. Leave it out of what is steered, or give a weight to something that its rollouts use.`,
    );
  const unpaired = countUnpaired(records, efforts.length);
  if (unpaired > 0)
    warnings.push(
      `${unpaired} of ${new Set(records.map(({ taskId }) => taskId)).size} tasks were not tried at every effort: differences between efforts are then partly differences between tasks. Evaluate the same tasks at all efforts.`,
    );
  const small = efforts
    .filter(({ tasks }) => tasks < LEAST_TASKS)
    .map(({ effort, tasks }) => `effort ${effort} ${tasks}`);
  if (small.length > 0)
    warnings.push(
      `Slopes are not measured on fewer than ${LEAST_TASKS} tasks, as no band says how far they can be trusted: ${small.join(', ')}. Evaluate on more tasks.`,
    );
  warnings.push(...slopeWarnings(efforts, slopes));
  for (const { effort, dominated, startingPrice } of efforts) {
    if (dominated === null) continue;
    const by =
      dominated.by.length === 1
        ? `effort ${dominated.by[0]} does`
        : `a mix of efforts ${dominated.by.join(' and ')} would`;
    warnings.push(
      `Effort ${effort} lies below the curve: ${by} reach more success for no more cost, in ${percent(dominated.share)} of the resamples${dominated.share < 0.9 ? ', so it may be chance' : ''}.${startingPrice?.from === 'across-efforts' ? ' Its price is the slope of the curve at its cost.' : ''}`,
    );
  }
  const cheated = efforts.filter((fit) => fit.cheated > 0).map((fit) => `${fit.cheated} at effort ${fit.effort}`);
  if (cheated.length > 0)
    warnings.push(`Rollouts that cheated count as failures, with their cost: ${cheated.join(', ')}.`);
  return warnings;
}

/** Why an effort has no starting price and what would help; undefined when all that can be steered have one. */
export function missingPrices(efforts: readonly EffortFit[]): { what: string; cure: string } | undefined {
  const without = efforts.filter(({ startingPrice, reference }) => startingPrice === null && reference !== null);
  if (without.length === 0) return undefined;
  const told = without.map((fit) => sayUnpriced(fit));
  const isMeasured = without.some(({ slopes }) => slopes.acrossEfforts !== null || slopes.withinTask !== null);
  const needs = without.map((fit) => tasksNeeded(fit)).filter((tasks) => tasks !== undefined);
  const more =
    needs.length < without.length
      ? 'Evaluate efforts that lie further apart, with several rollouts a task'
      : `Evaluate on ${Math.max(...needs) === LEAST_TASKS ? 'at least' : 'about'} ${Math.max(...needs).toLocaleString('en-US')} tasks`;
  return {
    what: `No starting price: ${told.join('; ')}.${isMeasured ? ' More cost does not come with more success for sure.' : ''}`,
    cure: `${more}, or give the starting price as a number (reward.terms: startingPrice from given).`,
  };
}

function sayUnpriced({ effort, tasks, slopes: { acrossEfforts, withinTask } }: EffortFit): string {
  const counted = `${tasks} ${tasks === 1 ? 'task' : 'tasks'}`;
  if (acrossEfforts === null && withinTask === null)
    return tasks < LEAST_TASKS
      ? `effort ${effort} was tried on ${counted}, and a slope of success on cost is measured on ${LEAST_TASKS} or more`
      : `at effort ${effort} (${counted}) no slope of success on cost can be measured, neither across efforts nor within tasks`;
  const across = acrossEfforts === null ? undefined : `across efforts ${band(acrossEfforts)}`;
  const within = withinTask === null ? undefined : `within tasks ${band(withinTask)}`;
  const measured = [across, within].filter((part) => part !== undefined).join(' and ');
  const unmeasured = across === undefined ? ', and cannot be measured across efforts' : '';
  return `at effort ${effort} (${counted}) the slope of success on cost is ${measured}${within === undefined ? ', and cannot be measured within tasks' : unmeasured}`;
}

/** Efforts with the same trouble share a sentence. */
function slopeWarnings(efforts: readonly EffortFit[], slopes: readonly SlopeEstimate[]): string[] {
  const troubles = efforts.map(({ reference, slopes: { withinTask, pooled, acrossEfforts } }, index) => {
    const slope = slopes[index];
    if (reference === null || (slope?.tasks ?? 0) < LEAST_TASKS) return 'none';
    if (withinTask === null) return slope?.rollouts === slope?.tasks ? 'single' : 'few';
    if (withinTask.high < 0 || (withinTask.estimate < 0 && (pooled?.estimate ?? 0) > 0)) return 'stops';
    if (withinTask.estimate > 0 && (pooled?.estimate ?? 0) < 0) return 'hard-tasks';
    if (acrossEfforts === null || withinTask.low <= 0 || acrossEfforts.low <= 0) return 'none';
    const ratio = withinTask.estimate / acrossEfforts.estimate;
    return ratio > REPAIRED_FACTOR || ratio < 1 / REPAIRED_FACTOR ? 'apart' : 'none';
  });
  const tell = (trouble: (typeof troubles)[number], cell: (fit: EffortFit) => string): string | undefined => {
    const told = efforts.filter((_, index) => troubles[index] === trouble).map(cell);
    return told.length === 0 ? undefined : told.join(', ');
  };
  const signs = ({ effort, slopes: { withinTask, pooled } }: EffortFit): string =>
    `effort ${effort} ${withinTask === null ? 'none' : figure(withinTask.estimate)} within tasks and ${pooled === null ? 'none' : figure(pooled.estimate)} pooled`;
  const single = tell('single', ({ effort }) => `effort ${effort}`);
  const usableTasks = new Map(efforts.map(({ effort }, index) => [effort, slopes[index]?.usableTasks ?? 0]));
  const few = tell('few', ({ effort, tasks }) => `effort ${effort} ${usableTasks.get(effort)} of ${tasks}`);
  const stops = tell('stops', signs);
  const hardTasks = tell('hard-tasks', signs);
  const apart = tell('apart', ({ effort, slopes: { withinTask, acrossEfforts } }) => {
    const ratio = (withinTask?.estimate ?? Number.NaN) / (acrossEfforts?.estimate ?? Number.NaN);
    return `effort ${effort} ${formatNumber(ratio, 'times', 2)}`;
  });
  return [
    single && `No slope within tasks, as each task has one rollout: ${single}. Give each task several.`,
    few &&
      `No slope within tasks, as too few tasks have rollouts that differ in cost to say how far it can be trusted: ${few}. Give each task several rollouts, or evaluate on more tasks.`,
    stops &&
      `More cost comes with less success within a task: ${stops}. The agent probably stops when it has succeeded and goes on when it has not, so this slope is no price; take the one across efforts.`,
    hardTasks &&
      `The slopes disagree in sign: ${hardTasks}. Hard tasks cost more and fail more, which the pooled slope mistakes for a harm of cost; the one within tasks means something.`,
    apart &&
      `The slope within tasks differs from the one across efforts by more than a factor of ${REPAIRED_FACTOR}: ${apart}. Cost that varies by chance need not buy what turning effort up buys.`,
  ].filter((sentence) => sentence !== undefined);
}

/** By the estimate that needs fewest, in tens; undefined where no number of tasks is known to help. */
function tasksNeeded({ tasks, slopes }: EffortFit): number | undefined {
  if (tasks < LEAST_TASKS) return LEAST_TASKS;
  const needs = [slopes.acrossEfforts, slopes.withinTask]
    .map((slope) => (slope === null ? undefined : tasksForSlope(slope, tasks)))
    .filter((need) => need !== undefined);
  return needs.length === 0 ? undefined : 10 * Math.ceil(Math.min(...needs) / 10);
}

function countUnpaired(records: readonly EvaluationRecord[], efforts: number): number {
  const effortsByTask = new Map<string, Set<string>>();
  for (const { taskId, effort } of records) {
    const seen = effortsByTask.get(taskId);
    if (seen === undefined) effortsByTask.set(taskId, new Set([effort]));
    else seen.add(effort);
  }
  return [...effortsByTask.values()].filter((seen) => seen.size < efforts).length;
}

function band({ estimate, low, high }: Interval): string {
  return `${figure(estimate)} [${figure(low)}, ${figure(high)}]`;
}

function figure(value: number): string {
  return formatNumber(value, 'number');
}

function percent(share: number): string {
  return `${Math.round(100 * share)} %`;
}

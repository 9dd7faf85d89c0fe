/**
 * How well something ranks changed lines, apart from where it draws the line: forced choice and AUC. A moved threshold
 * changes neither, so they tell better detection from better calibration. Also the best threshold itself, exactly.
 * A line's `kind` and `role` are labels for analysis; no score may depend on them.
 */
import type { Edit, Task } from '../domain/task.ts';
import { fBeta } from '../reward/f-beta.ts';
import { isDirectionalKind, isElsewhereKind } from './scores.ts';
import { bootstrapIntervals } from '../domain/statistics.ts';
import { areaUnderCurve, areaUnderSortedCurve } from './statistics.ts';
import type { BootstrapOptions, Interval } from '../domain/statistics.ts';

export interface LineScore {
  readonly taskIndex: number;
  readonly line: number;
  readonly isBug: boolean;
  readonly kind: string;
  readonly role: Edit['role'];
  /** Higher = more likely a bug; any monotone scale. */
  readonly score: number;
}

/** Pairs each changed line of each task, in order, with its score. */
export function labelLineScores(tasks: readonly Task[], scores: readonly ArrayLike<number>[]): LineScore[] {
  if (tasks.length !== scores.length) throw new RangeError(`${scores.length} rows of scores for ${tasks.length} tasks`);
  return tasks.flatMap((task, taskIndex) => {
    const row = scores[taskIndex] ?? [];
    const { changes } = task.environment;
    if (row.length !== changes.length) {
      throw new RangeError(`${row.length} scores for the ${changes.length} changed lines of task ${task.id}`);
    }
    return changes.map(({ line }, index): LineScore => {
      const isBug = isBugLine(task, line);
      const edit = task.metadata.edits.find((candidate) => candidate.line === line);
      const role = edit?.role ?? (isBug ? 'bug' : 'equivalent');
      return { taskIndex, line, isBug, kind: edit?.kind ?? 'unlabelled', role, score: row[index] ?? Number.NaN };
    });
  });
}

export function isBugLine(task: Task, line: number): boolean {
  return task.gold.bugs.some((bug) => bug.startLine <= line && line <= bug.endLine);
}

export interface ForcedChoice {
  /** Tasks (overall) or bug lines (by kind) that there was something to choose for. */
  readonly choices: number;
  /** Share chosen right; a tie at the top counts by the share of bugs in it. */
  readonly share: number;
  readonly chance: number;
}

export interface KindRanking {
  readonly kind: string;
  /** Each bug line of the kind against the lines without a bug in its own task. */
  readonly forcedChoice: ForcedChoice;
  /** Bug lines of the kind against all lines without a bug. */
  readonly auc: number | undefined;
}

export interface Ranking {
  readonly forcedChoice: ForcedChoice;
  readonly auc: number | undefined;
}

export interface RankingSummary extends Ranking {
  readonly withoutDirectional: Ranking;
  readonly elsewhere: Ranking;
  readonly byKind: readonly KindRanking[];
}

export function summariseRanking(scores: readonly LineScore[]): RankingSummary {
  const rank = (lines: readonly LineScore[]): Ranking => ({
    forcedChoice: forcedChoice(lines),
    auc: areaUnderCurve(lines.map(({ score, isBug }) => ({ score, positive: isBug }))),
  });
  const bugs = scores.filter(({ isBug }) => isBug);
  const benign = scores.filter(({ isBug }) => !isBug);
  const kinds = [...new Set(bugs.map(({ kind }) => kind))].toSorted();
  return {
    ...rank(scores),
    withoutDirectional: rank(scores.filter(({ kind }) => !isDirectionalKind(kind))),
    elsewhere: rank(scores.filter(({ kind }) => isElsewhereKind(kind))),
    byKind: kinds.map((kind) => {
      const ofKind = bugs.filter((line) => line.kind === kind);
      const labelled = [...ofKind, ...benign].map(({ score, isBug }) => ({ score, positive: isBug }));
      return { kind, forcedChoice: choosePerBug(ofKind, benign), auc: areaUnderCurve(labelled) };
    }),
  };
}

/** Given that a task has a bug: is the line that scores highest one? Tasks whose every line is a bug are no choice. */
export function forcedChoice(scores: readonly LineScore[]): ForcedChoice {
  const outcomes = [...linesByTask(scores).values()].flatMap((lines) => {
    const bugs = lines.filter(({ isBug }) => isBug).length;
    return bugs === 0 || bugs === lines.length ? [] : [{ hit: topHit(lines), chance: bugs / lines.length }];
  });
  return summariseChoices(outcomes);
}

function choosePerBug(bugs: readonly LineScore[], benign: readonly LineScore[]): ForcedChoice {
  const benignOfTask = linesByTask(benign);
  const outcomes = bugs.flatMap((bug) => {
    const others = benignOfTask.get(bug.taskIndex) ?? [];
    return others.length === 0 ? [] : [{ hit: topHit([bug, ...others]), chance: 1 / (others.length + 1) }];
  });
  return summariseChoices(outcomes);
}

function topHit(lines: readonly LineScore[]): number {
  const best = Math.max(...lines.map(({ score }) => score));
  const top = lines.filter(({ score }) => score === best);
  return top.length === 0 ? 0 : top.filter(({ isBug }) => isBug).length / top.length;
}

function summariseChoices(outcomes: readonly { hit: number; chance: number }[]): ForcedChoice {
  const choices = outcomes.length;
  const sum = (value: (outcome: { hit: number; chance: number }) => number): number =>
    outcomes.reduce((total, outcome) => total + value(outcome), 0) / Math.max(1, choices);
  return { choices, share: sum(({ hit }) => hit), chance: sum(({ chance }) => chance) };
}

export interface RankingIntervals {
  readonly forcedChoice: Interval;
  readonly auc: Interval;
}

/** Intervals over tasks; with `before`, of the difference scores - before on the same tasks. */
export function rankingIntervals(
  ranking: { readonly scores: readonly LineScore[]; readonly before?: readonly LineScore[] },
  options: BootstrapOptions,
): RankingIntervals {
  const count = 1 + ranking.scores.reduce((highest, { taskIndex }) => Math.max(highest, taskIndex), 0);
  const measureScores = prepareRanking(ranking.scores);
  const measureBefore = ranking.before === undefined ? undefined : prepareRanking(ranking.before);
  const evaluate = (multiplicities: Int32Array): readonly number[] => {
    const values = measureScores(multiplicities);
    if (measureBefore === undefined) return values;
    const from = measureBefore(multiplicities);
    return values.map((value, index) => value - (from[index] ?? Number.NaN));
  };
  const [choice, auc] = bootstrapIntervals({ count, evaluate }, options);
  const unknown: Interval = { estimate: Number.NaN, low: Number.NaN, high: Number.NaN };
  return { forcedChoice: choice ?? unknown, auc: auc ?? unknown };
}

/** Sorts once; each resample is then one pass over tasks and one over lines. */
function prepareRanking(scores: readonly LineScore[]): (multiplicities: Int32Array) => [number, number] {
  const choices = [...linesByTask(scores)].flatMap(([taskIndex, lines]) => {
    const bugs = lines.filter(({ isBug }) => isBug).length;
    return bugs === 0 || bugs === lines.length ? [] : [{ taskIndex, hit: topHit(lines) }];
  });
  const sorted = scores
    .toSorted((one, other) => one.score - other.score)
    .map(({ score, isBug, taskIndex }) => ({ score, positive: isBug, taskIndex, weight: 1 }));
  return (multiplicities) => {
    let hits = 0;
    let drawn = 0;
    for (const { taskIndex, hit } of choices) {
      const times = multiplicities[taskIndex] ?? 0;
      hits += times * hit;
      drawn += times;
    }
    for (const item of sorted) item.weight = multiplicities[item.taskIndex] ?? 0;
    return [hits / drawn, areaUnderSortedCurve(sorted) ?? Number.NaN];
  };
}

export interface Threshold {
  /** Report a line when its score is at least this. */
  readonly threshold: number;
  /** Sample-averaged F-beta that it reaches on the lines it was chosen on. */
  readonly fBeta: number;
}

/**
 * The threshold with the best sample-averaged F-beta, found exactly: lines are switched on by falling score, and mean
 * precision and recall follow. It stands midway between two scores; above the highest when silence is best.
 */
export function chooseThreshold(scores: readonly LineScore[], options: { readonly beta?: number } = {}): Threshold {
  const { beta = 0.5 } = options;
  const tasks = new Map([...linesByTask(scores)].map(([taskIndex, lines]) => [taskIndex, countBugs(lines)]));
  const totals = { precision: 0, recall: 0 };
  for (const task of tasks.values()) if (task.actual === 0) addSample(totals, task, 1);
  const current = (): number =>
    fBeta({ precision: totals.precision / tasks.size, recall: totals.recall / tasks.size }, beta);
  const sorted = scores.toSorted((one, other) => other.score - one.score);
  let best: Threshold = { threshold: (sorted[0]?.score ?? 0) + 1, fBeta: tasks.size === 0 ? 0 : current() };
  for (const [index, { taskIndex, isBug, score }] of sorted.entries()) {
    const task = tasks.get(taskIndex) ?? { truePositives: 0, predicted: 0, actual: 0 };
    addSample(totals, task, -1);
    task.predicted++;
    if (isBug) task.truePositives++;
    addSample(totals, task, 1);
    const next = sorted[index + 1]?.score;
    if (next === score) continue;
    const reached = current();
    // Must be better by more than rounding, so that the stricter of two equal thresholds wins.
    if (reached > best.fBeta + 1e-12)
      best = { threshold: next === undefined ? score : (score + next) / 2, fBeta: reached };
  }
  return best;
}

interface SampleCounts {
  truePositives: number;
  predicted: number;
  actual: number;
}

function countBugs(lines: readonly LineScore[]): SampleCounts {
  return { truePositives: 0, predicted: 0, actual: lines.filter(({ isBug }) => isBug).length };
}

/** Adds a sample's precision and recall to the totals, or takes them out. */
function addSample(totals: { precision: number; recall: number }, task: SampleCounts, sign: 1 | -1): void {
  if (task.predicted === 0 && task.actual === 0) {
    totals.precision += sign;
    totals.recall += sign;
  } else if (task.predicted > 0 && task.actual > 0) {
    totals.precision += (sign * task.truePositives) / task.predicted;
    totals.recall += (sign * task.truePositives) / task.actual;
  }
}

function linesByTask(scores: readonly LineScore[]): Map<number, LineScore[]> {
  const tasks = new Map<number, LineScore[]>();
  for (const line of scores) {
    const lines = tasks.get(line.taskIndex);
    if (lines === undefined) tasks.set(line.taskIndex, [line]);
    else lines.push(line);
  }
  return tasks;
}

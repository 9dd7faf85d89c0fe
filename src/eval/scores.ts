/**
 * What a policy scored on a set of tasks: one row of the results table, from one result a rollout.
 * Sample-averaged figures are what the reward climbs: F-beta of the mean precision and the mean recall. Pooled figures
 * divide summed counts. A ratio over nothing is 0 in a score and undefined where it would be read as a finding.
 */
import type { Submission } from '../domain/finding.ts';
import type { Cost, Outcome } from '../domain/rollout.ts';
import { BUG_CATEGORIES, DIRECTIONAL_CATEGORIES, ELSEWHERE_CATEGORIES } from '../domain/task.ts';
import type { BugCategory, Task } from '../domain/task.ts';
import { matchFindings, scoreFindings } from '../reward/detection.ts';
import { fBeta } from '../reward/f-beta.ts';

export interface TaskResult {
  readonly task: Task;
  readonly submission: Submission;
  readonly outcome: Outcome;
  readonly cost: Cost;
}

export interface ScoreTriple {
  readonly precision: number;
  readonly recall: number;
  readonly fBeta: number;
}

export interface DetectionScores {
  readonly tasks: number;
  readonly sample: ScoreTriple;
  readonly pooled: ScoreTriple;
  readonly truePositives: number;
  readonly predicted: number;
  readonly actual: number;
}

export interface KindRecall {
  readonly kind: BugCategory;
  readonly bugs: number;
  readonly found: number;
}

/** Changed lines on which at least one name was looked up. */
export interface LookupRate {
  readonly lines: number;
  readonly lookedUp: number;
}

export interface Scores extends DetectionScores {
  readonly rollouts: number;
  /** Without the lines whose kind the direction of the edit gives away. */
  readonly withoutDirectional: DetectionScores;
  /** Only the lines whose evidence lies elsewhere in the package. */
  readonly elsewhere: DetectionScores;
  readonly byKind: readonly KindRecall[];
  readonly lookups: { readonly elsewhere: LookupRate; readonly other: LookupRate };
  /** Of the bugs found, those named by their right category; undefined when none was found. */
  readonly categoryAccuracy: number | undefined;
  readonly invalidShare: number;
  /** Rollouts that reported nothing, readable or not. */
  readonly silentShare: number;
  readonly turnsPerTask: number;
  readonly tokensPerTask: number;
  readonly sampledTokensPerTask: number;
}

const DIRECTIONAL: ReadonlySet<string> = new Set(DIRECTIONAL_CATEGORIES);
const ELSEWHERE: ReadonlySet<string> = new Set(ELSEWHERE_CATEGORIES);

export const isElsewhereKind = (kind: string): boolean => ELSEWHERE.has(kind);
export const isDirectionalKind = (kind: string): boolean => DIRECTIONAL.has(kind);

export function scoreResults(results: readonly TaskResult[], options: { readonly beta?: number } = {}): Scores {
  const { beta = 0.5 } = options;
  const share = (matches: (result: TaskResult) => boolean): number =>
    ratio(results.filter(matches).length, results.length);
  const perRollout = (value: (cost: Cost) => number): number =>
    ratio(
      results.reduce((sum, { cost }) => sum + value(cost), 0),
      results.length,
    );
  return {
    ...scoreDetection(results, beta),
    rollouts: results.length,
    withoutDirectional: scoreDetection(
      restrictToKinds(results, (kind) => !isDirectionalKind(kind)),
      beta,
    ),
    elsewhere: scoreDetection(restrictToKinds(results, isElsewhereKind), beta),
    ...scoreKinds(results),
    lookups: {
      elsewhere: lookupRate(results, isElsewhereKind),
      other: lookupRate(results, (kind) => !isElsewhereKind(kind)),
    },
    invalidShare: share(({ outcome }) => !outcome.valid),
    silentShare: share(({ outcome }) => outcome.predicted === 0),
    turnsPerTask: perRollout(({ turns }) => turns),
    tokensPerTask: perRollout(({ tokens }) => tokens),
    sampledTokensPerTask: perRollout(({ sampledTokens }) => sampledTokens),
  };
}

function scoreDetection(results: readonly TaskResult[], beta: number): DetectionScores {
  const sum = (value: (outcome: Outcome) => number): number =>
    results.reduce((total, { outcome }) => total + value(outcome), 0);
  const truePositives = sum((outcome) => outcome.truePositives);
  const predicted = sum((outcome) => outcome.predicted);
  const actual = sum((outcome) => outcome.actual);
  const triple = (precision: number, recall: number): ScoreTriple => ({
    precision,
    recall,
    fBeta: fBeta({ precision, recall }, beta),
  });
  return {
    tasks: new Set(results.map(({ task }) => task.id)).size,
    sample: triple(
      ratio(
        sum((outcome) => outcome.precision),
        results.length,
      ),
      ratio(
        sum((outcome) => outcome.recall),
        results.length,
      ),
    ),
    pooled: triple(ratio(truePositives, predicted), ratio(truePositives, actual)),
    truePositives,
    predicted,
    actual,
  };
}

function scoreKinds(results: readonly TaskResult[]): Pick<Scores, 'byKind' | 'categoryAccuracy'> {
  const bugs = new Map<BugCategory, number>();
  const found = new Map<BugCategory, number>();
  let matches = 0;
  let named = 0;
  for (const { task, submission, outcome } of results) {
    for (const { category } of task.gold.bugs) bugs.set(category, (bugs.get(category) ?? 0) + 1);
    // A void sample (unreadable, or a finding too wide to point) has found nothing.
    if (outcome.truePositives === 0) continue;
    const matched = matchFindings(submission.findings, { bugs: task.gold.bugs, file: task.environment.file });
    for (const [index, bugIndex] of matched.entries()) {
      const bug = bugIndex === undefined ? undefined : task.gold.bugs[bugIndex];
      if (bug === undefined) continue;
      matches++;
      if (submission.findings[index]?.category === bug.category) named++;
      found.set(bug.category, (found.get(bug.category) ?? 0) + 1);
    }
  }
  const byKind = BUG_CATEGORIES.filter((kind) => bugs.has(kind)).map((kind) => ({
    kind,
    bugs: bugs.get(kind) ?? 0,
    found: found.get(kind) ?? 0,
  }));
  return { byKind, categoryAccuracy: matches === 0 ? undefined : named / matches };
}

/**
 * The same results as if only edits of some kinds had been asked about: bugs, look-ups and findings on the other
 * changed lines are taken out, and what is left is scored anew. Tasks without a kept edit leave the list.
 */
export function restrictToKinds(results: readonly TaskResult[], keep: (kind: string) => boolean): TaskResult[] {
  const restricted: TaskResult[] = [];
  for (const { task, submission, outcome, cost } of results) {
    const edits = task.metadata.edits.filter(({ kind }) => keep(kind));
    if (edits.length === 0) continue;
    const kept = new Set(edits.map(({ line }) => line));
    const dropped = task.metadata.edits.map(({ line }) => line).filter((line) => !kept.has(line));
    const touches = (lines: Iterable<number>, span: { startLine: number; endLine: number }): boolean =>
      [...lines].some((line) => span.startLine <= line && line <= span.endLine);
    const bugs = task.gold.bugs.filter((bug) => touches(kept, bug));
    const findings = submission.findings.filter((finding) => touches(kept, finding) || !touches(dropped, finding));
    const lookups = submission.lookups.filter(({ line }) => kept.has(line));
    const narrowed: Submission = { ...submission, findings, lookups };
    restricted.push({
      task: { ...task, gold: { bugs }, metadata: { ...task.metadata, edits } },
      submission: narrowed,
      outcome: scoreFindings(narrowed, { bugs, file: task.environment.file, cheated: outcome.cheated }),
      cost,
    });
  }
  return restricted;
}

export function lookupRate(results: readonly TaskResult[], ofKind: (kind: string) => boolean): LookupRate {
  let lines = 0;
  let lookedUp = 0;
  for (const { task, submission } of results) {
    const asked = new Set(submission.lookups.map(({ line }) => line));
    const ofThatKind = new Set(task.metadata.edits.filter(({ kind }) => ofKind(kind)).map(({ line }) => line));
    lines += ofThatKind.size;
    for (const line of ofThatKind) if (asked.has(line)) lookedUp++;
  }
  return { lines, lookedUp };
}

function ratio(numerator: number, denominator: number): number {
  return denominator === 0 ? 0 : numerator / denominator;
}

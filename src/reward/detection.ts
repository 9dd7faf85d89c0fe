/**
 * The detection score: findings matched to the bugs that are really there, as precision and recall of one sample.
 * Matching is one to one, by file and overlapping lines, of maximum size, and the same for the same input.
 * A finding too wide to point anywhere (a conglomerate) voids the sample; so does a report that could not be read.
 */
import type { Finding, Submission } from '../domain/finding.ts';
import type { Outcome } from '../domain/rollout.ts';
import type { Bug } from '../domain/task.ts';

/** Lines that a finding may span and still count as pointing at something, unless a real bug spans more. */
const WIDEST_FINDING_LINES = 5;

export interface DetectionGold {
  readonly bugs: readonly Bug[];
  /** The file that every bug of the task is in. */
  readonly file: string;
  readonly widestFindingLines?: number;
  /** No harness sets it yet; carried into the outcome. */
  readonly cheated?: boolean;
}

/** Precision and recall of one sample, in this order: conglomerate 0, 0; both empty 1, 1; exactly one empty 0, 0. */
export function samplePrecisionRecall(counts: {
  readonly truePositives: number;
  readonly predicted: number;
  readonly actual: number;
  readonly conglomerate?: boolean;
}): { precision: number; recall: number } {
  const { truePositives, predicted, actual, conglomerate = false } = counts;
  if (conglomerate) return { precision: 0, recall: 0 };
  if (predicted === 0 && actual === 0) return { precision: 1, recall: 1 };
  if (predicted === 0 || actual === 0) return { precision: 0, recall: 0 };
  return { precision: truePositives / predicted, recall: truePositives / actual };
}

export function scoreFindings(submission: Submission, gold: DetectionGold): Outcome {
  const actual = gold.bugs.length;
  const cheated = gold.cheated ?? false;
  if (!submission.valid)
    return { truePositives: 0, predicted: 0, actual, precision: 0, recall: 0, valid: false, cheated };
  const { findings } = submission;
  const conglomerate = findings.some((finding) => isConglomerate(finding, gold));
  const matched = matchFindings(findings, gold);
  const truePositives = conglomerate ? 0 : matched.filter((bug) => bug !== undefined).length;
  const predicted = findings.length;
  const { precision, recall } = samplePrecisionRecall({ truePositives, predicted, actual, conglomerate });
  return { truePositives, predicted, actual, precision, recall, valid: true, cheated };
}

/**
 * For each finding the index of the bug that it is matched to, or undefined. The matching has maximum size (Kuhn's
 * augmenting paths, findings in order); a finding tries bugs of its own category first, then the earlier ones.
 */
export function matchFindings(findings: readonly Finding[], gold: DetectionGold): (number | undefined)[] {
  const candidates = findings.map((finding) => {
    if (isConglomerate(finding, gold)) return [];
    const hits = [...gold.bugs.keys()].filter((index) => overlaps(finding, gold, index));
    const sameCategory = (index: number): boolean => gold.bugs[index]?.category === finding.category;
    return [...hits.filter(sameCategory), ...hits.filter((index) => !sameCategory(index))];
  });
  const findingOfBug = new Map<number, number>();
  const augment = (finding: number, visited: Set<number>): boolean => {
    for (const bug of candidates[finding] ?? []) {
      if (visited.has(bug)) continue;
      visited.add(bug);
      const holder = findingOfBug.get(bug);
      if (holder === undefined || augment(holder, visited)) {
        findingOfBug.set(bug, finding);
        return true;
      }
    }
    return false;
  };
  for (const finding of findings.keys()) augment(finding, new Set());
  const matched = Array.from<number | undefined>({ length: findings.length });
  for (const [bug, finding] of findingOfBug) matched[finding] = bug;
  return matched;
}

function isConglomerate(finding: Finding, gold: DetectionGold): boolean {
  const widestBug = gold.bugs.reduce((widest, bug) => Math.max(widest, bug.endLine - bug.startLine + 1), 0);
  const limit = Math.max(gold.widestFindingLines ?? WIDEST_FINDING_LINES, widestBug);
  return finding.endLine - finding.startLine + 1 > limit;
}

function overlaps(finding: Finding, gold: DetectionGold, index: number): boolean {
  const bug = gold.bugs[index];
  if (bug === undefined || normalisePath(finding.file) !== normalisePath(gold.file)) return false;
  return finding.startLine <= bug.endLine && bug.startLine <= finding.endLine && finding.startLine <= finding.endLine;
}

function normalisePath(path: string): string {
  return path.replace(/^(?:\.\/)+/, '');
}

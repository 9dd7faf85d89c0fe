/**
 * Controls: what no learning in the run can take credit for. Always silent; every line above a threshold that was chosen
 * on training tasks, whatever scored the lines (an n-gram classifier, or the base model's own probabilities).
 * A control's findings go through the same detection score as a policy's.
 */
import type { Finding, Submission } from '../domain/finding.ts';
import type { BugCategory, Task } from '../domain/task.ts';
import { scoreFindings } from '../reward/detection.ts';
import { chooseThreshold } from './line-scores.ts';
import type { LineScore, Threshold } from './line-scores.ts';
import type { TaskResult } from './scores.ts';

export function alwaysSilent(tasks: readonly Task[]): TaskResult[] {
  return tasks.map((task) => toResult(task, []));
}

export interface ThresholdControl {
  readonly threshold: Threshold;
  readonly results: readonly TaskResult[];
}

/** Chooses the threshold on `tuning` lines and applies it to `lines` of `tasks`. Never give it the same tasks twice. */
export function thresholdControl(
  control: {
    readonly tuning: readonly LineScore[];
    readonly tasks: readonly Task[];
    readonly lines: readonly LineScore[];
  },
  options: { readonly beta?: number; readonly category?: BugCategory } = {},
): ThresholdControl {
  const threshold = chooseThreshold(control.tuning, options.beta === undefined ? {} : { beta: options.beta });
  return { threshold, results: reportLines(control, { ...options, threshold: threshold.threshold }) };
}

/** One finding for every line whose score is at least the threshold. */
export function reportLines(
  scored: { readonly tasks: readonly Task[]; readonly lines: readonly LineScore[] },
  options: { readonly threshold: number; readonly category?: BugCategory },
): TaskResult[] {
  const { threshold, category = 'wrong-variable' } = options;
  const findings: Finding[][] = scored.tasks.map(() => []);
  for (const { taskIndex, line, score } of scored.lines) {
    const task = scored.tasks[taskIndex];
    if (task === undefined || !(score >= threshold)) continue;
    const { file } = task.environment;
    const title = 'The line scores above the threshold';
    findings[taskIndex]?.push({
      file,
      startLine: line,
      endLine: line,
      severity: 'medium',
      category,
      title,
      description: '',
    });
  }
  return scored.tasks.map((task, index) => toResult(task, findings[index] ?? []));
}

function toResult(task: Task, findings: readonly Finding[]): TaskResult {
  const submission: Submission = { valid: true, findings, end: 'finished', turns: 0, lookups: [] };
  const outcome = scoreFindings(submission, { bugs: task.gold.bugs, file: task.environment.file });
  return { task, submission, outcome, cost: { tokens: 0, sampledTokens: 0, turns: 0, toolSeconds: 0 } };
}

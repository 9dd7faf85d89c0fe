/** For tests only: the smallest tasks and results that scores can be worked out from by hand. */
import type { Submission } from '../domain/finding.ts';
import { taskId } from '../domain/ids.ts';
import type { BugCategory, Edit, Task } from '../domain/task.ts';
import { scoreFindings } from '../reward/detection.ts';
import type { TaskResult } from './scores.ts';

const file = 'index.js';

export type EditTuple = readonly [line: number, kind: string, role: Edit['role'], before?: string, after?: string];

export function makeTask(id: string, edits: readonly EditTuple[]): Task {
  const bugs = edits
    .filter(([, , role]) => role === 'bug')
    .map(([line, kind]) => ({
      // The cast holds because an edit whose role is bug has a category as its kind.
      category: kind as BugCategory,
      severity: 'high' as const,
      startLine: line,
      endLine: line,
      description: '',
      fix: '',
    }));
  return {
    id: taskId(id),
    kind: 'check',
    environment: {
      package: 'p',
      version: '1.0.0',
      file,
      functionName: 'f',
      startLine: 1,
      lines: [],
      changes: edits.map(([line, , , before = '', after = '']) => ({ line, before, after })),
    },
    gold: { bugs },
    metadata: { split: 'heldout', seed: 0, edits: edits.map(([line, kind, role]) => ({ line, kind, role })) },
  };
}

export function makeResult(
  task: Task,
  findings: readonly (readonly [line: number, category: BugCategory])[],
  options: { readonly lookupLines?: readonly number[]; readonly valid?: boolean } = {},
): TaskResult {
  const { lookupLines = [], valid = true } = options;
  const submission: Submission = {
    valid,
    findings: findings.map(([line, category]) => ({
      file,
      startLine: line,
      endLine: line,
      severity: 'high',
      category,
      title: 't',
      description: '',
    })),
    end: valid ? 'finished' : 'malformed',
    turns: 2,
    lookups: lookupLines.map((line) => ({ line, name: 'x', found: true })),
  };
  const outcome = scoreFindings(submission, { bugs: task.gold.bugs, file });
  return { task, submission, outcome, cost: { tokens: 100, sampledTokens: 10, turns: 2, toolSeconds: 0 } };
}

/**
 * What a check harness submits: findings on the change. The same shape for every strategy and every model;
 * the detection score, SARIF and editor diagnostics are all read from it.
 */
import { z } from 'zod';

import { BUG_CATEGORIES, SEVERITIES } from './task.ts';

export const findingSchema = z.strictObject({
  file: z.string().min(1).describe('path inside the package or repository, forward slashes'),
  startLine: z.int().positive().describe('1-based, in the file after the change'),
  endLine: z.int().positive(),
  severity: z.enum(SEVERITIES),
  category: z.enum(BUG_CATEGORIES),
  title: z.string().min(1).max(120),
  description: z.string(),
  fix: z.string().optional().describe('unified diff against the file after the change'),
});
export type Finding = z.infer<typeof findingSchema>;

export const reportSchema = z.strictObject({ findings: z.array(findingSchema) });

/**
 * A harness's result. `valid` is false when the model's output could not be read even after its one repair turn;
 * an invalid report has no findings and scores as silence on a buggy change and as a miss on a clean one.
 */
export interface Submission {
  readonly valid: boolean;
  readonly findings: readonly Finding[];
  /** Why the episode ended. */
  readonly end: 'finished' | 'malformed' | 'turn-budget' | 'token-budget' | 'time-budget' | 'context-length';
  readonly turns: number;
  readonly lookups: readonly LookupRecord[];
  /** Sweep only: the verdict on each changed line, in order. */
  readonly verdicts?: readonly LineVerdict[];
}

export interface LookupRecord {
  readonly line: number;
  readonly name: string;
  readonly found: boolean;
}

export interface LineVerdict {
  readonly line: number;
  readonly verdict: string;
}

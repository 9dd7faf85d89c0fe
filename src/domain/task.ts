/**
 * A task: a change to real code, and the bugs that are really in it.
 * The environment is what an agent may see; `gold` is only for the verifier and for pre-training.
 * Schemas and invariants only, no I/O. One task is one line of JSON; the published JSON Schema is generated from here.
 */
import { z } from 'zod';

import type { TaskId } from './ids.ts';

/** The bug kinds of the check task. The last four have their evidence elsewhere in the package. */
export const BUG_CATEGORIES = [
  'negated-condition',
  'wrong-comparison',
  'wrong-logic',
  'wrong-arithmetic',
  'off-by-one',
  'wrong-variable',
  'wrong-boolean',
  'wrong-method',
  'swapped-operands',
  'missing-return',
  'missing-guard',
  'swapped-arguments',
  'missing-await',
  'unknown-property',
  'contradicted-constant',
] as const;
export type BugCategory = (typeof BUG_CATEGORIES)[number];

/** Kinds that can only be told from right code by looking something up. */
export const ELSEWHERE_CATEGORIES = [
  'swapped-arguments',
  'missing-await',
  'unknown-property',
  'contradicted-constant',
] as const satisfies readonly BugCategory[];

/** Kinds that the direction of the edit gives away: what is lost is always the bug, what is gained the fix. */
export const DIRECTIONAL_CATEGORIES = ['missing-return', 'missing-guard'] as const satisfies readonly BugCategory[];

export const SEVERITIES = ['low', 'medium', 'high'] as const;
export type Severity = (typeof SEVERITIES)[number];

const line = z.int().positive().describe('1-based line in the file after the change');

/** One replaced line of the change: same number of lines before and after. */
export const changedLineSchema = z.strictObject({
  line: line,
  before: z.string().describe('the line before the change, without its line break'),
  after: z.string().describe('the line after the change, without its line break'),
});
export type ChangedLine = z.infer<typeof changedLineSchema>;

export const bugSchema = z.strictObject({
  category: z.enum(BUG_CATEGORIES),
  severity: z.enum(SEVERITIES),
  startLine: line,
  endLine: line,
  description: z.string().describe('one sentence: what is wrong'),
  fix: z.string().describe('unified diff that undoes the bug, applicable to the file after the change'),
  evidence: z
    .strictObject({ name: z.string(), file: z.string(), line: line })
    .optional()
    .describe('for the elsewhere kinds: the declaration that proves it'),
});
export type Bug = z.infer<typeof bugSchema>;

/** What was done to a line, bug or not: the sampler's label, for analysis only. */
export const editSchema = z.strictObject({
  line: line,
  kind: z.string().describe('a bug category, or a benign rewrite such as rename, comment, extracted-constant'),
  role: z.enum(['bug', 'inverse', 'equivalent']).describe('inverse = the change fixes what the mutation would break'),
});
export type Edit = z.infer<typeof editSchema>;

export const taskSchema = z.strictObject({
  id: z
    .string()
    .describe('content hash, 16 hex digits')
    .transform((text) => text as TaskId),
  kind: z.literal('check'),
  environment: z.strictObject({
    package: z.string().describe('npm name of the package that the change is made to'),
    version: z.string(),
    file: z.string().describe('path inside the package, with forward slashes'),
    functionName: z.string(),
    startLine: line.describe('first line of the function that holds the change'),
    lines: z.array(z.string()).describe('the function after the change, one entry a line'),
    changes: z.array(changedLineSchema).min(1).describe('ascending by line'),
  }),
  gold: z.strictObject({ bugs: z.array(bugSchema) }),
  metadata: z.strictObject({
    split: z.enum(['pretrain', 'rl', 'heldout']),
    seed: z.int(),
    edits: z.array(editSchema),
  }),
});
export type Task = z.infer<typeof taskSchema>;

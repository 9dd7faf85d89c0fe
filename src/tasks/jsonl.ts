/**
 * Tasks as JSON Lines: one task a line, each checked by the published schema.
 * Invariant: what is written reads back equal; a line that is not a task stops the reading, and the error names it.
 */
import { readFileSync, writeFileSync } from 'node:fs';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { type Task, taskSchema } from '../domain/task.ts';

export function writeTasks(path: string, tasks: readonly Task[]): void {
  try {
    writeFileSync(path, tasks.map((task) => `${JSON.stringify(task)}\n`).join(''));
  } catch (cause) {
    throw new HoneError('store-failed', `Tasks could not be written to ${path}: ${reasonOf(cause)}.`, {
      cure: 'Name a file in a folder that exists and that you can write to.',
      cause,
    });
  }
}

/** Throws `invalid-task` with the line number and the first field that is wrong. */
export function readTasks(path: string): Task[] {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (cause) {
    throw new HoneError('invalid-task', `${path} could not be read: ${reasonOf(cause)}.`, {
      cure: 'Name a file that `hone tasks make` wrote.',
      cause,
    });
  }
  return parseTasks(text, path);
}

export function parseTasks(text: string, origin: string): Task[] {
  const tasks: Task[] = [];
  text.split('\n').forEach((line, index) => {
    if (line.trim() === '') return;
    tasks.push(parseTask(line, `${origin}:${index + 1}`));
  });
  return tasks;
}

function parseTask(line: string, place: string): Task {
  const cure =
    'Write tasks with `hone tasks make`, or check the line against the published schema (schemas/task.schema.json).';
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (cause) {
    throw new HoneError('invalid-task', `${place} is not JSON.`, { cure, cause });
  }
  const result = taskSchema.safeParse(value);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  throw new HoneError(
    'invalid-task',
    `${place} is not a task: ${issue?.path.join('.') ?? ''}: ${issue?.message ?? 'unreadable'}.`,
    { cure },
  );
}

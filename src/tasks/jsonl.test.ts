import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { expect, test } from 'vitest';
import { z } from 'zod';

import { type Task, taskSchema } from '../domain/task.ts';
import { parseTasks, readTasks, writeTasks } from './jsonl.ts';

const task: Task = taskSchema.parse({
  id: '0123456789abcdef',
  kind: 'check',
  environment: {
    package: 'example',
    version: '1.0.0',
    file: 'lib/a.js',
    functionName: 'isSmall',
    startLine: 10,
    lines: ['function isSmall(size, limit) {', '  return size <= limit', '}'],
    changes: [{ line: 11, before: '  return size < limit', after: '  return size <= limit' }],
  },
  gold: { bugs: [] },
  metadata: { split: 'rl', seed: 1, edits: [{ line: 11, kind: 'wrong-comparison', role: 'inverse' }] },
});

test('what is written reads back equal', () => {
  const directory = mkdtempSync(join(tmpdir(), 'hone-tasks-'));
  try {
    const path = join(directory, 'tasks.jsonl');
    writeTasks(path, [task, task]);
    expect(readTasks(path)).toEqual([task, task]);
  } finally {
    rmSync(directory, { recursive: true });
  }
});

test('an error names the line and the field', () => {
  const good = JSON.stringify(task);
  expect(() => parseTasks(`${good}\n{"id":`, 'tasks.jsonl')).toThrow('tasks.jsonl:2 is not JSON.');
  const bad = JSON.stringify({ ...task, environment: { ...task.environment, startLine: 0 } });
  expect(() => parseTasks(`${good}\n\n${bad}\n`, 'tasks.jsonl')).toThrow(
    /tasks\.jsonl:3 is not a task: environment\.startLine/u,
  );
  const unknown = JSON.stringify({ ...task, extra: 1 });
  expect(() => parseTasks(unknown, 'tasks.jsonl')).toThrow(/tasks\.jsonl:1 is not a task/u);
});

test('the published schema is the contract', () => {
  const published: unknown = JSON.parse(readFileSync('schemas/task.schema.json', 'utf8'));
  expect(published).toEqual({ title: 'A task of the check harness', ...z.toJSONSchema(taskSchema, { io: 'input' }) });
});

/**
 * The published JSON Schema of a task, generated from the contract. Run as a script it writes `schema.json` beside this
 * file; with `--check` it only compares, and exits 1 when the two differ.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { z } from 'zod';

import { taskSchema } from '../domain/task.ts';

export const SCHEMA_PATH = join(import.meta.dirname, 'schema.json');

export function taskJsonSchema(): string {
  const schema = z.toJSONSchema(taskSchema, { io: 'input' });
  return `${JSON.stringify({ ...schema, title: 'Hone check task' }, null, 2)}\n`;
}

if (import.meta.main) {
  const text = taskJsonSchema();
  if (!process.argv.includes('--check')) writeFileSync(SCHEMA_PATH, text);
  else if (readFileSync(SCHEMA_PATH, 'utf8') !== text) {
    process.stderr.write('tasks/schema.json differs from the contract; run `node src/tasks/schema.ts`.\n');
    process.exitCode = 1;
  }
}

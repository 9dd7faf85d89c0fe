/**
 * The event logs of services, read back line by line. Invariant: a line keeps its file and number, so that whoever finds something wrong
 * can show it, and lines stay in the order of their file: times are those of clocks, and clocks jump.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

import { z } from 'zod';

export interface LogLine {
  readonly file: string;
  /** From 1. */
  readonly line: number;
  readonly text: string;
  readonly service: string;
  readonly id: string;
  readonly event: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

const lineSchema = z.looseObject({ service: z.string(), id: z.string(), event: z.string() });

/** Every `.jsonl` file of the folder. A line that a killed process left unfinished is skipped: only the last of a file, or one before a restart. */
export function readLogs(directory: string): LogLine[] {
  return readdirSync(directory)
    .filter((name) => name.endsWith('.jsonl'))
    .toSorted()
    .flatMap((name) => parseLog(name, readFileSync(join(directory, name), 'utf8')));
}

export function parseLog(file: string, text: string): LogLine[] {
  return text.split('\n').flatMap((line, index) => {
    const parsed = lineSchema.safeParse(parseJson(line));
    if (!parsed.success) return [];
    const { service, id, event, ...fields } = parsed.data;
    return [{ file, line: index + 1, text: line, service, id, event, fields }];
  });
}

export function numberIn({ fields }: LogLine, key: string): number | undefined {
  const value = fields[key];
  return typeof value === 'number' ? value : undefined;
}

export function textIn({ fields }: LogLine, key: string): string | undefined {
  const value = fields[key];
  return typeof value === 'string' ? value : undefined;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown; // JSON.parse gives any.
  } catch {
    return undefined;
  }
}

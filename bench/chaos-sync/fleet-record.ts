/**
 * What is left of a fleet's run: the event logs of all services and clients, line by line, and what was watched from outside.
 * Owns reading them back. Invariant: a line keeps its file and number, so that whoever finds something wrong can show it; the order
 * of lines is their order in one file, never their time, as clocks jump.
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

/** One finished generation that was computed again from the published bytes. */
export interface ReplayedRequest {
  readonly request: string;
  readonly outcome: 'equal' | 'different';
  /** What differs, in words. */
  readonly detail?: string;
}

/** The end of the run, seen from outside on a clock that does not jump. */
export interface Convergence {
  readonly boundMs: number;
  /** From the last fault's end until every replica served `target` and every service was up; undefined = it did not come to that. */
  readonly tookMs: number | undefined;
  /** The newest version that was visible when the faults stopped. */
  readonly target: number;
  readonly replicas: readonly { readonly id: string; readonly version: number | undefined; readonly state: string }[];
}

export interface FleetRecord {
  readonly lines: readonly LogLine[];
  /** Ids of the rollouts that the data buffer holds, in its order. */
  readonly bufferIds: readonly string[];
  /** Checksum over all tensors of each version, worked out anew; every seed that may have published it counts. */
  readonly trueChecksums: ReadonlyMap<number, ReadonlySet<string>>;
  readonly replayed: readonly ReplayedRequest[];
  readonly convergence: Convergence;
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

const spansSchema = z.array(z.object({ version: z.number(), start: z.number(), end: z.number() }));

/** `[{ version, start, end }]`; empty when the line has none. */
export function spansIn({ fields }: LogLine): { version: number; start: number; end: number }[] {
  return spansSchema.safeParse(fields['versions']).data ?? [];
}

export function idsIn({ fields }: LogLine, key: string): readonly number[] {
  return z.array(z.number()).safeParse(fields[key]).data ?? [];
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown; // JSON.parse gives any.
  } catch {
    return undefined;
  }
}

/**
 * For tests only: reads the numbers that a right implementation must reproduce, one JSON object a line, `in` and `out`.
 * A first line with `common` holds inputs that the whole file shares; they are merged into each `in`.
 * The shared originals win where they are beside the repository; the copies in test/vectors serve everywhere else.
 */
import { existsSync, readFileSync } from 'node:fs';

export function readVectors<Input, Output>(name: string): { in: Input; out: Output }[] {
  const original = new URL(`../../shared/vectors/${name}.jsonl`, import.meta.url);
  const path = existsSync(original) ? original : new URL(`vectors/${name}.jsonl`, import.meta.url);
  const lines = readFileSync(path, 'utf8')
    .split('\n')
    .filter((line) => line.trim() !== '')
    // The casts state the shape that the caller knows the file to have.
    .map((line) => JSON.parse(line) as { common?: object; in: object; out: Output });
  const common = lines[0]?.common ?? {};
  return lines.flatMap((line) =>
    line.common === undefined ? [{ in: { ...common, ...line.in } as Input, out: line.out }] : [],
  );
}

/** The error of a figure against its vector, relative to its size but at least to 1e-3: at most 1e-12 is right. */
export function vectorError(actual: number, expected: number): number {
  if (Object.is(actual, expected) || actual === expected) return 0;
  return Math.abs(actual - expected) / Math.max(Math.abs(expected), 1e-3);
}

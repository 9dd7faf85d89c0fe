/**
 * For tests only: reads the numbers that a right implementation must reproduce, one JSON object a line, `in` and `out`.
 * The shared originals win where they are beside the repository; the copies in test/vectors serve everywhere else.
 */
import { existsSync, readFileSync } from 'node:fs';

export function readVectors<Input, Output>(name: string): { in: Input; out: Output }[] {
  const original = new URL(`../../../shared/vectors/${name}.jsonl`, import.meta.url);
  const path = existsSync(original) ? original : new URL(`../../test/vectors/${name}.jsonl`, import.meta.url);
  const lines = readFileSync(path, 'utf8')
    .split('\n')
    .filter((line) => line.trim() !== '');
  // The cast states the shape that the caller knows the file to have.
  return lines.map((line) => JSON.parse(line) as { in: Input; out: Output });
}

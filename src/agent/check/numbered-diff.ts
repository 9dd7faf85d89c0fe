/**
 * A change as a unified diff whose context and added lines carry their numbers in the new file, so that a model reads
 * line numbers instead of counting them. The whole function is shown as context.
 */
import type { Task } from '../../domain/task.ts';

export function numberedDiff(environment: Task['environment']): string {
  const { file, startLine, lines, changes } = environment;
  const changeAt = new Map(changes.map((change) => [change.line, change]));
  const rows = [`--- a/${file}`, `+++ b/${file}`, `@@ -${startLine},${lines.length} +${startLine},${lines.length} @@`];
  let added: string[] = [];
  for (const [offset, text] of lines.entries()) {
    const line = startLine + offset;
    const change = changeAt.get(line);
    const number = String(line).padStart(5);
    if (change === undefined) {
      rows.push(...added, `${number}   ${text}`);
      added = [];
      continue;
    }
    // Neighbouring changes form one block: removed lines first.
    rows.push(`      - ${change.before}`);
    added.push(`${number} + ${change.after}`);
  }
  rows.push(...added);
  return rows.join('\n');
}

/**
 * The texts of a sweep conversation, and how its replies are read. Pure: the harness sends these texts, pre-training
 * writes examples with them, and evaluation scores lines with them, so all three see the same bytes.
 *
 *   user       (where the owner names levels of effort) `effort: <level>`; the function as a word diff, then the first changed line again, then the names that may be looked up
 *   assistant  ok | <category> | look <n>
 *   user       (after a look-up) the declaration, and `?` again; (else) the next changed line
 */
import { effortLine } from './effort-line.ts';
import { wordDiff } from '../../code/word-diff.ts';
import type { Effort } from '../../domain/effort.ts';
import { BUG_CATEGORIES } from '../../domain/task.ts';
import type { BugCategory, ChangedLine, Task } from '../../domain/task.ts';

export type SweepReply =
  | { readonly kind: 'verdict'; readonly category: BugCategory | undefined }
  | { readonly kind: 'look'; readonly index: number }
  | { readonly kind: 'malformed' };

/** For models that have not been trained on the format; a trained one needs no instructions. */
export const SWEEP_INSTRUCTIONS = `You review a change to one function. Changed words are marked [-removed-] and {+added+}.
After the function each changed line is shown again after "?". Reply with one word: ok when the changed line is right,
or the kind of bug that the change introduced: ${BUG_CATEGORIES.join(', ')}.
Names on the line may be listed as "1 name 2 name". To see a declaration first, reply: look 1`;

export const LOOK_WORD = 'look';
export const OK_WORD = 'ok';
export const NO_LOOKUP_LEFT = 'no look-up left';
export const REPAIR_TEXT = `reply ${OK_WORD}, a kind of bug, or ${LOOK_WORD} and a number`;

const CATEGORIES = new Map<string, BugCategory>(BUG_CATEGORIES.map((category) => [category, category]));

/** The function after the change with every changed line as a word diff; common indentation removed. */
export function sweepListing(environment: Task['environment']): string {
  const changes = new Map(environment.changes.map((change) => [change.line, change]));
  const texts = environment.lines.map((after, index) => {
    const change = changes.get(environment.startLine + index);
    return change === undefined ? after : wordDiff(change.before, change.after);
  });
  const filled = texts.filter((text) => text.trim() !== '');
  // The first line of a function often starts in mid-line, without its indentation.
  const indents = filled.slice(1).map((text) => /^[ \t]*/u.exec(text)?.[0].length ?? 0);
  const common = indents.length === 0 ? 0 : Math.min(...indents);
  return texts
    .map((text, index) =>
      index === 0 ? text.trimStart() : text.slice(Math.min(common, /^[ \t]*/u.exec(text)?.[0].length ?? 0)),
    )
    .join('\n');
}

/** The changed line again, and the names that can be looked up on it (none when look-ups are off). */
export function sweepQuestion(change: ChangedLine, names: readonly string[]): string {
  const line = wordDiff(change.before, change.after).trim();
  const list = names.map((name, index) => `${index + 1} ${name}`).join(' ');
  return list === '' ? `? ${line}` : `? ${line}\n${list}`;
}

export function sweepOpening(environment: Task['environment'], firstQuestion: string, effort?: Effort): string {
  return `${effortLine(effort)}${sweepListing(environment)}\n${firstQuestion}`;
}

/** What is shown after a look-up: the declaration, and the question again. */
export function sweepLookupAnswer(text: string): string {
  return `${text}\n?`;
}

export function sweepVerdictText(category: BugCategory | undefined): string {
  return category ?? OK_WORD;
}

export function sweepLookText(index: number): string {
  return `${LOOK_WORD} ${index + 1}`;
}

export function parseSweepReply(reply: string): SweepReply {
  const text = reply.trim().toLowerCase();
  if (text === OK_WORD) return { kind: 'verdict', category: undefined };
  const category = CATEGORIES.get(text);
  if (category !== undefined) return { kind: 'verdict', category };
  const look = /^look (\d{1,2})$/u.exec(text);
  if (look?.[1] !== undefined && Number(look[1]) >= 1) return { kind: 'look', index: Number(look[1]) - 1 };
  return { kind: 'malformed' };
}

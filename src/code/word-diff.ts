/**
 * One line before and after a change as a single line: `return [-a-]{+b+};`.
 * Invariant: taking the removed parts gives `before`, taking the added parts gives `after` (see splitWordDiff).
 * Words are identifiers, numbers, runs of spaces and single punctuation marks, so an edit is marked no wider than it is.
 */
import { diffArrays } from 'diff';

const WORD = /[\p{L}\p{N}_$]+|\s+|[^\p{L}\p{N}_$\s]/gu;

/** The marks are rare in JavaScript; a tokenizer may give each its own id. */
export const WORD_DIFF_MARKS = { removedStart: '[-', removedEnd: '-]', addedStart: '{+', addedEnd: '+}' } as const;

export function wordDiff(before: string, after: string): string {
  const { removedStart, removedEnd, addedStart, addedEnd } = WORD_DIFF_MARKS;
  const parts = diffArrays(before.match(WORD) ?? [], after.match(WORD) ?? []);
  let text = '';
  let removed = '';
  let added = '';
  const flush = (): void => {
    if (removed !== '') text += removedStart + removed + removedEnd;
    if (added !== '') text += addedStart + added + addedEnd;
    removed = '';
    added = '';
  };
  for (const part of parts) {
    const words = part.value.join('');
    if (part.removed) removed += words;
    else if (part.added) added += words;
    else if (/^\s+$/u.test(words) && (removed !== '' || added !== '')) {
      // A lone space between two edits joins them: one mark reads better than two.
      removed += words;
      added += words;
    } else {
      flush();
      text += words;
    }
  }
  flush();
  return text;
}

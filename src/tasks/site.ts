/**
 * A site: one place of a function where its text can be exchanged, found once by syntax tree and stored, so that a task
 * is drawn by splicing text. Invariants: spans lie inside one line each and do not overlap; `right` and `same` mean the
 * same program, `wrong` another one; exactly the text that stands in the function is one of `right` and `same`.
 */
import type { BugCategory } from '../domain/task.ts';

export type BenignKind = 'comment' | 'rename' | 'quotes' | 'template' | 'increment' | 'declaration' | 'undefined-check';
export type SiteKind = BugCategory | BenignKind;

export interface Evidence {
  readonly name: string;
  readonly file: string;
  readonly line: number;
}

export interface Site {
  readonly kind: SiteKind;
  /** start, end, start, end ... in the function's text. */
  readonly spans: readonly number[];
  /** 0-based lines of the function that the spans lie on, ascending, each once. */
  readonly lines: readonly number[];
  readonly right: string;
  /** Another way to write `right`. */
  readonly same?: string;
  /** Absent where nothing can be broken. */
  readonly wrong?: string;
  readonly evidence?: Evidence;
}

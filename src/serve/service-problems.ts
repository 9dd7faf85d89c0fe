/**
 * What keeps a service from its work while it goes on trying: each distinct problem is said once, however often it is met, and its end
 * once. Owns neither the trying nor where sentences go. Invariants: what was never said has no end that is said; a problem that
 * changes its sentence back and forth is bounded to a few lines until it is over.
 */
import { HoneError, reasonOf } from '../domain/errors.ts';

export interface ServiceProblem {
  /** Such as `weights` or `router http://127.0.0.1:7302`. */
  readonly about: string;
  /** What happened, and the cure. */
  readonly problem: string;
  /** Milliseconds since 1970. */
  readonly sinceMs: number;
}

export type ProblemEvent =
  | { readonly event: 'problem-met'; readonly about: string; readonly problem: string }
  | { readonly event: 'problem-over'; readonly about: string; readonly lastedMs: number };

export interface ServiceProblemsOptions {
  /** Takes one sentence, for people. */
  readonly say: (sentence: string) => void;
  readonly onEvent: (event: ProblemEvent) => void;
  /** Milliseconds since 1970. */
  readonly wallMs: () => number;
  /** Milliseconds of a clock that only goes forward. */
  readonly now: () => number;
}

interface Trouble {
  problem: string;
  readonly sinceMs: number;
  readonly startedMs: number;
  readonly said: Set<string>;
}

/** Distinct sentences about one thing until it is over. */
const MOST_SAID = 8;
/** A problem that comes and goes is said no more often. */
const AGAIN_MS = 10_000;
const MOST_REMEMBERED = 100;

export class ServiceProblems {
  readonly #options: ServiceProblemsOptions;
  readonly #troubles = new Map<string, Trouble>();
  readonly #remarks = new Set<string>();
  /** When each sentence was said last. */
  readonly #saidMs = new Map<string, number>();

  constructor(options: ServiceProblemsOptions) {
    this.#options = options;
  }

  /** Met once more. It is said from the time on that it has lasted `graceMs`, when it is met then. */
  meet(about: string, error: unknown, { graceMs = 0 }: { readonly graceMs?: number } = {}): void {
    const { wallMs, now, say, onEvent } = this.#options;
    const problem = sentenceOf(error);
    const trouble = this.#troubles.get(about) ?? {
      problem,
      sinceMs: wallMs(),
      startedMs: now(),
      said: new Set<string>(),
    };
    trouble.problem = problem;
    this.#troubles.set(about, trouble);
    if (now() - trouble.startedMs < graceMs || trouble.said.has(problem) || trouble.said.size >= MOST_SAID) return;
    const sentence = `${about}: ${problem}`;
    if (now() - (this.#saidMs.get(sentence) ?? -Infinity) < AGAIN_MS) return;
    if (this.#saidMs.size >= MOST_REMEMBERED) this.#saidMs.clear();
    this.#saidMs.set(sentence, now());
    trouble.said.add(problem);
    onEvent({ event: 'problem-met', about, problem });
    say(problem);
  }

  /** Says the sentence where the problem was said; nothing where there was none. */
  over(about: string, sentence: string): void {
    const trouble = this.#troubles.get(about);
    if (trouble === undefined) return;
    this.#troubles.delete(about);
    if (trouble.said.size === 0) return;
    this.#options.onEvent({ event: 'problem-over', about, lastedMs: this.#options.now() - trouble.startedMs });
    this.#options.say(sentence);
  }

  /** For what has no end that could be told: said the first time, and not listed. */
  remark(about: string, error: unknown): void {
    const problem = sentenceOf(error);
    const remark = `${about}: ${problem}`;
    if (this.#remarks.has(remark) || this.#remarks.size >= MOST_REMEMBERED) return;
    this.#remarks.add(remark);
    this.#options.onEvent({ event: 'problem-met', about, problem });
    this.#options.say(problem);
  }

  /** Those of now, for the status page; also those that nobody was told of yet. */
  list(): readonly ServiceProblem[] {
    return [...this.#troubles].map(([about, { problem, sinceMs }]) => ({ about, problem, sinceMs }));
  }
}

function sentenceOf(error: unknown): string {
  const message = reasonOf(error);
  const ended = /[.!?]$/u.test(message) ? message : `${message}.`;
  return error instanceof HoneError && error.cure !== undefined ? `${ended} ${error.cure}` : ended;
}

/**
 * A line for each version that a replica commits, for the person who watches: at once, but never more often than once in a while;
 * of those that come faster the last is told. Invariant: after `close`, and after time has passed, the newest version was said.
 */
import type { CommittedWeights } from '../sync/reconciler.ts';

export interface VersionLinesOptions {
  readonly say: (weights: CommittedWeights) => void;
  /** Milliseconds of a clock that only goes forward. */
  readonly now: () => number;
  readonly everyMs?: number;
}

export class VersionLines implements Disposable {
  readonly #options: VersionLinesOptions;
  #waiting: CommittedWeights | undefined;
  #saidMs = -Infinity;
  #timer: NodeJS.Timeout | undefined;

  constructor(options: VersionLinesOptions) {
    this.#options = options;
  }

  add(weights: CommittedWeights): void {
    const { now, everyMs = 1000 } = this.#options;
    this.#waiting = weights;
    const waitMs = this.#saidMs + everyMs - now();
    if (waitMs <= 0) this.#say();
    else this.#timer ??= setTimeout(() => this.#say(), waitMs);
  }

  /** Says what is left. */
  close(): void {
    this.#say();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #say(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.#waiting === undefined) return;
    const weights = this.#waiting;
    this.#waiting = undefined;
    this.#saidMs = this.#options.now();
    this.#options.say(weights);
  }
}

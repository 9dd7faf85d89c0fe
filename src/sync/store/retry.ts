/**
 * Trying again with a bound: full jitter over a seeded random, what the server asks for by `Retry-After` at the least, a limit of
 * tries and of time for all of them together. Owns when and how long to wait; what is worth another try is the caller's to say.
 */
import type { Random } from '../../domain/ids.ts';

export interface RetryPolicy {
  /** Tries in all, the first included. */
  readonly attempts: number;
  /** The wait before try n + 1 is drawn from 0 to `baseMs` times 2 to the n - 1, at most `capMs`. */
  readonly baseMs: number;
  readonly capMs: number;
  /** One try must end within this. */
  readonly attemptTimeoutMs: number;
  /** No wait begins that would end later than this after the first try began. */
  readonly totalTimeoutMs: number;
}

export const DEFAULT_RETRY_POLICY: RetryPolicy = {
  attempts: 8,
  baseMs: 100,
  capMs: 20_000,
  attemptTimeoutMs: 60_000,
  totalTimeoutMs: 180_000,
};

/** Time and chance, so that tests decide both. */
export interface Clockwork {
  /** Milliseconds since 1970, for what is said about clocks. */
  readonly now: () => number;
  /** Milliseconds of a clock that only goes forward, for limits: one that is set must neither end a call nor draw it out. */
  readonly monotonicMs: () => number;
  /** Rejects with the signal's reason as soon as it aborts. */
  readonly sleep: (durationMs: number, signal: AbortSignal | undefined) => Promise<void>;
  readonly random: Random;
}

/** The tries of one call. */
export class Attempts {
  readonly #policy: RetryPolicy;
  readonly #clockwork: Clockwork;
  readonly #startedMs: number;
  #made = 0;

  constructor(policy: RetryPolicy, clockwork: Clockwork) {
    this.#policy = policy;
    this.#clockwork = clockwork;
    this.#startedMs = clockwork.monotonicMs();
  }

  get made(): number {
    return this.#made;
  }

  get elapsedMs(): number {
    return this.#clockwork.monotonicMs() - this.#startedMs;
  }

  begin(): void {
    this.#made += 1;
  }

  /** Progress was made: the next failure counts as the first. The limit of time stays. */
  reset(): void {
    this.#made = 0;
  }

  /** Waits for the next try; false when there is none left. */
  async wait({ atLeastMs = 0, signal }: { atLeastMs?: number; signal: AbortSignal | undefined }): Promise<boolean> {
    const { attempts, baseMs, capMs, totalTimeoutMs } = this.#policy;
    if (this.#made >= attempts) return false;
    const jitterMs = this.#clockwork.random.next() * Math.min(capMs, baseMs * 2 ** Math.max(0, this.#made - 1));
    const waitMs = Math.max(atLeastMs, jitterMs);
    if (this.elapsedMs + waitMs > totalTimeoutMs) return false;
    await this.#clockwork.sleep(waitMs, signal);
    return true;
  }
}

/** The real `sleep`. */
export async function sleepFor(durationMs: number, signal: AbortSignal | undefined): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, durationMs);
    signal?.addEventListener('abort', end);
  });
  signal?.throwIfAborted();
}

/** A signal for one try: follows the caller's and aborts by itself after `timeoutMs`. `release` must be called when the try is over. */
export function attemptSignal(
  signal: AbortSignal | undefined,
  timeoutMs: number,
): { readonly signal: AbortSignal; readonly hasTimedOut: () => boolean; release(): void } {
  const controller = new AbortController();
  let timedOut = false;
  const follow = (): void => controller.abort(signal?.reason);
  const timer = setTimeout(() => {
    timedOut = true;
    controller.abort(new Error(`no answer within ${timeoutMs} ms`));
  }, timeoutMs);
  if (signal?.aborted === true) follow();
  signal?.addEventListener('abort', follow);
  return {
    signal: controller.signal,
    hasTimedOut: () => timedOut,
    release: () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', follow);
    },
  };
}

/**
 * A bound on waiting: a signal that fires when its parent does, or when too much time passed since the start or the last sign of
 * life. Invariant: whoever awaits `race` goes on when the signal fires, even if what they wait for never answers.
 */
import { HoneError } from '../domain/errors.ts';

/** The slowest link that a whole model is expected over: 20 MB/s, ten hours for 720 GB. */
const SLOWEST_BYTES_A_MS = 20_000;

/** The time, and as much again as the bytes need at 20 MB/s: a bound that a large model does not miss by its size alone. */
export function limitForBytes(limitMs: number, bytes: number): number {
  return limitMs + Math.ceil(bytes / SLOWEST_BYTES_A_MS);
}

export interface DeadlineOptions {
  readonly signal?: AbortSignal | undefined;
  readonly limitMs: number;
  /** What the wait fails with when time is up. */
  readonly expired: () => HoneError;
}

export class Deadline implements Disposable {
  readonly signal: AbortSignal;
  readonly #controller = new AbortController();
  #limitMs: number;
  readonly #expired: () => HoneError;
  readonly #parent: AbortSignal | undefined;
  readonly #follow = (): void => this.#controller.abort(abortError(this.#parent?.reason));
  #timer: NodeJS.Timeout | undefined;

  constructor({ signal, limitMs, expired }: DeadlineOptions) {
    this.signal = this.#controller.signal;
    this.#limitMs = limitMs;
    this.#expired = expired;
    this.#parent = signal;
    if (signal?.aborted === true) this.#follow();
    else {
      signal?.addEventListener('abort', this.#follow, { once: true });
      this.touch();
    }
  }

  /** A sign of life: the time counts from now. */
  touch(): void {
    clearTimeout(this.#timer);
    if (this.signal.aborted || !Number.isFinite(this.#limitMs)) return;
    // Longer timers fire at once.
    this.#timer = setTimeout(() => this.#controller.abort(this.#expired()), Math.min(this.#limitMs, 2 ** 31 - 1));
  }

  /** As `touch`, with another limit from now on. */
  allow(limitMs: number): void {
    this.#limitMs = limitMs;
    this.touch();
  }

  /** What the promise gives, or the signal's reason as soon as it fires; the promise is then left to itself. */
  async race<T>(promise: Promise<T>): Promise<T> {
    const { signal } = this;
    let onAbort = (): void => undefined;
    const aborted = new Promise<never>((_, reject) => {
      onAbort = (): void => reject(signal.reason as Error); // Set by this class alone, to a HoneError.
      if (signal.aborted) onAbort();
      else signal.addEventListener('abort', onAbort, { once: true });
    });
    try {
      return await Promise.race([aborted, promise]);
    } finally {
      signal.removeEventListener('abort', onAbort);
      aborted.catch(() => undefined);
      promise.catch(() => undefined);
    }
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
    this.#parent?.removeEventListener('abort', this.#follow);
  }
}

/** Throws `aborted` when the signal has fired. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) throw abortError(signal.reason);
}

function abortError(reason: unknown): HoneError {
  if (reason instanceof HoneError) return reason;
  return new HoneError('aborted', 'The work was called off before it was done.', {
    cure: 'Nothing is needed; it starts again where it stopped.',
    cause: reason,
  });
}

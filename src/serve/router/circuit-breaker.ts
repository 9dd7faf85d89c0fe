/**
 * A circuit breaker for one replica's data port: closed, open after enough failures within a window, half-open when its rest is
 * over. An answer that condemns the replica opens it at once. It owns no clock. Invariant: while it isn't closed, one request at most is let through to find out.
 */

export interface BreakerOptions {
  /** Failures within the window that open it. */
  readonly failures: number;
  readonly windowMs: number;
  /** How long it stays open first; doubles with each failed trial, up to eight times. */
  readonly restMs: number;
}

export const BREAKER_OPTIONS: BreakerOptions = { failures: 5, windowMs: 10_000, restMs: 1_000 };

export type BreakerState = 'closed' | 'open' | 'half-open';

/** Why a replica that answers is of no use as it is set up: what only its operator can mend. */
export interface Condemnation {
  /** It does not take the router's token, or refuses requests that others take. */
  readonly kind: 'unauthorized' | 'misfit';
  readonly reason: string;
}

export class CircuitBreaker {
  readonly #options: BreakerOptions;
  readonly #failedAtMs: number[] = [];
  #openUntilMs: number | undefined;
  #restMs: number;
  #isTrying = false;
  #condemned: Condemnation | undefined;

  constructor(options: BreakerOptions = BREAKER_OPTIONS) {
    this.#options = options;
    this.#restMs = options.restMs;
  }

  /** Until a request succeeds, or another boot comes. */
  get condemned(): Condemnation | undefined {
    return this.#condemned;
  }

  state(nowMs: number): BreakerState {
    if (this.#openUntilMs === undefined) return 'closed';
    return nowMs < this.#openUntilMs ? 'open' : 'half-open';
  }

  /** Whether a request may go now; does not take the place of the one trial that a half-open breaker lets through. */
  allows(nowMs: number): boolean {
    const state = this.state(nowMs);
    return state === 'closed' || (state === 'half-open' && !this.#isTrying);
  }

  /** A request goes now. It must be followed by `succeeded`, `failed` or `abandoned`. */
  admit(nowMs: number): void {
    if (this.state(nowMs) === 'half-open') this.#isTrying = true;
  }

  succeeded(): void {
    this.#isTrying = false;
    this.#openUntilMs = undefined;
    this.#restMs = this.#options.restMs;
    this.#failedAtMs.length = 0;
    this.#condemned = undefined;
  }

  /** It answered, and as it is set up it will answer nobody: no more failures are waited for. */
  condemn(nowMs: number, condemned: Condemnation): void {
    this.#condemned = condemned;
    if (this.#openUntilMs === undefined) this.#openUntilMs = nowMs + this.#restMs;
    else this.#failedTrial(nowMs);
  }

  failed(nowMs: number): void {
    const { failures, windowMs } = this.#options;
    if (this.#openUntilMs !== undefined) return this.#failedTrial(nowMs);
    while (this.#failedAtMs[0] !== undefined && nowMs - this.#failedAtMs[0] >= windowMs) this.#failedAtMs.shift();
    this.#failedAtMs.push(nowMs);
    if (this.#failedAtMs.length >= failures) this.#openUntilMs = nowMs + this.#restMs;
  }

  /** The client went away before the replica's answer told anything. */
  abandoned(): void {
    this.#isTrying = false;
  }

  #failedTrial(nowMs: number): void {
    // A late failure of a request that went before it opened says nothing new.
    if (!this.#isTrying) return;
    this.#isTrying = false;
    this.#restMs = Math.min(this.#restMs * 2, this.#options.restMs * 8);
    this.#openUntilMs = nowMs + this.#restMs;
  }

  /** Another boot behind the same name: what was seen of the last one does not count. */
  reset(): void {
    this.succeeded();
  }
}

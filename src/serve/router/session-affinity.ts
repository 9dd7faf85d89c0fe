/**
 * Where each session's last request went, and the version that was served there. Bounded: the sessions that were used longest
 * ago are forgotten first, which costs them a prefill and nothing else.
 */

export interface SessionPlace {
  readonly replica: string;
  readonly version: number;
}

export class SessionAffinity {
  /** Insertion order is the order of use. */
  readonly #places = new Map<string, SessionPlace>();
  readonly #most: number;

  constructor(most = 65_536) {
    this.#most = most;
  }

  get(session: string): SessionPlace | undefined {
    return this.#places.get(session);
  }

  set(session: string, place: SessionPlace): void {
    this.#places.delete(session);
    this.#places.set(session, place);
    if (this.#places.size <= this.#most) return;
    const [oldest] = this.#places.keys();
    if (oldest !== undefined) this.#places.delete(oldest);
  }

  delete(session: string): void {
    this.#places.delete(session);
  }
}

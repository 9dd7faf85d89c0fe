/**
 * Replicas that answered and cannot answer as they are set up, such as one whose weight store refuses it: what one reply leaves out,
 * and for a short time the replies after it. Invariants: the list that goes out is bounded; that nobody is left is believed only of
 * replicas that this very reply was at.
 */
import type { HoneError } from '../../domain/errors.ts';
import { MOST_AVOIDED } from '../wire/generate-wire.ts';

/** How long others’ replies leave one out: whoever set it up wrong mends it meanwhile, or it is asked again. */
const REMEMBERED_MS = 10_000;

export class UnfitReplicas {
  readonly #untilMs = new Map<string, number>();
  readonly #now: () => number;

  /** `now`: monotone milliseconds. */
  constructor(now: () => number) {
    this.#now = now;
  }

  forReply(): ReplyAvoids {
    return new ReplyAvoids(this);
  }

  add(replica: string): void {
    this.#untilMs.delete(replica);
    this.#untilMs.set(replica, this.#now() + REMEMBERED_MS);
    const [oldest] = this.#untilMs.keys();
    if (this.#untilMs.size > MOST_AVOIDED && oldest !== undefined) this.#untilMs.delete(oldest);
  }

  names(): string[] {
    const nowMs = this.#now();
    for (const [replica, untilMs] of this.#untilMs) if (nowMs >= untilMs) this.#untilMs.delete(replica);
    return [...this.#untilMs.keys()];
  }
}

/** Of one reply. */
export class ReplyAvoids {
  readonly #shared: UnfitReplicas;
  readonly #own = new Map<string, HoneError>();
  #isAlone = false;
  /** Routers in a row that had nobody else. */
  #exhausted = 0;

  constructor(shared: UnfitReplicas) {
    this.#shared = shared;
  }

  /** As `REPLICA_HEADER` names them, newest of this reply first. */
  names(): readonly string[] {
    const own = [...this.#own.keys()].toReversed();
    return this.#isAlone
      ? own.slice(0, MOST_AVOIDED)
      : [...new Set([...own, ...this.#shared.names()])].slice(0, MOST_AVOIDED);
  }

  add(replica: string, error: HoneError): void {
    this.#exhausted = 0;
    this.#own.set(replica, error);
    this.#shared.add(replica);
  }

  /** A router has only those that are left out. The reason once that is so for good; undefined = ask again. */
  exhausted(routers: number): HoneError | undefined {
    const isHearsay = !this.#isAlone && this.#shared.names().some((replica) => !this.#own.has(replica));
    if (isHearsay) {
      this.#isAlone = true;
      return undefined;
    }
    this.#exhausted += 1;
    return this.#exhausted >= routers ? [...this.#own.values()].at(-1) : undefined;
  }
}

/**
 * What a controller tells its members of the newest version, and the members that wait to hear another. Invariant: each announcement
 * has a serial of its own, across starts of the controller too, so that a member never takes an old one for the one it heard.
 */
import type { Announcement, CarriedObject } from './cluster-protocol.ts';

export class AnnouncementBoard {
  readonly #bootId: string;
  #serials = 0;
  #current: Announcement | undefined;
  #changed = Promise.withResolvers<void>();

  /** `bootId` tells this process from those before it. */
  constructor(bootId: string) {
    this.#bootId = bootId;
  }

  get current(): Announcement | undefined {
    return this.#current;
  }

  /** The same pointer again changes nothing. */
  announce(pointer: string | null, objects: CarriedObject[] = []): void {
    if (this.#current !== undefined && this.#current.pointer === pointer) return;
    this.#serials += 1;
    this.#current = { serial: `${this.#bootId}-${this.#serials}`, pointer, objects };
    const changed = this.#changed;
    this.#changed = Promise.withResolvers<void>();
    changed.resolve();
  }

  /** The next announcement is told whatever it says. */
  withdraw(): void {
    this.#current = undefined;
  }

  /** At once when there is another than `after`, else when there is, or null when the signal ends the wait and there never was one. */
  async next(after: string | undefined, signal: AbortSignal): Promise<Announcement | null> {
    while (!signal.aborted && (this.#current === undefined || this.#current.serial === after)) {
      const { promise } = this.#changed;
      const ended = Promise.withResolvers<void>();
      const end = (): void => ended.resolve();
      signal.addEventListener('abort', end, { once: true });
      await Promise.race([promise, ended.promise]);
      signal.removeEventListener('abort', end);
    }
    return this.#current ?? null;
  }
}

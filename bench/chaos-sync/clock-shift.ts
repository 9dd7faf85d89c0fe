/**
 * Preloaded into one service (`node --import`): its wall clock reads what it read before plus the milliseconds that a file holds now.
 * Owns `Date` of its process and threads. Invariant: monotonic clocks (`performance.now`, timers) are not touched, as no real clock
 * jump touches them.
 */
import { readFileSync } from 'node:fs';

/** Names the file; without it nothing is shifted. */
export const CLOCK_FILE_VARIABLE = 'HONE_CHAOS_CLOCK_FILE';
const READ_EVERY_MS = 200;

// An entry point of its own: this module is the first that the process loads.
const path = process.env[CLOCK_FILE_VARIABLE];

if (path !== undefined) {
  const RealDate = Date;
  let offsetMs = 0;
  const read = (): void => {
    try {
      const value = Number(readFileSync(path, 'utf8'));
      if (Number.isFinite(value)) offsetMs = value;
    } catch {
      offsetMs = 0;
    }
  };
  read();
  setInterval(read, READ_EVERY_MS).unref();
  const now = (): number => RealDate.now() + offsetMs;
  globalThis.Date = new Proxy(RealDate, {
    construct: (target, parts: unknown[], newTarget) =>
      // Reflect.construct gives any; what it makes here is a Date.
      Reflect.construct(target, parts.length === 0 ? [now()] : parts, newTarget) as Date,
    apply: () => new RealDate(now()).toString(),
    get: (target, key, receiver): unknown => (key === 'now' ? now : Reflect.get(target, key, receiver)),
  });
}

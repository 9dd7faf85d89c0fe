/**
 * Progress for people: one line that is redrawn on a terminal, with an estimate of the time left; plain lines, no more
 * often than every few seconds, in a pipe. Goes to standard error, so that standard output holds results alone.
 */

/** The first things of a phase end late, as many run at once: no estimate is made from them alone. */
const ESTIMATE_AFTER_MS = 3000;

export interface Progress {
  /** What is being done now; shown at once. `done`: steps of it that were done before, which say nothing of its speed. */
  phase(name: string, done?: number): void;
  /** A step of the phase: `done` of `total`, with a short text. */
  update(done: number, total: number, text: string): void;
  /** A line that stays. */
  note(text: string): void;
  end(): void;
}

export interface ProgressOptions {
  readonly stream: { write(text: string): unknown; readonly isTTY?: boolean; readonly columns?: number };
  readonly now: () => number;
  /** Least time between two plain lines of one phase. */
  readonly plainEveryMs?: number;
}

export function createProgress({ stream, now, plainEveryMs = 10_000 }: ProgressOptions): Progress {
  const terminal = stream.isTTY === true;
  let phaseStart = now();
  let doneBefore = 0;
  let lastPlain = Number.NEGATIVE_INFINITY;
  let drawn = false;
  const clear = (): void => {
    if (drawn) stream.write('\r\u001b[2K');
    drawn = false;
  };
  return {
    phase(next, done = 0) {
      clear();
      doneBefore = done;
      phaseStart = now();
      lastPlain = Number.NEGATIVE_INFINITY;
      stream.write(`${next}\n`);
    },
    update(done, total, text) {
      const elapsedMs = now() - phaseStart;
      const canEstimate = done < total && done > doneBefore && (elapsedMs >= ESTIMATE_AFTER_MS || done * 10 >= total);
      const left = canEstimate ? `, ${formatDuration((elapsedMs / (done - doneBefore)) * (total - done))} left` : '';
      const line = `  ${done}/${total}${text === '' ? '' : ` ${text}`}${left}`;
      if (terminal) {
        clear();
        stream.write(line.slice(0, (stream.columns ?? 100) - 1));
        drawn = true;
      } else if (done === total || now() - lastPlain >= plainEveryMs) {
        lastPlain = now();
        stream.write(`${line}\n`);
      }
    },
    note(text) {
      clear();
      stream.write(`${text}\n`);
    },
    end: clear,
  };
}

/** 75000 -> `1m15s`. */
export function formatDuration(milliseconds: number): string {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m${String(seconds % 60).padStart(2, '0')}s`;
  return `${Math.floor(seconds / 3600)}h${String(Math.floor((seconds % 3600) / 60)).padStart(2, '0')}m`;
}

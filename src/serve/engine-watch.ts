/**
 * Looks after an engine's thread: asks it something at intervals, and says when it has answered nothing for too long. Owns no cure.
 * Invariant: silence is counted in ticks of this process, so that a machine that slept, or a process that was stopped and goes on,
 * takes nobody for dead.
 */
import { HoneError } from '../domain/errors.ts';

/** Answers between two decode steps. */
export interface WatchedEngine {
  stats(): Promise<unknown>;
}

export interface EngineWatchOptions {
  readonly everyMs: number;
  /** Longer than any decode step. */
  readonly silenceMs: number;
  /** Called once; an engine that fails by itself is not reported here. */
  readonly onSilent: (error: HoneError) => void;
}

export interface EngineWatch {
  stop(): void;
}

export function watchEngine(engine: WatchedEngine, { everyMs, silenceMs, onSilent }: EngineWatchOptions): EngineWatch {
  let isWaiting = false;
  let silentTicks = 0;
  const look = (): void => {
    if (!isWaiting) {
      isWaiting = true;
      const answered = (): void => {
        isWaiting = false;
        silentTicks = 0;
      };
      engine.stats().then(answered, answered);
      return;
    }
    if (++silentTicks * everyMs < silenceMs) return;
    clearInterval(timer);
    onSilent(
      new HoneError('engine-failed', `The engine's thread has answered nothing for ${silenceMs / 1000} s.`, {
        cure: 'Start a new replica; with fewer --slots or a smaller --context if one decode step takes that long.',
      }),
    );
  };
  const timer = setInterval(look, everyMs);
  timer.unref();
  return { stop: () => clearInterval(timer) };
}

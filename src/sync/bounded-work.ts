/**
 * Work on many items, a bounded number at a time. Invariant: when it returns or throws, nothing of it runs any more, so that what
 * the tasks wrote to can be closed, undone or thrown away.
 */
export interface BoundedOptions {
  readonly limit: number;
  readonly signal?: AbortSignal | undefined;
}

/** The first failure aborts the signal that the others were given, and is thrown once they have settled. */
export async function forEachBounded<T>(
  items: Iterable<T>,
  { limit, signal }: BoundedOptions,
  task: (item: T, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const iterator = items[Symbol.iterator]();
  const stop = new AbortController();
  const both = signal === undefined ? stop.signal : AbortSignal.any([signal, stop.signal]);
  let failure: { readonly error: unknown } | undefined;
  const lane = async (): Promise<void> => {
    for (let step = iterator.next(); step.done !== true; step = iterator.next()) {
      try {
        both.throwIfAborted();
        await task(step.value, both);
      } catch (error) {
        failure ??= { error };
        stop.abort(error);
        return;
      }
    }
  };
  await Promise.all(Array.from({ length: limit }, lane));
  if (failure !== undefined) throw failure.error;
}

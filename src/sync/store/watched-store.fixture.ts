/**
 * A real store with a hook before and after each call, for tests that make a call fail, wait or end the process.
 * What passes the hook goes to the store unchanged.
 */
import type { WeightStore } from './weight-store.ts';

export interface StoreCall {
  readonly operation: keyof WeightStore;
  readonly name: string;
  readonly when: 'before' | 'after';
}

export function watchStore(store: WeightStore, hook: (call: StoreCall) => Promise<void> | void): WeightStore {
  const watch = async <T>(operation: keyof WeightStore, name: string, call: () => Promise<T>): Promise<T> => {
    await hook({ operation, name, when: 'before' });
    const result = await call();
    await hook({ operation, name, when: 'after' });
    return result;
  };
  return {
    putObject: (key, chunks) => watch('putObject', key, () => store.putObject(key, chunks)),
    getObject: (key) => watch('getObject', key, () => store.getObject(key)),
    list: (prefix) => watch('list', prefix, () => store.list(prefix)),
    remove: (key) => watch('remove', key, () => store.remove(key)),
    readPointer: (name) => watch('readPointer', name, () => store.readPointer(name)),
    compareAndSwapPointer: (name, tag, value) =>
      watch('compareAndSwapPointer', name, () => store.compareAndSwapPointer(name, tag, value)),
  };
}

/**
 * A real store with a hook before and after each call, for tests that make a call fail, wait or end the process.
 * What passes the hook goes to the store unchanged. Reading the bytes of an object that was found is outside of the hook.
 */
import type { WeightStore } from './weight-store.ts';

export type StoreOperation = Exclude<keyof WeightStore, 'location' | 'localPath' | 'makeLocal'>;

export interface StoreCall {
  readonly operation: StoreOperation;
  /** The key, the prefix or the pointer; empty for the probe. */
  readonly name: string;
  readonly when: 'before' | 'after';
}

export function watchStore(store: WeightStore, hook: (call: StoreCall) => Promise<void> | void): WeightStore {
  const watch = async <T>(operation: StoreOperation, name: string, call: () => Promise<T>): Promise<T> => {
    await hook({ operation, name, when: 'before' });
    const result = await call();
    await hook({ operation, name, when: 'after' });
    return result;
  };
  return {
    location: store.location,
    localPath: (key) => store.localPath(key),
    putObject: (key, body, options) => watch('putObject', key, () => store.putObject(key, body, options)),
    readObject: (key, options) => watch('readObject', key, () => store.readObject(key, options)),
    statObject: (key, options) => watch('statObject', key, () => store.statObject(key, options)),
    list: (prefix, options) => watch('list', prefix, () => store.list(prefix, options)),
    remove: (key, options) => watch('remove', key, () => store.remove(key, options)),
    readPointer: (name, options) => watch('readPointer', name, () => store.readPointer(name, options)),
    listPointers: (prefix, options) => watch('listPointers', prefix, () => store.listPointers(prefix, options)),
    compareAndSwapPointer: (name, tag, value, options) =>
      watch('compareAndSwapPointer', name, () => store.compareAndSwapPointer(name, tag, value, options)),
    removePointer: (name, options) => watch('removePointer', name, () => store.removePointer(name, options)),
    probeConditionalWrites: (options) =>
      watch('probeConditionalWrites', '', () => store.probeConditionalWrites(options)),
  };
}

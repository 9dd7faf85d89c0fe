/**
 * Branded ids for the nouns that get mixed up, and how seeds derive from them.
 * Invariant: the same (run seed, path) gives the same seed on every machine.
 */

declare const brand: unique symbol;
type Brand<T, B> = T & { readonly [brand]: B };

export type TaskId = Brand<string, 'TaskId'>;
export type GroupId = Brand<string, 'GroupId'>;
export type RolloutId = Brand<string, 'RolloutId'>;
/** Monotone within a run; 0 is the model that the run booted from. */
export type PolicyVersion = Brand<number, 'PolicyVersion'>;

// The casts below are the one place where a plain value becomes a branded one.
export const taskId = (text: string): TaskId => text as TaskId;
export const groupId = (text: string): GroupId => text as GroupId;
export const rolloutId = (text: string): RolloutId => text as RolloutId;
export const policyVersion = (version: number): PolicyVersion => version as PolicyVersion;

/**
 * A 32-bit seed from a run seed and a path such as ('rollout', step, taskId, attempt).
 * FNV-1a over the UTF-8 of the parts with a separator, finished by murmur3's mixer.
 */
export function deriveSeed(runSeed: number, ...path: readonly (string | number)[]): number {
  let hash = 0x811c9dc5 ^ (runSeed >>> 0);
  const text = path.join('\u001f');
  for (let index = 0; index < text.length; index++) {
    const unit = text.charCodeAt(index);
    hash = Math.imul(hash ^ (unit & 0xff), 0x01000193);
    hash = Math.imul(hash ^ (unit >>> 8), 0x01000193);
  }
  hash ^= hash >>> 16;
  hash = Math.imul(hash, 0x85ebca6b);
  hash ^= hash >>> 13;
  hash = Math.imul(hash, 0xc2b2ae35);
  hash ^= hash >>> 16;
  return hash >>> 0;
}

/** A small deterministic generator (mulberry32): `next()` is uniform in [0, 1). */
export interface Random {
  next(): number;
  /** Uniform integer in [0, bound). */
  below(bound: number): number;
  /** One element, uniformly; the list must not be empty. */
  pick<T>(list: readonly T[]): T;
}

export function createRandom(seed: number): Random {
  let state = seed >>> 0;
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let word = Math.imul(state ^ (state >>> 15), state | 1);
    word ^= word + Math.imul(word ^ (word >>> 7), word | 61);
    return ((word ^ (word >>> 14)) >>> 0) / 4294967296;
  };
  const below = (bound: number): number => Math.floor(next() * bound);
  return {
    next,
    below,
    pick: <T>(list: readonly T[]): T => {
      const item = list[below(list.length)];
      if (item === undefined) throw new RangeError('pick from an empty list');
      return item;
    },
  };
}

/**
 * What every WeightStore must do, as a suite that each adapter's test runs. `open` gives two handles on one empty store, as two
 * processes would hold them. Takes the test runner's functions, so that this file imports no test runner.
 */
import { randomBytes } from 'node:crypto';
import type { describe as Describe, expect as Expect, it as It } from 'vitest';

import { bodyOf, readWhole, type ObjectBody, type WeightStore } from './weight-store.ts';

export interface OpenedStores extends AsyncDisposable {
  readonly store: WeightStore;
  readonly other: WeightStore;
}

export function describeWeightStore(
  name: string,
  open: () => Promise<OpenedStores>,
  { describe, expect, it }: { describe: typeof Describe; expect: typeof Expect; it: typeof It },
): void {
  const text = (...words: readonly string[]): ObjectBody => bodyOf(...words.map((word) => Buffer.from(word)));
  const textOf = async (store: WeightStore, key: string): Promise<string> =>
    Buffer.from((await readWhole(store, key)) ?? []).toString();
  const keysOf = async (store: WeightStore, prefix: string): Promise<string[]> =>
    (await store.list(prefix)).map(({ key }) => key);

  describe(`${name} keeps the rules of a weight store`, () => {
    it('has no object and no pointer at first', async () => {
      await using opened = await open();
      expect(await opened.store.readObject('run/a')).toBeUndefined();
      expect(await keysOf(opened.store, '')).toEqual([]);
      expect(await keysOf(opened.store, 'run/')).toEqual([]);
      expect(await opened.store.readPointer('latest')).toBeUndefined();
      await opened.store.remove('run/a');
    });

    it('stores chunks as one object that others see whole', async () => {
      await using opened = await open();
      const bytes = randomBytes(3_000_001);
      expect(
        await opened.store.putObject('run/v1/weights', bodyOf(bytes.subarray(0, 1_000_000), bytes.subarray(1_000_000))),
      ).toBe('created');
      expect(Buffer.compare((await readWhole(opened.other, 'run/v1/weights')) ?? Buffer.alloc(0), bytes)).toBe(0);
      expect(await opened.store.putObject('run/empty', bodyOf())).toBe('created');
      expect((await readWhole(opened.other, 'run/empty'))?.byteLength).toBe(0);
    });

    it('never changes an object: the same bytes are fine, others are turned away', async () => {
      await using opened = await open();
      await opened.store.putObject('run/a', text('first'));
      expect(await opened.other.putObject('run/a', text('fi', 'rst'))).toBe('identical');
      expect(await opened.other.putObject('run/a', text('second'))).toBe('different');
      expect(await opened.other.putObject('run/a', text('firs'))).toBe('different');
      expect(await opened.other.putObject('run/a', text('first!'))).toBe('different');
      expect(await textOf(opened.store, 'run/a')).toBe('first');
    });

    it('gives one of many writers the key', async () => {
      await using opened = await open();
      const results = await Promise.all(
        Array.from({ length: 16 }, (_, writer) =>
          (writer % 2 === 0 ? opened.store : opened.other).putObject('run/a', text(`writer ${writer}`)),
        ),
      );
      expect(results.filter((result) => result === 'created')).toHaveLength(1);
      expect(results.filter((result) => result === 'different')).toHaveLength(15);
      expect(await textOf(opened.store, 'run/a')).toBe(`writer ${results.indexOf('created')}`);
    });

    it('lists by prefix, ascending, objects only', async () => {
      await using opened = await open();
      for (const key of ['run/v2/b', 'run/v10/a', 'run/v1/a', 'other/v1/a'])
        await opened.store.putObject(key, text(key));
      await opened.store.compareAndSwapPointer('latest', undefined, 'run/v1');
      expect(await keysOf(opened.other, '')).toEqual(['other/v1/a', 'run/v1/a', 'run/v10/a', 'run/v2/b']);
      expect(await keysOf(opened.other, 'run/v1')).toEqual(['run/v1/a', 'run/v10/a']);
      expect(await keysOf(opened.other, 'run/v1/')).toEqual(['run/v1/a']);
      await opened.store.remove('run/v1/a');
      expect(await keysOf(opened.other, 'run/v1/')).toEqual([]);
      expect(await opened.other.readObject('run/v1/a')).toBeUndefined();
    });

    it('refuses keys that leave the store or hide in it', async () => {
      await using opened = await open();
      for (const key of ['', '/a', 'a/', 'a//b', '../a', 'a/../../b', 'a/.hidden', 'a\\b', 'a\0b', 'ä'])
        await expect(opened.store.putObject(key, text('x')), key).rejects.toMatchObject({ code: 'store-failed' });
      await expect(opened.store.readObject('../a')).rejects.toMatchObject({ code: 'store-failed' });
      await expect(opened.store.readPointer('../a')).rejects.toMatchObject({ code: 'store-failed' });
    });

    it('swaps a pointer only against its present tag', async () => {
      await using opened = await open();
      expect(await opened.store.compareAndSwapPointer('latest', undefined, 'one')).toBe('swapped');
      expect(await opened.other.compareAndSwapPointer('latest', undefined, 'two')).toBe('conflict');
      const first = await opened.other.readPointer('latest');
      expect(first?.value).toBe('one');
      expect(await opened.other.compareAndSwapPointer('latest', first?.tag, 'two')).toBe('swapped');
      expect(await opened.store.compareAndSwapPointer('latest', first?.tag, 'three')).toBe('conflict');
      expect((await opened.store.readPointer('latest'))?.value).toBe('two');
      expect(await opened.store.readPointer('elsewhere')).toBeUndefined();
    });

    it('does not accept an old tag again when the value comes back', async () => {
      await using opened = await open();
      await opened.store.compareAndSwapPointer('latest', undefined, 'a');
      const old = await opened.store.readPointer('latest');
      await opened.store.compareAndSwapPointer('latest', old?.tag, 'b');
      await opened.store.compareAndSwapPointer('latest', (await opened.store.readPointer('latest'))?.tag, 'a');
      expect(await opened.other.compareAndSwapPointer('latest', old?.tag, 'c')).toBe('conflict');
    });

    it('loses no swap when many race', async () => {
      await using opened = await open();
      const increment = async (store: WeightStore): Promise<void> => {
        for (;;) {
          const pointer = await store.readPointer('count');
          const next = String(Number(pointer?.value ?? 0) + 1);
          if ((await store.compareAndSwapPointer('count', pointer?.tag, next)) === 'swapped') return;
        }
      };
      await Promise.all(
        Array.from({ length: 24 }, (_, racer) => increment(racer % 2 === 0 ? opened.store : opened.other)),
      );
      expect((await opened.store.readPointer('count'))?.value).toBe('24');
    });
  });
}

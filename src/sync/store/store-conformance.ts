/**
 * What every WeightStore must do, as a suite that each adapter's test runs. `open` gives two handles on one empty store, as two
 * processes would hold them. Takes the test runner's functions, so that this file imports no test runner.
 */
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import type { describe as Describe, expect as Expect, it as It } from 'vitest';

import { bodyOf, readWhole, type ObjectBody, type WeightStore } from './weight-store.ts';

/** Above the size that an adapter may write at once; the suite's S3 stores write parts of 5 MiB. */
const LARGE_BYTES = 12 << 20;

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

    it('gives one of many writers the key when the objects are large', async () => {
      await using opened = await open();
      const contents = Array.from({ length: 4 }, () => randomBytes(LARGE_BYTES));
      const results = await Promise.all(
        contents.map((bytes, writer) =>
          (writer % 2 === 0 ? opened.store : opened.other).putObject('run/a', bodyOf(bytes)),
        ),
      );
      expect(results.toSorted()).toEqual(['created', 'different', 'different', 'different']);
      const winner = contents[results.indexOf('created')] ?? Buffer.alloc(0);
      expect(Buffer.compare((await readWhole(opened.store, 'run/a')) ?? Buffer.alloc(0), winner)).toBe(0);
      expect(await opened.other.putObject('run/a', bodyOf(randomBytes(LARGE_BYTES)))).toBe('different');
      expect(await opened.other.putObject('run/a', text('small'))).toBe('different');
      expect(await opened.other.putObject('run/a', bodyOf(winner))).toBe('identical');
      expect(await keysOf(opened.store, '')).toEqual(['run/a']);
    });

    it('keeps a key that a large object has under way from small ones', async () => {
      await using opened = await open();
      const bytes = randomBytes(LARGE_BYTES);
      let passes = 0;
      let small: string | undefined;
      const large: ObjectBody = {
        sizeBytes: LARGE_BYTES,
        // A store that reads the bytes twice has taken the key before it does so again; one that reads them once writes at once.
        async *chunks() {
          passes += 1;
          yield bytes.subarray(0, LARGE_BYTES - 1);
          if (passes === 2) small = await opened.other.putObject('run/a', text('small'));
          yield bytes.subarray(LARGE_BYTES - 1);
        },
      };
      expect(await opened.store.putObject('run/a', large)).toBe('created');
      expect([undefined, 'different']).toContain(small);
      expect(await opened.other.putObject('run/a', text('small'))).toBe('different');
      expect(Buffer.compare((await readWhole(opened.other, 'run/a')) ?? Buffer.alloc(0), bytes)).toBe(0);
    });

    it('lets writers of the same large bytes agree', async () => {
      await using opened = await open();
      const bytes = randomBytes(LARGE_BYTES);
      const results = await Promise.all(
        Array.from({ length: 4 }, (_, writer) =>
          (writer % 2 === 0 ? opened.store : opened.other).putObject('run/a', bodyOf(bytes)),
        ),
      );
      // Who completes an upload that another one completed first finds its bytes there; at most one can say that it made them.
      expect(results.filter((result) => result !== 'identical').length).toBeLessThanOrEqual(1);
      expect(results).not.toContain('different');
      expect(Buffer.compare((await readWhole(opened.store, 'run/a')) ?? Buffer.alloc(0), bytes)).toBe(0);
    });

    it('reads ranges, tells sizes, and refuses what lies outside', async () => {
      await using opened = await open();
      const bytes = randomBytes(LARGE_BYTES);
      const startedMs = Date.now();
      await opened.store.putObject('run/a', bodyOf(bytes));
      const stored = await opened.other.statObject('run/a');
      expect(stored).toMatchObject({ key: 'run/a', sizeBytes: LARGE_BYTES });
      expect(Math.abs((stored?.modifiedMs ?? 0) - startedMs)).toBeLessThan(600_000);
      expect(await opened.other.statObject('run')).toBeUndefined();
      for (const [start, end] of [
        [0, 1],
        [0, LARGE_BYTES],
        [5, 5],
        [LARGE_BYTES - 3, LARGE_BYTES],
        [LARGE_BYTES, LARGE_BYTES],
        [5_000_000, 6_000_001],
      ] as const) {
        const range = { start, end };
        const part = (await readWhole(opened.other, 'run/a', { range })) ?? Buffer.from('none');
        expect(Buffer.compare(part, bytes.subarray(start, end)), `${start} to ${end}`).toBe(0);
      }
      for (const [start, end] of [
        [0, LARGE_BYTES + 1],
        [LARGE_BYTES, LARGE_BYTES + 1],
        [LARGE_BYTES + 10, LARGE_BYTES + 20],
        [3, 2],
        [-1, 2],
        [0.5, 2],
      ] as const)
        await expect(opened.store.readObject('run/a', { range: { start, end } }), `${start}`).rejects.toMatchObject({
          code: 'store-failed',
          message: expect.stringContaining(String(LARGE_BYTES)),
        });
      expect(await opened.store.readObject('run/b', { range: { start: 0, end: 1 } })).toBeUndefined();
    });

    it('reads at a path of this machine what it says is there, and says nothing of what is not', async () => {
      await using opened = await open();
      await opened.store.putObject('run/a', text('bytes'));
      const path = opened.store.localPath('run/a');
      if (path !== undefined) expect(await readFile(path, 'utf8')).toBe('bytes');
      expect(opened.store.localPath('run/b')).toBeUndefined();
      expect(opened.store.localPath('run')).toBeUndefined();
    });

    it('takes and gives bytes as they come, and notices a body that is not what was announced', async () => {
      await using opened = await open();
      const chunks = Array.from({ length: 40 }, () => randomBytes(300_000));
      const sizeBytes = 40 * 300_000;
      let calls = 0;
      const body: ObjectBody = {
        sizeBytes,
        async *chunks() {
          calls += 1;
          for (const chunk of chunks) yield await Promise.resolve(chunk);
        },
      };
      expect(await opened.store.putObject('run/a', body)).toBe('created');
      expect(calls).toBeGreaterThan(0);
      expect(await opened.other.putObject('run/a', body)).toBe('identical');
      let read = 0;
      for await (const chunk of (await opened.other.readObject('run/a')) ?? []) {
        expect(Buffer.compare(chunk, Buffer.concat(chunks).subarray(read, read + chunk.byteLength))).toBe(0);
        read += chunk.byteLength;
        if (read > 3_000_000) break; // Whoever has enough may stop.
      }
      for (const wrongBytes of [sizeBytes - 1, sizeBytes + 1, 10])
        await expect(
          opened.store.putObject('run/b', { ...body, sizeBytes: wrongBytes }),
          `${wrongBytes}`,
        ).rejects.toMatchObject({ code: 'store-failed' });
      const source = new Error('The source broke off.');
      await expect(
        opened.store.putObject('run/b', {
          sizeBytes,
          *chunks() {
            yield* chunks.slice(0, 30);
            throw source;
          },
        }),
      ).rejects.toBe(source);
      expect(await keysOf(opened.store, '')).toEqual(['run/a']);
      expect(await opened.store.readObject('run/b')).toBeUndefined();
      expect(await opened.store.statObject('run/b')).toBeUndefined();
    });

    it('lists more than fits on a page', async () => {
      await using opened = await open();
      const keys = Array.from({ length: 11 }, (_, index) => `run/${String(index).padStart(2, '0')}`);
      await Promise.all(keys.map((key) => opened.store.putObject(key, text(key))));
      expect(await keysOf(opened.other, 'run/')).toEqual(keys);
      expect((await opened.other.list('run/1')).map(({ key, sizeBytes }) => [key, sizeBytes])).toEqual([['run/10', 6]]);
    });

    it('lists pointers apart from objects, and forgets those that were removed', async () => {
      await using opened = await open();
      for (const name of ['latest', 'leases/b', 'leases/a', 'lease'])
        await opened.store.compareAndSwapPointer(name, undefined, `value of ${name}\n`);
      expect(await opened.other.list('')).toEqual([]);
      expect(await opened.other.listPointers('')).toEqual(['latest', 'lease', 'leases/a', 'leases/b']);
      expect(await opened.other.listPointers('lease')).toEqual(['lease', 'leases/a', 'leases/b']);
      expect(await opened.other.listPointers('leases/')).toEqual(['leases/a', 'leases/b']);
      await opened.store.removePointer('leases/a');
      await opened.store.removePointer('leases/a');
      await opened.store.removePointer('never');
      expect(await opened.other.readPointer('leases/a')).toBeUndefined();
      expect(await opened.other.listPointers('leases/')).toEqual(['leases/b']);
      expect((await opened.other.readPointer('leases/b'))?.value).toBe('value of leases/b\n');
    });

    it('does not accept a tag from before a pointer was removed, whatever it holds now', async () => {
      await using opened = await open();
      await opened.store.compareAndSwapPointer('latest', undefined, 'a');
      const old = await opened.other.readPointer('latest');
      await opened.store.removePointer('latest');
      expect(await opened.other.compareAndSwapPointer('latest', old?.tag, 'b')).toBe('conflict');
      expect(await opened.store.compareAndSwapPointer('latest', undefined, 'a')).toBe('swapped');
      expect(await opened.other.compareAndSwapPointer('latest', old?.tag, 'b')).toBe('conflict');
      expect((await opened.other.readPointer('latest'))?.value).toBe('a');
    });

    it('finds that conditional writes hold, and leaves nothing of the trial', async () => {
      await using opened = await open();
      await opened.store.probeConditionalWrites();
      expect(await opened.store.list('')).toEqual([]);
      expect(await opened.store.listPointers('')).toEqual([]);
    });

    it('ends every call soon when its signal aborts, with the reason', async () => {
      await using opened = await open();
      const reason = new Error('The caller has had enough.');
      const signal = AbortSignal.abort(reason);
      await opened.store.putObject('run/a', bodyOf(randomBytes(LARGE_BYTES)));
      const { store } = opened;
      const calls: readonly (() => Promise<unknown>)[] = [
        () => store.putObject('run/b', text('x'), { signal }),
        () => store.putObject('run/b', bodyOf(randomBytes(LARGE_BYTES)), { signal }),
        () => store.readObject('run/a', { signal }),
        () => store.statObject('run/a', { signal }),
        () => store.list('', { signal }),
        () => store.remove('run/a', { signal }),
        () => store.readPointer('latest', { signal }),
        () => store.listPointers('', { signal }),
        () => store.compareAndSwapPointer('latest', undefined, 'x', { signal }),
        () => store.removePointer('latest', { signal }),
        () => store.probeConditionalWrites({ signal }),
      ];
      for (const call of calls) await expect(call(), call.toString()).rejects.toBe(reason);
      const later = new AbortController();
      const stream = await store.readObject('run/a', { signal: later.signal });
      expect(stream).toBeDefined();
      const reading = (async (): Promise<void> => {
        for await (const _ of stream ?? []) later.abort(reason);
      })();
      await expect(reading).rejects.toBe(reason);
      const during = new AbortController();
      const half: ObjectBody = {
        sizeBytes: LARGE_BYTES,
        *chunks() {
          yield randomBytes(LARGE_BYTES / 2);
          during.abort(reason);
          yield randomBytes(LARGE_BYTES / 2);
        },
      };
      await expect(store.putObject('run/b', half, { signal: during.signal })).rejects.toBe(reason);
      expect(await keysOf(store, '')).toEqual(['run/a']);
    });
  });
}

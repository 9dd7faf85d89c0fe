import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { FileStore } from './file-store.ts';
import { mountSmallDisk } from './small-disk.fixture.ts';
import { describeWeightStore } from './store-conformance.ts';
import { bodyOf } from './weight-store.ts';

describeWeightStore(
  'a directory',
  async () => {
    const root = await mkdtemp(join(tmpdir(), 'hone-store-'));
    return {
      store: await FileStore.open(root),
      other: await FileStore.open(root),
      [Symbol.asyncDispose]: () => rm(root, { recursive: true }),
    };
  },
  { describe, expect, it },
);

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'hone-store-'));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const moduleUrl = JSON.stringify(new URL('./file-store.ts', import.meta.url).href);

it('lets no swap of two processes get lost', async () => {
  const script = `
    import { FileStore } from ${moduleUrl};
    const store = await FileStore.open(${JSON.stringify(root)});
    let wins = 0;
    while (wins < 40) {
      const pointer = await store.readPointer('count');
      if ((await store.compareAndSwapPointer('count', pointer?.tag, String(Number(pointer?.value ?? 0) + 1))) === 'swapped') wins += 1;
    }`;
  const run = promisify(execFile);
  await Promise.all([1, 2].map(() => run(process.execPath, ['--input-type=module', '-e', script])));
  expect(await (await FileStore.open(root)).readPointer('count')).toEqual({ value: '80', tag: '80' });
});

it('keeps the pointer swappable whenever a process that swaps it is killed', async () => {
  const script = `
    import { FileStore } from ${moduleUrl};
    const store = await FileStore.open(${JSON.stringify(root)});
    console.log('ready');
    for (;;) {
      const pointer = await store.readPointer('count');
      await store.compareAndSwapPointer('count', pointer?.tag, String(Number(pointer?.value ?? 0) + 1));
    }`;
  let before = 0;
  for (const delayMs of [3, 11, 20]) {
    const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await once(child.stdout, 'data');
    await new Promise((resolve) => setTimeout(resolve, delayMs));
    child.kill('SIGKILL');
    await once(child, 'exit');
    const store = await FileStore.open(root);
    const pointer = await store.readPointer('count');
    expect(Number(pointer?.value ?? 0)).toBeGreaterThanOrEqual(before);
    expect(pointer?.tag).toBe(pointer?.value);
    before = Number(pointer?.value ?? 0) + 1;
    expect(await store.compareAndSwapPointer('count', pointer?.tag, String(before))).toBe('swapped');
  }
});

it('shows an object under no name but its own while it is written', async () => {
  const store = await FileStore.open(root);
  let isDone = false;
  const put = store
    .putObject('run/weights', bodyOf(...Array.from({ length: 64 }, () => new Uint8Array(200_000))))
    .then(() => (isDone = true));
  const names = new Set<string>();
  while (!isDone) for (const name of await readdir(join(root, 'run')).catch(() => [])) names.add(name);
  await put;
  expect([...names].filter((name) => name !== 'weights')).toEqual([]);
});

it('clears away temporary files of writers that died long ago, not those of living ones', async () => {
  await mkdir(join(root, '.temporary'));
  for (const file of ['old', 'young']) await writeFile(join(root, '.temporary', file), 'half');
  await utimes(join(root, '.temporary/old'), new Date(0), new Date(1000));
  await FileStore.open(root);
  expect(await readdir(join(root, '.temporary'))).toEqual(['young']);
});

it('says when a pointer was tampered with, and when the root is a file', async () => {
  const store = await FileStore.open(root);
  await store.compareAndSwapPointer('latest', undefined, 'a');
  await store.readPointer('latest');
  await rm(join(root, '.pointers/latest/00000001'));
  await expect(store.readPointer('latest')).rejects.toMatchObject({
    code: 'store-failed',
    message: expect.stringContaining('removed by hand'),
  });
  await writeFile(join(root, 'file'), '');
  await expect(FileStore.open(join(root, 'file'))).rejects.toMatchObject({
    code: 'store-failed',
    message: expect.stringContaining(join(root, 'file')),
  });
});

it('says that the disk is full, leaves nothing partial and works again once there is room', async (context) => {
  using disk = mountSmallDisk(root);
  if (disk === undefined) return context.skip('this process may not mount a small disk');
  const store = await FileStore.open(root);
  await store.putObject('run/a', bodyOf(new Uint8Array(600_000)));
  await store.compareAndSwapPointer('latest', undefined, 'run/a');
  await expect(store.putObject('run/b', bodyOf(new Uint8Array(600_000)))).rejects.toMatchObject({
    code: 'store-failed',
    message: `The disk is full: could not write ${join(root, 'run/b')} (600000 bytes).`,
    cure: expect.stringContaining('Free space'),
  });
  expect((await store.list('')).map(({ key }) => key)).toEqual(['run/a']);
  expect(await readdir(join(root, '.temporary'))).toEqual([]);
  expect((await store.readPointer('latest'))?.value).toBe('run/a');
  await store.remove('run/a');
  expect(await store.putObject('run/b', bodyOf(new Uint8Array(600_000)))).toBe('created');
});

it('clears away old generations of a pointer, and lets no swap against one of them pass', async () => {
  let clockMs = Date.now();
  const store = await FileStore.open(root, { now: () => clockMs });
  await store.compareAndSwapPointer('lease', undefined, '0');
  const first = await store.readPointer('lease');
  const stale = await FileStore.open(root);
  await stale.readPointer('lease');
  for (let count = 1; count < 40; count++) {
    clockMs += 600_000;
    expect(await store.compareAndSwapPointer('lease', (await store.readPointer('lease'))?.tag, `${count}`)).toBe(
      'swapped',
    );
  }
  const files = (await readdir(join(root, '.pointers/lease'))).map(Number).sort((left, right) => left - right);
  expect(files).toHaveLength(24);
  expect(files).toEqual(Array.from({ length: 24 }, (_, index) => 17 + index));
  expect(await store.compareAndSwapPointer('lease', first?.tag, 'stale')).toBe('conflict');
  expect(await store.compareAndSwapPointer('lease', undefined, 'stale')).toBe('conflict');
  expect((await stale.readPointer('lease'))?.value).toBe('39');
  expect(await readdir(join(root, '.pointers/lease'))).toHaveLength(24);
});

it('leaves no empty folder of a version that was removed, and writers of its neighbours undisturbed', async () => {
  const store = await FileStore.open(root);
  const writers = Array.from({ length: 40 }, async (_, index) => {
    await store.putObject(`run/v1/${index}`, bodyOf(Buffer.from('x')));
    await store.remove(`run/v1/${index}`);
  });
  await Promise.all(writers);
  expect(await store.list('')).toEqual([]);
  expect(await readdir(root)).toEqual(expect.arrayContaining(['.temporary']));
  expect(await readdir(root)).not.toContain('run');
});

it('holds a chunk of an object of any size, never all of it', async () => {
  const script = `
    import { FileStore } from ${moduleUrl};
    const store = await FileStore.open(${JSON.stringify(root)});
    const chunk = new Uint8Array(1 << 20);
    const count = 256;
    const body = { sizeBytes: count * chunk.byteLength, *chunks() { for (let index = 0; index < count; index++) yield chunk; } };
    let peak = 0;
    const look = () => (peak = Math.max(peak, process.memoryUsage().rss));
    look();
    const before = peak;
    console.log(await store.putObject('run/a', body));
    look();
    console.log(await store.putObject('run/a', body));
    let read = 0;
    for await (const piece of await store.readObject('run/a')) { read += piece.byteLength; if (read % (32 << 20) === 0) { gc(); look(); } }
    console.log(read === body.sizeBytes, Math.round((peak - before) / 2 ** 20));`;
  const { stdout } = await promisify(execFile)(process.execPath, ['--expose-gc', '--input-type=module', '-e', script]);
  const [put, again, rest = ''] = stdout.trim().split('\n');
  expect([put, again]).toEqual(['created', 'identical']);
  const [isWhole, grownMiB] = rest.split(' ');
  expect(isWhole).toBe('true');
  // The object has 256 MiB.
  expect(Number(grownMiB)).toBeLessThan(120);
});

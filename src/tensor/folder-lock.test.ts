import { execFile } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, expect, it } from 'vitest';

import { lockFolder, type FolderLock } from './folder-lock.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hone-lock-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

const lock = (): FolderLock => lockFolder(folder, { fileName: 'x.lock', cure: 'Wait for it.' });

it('lets one in at a time and leaves nothing behind', () => {
  {
    using first = lock();
    expect(() => lock()).toThrow(`${folder} is in use by process ${process.pid}.`);
    first.release();
    using second = lock();
    // A second release of the first one is not the second one's.
    first.release();
    expect(() => lock()).toThrow(/in use/);
    second.release();
  }
  expect(readdirSync(folder)).toEqual([]);
});

it.each([
  ['a process that is gone', { pid: 2 ** 22 + 1, startedMs: 1, startTicks: '5' }],
  ['a process that had this number before', { pid: process.pid, startedMs: 1, startTicks: '5' }],
  ['nobody', 'half a li'],
])('takes over the lock of %s', (_, owner) => {
  writeFileSync(join(folder, 'x.lock'), typeof owner === 'string' ? owner : JSON.stringify(owner));
  using held = lock();
  expect(() => lock()).toThrow(/in use/);
  held.release();
  expect(readdirSync(folder)).toEqual([]);
});

it('lets exactly one of several processes take over a dead one’s lock', { timeout: 60_000 }, async () => {
  writeFileSync(join(folder, 'x.lock'), JSON.stringify({ pid: 2 ** 22 + 1, startedMs: 1, startTicks: '5' }));
  const script = join(folder, 'try.mjs');
  writeFileSync(
    script,
    `import { existsSync } from 'node:fs';
    import { lockFolder } from ${JSON.stringify(new URL('./folder-lock.ts', import.meta.url).href)};
    try {
      lockFolder(${JSON.stringify(folder)}, { fileName: 'x.lock', cure: '' });
      console.log('held');
      // Alive until all have tried.
      process.stdin.resume();
    } catch (error) {
      console.log(error.code);
    }`,
  );
  const tries = Array.from({ length: 4 }, () => {
    const run = promisify(execFile)(process.execPath, [script]);
    let said = (): void => undefined;
    const answered = new Promise<void>((resolve) => (said = resolve));
    run.child.stdout?.once('data', said);
    return { run, answered };
  });
  await Promise.all(tries.map(({ answered }) => answered));
  for (const { run } of tries) run.child.stdin?.end();
  const outputs = (await Promise.all(tries.map(({ run }) => run))).map(({ stdout }) => stdout.trim());
  expect(outputs.sort()).toEqual(['held', 'run-locked', 'run-locked', 'run-locked']);
});

import { existsSync } from 'node:fs';
import { mkdtemp, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';

import { makeFolder } from './make-folder.ts';

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'hone-folder-'));
});
afterEach(() => rm(directory, { recursive: true }));

it('makes every missing level and says which, however many do so at once', async () => {
  const path = join(directory, 'a/b/c');
  const made = (await Promise.all(Array.from({ length: 8 }, () => makeFolder(path)))).flat();
  expect(made.toSorted()).toEqual([join(directory, 'a'), join(directory, 'a/b'), path]);
  expect((await stat(path)).isDirectory()).toBe(true);
  expect(await makeFolder(path)).toEqual([]);
});

it('refuses a place at or below a file, and a link to nowhere', async () => {
  const file = join(directory, 'file');
  await writeFile(file, '');
  await expect(makeFolder(file)).rejects.toThrow(`${file} is a file, not a folder`);
  await expect(makeFolder(join(file, 'below'))).rejects.toMatchObject({ code: 'ENOTDIR' });
  await symlink(join(directory, 'nowhere'), join(directory, 'link'));
  await expect(makeFolder(join(directory, 'link/below'))).rejects.toMatchObject({ code: 'EEXIST' });
});

it.skipIf(!existsSync('/proc/self'))('returns where no folder can be made', async () => {
  await expect(makeFolder('/proc/nope/below')).rejects.toMatchObject({ code: 'ENOENT' });
});

import { existsSync, mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, describe, expect, it } from 'vitest';

import { makeFolder } from './make-folder.ts';

const directory = mkdtempSync(join(tmpdir(), 'hone-make-folder-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

describe('makeFolder', () => {
  it('makes every missing level, and leaves one that is there', () => {
    const path = join(directory, 'a', 'b', 'c');
    for (const _ of [1, 2]) makeFolder(path);
    expect(statSync(path).isDirectory()).toBe(true);
  });

  it('refuses a place at or below a file, and a link to nowhere', () => {
    const file = join(directory, 'file');
    writeFileSync(file, '');
    expect(() => makeFolder(file)).toThrow(`${file} is a file, not a folder`);
    expect(() => makeFolder(join(file, 'below'))).toThrow(/file/u);
    symlinkSync(join(directory, 'nowhere'), join(directory, 'link'));
    expect(() => makeFolder(join(directory, 'link', 'below'))).toThrow(/EEXIST/u);
  });

  it.skipIf(!existsSync('/proc/self'))('returns where no folder can be made', () => {
    expect(() => makeFolder('/proc/nope/below')).toThrow(/ENOENT/u);
  });
});

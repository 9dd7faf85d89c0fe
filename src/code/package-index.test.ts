import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { openPackageIndex } from './package-index.ts';

let cacheDirectory: string;
beforeEach(() => {
  cacheDirectory = mkdtempSync(join(tmpdir(), 'hone-index-'));
});
afterEach(() => {
  rmSync(cacheDirectory, { recursive: true });
});

test('an index is built once, and what is read from disk answers alike', async () => {
  const built = await openPackageIndex('fs-extra', { cacheDirectory });
  const [file] = readdirSync(join(cacheDirectory, 'index'));
  expect(file).toMatch(/^fs-extra@\d+\.\d+\.\d+\.\d+\.json$/u);
  const read = await openPackageIndex('fs-extra', { cacheDirectory });
  const from = { file: 'lib/copy/copy.js', line: 1 };
  const copy = built.lookUp('copy', from);
  expect(copy).toMatchObject({ kind: 'function', isAsync: true, file: 'lib/copy/copy.js' });
  expect(read.lookUp('copy', from)).toEqual(copy);
  expect(read.names).toEqual(built.names);
});

test('a damaged cache file is built again', async () => {
  await openPackageIndex('koa', { cacheDirectory });
  const [file = ''] = readdirSync(join(cacheDirectory, 'index'));
  writeFileSync(join(cacheDirectory, 'index', file), '{"declarations": [');
  const index = await openPackageIndex('koa', { cacheDirectory });
  expect(index.names.length).toBeGreaterThan(20);
});

test('a package that is not installed is one clear error', async () => {
  await expect(openPackageIndex('no-such-package', { cacheDirectory })).rejects.toMatchObject({
    code: 'corpus-missing',
    message: 'The package no-such-package is not installed.',
  });
});

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import { expect, test } from 'vitest';

import { readSourceFiles } from './source-files.ts';

function listed(files: Readonly<Record<string, string>>): string[] {
  const directory = mkdtempSync(join(tmpdir(), 'hone-package-'));
  try {
    for (const [path, text] of Object.entries(files)) {
      mkdirSync(dirname(join(directory, path)), { recursive: true });
      writeFileSync(join(directory, path), text);
    }
    return readSourceFiles(directory).map(({ path }) => path);
  } finally {
    rmSync(directory, { recursive: true });
  }
}

const CODE = 'export function run() {\n  return 1;\n}\n';

test('tests, types, minified and generated files are not source', () => {
  const files = listed({
    'index.js': CODE,
    'lib/run.mjs': CODE,
    'lib/run.d.ts': CODE,
    'lib/run.min.js': CODE,
    'lib/run.test.js': CODE,
    'test/run.js': CODE,
    'node_modules/other/index.js': CODE,
    'lib/long.js': `const table = [${'1,'.repeat(300)}];\n`,
    'lib/windows.js': CODE.replaceAll('\n', '\r\n'),
    'readme.md': CODE,
  });
  expect(files).toEqual(['index.js', 'lib/run.mjs']);
});

test('of a package that ships its code twice the flavour nearest to the author is kept', () => {
  expect(listed({ 'src/run.ts': CODE, 'dist/run.js': CODE, 'dist/index.js': CODE })).toEqual(['src/run.ts']);
  expect(listed({ 'dist/esm/run.js': CODE, 'dist/cjs/run.js': CODE })).toEqual(['dist/esm/run.js']);
  expect(listed({ 'index.js': CODE, 'run.js': CODE })).toEqual(['index.js', 'run.js']);
});

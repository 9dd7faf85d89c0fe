/** The line that closes a test run counts everything that fails it. Runs vitest over small files of its own. */
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { afterAll, beforeAll, expect, it } from 'vitest';

const reporter = fileURLToPath(new URL('closing-line.ts', import.meta.url));
const vitest = join(dirname(createRequire(import.meta.url).resolve('vitest/package.json')), 'vitest.mjs');
let folder: string;

beforeAll(() => {
  // Inside the repository, where `vitest` resolves, but where no other run looks for tests.
  const cache = fileURLToPath(new URL('../.cache/', import.meta.url));
  mkdirSync(cache, { recursive: true });
  folder = mkdtempSync(join(cache, 'closing-line-'));
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

it.each([
  ['a test that passes', "it('a', () => {});", '1 passed, 0 failed', 0],
  ['a test that fails', "it('a', () => {}); it('b', () => { throw new Error('b'); });", '1 passed, 1 failed', 1],
  ['a skipped test', "it('a', () => {}); it.skip('b', () => {});", '1 passed, 0 failed', 0],
  ['a file that does not load', "throw new Error('broken');", '0 passed, 1 failed', 1],
  ['a hook of the file', "beforeAll(() => { throw new Error('hook'); }); it('a', () => {});", '0 passed, 1 failed', 1],
  [
    'a hook of a suite',
    "it('a', () => {}); describe('s', () => { beforeAll(() => { throw new Error('hook'); }); it('b', () => {}); });",
    '1 passed, 1 failed',
    1,
  ],
  [
    'an error that nobody waits for',
    "it('a', () => { void Promise.reject(new Error('lost')); });",
    '1 passed, 1 failed',
    1,
  ],
])('%s', (name, body, line, status) => {
  const file = `${name.replaceAll(' ', '-')}.test.ts`;
  writeFileSync(join(folder, file), `import { beforeAll, describe, it } from 'vitest';\n${body}\n`);
  const run = spawnSync(process.execPath, [vitest, 'run', '--root', folder, '--reporter', reporter, file], {
    encoding: 'utf8',
  });
  expect(run.stdout.trimEnd().split('\n').at(-1)).toBe(line);
  expect(run.status).toBe(status);
});

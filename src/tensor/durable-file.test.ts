import { execFileSync } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';

import { writeFileDurably } from './durable-file.ts';

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'hone-durable-'));
});
afterEach(() => rm(directory, { recursive: true }));

it('creates directories, joins chunks, replaces whole files and leaves nothing else', async () => {
  const path = join(directory, 'a/b/file');
  expect(await writeFileDurably(path, [Buffer.from('one '), Buffer.from('two')], { mode: 'replace' })).toBe('written');
  expect(await writeFileDurably(path, [Buffer.from('three')], { mode: 'replace' })).toBe('written');
  expect(await readFile(path, 'utf8')).toBe('three');
  expect(await readdir(join(directory, 'a/b'))).toEqual(['file']);
});

it('lets exactly one of many exclusive writers through', async () => {
  const path = join(directory, 'file');
  const results = await Promise.all(
    Array.from({ length: 20 }, (_, writer) =>
      writeFileDurably(path, [Buffer.from(String(writer))], { mode: 'exclusive' }),
    ),
  );
  const winner = results.indexOf('written');
  expect(results.filter((result) => result === 'written')).toHaveLength(1);
  expect(await readFile(path, 'utf8')).toBe(String(winner));
  expect(await readdir(directory)).toEqual(['file']);
});

it('names the path when the directory is a file', async () => {
  await writeFile(join(directory, 'file'), '');
  await expect(
    writeFileDurably(join(directory, 'file/inside'), [Buffer.from('x')], { mode: 'replace' }),
  ).rejects.toMatchObject({
    code: 'store-failed',
    message: expect.stringContaining(join(directory, 'file/inside')),
  });
});

// RLIMIT_FSIZE stops the write in the middle, at the same place in the code where a full disk does.
it.skipIf(process.platform === 'win32')('leaves the old file and nothing partial when a write breaks off', async () => {
  const path = join(directory, 'file');
  await writeFile(path, 'old');
  const script = `
    import { writeFileDurably } from ${JSON.stringify(new URL('./durable-file.ts', import.meta.url).href)};
    await writeFileDurably(${JSON.stringify(path)}, [new Uint8Array(3_000_000)], { mode: 'replace' }).catch((error) => console.log(error.code, error.message));`;
  const output = execFileSync(
    'sh',
    ['-c', 'ulimit -f 1000; exec "$0" --input-type=module -e "$1"', process.execPath, script],
    { encoding: 'utf8' },
  );
  expect(output).toContain(`store-failed Could not write ${path} (3000000 bytes): EFBIG`);
  expect(await readFile(path, 'utf8')).toBe('old');
  expect(await readdir(directory)).toEqual(['file']);
});

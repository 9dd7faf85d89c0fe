/**
 * What a user of the command line sees: the first line soon, plain lines in a pipe, results alone on standard output,
 * `--dry-run` that does nothing, help and exit codes.
 */
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { once } from 'node:events';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { runHone, startHone, writeConfig } from './hone-process.fixture.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';
import { taskSchema } from '../src/domain/task.ts';
import { resolveConfig } from '../src/run/config.ts';

const FIRST_LINE_MS = 5000;

let directory = '';
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'hone-output-'));
  await writeTinyModel(join(directory, 'model'));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

describe('hone train', () => {
  it('--dry-run prints the config with every default and does nothing', async () => {
    const config = writeConfig(directory, 'no-such-model', { name: 'dry' });
    const { code, stdout, stderr } = await runHone(
      ['train', config, '--dry-run', '--name', 'other', '--seed', '9', '--steps', '2'],
      { cwd: directory },
    );
    expect(code).toBe(0);
    expect(stderr).toBe('');
    const written = JSON.parse(readFileSync(config, 'utf8')) as { algorithm: object };
    const expected = resolveConfig(
      { ...written, name: 'other', seed: 9, algorithm: { ...written.algorithm, steps: 2 } },
      'test',
    );
    expect(JSON.parse(stdout)).toEqual(JSON.parse(JSON.stringify(expected)));
    expect(existsSync(join(directory, 'runs'))).toBe(false);
  });

  it('says within five seconds what it does, in plain lines, and ends with where it wrote', async () => {
    const config = writeConfig(directory, 'model', {
      name: 'plain',
      algorithm: { steps: 2, groupSize: 4, groupsPerStep: 2 },
    });
    const started = performance.now();
    await using hone = startHone(['train', config, '--runs', 'elsewhere'], { cwd: directory });
    if (hone.child.stderr === null) throw new Error('standard error is not piped');
    await once(hone.child.stderr, 'data');
    expect(performance.now() - started).toBeLessThan(FIRST_LINE_MS);
    const { code, stdout, stderr } = await hone.result;
    expect(code).toBe(0);
    const lines = stderr.trim().split('\n');
    expect(lines[0]).toBe('hone: run plain, seed 1, in elsewhere/plain');
    expect(lines[1]).toBe('loading model and the corpus');
    expect(lines.at(-1)).toMatch(/^ {2}2\/2 reward -?\d\.\d{3}, P \d\.\d{3}, R \d\.\d{3}, entropy \d\.\d{3}/u);
    // eslint-disable-next-line no-control-regex -- colours and cursor moves are what must not be there
    expect(stderr).not.toMatch(/[\u001b\r]/u);
    expect(stdout).toMatch(/^\nDone in \d+s\. Written to elsewhere\/plain: events\.jsonl .*report\.html/u);
    const page = await runHone(['report', 'elsewhere/plain', '--out', 'page.html'], { cwd: directory });
    expect(page.stdout).toBe('written to page.html\n');
    expect(readFileSync(join(directory, 'page.html'), 'utf8')).toContain('<svg');
    const table = await runHone(['report', 'elsewhere/plain', '--json'], { cwd: directory });
    expect([table.code, table.stdout, table.stderr]).toEqual([
      1,
      '',
      'hone: elsewhere/plain has no results yet. Let the run finish, or resume it; hone report without --json draws its curves so far.\n',
    ]);
  });

  it('--json prints one document on standard output, also without an evaluation', async () => {
    const config = writeConfig(directory, 'model', {
      name: 'document',
      algorithm: { steps: 1, groupSize: 4, groupsPerStep: 2 },
    });
    const { code, stdout } = await runHone(['train', config, '--json'], { cwd: directory });
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toEqual({ run: join('runs', 'document'), results: null });
  });
});

describe('the other commands', () => {
  it('are listed by --help, and a mistyped one exits with 1', async () => {
    const help = await runHone(['--help'], { cwd: directory });
    expect(help.code).toBe(0);
    for (const verb of ['train', 'eval', 'pretrain', 'tasks', 'report', 'config'])
      expect(help.stdout).toMatch(new RegExp(`^  ${verb}\\b`, 'mu'));
    const wrong = await runHone(['trian', 'x'], { cwd: directory });
    expect(wrong.code).toBe(1);
    expect(wrong.stderr).toMatch(/unknown command 'trian'\n.*train/u);
  });

  it('eval prints one JSON document with both passes', async () => {
    const { code, stdout, stderr } = await runHone(
      ['eval', 'model', '--tasks', '6', '--max-characters', '240', '--json'],
      { cwd: directory },
    );
    expect(code, stderr).toBe(0);
    const table = JSON.parse(stdout) as { tasks: number; rows: { label: string; scores: object }[] };
    expect(table.tasks).toBe(6);
    expect(table.rows.map(({ label }) => label)).toEqual(['sampled', 'greedy']);
  });

  it('eval takes its harness from a config, and what the command line says comes first', async () => {
    const config = writeConfig(directory, 'ignored', {
      name: 'harness',
      harness: { strategy: 'report', instructions: 'full' },
      sampling: { topP: 0.9, temperature: 0.5 },
    });
    const { code, stdout } = await runHone(
      ['eval', 'model', '--config', config, '--temperature', '0.7', '--no-lookups', '--dry-run'],
      { cwd: directory },
    );
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({
      model: 'model',
      size: { maxCharacters: 240 },
      harness: { strategy: 'report', instructions: 'full', lookups: 'off' },
      sampling: { topP: 0.9, temperature: 0.7 },
    });
  });

  it('tasks make writes valid tasks, the same ones for the same seed, and inspect shows them', async () => {
    const make = (file: string, seed: string): Promise<{ code: number | null; stdout: string }> =>
      runHone(['tasks', 'make', '--out', file, '--count', '12', '--seed', seed, '--json'], { cwd: directory });
    const [made] = [await make('a.jsonl', '3'), await make('b.jsonl', '3'), await make('c.jsonl', '4')];
    expect(JSON.parse(made.stdout)).toMatchObject({ out: 'a.jsonl', split: 'rl', seed: 3, tasks: 12 });
    const text = (file: string): string => readFileSync(join(directory, file), 'utf8');
    expect(text('b.jsonl')).toBe(text('a.jsonl'));
    expect(text('c.jsonl')).not.toBe(text('a.jsonl'));
    const tasks = text('a.jsonl')
      .trim()
      .split('\n')
      .map((line) => taskSchema.parse(JSON.parse(line)));
    expect(tasks).toHaveLength(12);
    const inspected = await runHone(['tasks', 'inspect', 'a.jsonl', '--id', tasks[4]?.id ?? ''], { cwd: directory });
    expect(inspected.stdout.startsWith(`${tasks[4]?.id}  ${tasks[4]?.environment.package}@`)).toBe(true);
    for (const bug of tasks[4]?.gold.bugs ?? [])
      expect(inspected.stdout).toContain(`bug at line ${bug.startLine}: ${bug.category}`);
  });
});

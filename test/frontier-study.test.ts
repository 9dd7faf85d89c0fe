/**
 * `hone frontier study` as a user starts it: what it prints and writes, the same files on any number of workers, a stop
 * and a kill in the middle with --resume, the mean field, the verification, and bad input.
 */
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { runHone, startHone } from './hone-process.fixture.ts';

const STABLE = ['plan.json', 'units.jsonl', 'results.json', 'runs.parquet', 'trajectories.parquet'];
const SMALL = ['--problems', '6', '--seeds', '2', '--steps', '30', '--batch', '60'];

let directory = '';
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'hone-frontier-study-'));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

async function study(...args: string[]): Promise<{ code: number | null; stdout: string; stderr: string }> {
  return runHone(['frontier', 'study', ...args], { cwd: directory });
}

function filesOf(folder: string): Buffer[] {
  return STABLE.map((name) => readFileSync(join(directory, folder, name)));
}

describe('hone frontier study', () => {
  it('writes the same files on 1, 2 and 3 workers, and says where and how fast', async () => {
    for (const workers of ['1', '2', '3']) {
      const { code, stdout, stderr } = await study(...SMALL, '--workers', workers, '--out', `workers-${workers}`);
      expect(code, stderr).toBe(0);
      expect(stdout).toContain('fixed price');
      // 6 problems; 14 arms with the first seed and 6 with the second, 30 x 60 each; 12 x 3 x 200,000 for references.
      expect(stdout).toMatch(
        /^7\.4 million rollouts \(0\.2 million of training, 7\.2 million of references\) in \d+s on \d workers?: \d+\.\d ns of one thread a rollout\.$/mu,
      );
      expect(stdout).toContain(`Written to workers-${workers}: report.html (open it in a browser), results.json`);
      expect(stderr).toContain('12/12 units');
      expect(readFileSync(join(directory, `workers-${workers}`, 'report.html'), 'utf8')).toContain(
        '7,416,000: 216,000 of training and 7,200,000 of references',
      );
    }
    const expected = filesOf('workers-1');
    expect(filesOf('workers-2')).toEqual(expected);
    expect(filesOf('workers-3')).toEqual(expected);
    const timing = JSON.parse(readFileSync(join(directory, 'workers-3', 'timing.json'), 'utf8')) as object;
    expect(timing).toMatchObject({ workers: 3, units: 12, rollouts: 6 * 20 * 1800 + 12 * 600_000 });
    expect(readFileSync(join(directory, 'workers-1', 'report.html'), 'utf8')).toMatch(/^<!doctype html>/u);
  });

  it('goes on after Ctrl-C and after a kill with the files of an uninterrupted run', async () => {
    const size = ['--problems', '8', '--seeds', '2', '--steps', '600', '--no-wrong-slope'];
    const whole = await study(...size, '--out', 'whole');
    expect(whole.code, whole.stderr).toBe(0);

    await using interrupted = startHone(['frontier', 'study', ...size, '--out', 'cut in two', '--workers', '1'], {
      cwd: directory,
    });
    await interrupted.reached('1/16 units');
    interrupted.child.kill('SIGINT');
    const { code, stderr, stdout } = await interrupted.result;
    expect(code).toBe(130);
    expect(stdout).toBe('');
    expect(stderr).toMatch(
      /hone: stopped; \d+ of 16 units are finished\. Go on with: hone frontier study --out 'cut in two' --problems 8 --seeds 2 --steps 600 --workers 1 --no-wrong-slope --resume$/mu,
    );
    const unitsPath = join(directory, 'cut in two', 'units.jsonl');
    const kept = readFileSync(unitsPath, 'utf8').split('\n').length - 1;
    expect(kept).toBeGreaterThan(0);
    expect(kept).toBeLessThan(16);

    await using killed = startHone(
      ['frontier', 'study', ...size, '--out', 'cut in two', '--workers', '1', '--resume'],
      {
        cwd: directory,
      },
    );
    await killed.reached(`${kept} of them finished before`);
    await killed.reached(`${kept + 1}/16 units`);
    killed.child.kill('SIGKILL');
    await killed.result;

    const resumed = await study(...size, '--out', 'cut in two', '--resume');
    expect(resumed.code, resumed.stderr).toBe(0);
    expect(filesOf('cut in two')).toEqual(filesOf('whole'));

    // A finished study gets its files anew, and runs nothing.
    rmSync(join(directory, 'cut in two', 'report.html'));
    const again = await study(...size, '--out', 'cut in two', '--resume', '--json');
    expect(again.code, again.stderr).toBe(0);
    expect(filesOf('cut in two')).toEqual(filesOf('whole'));
    expect(existsSync(join(directory, 'cut in two', 'report.html'))).toBe(true);
    const printed = JSON.parse(again.stdout) as { folder: string; timing: { units: number }; runs: number };
    expect(printed).toMatchObject({ folder: 'cut in two', runs: 96, kind: 'sampled' });
    expect(printed.timing.units).toBeLessThan(16);
  });

  it('follows the mean field, and draws one picture', async () => {
    const { code, stdout, stderr } = await study(
      '--mean-field',
      '--problems',
      '5',
      '--out',
      'mean',
      '--svg',
      'one.svg',
    );
    expect(code, stderr).toBe(0);
    expect(stdout).toContain('Picture: one.svg.');
    expect(readFileSync(join(directory, 'one.svg'), 'utf8')).toMatch(/^<svg/u);
    const results = JSON.parse(readFileSync(join(directory, 'mean', 'results.json'), 'utf8')) as object;
    expect(results).toMatchObject({ kind: 'mean-field', rollouts: { training: 0, reference: 0 }, runs: 70 });
    expect(existsSync(join(directory, 'mean', 'timing.json'))).toBe(false);

    // Another one takes its place; a sampled one does not, nor is it advised to resume.
    const again = await study('--mean-field', '--problems', '1', '--out', 'mean');
    expect(again.code, again.stderr).toBe(0);
    expect(again.stderr).toContain('1 problem, 14 arms, 1000 steps: mean field');
    expect(JSON.parse(readFileSync(join(directory, 'mean', 'results.json'), 'utf8'))).toMatchObject({ runs: 14 });
    const sampled = await study(...SMALL, '--out', 'mean');
    expect(sampled.stderr).toBe(
      'hone: mean already holds a mean-field study. Choose another --out, or remove the folder.\n',
    );
  });

  it('follows the mean field beside a sampled study, each in a folder of its own', async () => {
    const beside = mkdtempSync(join(directory, 'beside-'));
    const run = (...args: string[]) => runHone(['frontier', 'study', '--problems', '1', ...args], { cwd: beside });
    const sampled = await run('--seeds', '1', '--steps', '5', '--batch', '10');
    expect(sampled.code, sampled.stderr).toBe(0);
    const mean = await run('--mean-field', '--steps', '5');
    expect(mean.code, mean.stderr).toBe(0);
    expect(mean.stdout).toContain('Written to runs/frontier-mean-field: report.html');
    expect(existsSync(join(beside, 'runs', 'frontier-study', 'units.jsonl'))).toBe(true);
  });

  it('verifies the statements', async () => {
    const { code, stdout } = await study('--verify', '--seed', '3', '--json');
    const report = JSON.parse(stdout) as { seed: number; passed: boolean; statements: { passed: boolean }[] };
    expect(report.seed).toBe(3);
    expect(report.statements).toHaveLength(13);
    expect(report.passed).toBe(report.statements.every(({ passed }) => passed));
    expect(code).toBe(report.passed ? 0 : 1);
  });
});

describe('bad input to hone frontier study', () => {
  it.each([
    [['--problems', '101'], '--problems is 101, not a whole number from 1 to 100. Give a number such as --problems 1.'],
    [['--seeds', '0'], /--seeds is 0, not a whole number from 1 to 1000\./u],
    [['--steps', '1.5'], /--steps is 1\.5, not a whole number/u],
    [['--batch', '70000'], /--batch is 70000, not a whole number from 1 to 65536\./u],
    [['--seed', '-1'], /--seed is -1, not a whole number/u],
    [['--workers', 'two'], /--workers is two, not a whole number from 1 to 256\./u],
    [
      ['--alphas', '0,1.5'],
      'hone: --alphas is 0,1.5, not a list of numbers from 0 to 1: 1.5 is none. Give numbers with commas between them, such as --alphas 0,0.5,1.',
    ],
    [['--alphas', '0,,1'], /an empty entry is none\. Give/u],
    [['--alphas', ''], /--alphas is , not a list of numbers from 0 to 1\. Give/u],
    [['--alphas', '0.5,0.5'], /--alphas is 0\.5,0\.5: it has 0\.5 twice\. Name each number once\./u],
    [['--out', ''], /--out is empty, not a path\. Name a place after it, or leave --out out\./u],
    [
      ['--mean-field', '--svg', '/dev/null/one.svg'],
      /The picture could not be written to \/dev\/null\/one\.svg: .*\. Name a file that you can write to with --svg\.\n$/u,
    ],
    [['--resume'], /runs\/frontier-study holds no study to resume\. Start it without --resume/u],
    [['--verify', '--steps', '10'], /--steps would not be read: --verify runs studies of its own.* Leave it out\./u],
    [
      ['--mean-field', '--batch', '10', '--seed', '2'],
      /--seed and --batch would not be read: --mean-field .* them out\./u,
    ],
  ])('%j', async (args, message) => {
    const { code, stdout, stderr } = await study(...args);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    if (typeof message === 'string') expect(stderr).toContain(message);
    else expect(stderr).toMatch(message);
    expect(code).toBe(1);
    expect(stdout).toBe('');
    expect(existsSync(join(directory, 'runs'))).toBe(false);
  });

  it('a place where no study can be begun, at once and without the advice to resume', async () => {
    writeFileSync(join(directory, 'plain'), '');
    for (const mode of [SMALL, ['--mean-field', '--problems', '1', '--steps', '5']]) {
      const { code, stderr } = await study(...mode, '--out', 'plain');
      expect(stderr).toMatch(
        /hone: A study could not be begun in plain: \S+plain is a file, not a folder\. Name a folder that you can write to with --out\.\n$/u,
      );
      expect(code).toBe(1);
    }
    if (!existsSync('/proc/self')) return;
    const nowhere = await study(...SMALL, '--out', '/proc/nope');
    expect(nowhere.stderr).toMatch(/^hone: A study could not be begun in \/proc\/nope: ENOENT.* with --out\.\n$/u);
    expect(nowhere.code).toBe(1);
  });

  it('a folder that holds a study, and one begun under another plan', async () => {
    const tiny = ['--problems', '1', '--seeds', '1', '--steps', '5', '--batch', '10', '--out', 'taken'];
    expect((await study(...tiny)).code).toBe(0);
    const before = statSync(join(directory, 'taken', 'plan.json')).mtimeMs;
    const again = await study(...tiny);
    expect(again.stderr).toBe(
      'hone: taken already holds a sampled study. Go on with --resume, choose another --out, or remove the folder.\n',
    );
    const changed = await study(...tiny, '--batch', '11', '--resume');
    expect(changed.stderr).toBe(
      'hone: taken was begun under another plan: batch was 10, is now 11. Put these values back to resume, or choose another --out.\n',
    );
    expect([again.code, changed.code]).toEqual([1, 1]);
    const followed = await study('--mean-field', '--out', 'taken');
    expect(followed.stderr).toBe(
      'hone: taken already holds a sampled study. Choose another --out, or remove the folder.\n',
    );
    expect(statSync(join(directory, 'taken', 'plan.json')).mtimeMs).toBe(before);
  });
});

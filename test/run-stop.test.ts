/**
 * Stopping and going on: Ctrl-C once and twice, a folder that another process holds, a resume under another config, a
 * run whose checkpoints are gone, and a disk that fills up. Each ends with a sentence and loses nothing.
 */
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, expect, it } from 'vitest';

import { readGroups, readPointer, readSteps, runHone, startHone, writeConfig } from './hone-process.fixture.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';
import { mountSmallDisk } from '../src/sync/store/small-disk.fixture.ts';

const TIMEOUT = { timeout: 180_000 };
const MEBIBYTE = 1024 * 1024;

let directory = '';
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'hone-stop-'));
  await writeTinyModel(join(directory, 'model'));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const runPath = (name: string): string => join(directory, 'runs', name);

it('Ctrl-C finishes the step at hand and says how to go on; the folder is held until then', TIMEOUT, async () => {
  const config = writeConfig(directory, 'model', {
    name: 'once',
    algorithm: { steps: 400, groupSize: 4, groupsPerStep: 4, learningRate: 1e-4 },
  });
  const run = runPath('once');
  await using hone = startHone(['train', config, '--steps', '300'], { cwd: directory });
  await hone.reached('  1/300');
  const second = await runHone(['train', config, '--steps', '300', '--resume'], { cwd: directory });
  expect(second.code).toBe(1);
  expect(second.stderr).toMatch(
    new RegExp(
      `^hone: runs/once is in use by process ${hone.child.pid}\\. Wait for it.*--name\\. If nothing of Hone runs there, remove runs/once/run\\.lock\\.\\n$`,
      'u',
    ),
  );
  hone.child.kill('SIGINT');
  const stopped = await hone.result;
  expect(stopped.code).toBe(130);
  const steps = readSteps(run).length;
  expect(steps).toBeGreaterThan(0);
  expect(steps).toBeLessThan(300);
  expect(stopped.stderr).toContain('press Ctrl-C again to stop at once');
  expect(stopped.stderr).toMatch(
    new RegExp(`hone: stopped after step ${steps}\\. Go on with: hone train ${config} --resume --steps 300\\n$`, 'u'),
  );
  expect(readPointer(run)).toBe(`once/weight_v${String(steps).padStart(6, '0')}`);
  expect(readGroups(run).filter(({ state }) => state === 'assigned')).toEqual([]);

  const changed = writeConfig(directory, 'model', {
    name: 'once',
    algorithm: { steps: 400, groupSize: 4, groupsPerStep: 4, learningRate: 2e-4 },
    sampling: { topP: 0.9 },
  });
  const refused = await runHone(['train', changed, '--resume', '--steps', '300'], { cwd: directory });
  expect(refused.code).toBe(1);
  expect(refused.stderr).toBe(
    'hone: runs/once was begun under another config: sampling.topP was 0.98, is now 0.9; algorithm.learningRate was 0.0001, is now 0.0002. Put these values back to resume, or start a new run under another --name.\n',
  );
  expect(readSteps(run)).toHaveLength(steps);

  rmSync(join(run, 'checkpoints'), { recursive: true });
  mkdirSync(join(run, 'checkpoints'));
  const config2 = writeConfig(directory, 'model', {
    name: 'once',
    algorithm: { steps: 400, groupSize: 4, groupsPerStep: 4, learningRate: 1e-4 },
  });
  const lost = await runHone(['train', config2, '--resume', '--steps', '300'], { cwd: directory });
  expect(lost.code).toBe(1);
  expect(lost.stderr.trim().split('\n').at(-1)).toMatch(
    new RegExp(
      `^hone: \\S*runs/once/weights holds version ${steps} of once, but the newest checkpoint in runs/once is of step 0\\. Put the missing checkpoint back, or start a run under another --name from the published weights\\.$`,
      'u',
    ),
  );
});

it('Ctrl-C twice stops at once, and the run goes on from its newest checkpoint', TIMEOUT, async () => {
  const config = writeConfig(directory, 'model', {
    name: 'twice',
    algorithm: { steps: 6, groupSize: 4, groupsPerStep: 4, learningRate: 1e-4 },
  });
  await using hone = startHone(['train', config], { cwd: directory });
  await hone.reached('training: ');
  hone.child.kill('SIGINT');
  await hone.reached('press Ctrl-C again');
  hone.child.kill('SIGINT');
  const stopped = await hone.result;
  expect(stopped.code).toBe(130);
  expect(stopped.stderr).toMatch(
    /hone: stopped at once; nothing finished was lost\. Go on with: hone train \S+ --resume\n$/u,
  );
  expect(existsSync(join(runPath('twice'), 'run.lock'))).toBe(false);
  const resumed = await runHone(['train', config, '--resume'], { cwd: directory });
  expect(resumed.code, resumed.stderr).toBe(0);
  expect(readSteps(runPath('twice')).map(({ step }) => step)).toEqual([1, 2, 3, 4, 5, 6]);
});

it(
  'a disk that is full while a version is published stops the run with the cause, and resuming continues it',
  TIMEOUT,
  async (context) => {
    const run = runPath('full');
    const weights = join(run, 'weights');
    mkdirSync(weights, { recursive: true });
    using disk = mountSmallDisk(weights);
    if (disk === undefined) return context.skip('mounting a small disk needs root on Linux');
    // Room for two versions of about 30 kB, not for six.
    writeFileSync(join(weights, '.filler'), new Uint8Array(MEBIBYTE - 100 * 1024));
    const config = writeConfig(directory, 'model', {
      name: 'full',
      algorithm: { steps: 6, groupSize: 4, groupsPerStep: 4, learningRate: 1e-3 },
    });
    const stopped = await runHone(['train', config], { cwd: directory });
    expect(stopped.code).toBe(1);
    expect(stopped.stderr.trim().split('\n').at(-1)).toMatch(
      /^hone: The disk is full: could not write .*weights\/(?:full\/weight_v00000\d\/|\.pointers\/latest\/)\S+ \(\d+ bytes\)\. Free space on the disk that holds .* try again/u,
    );
    const published = Number(/\d+$/u.exec(readPointer(run))?.[0]);
    expect(published).toBeGreaterThan(0);
    expect(published).toBeLessThan(6);
    disk.grow();
    const resumed = await runHone(['train', config, '--resume'], { cwd: directory });
    expect(resumed.code, resumed.stderr).toBe(0);
    expect(readSteps(run).map(({ step }) => step)).toEqual([1, 2, 3, 4, 5, 6]);
    expect(readPointer(run)).toBe('full/weight_v000006');
    for (let step = 1; step <= 6; step++)
      expect(readGroups(run).filter((group) => group.state === 'trained' && group.step === step)).toHaveLength(4);
  },
);

// A checkpoint has 380 kB, and so has the log of a buffer of a few dozen rollouts; sh counts in blocks of 512 bytes.
it.each([
  {
    what: 'checkpoint',
    groupsPerStep: 1,
    cause:
      /^hone: Could not write \S*step-000001\.safetensors \(\d+ bytes\): EFBIG.* nothing partial was left there\.$/u,
  },
  {
    what: 'buffer',
    groupsPerStep: 12,
    cause:
      /^hone: The rollout buffer could not be written: .* Make room on the disk of the run folder, then go on with --resume/u,
  },
])(
  'a $what that finds no room stops the run with the cause, and resuming continues it',
  TIMEOUT,
  async ({ what, groupsPerStep, cause }) => {
    const config = writeConfig(directory, 'model', {
      name: what,
      algorithm: { steps: 2, groupSize: 4, groupsPerStep, learningRate: 1e-3 },
    });
    const run = runPath(what);
    const stopped = await runHone(['train', config], { cwd: directory, through: 'ulimit -f 700 && exec "$@"' });
    expect(stopped.code).toBe(1);
    expect(stopped.stderr.trim().split('\n').at(-1)).toMatch(cause);
    expect(readdirSync(join(run, 'checkpoints')).filter((file) => !file.endsWith('.json'))).toEqual([]);
    const resumed = await runHone(['train', config, '--resume'], { cwd: directory });
    expect(resumed.code, resumed.stderr).toBe(0);
    expect(readSteps(run).map(({ step }) => step)).toEqual([1, 2]);
  },
);

it('a run that the clock stopped is measured again when it is resumed and trains on', TIMEOUT, async () => {
  const config = writeConfig(directory, 'model', {
    name: 'clock',
    schedule: { concurrency: 16, maxMinutes: 0.0001 },
    eval: { tasks: 4, controls: false },
  });
  const version = (): unknown =>
    (JSON.parse(readFileSync(join(runPath('clock'), 'eval', 'after-sampled.json'), 'utf8')) as { version: number })
      .version;
  const first = await runHone(['train', config], { cwd: directory });
  expect(first.stderr).toContain('stopped training after 0.0001 minutes, at step 1 of 4');
  expect(version()).toBe(1);
  const second = await runHone(['train', config, '--resume'], { cwd: directory });
  expect(second.stderr).not.toContain('evaluating before training');
  expect(second.code, second.stderr).toBe(0);
  expect(version()).toBe(2);
});

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { resolveConfig } from './config.ts';
import { RunFolder, stepRecordFile } from './run-folder.ts';

const config = resolveConfig({ name: 'r', model: 'models/nano' }, 'test');
let parent = '';
let path = '';
beforeEach(() => {
  parent = mkdtempSync(join(tmpdir(), 'hone-run-'));
  path = join(parent, 'r');
});
afterEach(() => {
  rmSync(parent, { recursive: true, force: true });
});

test('a folder in use by a living process is refused, a dead owner is taken over', async () => {
  RunFolder.create(path, config).release();
  const owner = spawn('sleep', ['60']);
  writeFileSync(join(path, 'run.lock'), JSON.stringify({ pid: owner.pid }));
  expect(() => RunFolder.resume(path, config)).toThrow(new RegExp(`in use by process ${owner.pid}`, 'u'));
  owner.kill('SIGKILL');
  await once(owner, 'exit');
  const folder = RunFolder.resume(path, config);
  expect(() => RunFolder.resume(path, config)).toThrow(/in use/u);
  folder.release();
});

test('a run that ended before it sampled anything may be begun again, mended', () => {
  RunFolder.create(path, config).release();
  const mended = resolveConfig({ name: 'r', model: 'models/nano', weights: { store: 'elsewhere' } }, 'test');
  RunFolder.create(path, mended).release();
  expect(() => RunFolder.resume(path, config)).toThrow(/weights\.store was/u);
  RunFolder.resume(path, mended).release();
});

test('a second run under the same name is refused, and so is a resume under another config, naming each change', () => {
  const begun = RunFolder.create(path, config);
  writeFileSync(begun.bufferPath, '');
  begun.release();
  expect(() => RunFolder.create(path, config)).toThrow(/already holds a run/u);
  const other = resolveConfig(
    { name: 'r', model: 'models/nano', algorithm: { learningRate: 0.25 }, sampling: { topP: 0.5 } },
    'test',
  );
  expect(() => RunFolder.resume(path, other)).toThrow(
    /sampling\.topP was 0\.98, is now 0\.5; algorithm\.learningRate was 0\.0005, is now 0\.25/u,
  );
  expect(() => RunFolder.resume(join(parent, 'none'), config)).toThrow(/holds no run to resume/u);
  // Neither refusal left a lock behind.
  RunFolder.resume(path, config).release();
});

test('an event that a crash cut in two is dropped at resume, and later events stand on lines of their own', () => {
  const first = RunFolder.create(path, config);
  first.append({ event: 'run-start', step: 0 });
  first.release();
  appendFileSync(join(path, 'events.jsonl'), '{"event":"step-e');
  const second = RunFolder.resume(path, config);
  second.append({ event: 'run-resume', step: 3 });
  second.release();
  expect(second.events().map(({ event }) => event)).toEqual(['run-start', 'run-resume']);
  expect(readFileSync(join(path, 'events.jsonl'), 'utf8').endsWith('\n')).toBe(true);
});

test('checkpoints are listed by step and pruned from the oldest', () => {
  const folder = RunFolder.create(path, config);
  for (const step of [3, 1, 10]) writeFileSync(folder.checkpointPath(step), '');
  writeFileSync(join(path, 'checkpoints', 'step-000011.safetensors.tmp'), '');
  expect(folder.checkpoints()).toEqual([1, 3, 10]);
  folder.writeJson(stepRecordFile(1), {});
  folder.pruneCheckpoints(2);
  expect(folder.checkpoints()).toEqual([3, 10]);
  folder.release();
  // What was half written goes when the run is resumed.
  RunFolder.resume(path, config).release();
  expect(readdirSync(join(path, 'checkpoints')).sort()).toEqual(['step-000003.safetensors', 'step-000010.safetensors']);
});

test('a lock of an earlier process with the same number is not in use', () => {
  RunFolder.create(path, config).release();
  writeFileSync(join(path, 'run.lock'), JSON.stringify({ pid: process.pid, startedMs: performance.timeOrigin - 1000 }));
  RunFolder.resume(path, config).release();
});

test('a number that another process got since the owner died is no owner', async () => {
  RunFolder.create(path, config).release();
  const other = spawn('sleep', ['60']);
  writeFileSync(join(path, 'run.lock'), JSON.stringify({ pid: other.pid, startedMs: 0, startTicks: '1' }));
  RunFolder.resume(path, config).release();
  other.kill('SIGKILL');
  await once(other, 'exit');
});

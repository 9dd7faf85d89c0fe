import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { RolloutBuffer } from './buffer.ts';
import { finishedRollout, sampleTask } from './rollout.fixture.ts';
import { groupId, policyVersion } from '../domain/ids.ts';

let directory = '';
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'hone-buffer-'));
});
afterEach(() => {
  rmSync(directory, { recursive: true, force: true });
});

function fill(buffer: RolloutBuffer, groups: number): void {
  for (let ordinal = 0; ordinal < groups; ordinal++) {
    buffer.admit(ordinal, groupId(`g${ordinal}`), sampleTask(ordinal), policyVersion(0));
    for (let attempt = 0; attempt < 2; attempt++) buffer.addRollout(ordinal, finishedRollout(ordinal, attempt));
    buffer.markReady(ordinal);
  }
}

test('a rollout comes back from disk with every array as it was', () => {
  const path = join(directory, 'buffer.sqlite');
  const written = RolloutBuffer.open(path);
  fill(written, 1);
  written.close();
  const buffer = RolloutBuffer.open(path);
  expect(buffer.groups('ready')).toEqual([
    {
      ordinal: 0,
      id: 'g0',
      task: sampleTask(0),
      admittedVersion: 0,
      rollouts: [finishedRollout(0, 0), finishedRollout(0, 1)],
    },
  ]);
  buffer.close();
});

test('after a restart, groups assigned past the checkpoint wait again and earlier ones stay trained', () => {
  const buffer = RolloutBuffer.open(':memory:');
  fill(buffer, 6);
  buffer.assign(1, [0, 1]);
  buffer.markTrained(1);
  buffer.assign(2, [2, 3]);
  // The checkpoint of step 2 never became durable.
  expect(buffer.recover(1)).toEqual({ requeued: 2 });
  expect(buffer.groups('ready').map((group) => group.ordinal)).toEqual([2, 3, 4, 5]);
  expect(buffer.counts()).toEqual({ admitted: 6, trained: 2, dropped: {} });
  // It did become durable, but the process died before the groups were marked.
  buffer.assign(2, [2, 3]);
  expect(buffer.recover(2)).toEqual({ requeued: 0 });
  expect(buffer.groups('ready').map((group) => group.ordinal)).toEqual([4, 5]);
  expect(buffer.counts().trained).toBe(4);
  // Back to an older checkpoint: what it had not trained trains again, once.
  expect(buffer.recover(1)).toEqual({ requeued: 2 });
  buffer.close();
});

test('the same attempt of a group cannot be stored twice', () => {
  const buffer = RolloutBuffer.open(':memory:');
  buffer.admit(0, groupId('g0'), sampleTask(0), policyVersion(0));
  buffer.addRollout(0, finishedRollout(0, 0));
  expect(() => buffer.addRollout(0, finishedRollout(0, 0))).toThrow(/UNIQUE/u);
  buffer.close();
});

test('kill -9 at a random moment loses no rollout that was stored', async () => {
  const path = join(directory, 'buffer.sqlite');
  const script = `
    import { RolloutBuffer } from ${JSON.stringify(new URL('./buffer.ts', import.meta.url).href)};
    import { finishedRollout, sampleTask } from ${JSON.stringify(new URL('./rollout.fixture.ts', import.meta.url).href)};
    const buffer = RolloutBuffer.open(${JSON.stringify(path)});
    for (let ordinal = 0; ; ordinal++) {
      buffer.admit(ordinal, 'g' + ordinal, sampleTask(ordinal), 0);
      buffer.addRollout(ordinal, finishedRollout(ordinal, 0));
      process.stdout.write(ordinal + '\\n');
    }`;
  const child = spawn(process.execPath, ['--input-type=module', '--eval', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let output = '';
  for await (const chunk of child.stdout) {
    output += String(chunk);
    if (output.split('\n').length > 50) break;
  }
  child.kill('SIGKILL');
  await once(child, 'exit');
  const reported = output.split('\n').filter((line) => line !== '').length;
  const buffer = RolloutBuffer.open(path);
  const stored = buffer.groups('open');
  expect(stored.filter((group) => group.rollouts.length === 1).length).toBeGreaterThanOrEqual(reported - 1);
  expect(buffer.nextOrdinal()).toBe(stored.length);
  buffer.close();
});

test('what finished since the last batch is measured by the next one, also after a restart', () => {
  const buffer = RolloutBuffer.open(':memory:');
  fill(buffer, 2);
  buffer.admit(2, groupId('g2'), sampleTask(2), policyVersion(0));
  buffer.addRollout(2, finishedRollout(2, 0));
  buffer.drop(1, 'zero-variance');
  const ids = (): string[] => buffer.unmeasured().observed.map(({ rollout }) => rollout.id);
  const all = ['g000000-a00', 'g000000-a01', 'g000001-a00', 'g000001-a01', 'g000002-a00'];
  expect(ids()).toEqual(all);
  expect(buffer.unmeasured()).toMatchObject({ dropped: { 'zero-variance': 1 }, finished: 2, varied: 1 });
  buffer.assign(1, [0]);
  expect(buffer.unmeasured()).toEqual({ observed: [], dropped: {}, finished: 0, varied: 0 });
  buffer.addRollout(2, finishedRollout(2, 1));
  buffer.markReady(2);
  expect(ids()).toEqual(['g000002-a01']);
  expect(buffer.unmeasured()).toMatchObject({ finished: 1, varied: 1 });
  // Step 1 has no checkpoint: what it measured is measured again.
  buffer.recover(0);
  expect(ids()).toEqual([...all, 'g000002-a01']);
  expect(buffer.stepGroups(1)).toEqual([]);
  buffer.close();
});

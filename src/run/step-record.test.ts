import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { resolveConfig } from './config.ts';
import { RunFolder } from './run-folder.ts';
import { recoverStepRecord, writeStepRecord } from './step-record.ts';
import { policyVersion } from '../domain/ids.ts';
import { inventSteps } from '../eval/report.fixture.ts';
import { createRewardState } from '../reward/reward-start.ts';

const config = resolveConfig(
  { name: 'r', model: 'models/nano', reward: { base: { kind: 'detection', precisionWeight: 2 } } },
  'test',
);
const { state } = createRewardState(config.reward, { efforts: ['standard'], seed: 1 });
const metrics = inventSteps(1, 1)[0]?.metrics;
const newest = { step: 4, version: policyVersion(4), pool: [] };
const events = [
  { event: 'reward-phase', step: 4, from: 'a', to: 'b' },
  { event: 'reward-recalibrated', step: 4, drift: 0.1 },
];

let parent = '';
let folder: RunFolder;
beforeEach(() => {
  parent = mkdtempSync(join(tmpdir(), 'hone-record-'));
  folder = RunFolder.create(join(parent, 'r'), config);
});
afterEach(() => {
  folder.release();
  rmSync(parent, { recursive: true, force: true });
});

test.each([0, 1, 2])(
  'killed after %i events of a step were appended, each is there once when it goes on',
  (appended) => {
    if (metrics === undefined) throw new Error('one step has metrics');
    writeStepRecord(folder, 4, { reward: state, events, metrics });
    folder.append({ event: 'reward-recalibrated', step: 3 });
    for (const event of events.slice(0, appended)) folder.append(event);
    expect(recoverStepRecord(folder, newest)?.reward).toEqual(state);
    const kinds = (): string[] => folder.events().map(({ event, step }) => `${event} ${String(step)}`);
    const whole = ['reward-recalibrated 3', 'reward-phase 4', 'reward-recalibrated 4', 'step-end 4'];
    expect(kinds()).toEqual(whole);
    recoverStepRecord(folder, newest);
    expect(kinds()).toEqual(whole);
  },
);

test('before the first step there is no record, and a state of another reward is refused by name', () => {
  expect(recoverStepRecord(folder, { ...newest, step: 0 })).toBeUndefined();
  if (metrics === undefined) throw new Error('one step has metrics');
  const calibration = { beta: 0.5, reference: { precision: 0.5, recall: 0.5 }, precisionWeight: 4, outside: 0 };
  writeStepRecord(folder, 4, { reward: { ...state, calibration }, events: [], metrics });
  expect(() => recoverStepRecord(folder, newest)).toThrow(
    /does not fit the reward of this run: it has a measured weight of precision/u,
  );
});

/**
 * A run that is killed with SIGKILL at seeded moments and resumed each time: no finished rollout is lost, no group is
 * trained twice, every step has its event, and in synchronous mode the bits are those of a run that nobody touched.
 */
import { existsSync, mkdtempSync, readdirSync, rmSync, watch } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { afterAll, beforeAll, expect, it } from 'vitest';

import {
  newestCheckpointHash,
  readGroups,
  readPointer,
  readSteps,
  runHone,
  startHone,
  timelessSteps,
  writeConfig,
} from './hone-process.fixture.ts';
import type { HoneProcess } from './hone-process.fixture.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';
import { createRandom } from '../src/domain/ids.ts';
import { readEvents } from '../src/run/run-folder.ts';
import type { RunEvent } from '../src/run/run-folder.ts';

const STEPS = 8;
const GROUPS_PER_STEP = 4;

let directory = '';
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'hone-kill-'));
  await writeTinyModel(join(directory, 'model'));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

function writeRun(name: string, mode: 'sync' | 'async'): string {
  return writeConfig(directory, 'model', {
    name,
    algorithm: { steps: STEPS, groupSize: 4, groupsPerStep: GROUPS_PER_STEP, learningRate: 1e-3, warmupSteps: 1 },
    schedule: { mode, concurrency: 16 },
    efforts: { low: { maxLookups: 0 }, high: {} },
    baseline: { tasks: 24 },
    // All of it moves at every step, so that a measurement which a kill lost would change the weights.
    reward: {
      base: { kind: 'detection', recalibrationPatience: 1, recalibrationBand: 1.01 },
      terms: [
        {
          kind: 'frontier',
          alpha: 0.5,
          costs: [{ name: 'turns', weights: { turns: 1 } }],
          startingPrice: { from: 'given', prices: { low: 0.02, high: 0.01 } },
          controller: { rate: 0.5, slewLimit: null, deadZone: 0 },
        },
        { kind: 'overlong', limit: 40, buffer: 30 },
      ],
      phases: [
        { name: 'capability', terms: ['frontier'], until: { steps: 3 } },
        { name: 'product', terms: ['frontier', 'overlong'] },
      ],
    },
  });
}

/** Kills the run at the moment and checks that what it had stored is still what the kill before left. */
async function killAt(
  run: string,
  args: readonly string[],
  moment: (hone: HoneProcess) => Promise<void>,
): Promise<void> {
  await using hone = startHone(args, { cwd: directory });
  await moment(hone);
  hone.child.kill('SIGKILL');
  await hone.result;
  expect(existsSync(join(run, 'run.lock'))).toBe(true);
}

/** The checkpoint has its name, and neither the version nor the event is there yet. */
const afterCheckpoint =
  (run: string) =>
  async (hone: HoneProcess): Promise<void> => {
    await hone.reached('training: ');
    await new Promise<void>((resolve) => {
      const watcher = watch(join(run, 'checkpoints'), (_event, file) => {
        if (file?.endsWith('.safetensors') !== true || file.startsWith('.')) return;
        watcher.close();
        resolve();
      });
    });
  };

const afterDelay =
  (delayMs: number) =>
  async (hone: HoneProcess): Promise<void> => {
    await hone.reached('training: ');
    await sleep(delayMs);
  };

async function killAndFinish(name: string, seed: number, mode: 'sync' | 'async'): Promise<string> {
  const config = writeRun(name, mode);
  const run = join(directory, 'runs', name);
  const random = createRandom(seed);
  const stored = new Map<string, number>();
  const trained = new Map<number, number | null>();
  const moments = [
    afterDelay(random.below(400)),
    afterCheckpoint(run),
    afterDelay(random.below(150)),
    afterCheckpoint(run),
  ];
  for (const [kill, moment] of moments.entries()) {
    await killAt(run, ['train', config, ...(kill === 0 ? [] : ['--resume'])], moment);
    for (const group of readGroups(run)) {
      for (const id of group.rollouts) stored.set(id, group.ordinal);
      if (trained.has(group.ordinal))
        expect([group.state, group.step]).toEqual(['trained', trained.get(group.ordinal)]);
      if (group.state === 'trained') trained.set(group.ordinal, group.step);
    }
  }
  const result = await runHone(['train', config, '--resume'], { cwd: directory });
  expect(result.code, result.stderr).toBe(0);
  expect(result.stderr).toContain('resuming after step');
  expect(stored.size).toBeGreaterThan(0);
  expect(trained.size).toBeGreaterThan(0);
  const groups = readGroups(run);
  const kept = new Set(groups.flatMap(({ rollouts }) => rollouts));
  expect([...stored.keys()].filter((id) => !kept.has(id))).toEqual([]);
  for (const group of groups.filter(({ ordinal }) => trained.has(ordinal)))
    expect([group.state, group.step]).toEqual(['trained', trained.get(group.ordinal)]);
  for (let step = 1; step <= STEPS; step++)
    expect(groups.filter((group) => group.state === 'trained' && group.step === step)).toHaveLength(GROUPS_PER_STEP);
  expect(readSteps(run).map(({ step }) => step)).toEqual(Array.from({ length: STEPS }, (_, index) => index + 1));
  expect(readdirSync(join(run, 'checkpoints')).filter((file) => file.endsWith('.tmp'))).toEqual([]);
  expect(readPointer(run)).toBe(`${name}/weight_v${String(STEPS).padStart(6, '0')}`);
  return run;
}

it(
  'killed four times, a synchronous run ends with the bits and measurements of an undisturbed one',
  { timeout: 180_000 },
  async () => {
    const [reference, killed] = await Promise.all([
      runHone(['train', writeRun('whole', 'sync')], { cwd: directory }).then(({ code, stderr }) => {
        expect(code, stderr).toBe(0);
        return join(directory, 'runs', 'whole');
      }),
      killAndFinish('killed', 11, 'sync'),
    ]);
    expect(await newestCheckpointHash(killed)).toBe(await newestCheckpointHash(reference));
    expect(withoutLostMeasurements(killed)).toEqual(withoutLostMeasurements(reference));
    const events = rewardEvents(reference);
    expect(events.map(({ event }) => event)).toEqual(expect.arrayContaining(['reward-start', 'reward-phase']));
    expect(rewardEvents(killed)).toEqual(events);
    const prices = readSteps(reference).map(({ metrics }) => metrics['frontier/log_price'] ?? {});
    for (const effort of ['low', 'high'])
      expect(new Set(prices.map((at) => at[`${effort}/turns`] ?? 0)).size, effort).toBeGreaterThan(3);
  },
);

it(
  'killed four times, an asynchronous run loses no finished rollout and trains none twice',
  { timeout: 180_000 },
  async () => {
    await killAndFinish('killed-async', 12, 'async');
  },
);

/** What the reward started from and changed, in order. */
function rewardEvents(run: string): RunEvent[] {
  return readEvents(run)
    .filter(({ event }) => /^(?:reward|frontier)-/u.test(event))
    .map(({ time: _time, ...event }): RunEvent => event);
}

/** Which lines were looked up is not stored, and a version that a killed process published was not weighed. */
function withoutLostMeasurements(run: string): unknown[] {
  return timelessSteps(run).map(
    (event) =>
      JSON.parse(
        JSON.stringify(event, (key, value: unknown) =>
          /^rollout\/lookup_rate|^sync\//u.test(key) ? undefined : value,
        ),
      ) as unknown,
  );
}

import fc from 'fast-check';
import { expect, test } from 'vitest';

import { RolloutBuffer } from './buffer.ts';
import { RolloutManager } from './manager.ts';
import type { EpisodeRequest, ManagerOptions } from './manager.ts';
import { finishedRollout, sampleTask } from './rollout.fixture.ts';
import { createRandom, policyVersion } from '../domain/ids.ts';
import type { Rollout } from '../domain/rollout.ts';

interface Trial {
  version: number;
  readonly started: EpisodeRequest[];
  peak: number;
}

/** A manager whose episodes end after a few random turns of the event loop. */
function createTrial(
  buffer: RolloutBuffer,
  overrides: Partial<ManagerOptions> & {
    outcome?: (request: EpisodeRequest, version: number) => Rollout;
    seed?: number;
  } = {},
): { manager: RolloutManager; trial: Trial } {
  const trial: Trial = { version: 0, started: [], peak: 0 };
  const random = createRandom(overrides.seed ?? 1);
  let running = 0;
  const {
    outcome = ({ ordinal, attempt }, version) => finishedRollout(ordinal, attempt, { version }),
    seed: _seed,
    ...options
  } = overrides;
  const manager = new RolloutManager(buffer, {
    groupSize: 2,
    groupsPerStep: 3,
    maxStaleness: 0,
    concurrency: 8,
    infraRetries: 1,
    taskAt: sampleTask,
    currentVersion: () => policyVersion(trial.version),
    runEpisode: async (request) => {
      trial.started.push(request);
      trial.peak = Math.max(trial.peak, ++running);
      const version = trial.version;
      for (let turn = random.below(12); turn > 0; turn--) await new Promise(setImmediate);
      running--;
      return outcome(request, version);
    },
    ...options,
  });
  return { manager, trial };
}

test('a group of one outcome is kept where a priced count differs, and only there', async () => {
  const buffer = RolloutBuffer.open(':memory:');
  const { manager } = createTrial(buffer, {
    seed: 1,
    groupsPerStep: 2,
    pricedCounts: ['lookups'],
    outcome: ({ ordinal, attempt }, version) => ({
      ...finishedRollout(ordinal, attempt, { version, recall: 1 }),
      lookups: ordinal % 2 === 0 ? attempt : 1,
      cost: { tokens: 3 + attempt, sampledTokens: 2, turns: 1, toolSeconds: 0 },
    }),
  });
  const { groups, dropped } = await manager.nextBatch(1);
  expect(groups.map(({ ordinal }) => ordinal)).toEqual([0, 2]);
  expect(dropped).toEqual({ 'zero-variance': 1 });
  await manager.stop();
  buffer.close();
});

test('a synchronous batch is the first groups of the stream that vary, whatever order they finish in', async () => {
  const flat = new Set([0, 2, 5]);
  for (let seed = 1; seed <= 12; seed++) {
    const buffer = RolloutBuffer.open(':memory:');
    const { manager, trial } = createTrial(buffer, {
      seed,
      outcome: ({ ordinal, attempt }, version) =>
        finishedRollout(ordinal, attempt, { version, ...(flat.has(ordinal) ? { recall: 0 } : {}) }),
    });
    const first = await manager.nextBatch(1);
    expect(first.groups.map((group) => group.ordinal)).toEqual([1, 3, 4]);
    expect(first.dropped).toEqual({ 'zero-variance': 2 });
    expect(first.observed.map(({ rollout }) => rollout.id)).toEqual(
      [0, 1, 2, 3, 4].flatMap((ordinal) => [`g00000${ordinal}-a00`, `g00000${ordinal}-a01`]),
    );
    trial.version = 1;
    manager.stepTrained(1);
    const second = await manager.nextBatch(2);
    expect(second.groups.map((group) => group.ordinal)).toEqual([6, 7, 8]);
    expect(second.groups.every((group) => group.admittedVersion === 1)).toBe(true);
    await manager.stop();
    buffer.close();
  }
});

test('groups in flight, waiting and in training never pass the staleness bound; concurrency is kept', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 3 }),
      fc.integer({ min: 1, max: 4 }),
      fc.integer({ min: 1, max: 9 }),
      fc.integer({ min: 1, max: 1000 }),
      async (maxStaleness, groupsPerStep, concurrency, seed) => {
        const buffer = RolloutBuffer.open(':memory:');
        const { manager, trial } = createTrial(buffer, { maxStaleness, groupsPerStep, concurrency, seed });
        for (let step = 1; step <= 4; step++) {
          const batch = await manager.nextBatch(step);
          expect(batch.groups).toHaveLength(groupsPerStep);
          expect(manager.active).toBeLessThanOrEqual((maxStaleness + 1) * groupsPerStep);
          for (const group of batch.groups)
            for (const rollout of group.rollouts)
              expect(trial.version - rollout.admittedVersion).toBeLessThanOrEqual(maxStaleness);
          trial.version++;
          manager.stepTrained(step);
        }
        expect(trial.peak).toBeLessThanOrEqual(concurrency);
        await manager.stop();
        buffer.close();
      },
    ),
    { numRuns: 25 },
  );
});

test('a group that lags too many versions is dropped as stale, and counted', async () => {
  const buffer = RolloutBuffer.open(':memory:');
  const { manager, trial } = createTrial(buffer, { maxStaleness: 1, groupsPerStep: 2 });
  await manager.nextBatch(1);
  trial.version = 1;
  manager.stepTrained(1);
  await new Promise((resolve) => setTimeout(resolve, 50));
  trial.version = 5;
  const batch = await manager.nextBatch(2);
  expect(batch.dropped['stale']).toBeGreaterThan(0);
  expect(batch.groups.every((group) => group.admittedVersion >= 4)).toBe(true);
  expect(buffer.counts().dropped['stale']).toBe(batch.dropped['stale']);
  await manager.stop();
  buffer.close();
});

test('a failed engine is tried again and never scores 0; a group left with one member is dropped', async () => {
  const buffer = RolloutBuffer.open(':memory:');
  const { manager, trial } = createTrial(buffer, {
    groupsPerStep: 1,
    outcome: ({ ordinal, attempt }, version) =>
      finishedRollout(ordinal, attempt, {
        version,
        ...(ordinal === 0 && attempt === 1 ? { status: 'infra-failed' } : {}),
      }),
  });
  const batch = await manager.nextBatch(1);
  expect(trial.started.filter((request) => request.ordinal === 0 && request.attempt === 1)).toHaveLength(2);
  expect(batch.groups[0]?.ordinal).toBe(1);
  expect(batch.dropped).toEqual({ 'too-few-members': 1 });
  await manager.stop();
  buffer.close();
});

test('a restart runs only the attempts that are missing, and trains every stored group once', async () => {
  const buffer = RolloutBuffer.open(':memory:');
  const before = createTrial(buffer, { maxStaleness: 1, seed: 3 });
  const first = await before.manager.nextBatch(1);
  for (let turn = 0; turn < 5; turn++) await new Promise(setImmediate);
  await before.manager.stop();
  // Step 1 was being trained when the process died: no checkpoint.
  buffer.recover(0);
  const stored = new Set(
    [...buffer.groups('open'), ...buffer.groups('ready')].flatMap((group) =>
      group.rollouts.map((rollout) => rollout.id),
    ),
  );
  const after = createTrial(buffer, { maxStaleness: 1, seed: 4 });
  const trained: number[] = [];
  for (let step = 1; step <= 3; step++) {
    const batch = await after.manager.nextBatch(step);
    trained.push(...batch.groups.map((group) => group.ordinal));
    after.manager.stepTrained(step);
  }
  expect(trained).toEqual(expect.arrayContaining(first.groups.map((group) => group.ordinal)));
  expect(new Set(trained).size).toBe(trained.length);
  expect(after.trial.started.filter((request) => stored.has(request.id))).toEqual([]);
  await after.manager.stop();
  buffer.close();
});

test('an error that is a bug surfaces to the caller instead of hanging the run', async () => {
  const buffer = RolloutBuffer.open(':memory:');
  const { manager } = createTrial(buffer, {
    outcome: () => {
      throw new Error('the verifier is broken');
    },
  });
  await expect(manager.nextBatch(1)).rejects.toThrow('the verifier is broken');
  await manager.stop();
  buffer.close();
});

test('groups that never vary end the run with their reasons instead of sampling forever', async () => {
  const flat = RolloutBuffer.open(':memory:');
  const silent = createTrial(flat, {
    outcome: ({ ordinal, attempt }) => finishedRollout(ordinal, attempt, { recall: 0 }),
  });
  await expect(silent.manager.nextBatch(1)).rejects.toThrow(
    'The last 200 groups taught nothing (200 zero-variance), so no batch can be filled.',
  );
  await silent.manager.stop();
  flat.close();
  const broken = RolloutBuffer.open(':memory:');
  const failing = createTrial(broken, {
    outcome: ({ ordinal, attempt }) => finishedRollout(ordinal, attempt, { status: 'infra-failed' }),
  });
  await expect(failing.manager.nextBatch(1)).rejects.toThrow(
    '(200 too-few-members; last failure: the engine went away)',
  );
  await failing.manager.stop();
  broken.close();
});

test('a failure while the next group is admitted reaches the caller, as the first cause', async () => {
  const buffer = RolloutBuffer.open(':memory:');
  const { manager } = createTrial(buffer, {
    groupsPerStep: 2,
    concurrency: 2,
    outcome: ({ ordinal, attempt }, version) => finishedRollout(ordinal, attempt, { version, recall: 0 }),
    taskAt: (ordinal) => {
      if (ordinal === 3) throw new Error('the disk is full');
      return sampleTask(ordinal);
    },
  });
  await expect(manager.nextBatch(1)).rejects.toThrow('the disk is full');
  await manager.stop();
  buffer.close();
});

/**
 * `hone train` over a store and a router elsewhere while parts die: a killed trainer resumes without a gap, a fork or a group
 * trained twice; a router that comes back costs nothing, one that stays away ends the run with a sentence, to be resumed.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { serve, serveReplica, serveRouterAgain } from './fleet-process.fixture.ts';
import type { Served } from './fleet-process.fixture.ts';
import {
  newestCheckpointHash,
  readGroups,
  readSteps,
  runHone,
  startHone,
  timelessSteps,
  writeConfig,
} from './hone-process.fixture.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';
import type { RunConfigInput } from '../src/run/config.ts';
import { FileStore } from '../src/sync/store/file-store.ts';
import { readIndex } from '../src/sync/version-chain.ts';
import { listVersions } from '../src/sync/version-listing.ts';

const STEPS = 4;
const GROUPS_PER_STEP = 4;

let directory = '';
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'hone-run-fleet-faults-'));
  await writeTinyModel(join(directory, 'model'));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

function writeFleet(router: Served, overrides: Partial<RunConfigInput> = {}): string {
  return writeConfig(directory, 'model', {
    name: 'fleet',
    schedule: { mode: 'sync', concurrency: 16 },
    weights: { store: 'store' },
    engine: { build: 'plain', threads: 2 },
    serve: { routers: [router.url] },
    ...overrides,
  });
}

async function published(store: string): Promise<unknown[]> {
  const source = await FileStore.open(join(directory, store));
  const { versions } = await listVersions(source);
  return Promise.all(
    versions.map(async ({ identity }) => {
      const { imageChecksum } = await readIndex(source, identity, {});
      return [identity.version, identity.attempt, imageChecksum];
    }),
  );
}

/** Every step trained its groups, each of them once, and nothing tells them from those of a run that nobody touched. */
async function expectUntouched(): Promise<void> {
  const fleet = join(directory, 'runs/fleet');
  const trained = readGroups(fleet).filter(({ state }) => state === 'trained');
  for (let step = 1; step <= STEPS; step++)
    expect(trained.filter((group) => group.step === step)).toHaveLength(GROUPS_PER_STEP);
  const rollouts = trained.flatMap((group) => group.rollouts);
  expect(new Set(rollouts).size).toBe(rollouts.length);

  const alone = writeConfig(directory, 'model', { name: 'alone', schedule: { mode: 'sync', concurrency: 16 } });
  const untouched = await runHone(['train', alone], { cwd: directory });
  expect(untouched.code, untouched.stderr).toBe(0);
  expect(readSteps(fleet).map(({ step }) => step)).toEqual([1, 2, 3, 4]);
  expect(timelessSteps(fleet)).toHaveLength(STEPS);
  const versions = await published('store');
  expect(versions).toHaveLength(STEPS);
  expect(versions).toEqual(await published('runs/alone/weights'));
  expect(await newestCheckpointHash(fleet)).toBe(await newestCheckpointHash(join(directory, 'runs/alone')));
}

test('a trainer that is killed twice resumes: each group trains once, versions have no gap and no fork, and the bits are those of an untouched run', async () => {
  await using router = await serve(['router'], { cwd: directory });
  await using replica = await serveReplica({ id: 'only', router, run: 'fleet' }, { cwd: directory });
  expect(replica.url).toContain('http://');
  const config = writeFleet(router);
  for (const [more, reached] of [
    [[], '  1/4'],
    [['--resume'], '  2/4'],
  ] as const) {
    await using run = startHone(['train', config, ...more], { cwd: directory });
    await run.reached(reached);
    run.child.kill('SIGKILL');
    await run.result;
  }
  const resumed = await runHone(['train', config, '--resume'], { cwd: directory });
  expect(resumed.code, resumed.stderr).toBe(0);
  await expectUntouched();
}, 120_000);

test('a router that is away and comes back costs no rollout and no bit', async () => {
  await using router = await serve(['router'], { cwd: directory });
  await using replica = await serveReplica({ id: 'only', router, run: 'fleet' }, { cwd: directory });
  expect(replica.url).toContain('http://');
  await using run = startHone(['train', writeFleet(router)], { cwd: directory });
  await run.reached('  1/4');
  await router[Symbol.asyncDispose]();
  await using again = await serveRouterAgain(router, { cwd: directory });
  expect(again.url).toBe(router.url);
  const trained = await run.result;
  expect(trained.code, trained.stderr).toBe(0);
  await expectUntouched();
}, 120_000);

test('a router that stays away ends the run with one sentence after the deadline, and the run resumes', async () => {
  await using router = await serve(['router'], { cwd: directory });
  await using replica = await serveReplica({ id: 'only', router, run: 'fleet' }, { cwd: directory });
  expect(replica.url).toContain('http://');
  const config = writeFleet(router, { serve: { routers: [router.url], deadlineSeconds: 4 } });
  await using run = startHone(['train', config], { cwd: directory });
  await run.reached('  1/4');
  await router[Symbol.asyncDispose]();
  const ended = await run.result;
  expect(ended.code).toBe(1);
  expect(ended.stderr.trim().split('\n').at(-1)).toMatch(/^hone: A reply was given up after 4 s/u);

  await using again = await serveRouterAgain(router, { cwd: directory });
  expect(again.url).toBe(router.url);
  const resumed = await runHone(['train', config, '--resume'], { cwd: directory });
  expect(resumed.code, resumed.stderr).toBe(0);
  await expectUntouched();
}, 120_000);

test('an asynchronous run trains no token older than it allows', async () => {
  await using router = await serve(['router'], { cwd: directory });
  await using replica = await serveReplica({ id: 'only', router, run: 'fleet' }, { cwd: directory });
  expect(replica.url).toContain('http://');
  const config = writeFleet(router, { schedule: { mode: 'async', maxStaleness: 1, concurrency: 16 } });
  const trained = await runHone(['train', config], { cwd: directory });
  expect(trained.code, trained.stderr).toBe(0);
  const steps = readSteps(join(directory, 'runs/fleet'));
  expect(steps).toHaveLength(STEPS);
  for (const { metrics } of steps) {
    expect(metrics['rollout/staleness_histogram'].length).toBeLessThanOrEqual(2);
    for (const { staleness } of metrics['train/mismatch_by_staleness']) expect(staleness).toBeLessThanOrEqual(1);
  }
}, 120_000);

test.each([
  ['a wrong', 'b'.repeat(32)],
  ['no', ''],
])(
  '%s token ends the run with one sentence and nothing trained',
  async (_name, token) => {
    const secret = { HONE_TOKEN: 'a'.repeat(32) };
    await using router = await serve(['router'], { cwd: directory, environment: secret });
    const config = writeFleet(router);
    const ended = await runHone(['train', config], { cwd: directory, environment: { HONE_TOKEN: token } });
    expect(ended.code).toBe(1);
    expect(ended.stderr.trim().split('\n').at(-1)).toMatch(/^hone: .*does not know this token.*HONE_TOKEN/u);
    await using replica = await serveReplica(
      { id: 'only', router, run: 'fleet' },
      { cwd: directory, environment: secret },
    );
    expect(replica.url).toContain('http://');
    const resumed = await runHone(['train', config, '--resume'], { cwd: directory, environment: secret });
    expect(resumed.code, resumed.stderr).toBe(0);
    await expectUntouched();
  },
  120_000,
);

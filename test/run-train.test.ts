/**
 * `hone train` from end to end on a tiny model: what an asynchronous run leaves behind, and that a synchronous one has the
 * same bits whatever the number of threads.
 */
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import {
  newestCheckpointHash,
  readGroups,
  readPointer,
  readSteps,
  runHone,
  timelessSteps,
  writeConfig,
} from './hone-process.fixture.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';
import { checkSegment } from '../src/domain/rollout.ts';
import { RolloutBuffer } from '../src/rollout/buffer.ts';
import { readEvents } from '../src/run/run-folder.ts';

let directory = '';
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'hone-train-'));
  await writeTinyModel(join(directory, 'model'));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

describe('an asynchronous run with an evaluation', () => {
  const STEPS = 5;
  const MAX_STALENESS = 2;
  let run = '';
  let stdout = '';
  beforeAll(async () => {
    const config = writeConfig(directory, 'model', {
      name: 'async',
      algorithm: { steps: STEPS, groupSize: 4, groupsPerStep: 4, learningRate: 1e-3, warmupSteps: 1 },
      schedule: { concurrency: 24, maxStaleness: MAX_STALENESS },
      reward: { base: { kind: 'detection' } },
      eval: { tasks: 8, controls: false },
    });
    const result = await runHone(['train', config, '--json'], { cwd: directory });
    expect(result.stderr).not.toContain('hone: Error');
    expect(result.code).toBe(0);
    stdout = result.stdout;
    run = join(directory, 'runs', 'async');
  });

  it('leaves the events of every step, in order', () => {
    const steps = readSteps(run);
    expect(steps.map(({ step, version }) => [step, version])).toEqual(
      Array.from({ length: STEPS }, (_, index) => [index + 1, index + 1]),
    );
    const kinds = readEvents(run).map(({ event }) => event);
    expect(kinds[0]).toBe('run-start');
    expect(kinds.at(-1)).toBe('run-end');
    for (const { metrics } of steps) {
      expect(metrics['train/gradient_norm']).toBeGreaterThan(0);
      expect(metrics['policy/entropy']).toBeGreaterThan(0);
      expect(metrics['sync/delta_bytes']).toBeGreaterThan(0);
      expect(metrics['sync/changed_share']).toBeGreaterThan(0);
      expect(metrics['sync/pause_ms']).not.toBeNull();
    }
  });

  it('shows no mismatch at staleness 0, a real one past it, and never more staleness than allowed', () => {
    const steps = readSteps(run);
    const mismatches = steps.flatMap(({ metrics }) => metrics['train/mismatch_by_staleness']);
    const fresh = mismatches.filter(({ staleness }) => staleness === 0);
    const stale = mismatches.filter(({ staleness }) => staleness > 0);
    expect(fresh.length).toBeGreaterThan(0);
    expect(fresh.every(({ k3, max_abs_delta: largest }) => k3 === 0 && largest === 0)).toBe(true);
    expect(stale.length).toBeGreaterThan(0);
    expect(stale.every(({ max_abs_delta: largest }) => largest > 0)).toBe(true);
    for (const { metrics } of steps) {
      const histogram = metrics['rollout/staleness_histogram'];
      expect(histogram.length).toBeLessThanOrEqual(MAX_STALENESS + 1);
      expect(histogram.reduce((sum, tokens) => sum + tokens, 0)).toBe(metrics['train/tokens']);
    }
  });

  it('trained each batch once, on whole rollouts of versions within the bound', () => {
    const groups = readGroups(run);
    const trained = groups.filter(({ state }) => state === 'trained');
    for (let step = 1; step <= STEPS; step++) expect(trained.filter((group) => group.step === step)).toHaveLength(4);
    expect(trained).toHaveLength(STEPS * 4);
    expect(groups.filter(({ state }) => state === 'dropped').every(({ reason }) => reason !== null)).toBe(true);
    const buffer = RolloutBuffer.open(join(run, 'buffer.sqlite'));
    try {
      for (let step = 1; step <= STEPS; step++) {
        const tokens = readSteps(run)[step - 1]?.metrics['train/tokens'];
        const rollouts = buffer.stepGroups(step).flatMap((group) => group.rollouts);
        expect(rollouts).toHaveLength(16);
        for (const { segments } of rollouts)
          for (const segment of segments) {
            checkSegment(segment);
            for (const { version } of segment.versions) expect(step - 1 - version).toBeLessThanOrEqual(MAX_STALENESS);
          }
        expect(
          rollouts
            .flatMap(({ segments }) => segments)
            .reduce((sum, { trained: mask }) => sum + mask.reduce((a, b) => a + b, 0), 0),
        ).toBe(tokens);
      }
    } finally {
      buffer.close();
    }
  });

  it('published every version, and the pointer names the last', () => {
    const names = Array.from({ length: STEPS }, (_, index) => `weight_v${String(index + 1).padStart(6, '0')}`);
    expect(readdirSync(join(run, 'weights', 'async')).toSorted()).toEqual(names);
    expect(readPointer(run)).toBe(`async/${names.at(-1)}`);
  });

  it('prints one JSON document, and writes the same table and a page', () => {
    const document = JSON.parse(stdout) as { run: string; results: { tasks: number; rows: unknown[] } };
    expect(document.results.tasks).toBe(8);
    expect(document.results).toEqual(JSON.parse(readFileSync(join(run, 'results.json'), 'utf8')));
    expect(readFileSync(join(run, 'report.html'), 'utf8')).toContain('<svg');
    expect(existsSync(join(run, 'run.lock'))).toBe(false);
  });
});

describe('a synchronous run', () => {
  it('has the same bits and the same measurements again, with one thread or two', { timeout: 180_000 }, async () => {
    const start = async (name: string, threads: number): Promise<string> => {
      const config = writeConfig(directory, 'model', {
        name,
        schedule: { mode: 'sync', concurrency: 16 },
        engine: { build: 'plain', threads, slots: 24 },
        reward: { base: { kind: 'detection', recalibrationPatience: 1, recalibrationBand: 1.01 } },
      });
      const result = await runHone(['train', config], { cwd: directory });
      expect(result.code, result.stderr).toBe(0);
      return join(directory, 'runs', name);
    };
    const first = await start('sync-first', 2);
    // Beside each other, so that rollouts finish in another order than in the first run.
    const others = await Promise.all([start('sync-second', 2), start('sync-one', 1)]);
    const steps = timelessSteps(first);
    expect(steps).toHaveLength(4);
    const weights = readSteps(first).map(({ metrics }) => metrics['reward/precision_weight']);
    expect(new Set(weights).size).toBeGreaterThan(1);
    for (const other of others) {
      expect(await newestCheckpointHash(other)).toBe(await newestCheckpointHash(first));
      expect(timelessSteps(other)).toEqual(steps);
    }
  });
});

/**
 * Replicas that a run must not train on: of another model, or with other weights under the same version. Both take every token that the
 * run sends and answer well; only what they say of themselves tells.
 */
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { serve, serveReplica } from './fleet-process.fixture.ts';
import { readSteps, runHone, writeConfig } from './hone-process.fixture.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';

let directory = '';
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'hone-run-fleet-foreign-'));
  await writeTinyModel(join(directory, 'model'));
  cpSync(join(directory, 'model'), join(directory, 'other'), { recursive: true });
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

/** Of the same shapes, so that every tensor and every token fits. */
function changeModel(): void {
  const path = join(directory, 'other', 'config.json');
  const config = JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>; // The fixture wrote it.
  writeFileSync(path, JSON.stringify({ ...config, rope_theta: 7_777 }));
}

function changeWeights(): void {
  const path = join(directory, 'other', 'model.safetensors');
  const bytes = readFileSync(path);
  bytes[bytes.length - 2] = (bytes.at(-2) ?? 0) ^ 1;
  writeFileSync(path, bytes);
}

test.each([
  ['of another model', changeModel, /Replica stranger serves another model than the run trains\./u],
  [
    'with other weights as version 0',
    changeWeights,
    /Replica stranger serves other weights as version 0: their checksum is [0-9a-f]{32}, the run's [0-9a-f]{32}\./u,
  ],
])(
  'a replica %s ends the run before it trains, and the run goes on without it',
  async (_what, change, sentence) => {
    change();
    await using router = await serve(['router'], { cwd: directory });
    await using good = await serveReplica({ id: 'good', router, run: 'fleet' }, { cwd: directory });
    expect(good.url).toContain('http://');
    const config = writeConfig(directory, 'model', {
      name: 'fleet',
      schedule: { mode: 'sync', concurrency: 16 },
      weights: { store: 'store' },
      engine: { build: 'plain', threads: 2 },
      serve: { routers: [router.url] },
    });
    {
      await using stranger = await serveReplica(
        { id: 'stranger', router, model: 'other', run: 'fleet' },
        { cwd: directory },
      );
      expect(stranger.url).toContain('http://');
      const ended = await runHone(['train', config], { cwd: directory });
      expect(ended.code).toBe(1);
      expect(ended.stderr.trim().split('\n').at(-1)).toMatch(sentence);
      expect(ended.stderr).toContain('Start the replicas from the model folder that the run trains');
    }
    // It was killed without a goodbye: nobody has to wait for its lease.
    expect((await fetch(`${router.controlUrl}/replicas/stranger`, { method: 'DELETE' })).status).toBe(200);
    const resumed = await runHone(['train', config, '--resume'], { cwd: directory });
    expect(resumed.code, resumed.stderr).toBe(0);
    expect(readSteps(join(directory, 'runs/fleet')).length).toBeGreaterThan(0);
  },
  120_000,
);

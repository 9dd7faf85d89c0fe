/** `hone train` whose versions go to a real S3 server: the bits of a run in a folder; wrong credentials end it with a sentence. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { expect, test } from 'vitest';

import { newestCheckpointHash, runHone, writeConfig } from './hone-process.fixture.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';
import { openWeightStore } from '../src/sync/store/open-weight-store.ts';
import { missingRadosgw, startRadosgw } from '../src/sync/store/radosgw.fixture.ts';
import { readIndex } from '../src/sync/version-chain.ts';
import { listVersions } from '../src/sync/version-listing.ts';

const missing = missingRadosgw();
if (missing !== undefined) process.stderr.write(`Tests of runs over S3 are skipped: ${missing}.\n`);

test.skipIf(missing !== undefined)(
  'a run publishes to S3 and resumes there; a wrong key is one sentence with the cure, and nothing is written',
  async () => {
    const directory = mkdtempSync(join(tmpdir(), 'hone-run-fleet-s3-'));
    await using server = await startRadosgw();
    try {
      await writeTinyModel(join(directory, 'model'));
      const location = server.location('run');
      const config = writeConfig(directory, 'model', {
        name: 'far',
        schedule: { mode: 'sync', concurrency: 16 },
        weights: { store: location },
      });
      const wrong = { ...server.environment, AWS_SECRET_ACCESS_KEY: 'not-the-secret' };
      const denied = await runHone(['train', config], { cwd: directory, environment: wrong });
      expect(denied.code).toBe(1);
      expect(denied.stderr.trim().split('\n').at(-1)).toMatch(/^hone: .*(credentials|AWS_SECRET_ACCESS_KEY)/iu);
      const store = await openWeightStore(location, { environment: server.environment });
      expect((await listVersions(store)).versions).toEqual([]);

      const trained = await runHone(['train', config, '--resume'], { cwd: directory, environment: server.environment });
      expect(trained.code, trained.stderr).toBe(0);
      const alone = writeConfig(directory, 'model', { name: 'alone', schedule: { mode: 'sync', concurrency: 16 } });
      expect((await runHone(['train', alone], { cwd: directory })).code).toBe(0);
      const near = await openWeightStore(join(directory, 'runs/alone/weights'), { environment: {} });
      const checksums = async (from: typeof store): Promise<unknown[]> =>
        Promise.all(
          (await listVersions(from)).versions.map(
            async ({ identity }) => (await readIndex(from, identity, {})).imageChecksum,
          ),
        );
      expect(await checksums(store)).toHaveLength(4);
      expect(await checksums(store)).toEqual(await checksums(near));
      expect(await newestCheckpointHash(join(directory, 'runs/far'))).toBe(
        await newestCheckpointHash(join(directory, 'runs/alone')),
      );
    } finally {
      rmSync(directory, { recursive: true, force: true });
    }
  },
  120_000,
);

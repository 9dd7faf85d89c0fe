import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';

import { openWeightStore } from '../src/sync/store/open-weight-store.ts';
import { missingRadosgw } from '../src/sync/store/radosgw.fixture.ts';
import { bodyOf } from '../src/sync/store/weight-store.ts';

const script = fileURLToPath(new URL('../scripts/radosgw.ts', import.meta.url));

it.skipIf(missingRadosgw() !== undefined)(
  'starts a server that outlives it, says how to use it, and stops it for good',
  async () => {
    const folder = await mkdtemp(join(tmpdir(), 'hone-radosgw-test-'));
    const directory = join(folder, 'server');
    const radosgw = (command: string): Promise<{ stdout: string }> =>
      promisify(execFile)(process.execPath, [script, command, '--dir', directory]);
    try {
      await expect(radosgw('status')).rejects.toMatchObject({ stdout: expect.stringContaining('No radosgw runs') });
      const { stdout } = await radosgw('start');
      const environment = Object.fromEntries(
        [...stdout.matchAll(/^export (\w+)='?([^'\n]*)'?$/gm)].map(([, name = '', value]) => [name, value]),
      );
      const store = await openWeightStore(environment['HONE_STORE'] ?? '', { environment });
      await store.probeConditionalWrites();
      expect(await store.putObject('a', bodyOf(Buffer.from('x')))).toBe('created');
      expect((await radosgw('start')).stdout).toBe(stdout);
      expect((await radosgw('status')).stdout).toBe(stdout);
      const processIds = (/processes ([\d, ]+)/.exec(stdout)?.[1] ?? '').split(', ').map(Number);
      expect(processIds).toHaveLength(3);
      expect((await radosgw('stop')).stdout).toContain('Stopped 3 processes');
      expect(existsSync(directory)).toBe(false);
      for (const id of processIds) expect(() => process.kill(id, 0)).toThrow('ESRCH');
      expect((await radosgw('stop')).stdout).toContain('No radosgw was started');
    } finally {
      await radosgw('stop');
      await rm(folder, { recursive: true });
    }
  },
);

it('refuses a folder that is not its own, and what it does not know', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'hone-radosgw-test-'));
  try {
    for (const [words, message] of [
      [['start', '--dir', folder], 'was not made by this script'],
      [['start', '--port', '0'], 'a whole number from 1 to 65535'],
      [['restart'], 'none of start, stop, status'],
      [[], 'missing required argument'],
    ] as const)
      await expect(promisify(execFile)(process.execPath, [script, ...words])).rejects.toMatchObject({
        stderr: expect.stringContaining(message),
      });
  } finally {
    await rm(folder, { recursive: true });
  }
});

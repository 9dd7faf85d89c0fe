import { expect, test, vi } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import type { CommittedWeights } from '../sync/reconciler.ts';
import { VersionLines } from './version-lines.ts';

const committed = (version: number): CommittedWeights => ({
  from: policyVersion(version - 1),
  version: policyVersion(version),
  versionsCoalesced: 1,
  imageChecksum: '',
  bytes: 1,
  fetchMs: 1,
  applyMs: 1,
  pauseMs: 1,
  stagedTensors: 1,
  stagedBytes: 1,
  stageMs: 1,
});

test('the first at once, then no more than one in a while, and the newest always', async () => {
  const said: number[] = [];
  const lines = new VersionLines({
    say: ({ version }) => said.push(version),
    // It stands still: time passes for the timers alone.
    now: () => 0,
    everyMs: 20,
  });
  for (const version of [1, 2, 3]) lines.add(committed(version));
  expect(said).toEqual([1]);
  await vi.waitFor(() => expect(said).toEqual([1, 3]));
  for (const version of [4, 5]) lines.add(committed(version));
  lines.close();
  lines.close();
  expect(said).toEqual([1, 3, 5]);
});

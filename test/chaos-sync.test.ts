/**
 * The short form of `npm run chaos:sync`: a small fleet under load, kills of every kind of service and the other faults for some seconds,
 * then the verdict. On an S3 server where one is installed, on a folder elsewhere.
 */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, expect, it } from 'vitest';

import { verdictText } from '../bench/chaos-sync/chaos-report.ts';
import { runChaos } from '../bench/chaos-sync/chaos-run.ts';
import { hasRadosgw } from '../bench/chaos-sync/store-under-test.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';

const model = mkdtempSync(join(tmpdir(), 'hone-chaos-model-'));
beforeAll(() => writeTinyModel(model));
afterAll(() => rmSync(model, { recursive: true, force: true }));

const runFolders = (): string[] => readdirSync(tmpdir()).filter((name) => /^hone-chaos-(?!model-)/u.test(name));

it(
  'keeps every invariant through kills of each kind of service, and leaves nothing',
  { timeout: 300_000 },
  async () => {
    const before = runFolders();
    const printed: string[] = [];
    const result = await runChaos({
      seed: 20,
      seconds: 20,
      store: hasRadosgw() ? 's3' : 'folder',
      model,
      clusters: [2, 1],
      routers: 1,
      streams: 4,
      maxTokens: 64,
      publishEveryMs: 700,
      faultEveryMs: 700,
      convergeWithinMs: 60_000,
      replays: 40,
      print: (line) => printed.push(line),
      signal: AbortSignal.timeout(280_000),
      environment: { PATH: process.env['PATH'] ?? '', HOME: process.env['HOME'] ?? '' },
    });
    expect(verdictText(result.breaches), printed.join('\n')).not.toContain('BROKEN');
    const killed = result.injected.flatMap(({ fault, done }) =>
      fault.kind === 'kill' && done !== undefined ? [fault.service] : [],
    );
    expect([...new Set(killed)].toSorted()).toEqual(['controller', 'publisher', 'replica', 'router']);
    expect(result.accepted).toBeGreaterThan(10);
    expect(result.replayed).toBeGreaterThan(10);
    expect(result.replayedVersions).toBeGreaterThan(1);
    expect(result.published).toBeGreaterThan(3);
    expect(runFolders()).toEqual(before);
  },
);

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, expect, test } from 'vitest';

import type { Generation } from '../../domain/policy.ts';
import { SideDataStore } from '../../sync/side-data.ts';
import { FileStore } from '../../sync/store/file-store.ts';
import { loadKeptSets } from '../replica-kept-sets.ts';
import { startReplicaServer } from '../replica-server.ts';
import { ServiceLog } from '../service/service-log.ts';
import { promptOf, samplingOf, startSmallPolicy } from '../small-replica.fixture.ts';
import { HttpTransport } from './http-transport.ts';
import { RemotePolicy } from './remote-policy.ts';
import type { LoadKeptSets } from './remote-policy.ts';

const closers: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

async function start() {
  const directory = mkdtempSync(join(tmpdir(), 'hone-kept-'));
  closers.push(() => rmSync(directory, { recursive: true, force: true }));
  const sideData = new SideDataStore(await FileStore.open(directory), { runId: 'run' });
  const engine = await startSmallPolicy({});
  closers.push(() => engine.close());
  const log = new ServiceLog({ path: undefined, service: 'replica', id: 'r', wallMs: () => 0 });
  let ids = 0;
  const server = await startReplicaServer({
    served: () => ({ model: '0'.repeat(16), weights: { version: 0, imageChecksum: '0'.repeat(32) } }),
    policy: engine,
    id: 'r',
    bootId: 'b',
    cluster: 'c',
    slots: 4,
    log,
    now: () => performance.now(),
    newRequestId: () => `made-${++ids}`,
    sideData: () => sideData,
  });
  closers.push(() => server.close({ drainMs: 0 }));
  server.serve();
  const remote = (load: LoadKeptSets): RemotePolicy => {
    const policy = new RemotePolicy(new HttpTransport({ routers: [server.url] }), {
      now: () => performance.now(),
      random: () => 0.5,
      newRequestId: () => `asked-${++ids}`,
      backoffMs: { first: 1, most: 2 },
      mostAttempts: 3,
      keptSets: { from: 'store', load },
    });
    closers.push(() => policy.close());
    return policy;
  };
  const load: LoadKeptSets = (key, options) => loadKeptSets(sideData, { key, ...options });
  return { engine, remote, load };
}

const asked = { tokens: promptOf(6), sampling: samplingOf(30), seed: 3 };

test('kept sets by the store are those of the engine, each position told once with its row', async () => {
  const { engine, remote, load } = await start();
  const told: [number, Int32Array][] = [];
  const reply = await remote(load).generate({ ...asked, onToken: (id, { kept }) => told.push([id, kept]) });
  expect(reply).toEqual(await engine.generate(asked));
  expect(told).toEqual(rowsOf(reply));
});

test('a reply whose rows cannot be read starts anew with the same seed, and nothing was told of it', async () => {
  const { engine, remote, load } = await start();
  const told: number[] = [];
  let loads = 0;
  const policy = remote((key, options) =>
    loads++ === 0 ? Promise.reject(new Error('the store is away')) : load(key, options),
  );
  const reply = await policy.generate({ ...asked, onToken: (id) => told.push(id) });
  expect(loads).toBe(2);
  expect(reply).toEqual(await engine.generate(asked));
  expect(told).toEqual([...reply.tokens]);
});

test('rows of other tokens, and a store that stays away, end in an error that says so; tries are bounded', async () => {
  const { remote, load } = await start();
  let loads = 0;
  const foreign = remote(async (key, options) => {
    loads += 1;
    const { ids, offsets } = await load(key, options);
    return { ids: ids.map((id) => id + 100_000), offsets };
  });
  await expect(foreign.generate(asked)).rejects.toThrow(/not in its stored kept set/u);
  expect(loads).toBe(3);
});

test('an abort while rows are read gives an empty reply, and nothing is told', async () => {
  const { remote } = await start();
  const stop = new AbortController();
  const told: number[] = [];
  const policy = remote(async (_key, { signal }) => {
    stop.abort();
    signal.throwIfAborted();
    throw new Error('no signal came');
  });
  const reply = await policy.generate({ ...asked, signal: stop.signal, onToken: (id) => told.push(id) });
  expect([reply.finish, reply.tokens.length, told.length]).toEqual(['abort', 0, 0]);
});

function rowsOf({ tokens, kept }: Generation): [number, Int32Array][] {
  return Array.from(tokens, (id, index) => [id, kept.ids.slice(kept.offsets[index], kept.offsets[index + 1])]);
}

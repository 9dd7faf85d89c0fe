/** Bytes that were changed on their way are noticed before anybody sees them, where nothing else would prove them. */
import { randomBytes } from 'node:crypto';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { createRandom } from '../../domain/ids.ts';
import { startFaultyRelay, type FaultyRelay } from './faulty-relay.fixture.ts';
import { openWeightStore } from './open-weight-store.ts';
import { locationOf, missingRadosgw, startRadosgw, type Radosgw } from './radosgw.fixture.ts';
import { bodyOf, readWhole } from './weight-store.ts';

describe.skipIf(missingRadosgw() !== undefined)('a download over a link that turns bits', () => {
  let server: Radosgw;
  let relay: FaultyRelay;
  beforeAll(async () => {
    server = await startRadosgw();
    relay = await startFaultyRelay({ target: server.endpoint, random: createRandom(3) });
  });
  afterAll(async () => {
    await relay.close();
    await server.stop();
  });

  it('gives out a small object only as it was stored, read whole or by its whole range', async () => {
    const bytes = randomBytes(20_000);
    const store = await openWeightStore(locationOf({ ...server, endpoint: relay.endpoint }, 'bits'), {
      environment: server.environment,
      retry: { baseMs: 1 },
    });
    await store.putObject('run/index', bodyOf(bytes));
    relay.setFaults({ flippedBody: 0.5 });
    for (let round = 0; round < 20; round++) {
      const range = round % 2 === 0 ? {} : { range: { start: 0, end: bytes.byteLength } };
      expect(Buffer.compare((await readWhole(store, 'run/index', range)) ?? Buffer.alloc(0), bytes)).toBe(0);
    }
    expect(relay.injected['flipped-body']).toBeGreaterThan(5);
    relay.setFaults({ flippedBody: 1 });
    await expect(readWhole(store, 'run/index')).rejects.toMatchObject({ code: 'checksum-mismatch' });
    relay.setFaults({});
  });
});

import { randomUUID } from 'node:crypto';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { missingRadosgw, startRadosgw, type Radosgw } from './radosgw.fixture.ts';
import { parseS3Location } from './s3-location.ts';
import { S3Store, type S3StoreOptions } from './s3-store.ts';
import { describeWeightStore } from './store-conformance.ts';

const missing = missingRadosgw();
if (missing !== undefined) process.stderr.write(`Tests of the S3 store are skipped: ${missing}.\n`);

const PART_BYTES = 5 << 20;

describe.skipIf(missing !== undefined)('over a real S3 server', () => {
  let server: Radosgw;
  beforeAll(async () => {
    server = await startRadosgw();
  });
  afterAll(() => server.stop());

  const openStore = (location = server.location(randomUUID()), options: Partial<S3StoreOptions> = {}): S3Store =>
    new S3Store(parseS3Location(location, {}), {
      environment: server.environment,
      parts: { partBytes: PART_BYTES, partsInFlight: 3 },
      pageSize: 3,
      ...options,
    });

  describeWeightStore(
    'an S3 bucket',
    async () => {
      const location = server.location(`run-${randomUUID()}`);
      const store = openStore(location);
      const other = openStore(location);
      return {
        store,
        other,
        [Symbol.asyncDispose]: async () => {
          for (const { key } of await store.list('')) await store.remove(key);
          for (const one of [store, other]) one[Symbol.dispose]();
        },
      };
    },
    { describe, expect, it },
  );
});

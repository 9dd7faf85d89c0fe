/**
 * A process of its own that runs each kind of job on a file tensor of 128 MiB and prints by how much its peak memory grew:
 * `node codec-memory.fixture.ts FOLDER`. The test beside it reads that.
 */
import { closeSync, ftruncateSync, openSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';

import type { BytePlace, TensorPlace } from '../tensor-place.ts';
import { CodecPool } from './codec-pool.ts';

const SIZE_BYTES = 2 ** 27;
const CHANGES = 20_000;

const folder = process.argv[2] ?? '.';
const made: string[] = [];

function makeFile(name: string, { sizeBytes, changes }: { sizeBytes: number; changes: number }): BytePlace {
  const path = join(folder, name);
  made.push(path);
  const file = openSync(path, 'w');
  ftruncateSync(file, sizeBytes);
  const stride = Math.floor(sizeBytes / Math.max(1, changes));
  for (let change = 0; change < changes; change++) writeSync(file, Buffer.of(1 + (change % 7)), 0, 1, change * stride);
  closeSync(file);
  return { kind: 'file', path, offset: 0, sizeBytes };
}

const tensor = (place: BytePlace & { kind: 'file' }): TensorPlace => ({
  dtype: 'BF16',
  shape: [place.sizeBytes / 2],
  place,
});

const peakBytes = (): number => process.resourceUsage().maxRSS * 1024;

async function runAll(pool: CodecPool, sizeBytes: number, report: (job: string) => void): Promise<void> {
  const old = tensor(makeFile('memory-old.bin', { sizeBytes, changes: 0 }) as BytePlace & { kind: 'file' });
  const next = tensor(makeFile('memory-next.bin', { sizeBytes, changes: CHANGES }) as BytePlace & { kind: 'file' });
  for (const encoding of ['sparse', 'xor', 'overwrite'] as const) {
    const { chunks, checksum } = await pool.encode({ name: 'large', encoding, old, next });
    report(`${encoding} encode`);
    const target = tensor(makeFile('memory-target.bin', { sizeBytes, changes: 0 }) as BytePlace & { kind: 'file' });
    const blob = { kind: 'memory', bytes: Buffer.concat(chunks) } as const;
    await pool.apply({ name: 'large', encoding, blob, from: target, to: target, checksum, checksumFormat: 'xxh3-128' });
    report(`${encoding} apply`);
  }
  await pool.copy({ name: 'large', from: next.place, to: old.place });
  report('copy');
}

const growths: { job: string; growthBytes: number }[] = [];
try {
  await using pool = await CodecPool.start({ threads: 2 });
  // A first round on little makes code and buffers come into being.
  await runAll(pool, 2 ** 24, () => undefined);
  const before = peakBytes();
  await runAll(pool, SIZE_BYTES, (job) => growths.push({ job, growthBytes: peakBytes() - before }));
} finally {
  for (const path of made) rmSync(path, { force: true });
}
console.log(JSON.stringify(growths));

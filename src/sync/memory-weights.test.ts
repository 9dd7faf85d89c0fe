import { afterAll, beforeAll, expect, it } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import { CodecPool } from './delta/codec-pool.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { MemoryWeights } from './memory-weights.ts';
import type { TensorPlaces } from './tensor-place.ts';
import { bytesOf, weightsOf } from './version-writer.fixture.ts';

let codec: TensorCodec;
beforeAll(async () => {
  codec = await CodecPool.start({ threads: 1 });
});
afterAll(() => codec.close());

const hold = (): Promise<MemoryWeights> =>
  MemoryWeights.copyOf(weightsOf(0), { runId: undefined, version: policyVersion(0) }, { codec });

async function write(weights: MemoryWeights, version: number, next: TensorPlaces, names: string[]): Promise<void> {
  const change = await weights.beginChange({ whole: false });
  const bytes = await bytesOf(next);
  for (const name of names) {
    const target = change.target(name);
    if (target.kind === 'memory') target.bytes.set(bytes.get(name) ?? []);
  }
  await change.finish({ runId: 'run', version: policyVersion(version), checksums: new Map() });
}

const buffersOf = (weights: MemoryWeights): Map<string, ArrayBufferLike | undefined> =>
  new Map(
    [...weights.tensors].map(([name, { place }]) => [name, place.kind === 'memory' ? place.bytes.buffer : undefined]),
  );

it('keeps the old version whole until the change is finished, or for good when it is abandoned', async () => {
  const weights = await hold();
  const change = await weights.beginChange({ whole: true });
  for (const name of weights.tensors.keys()) {
    const target = change.target(name);
    if (target.kind === 'memory') target.bytes.fill(9);
  }
  expect(await bytesOf(weights.tensors)).toEqual(await bytesOf(weightsOf(0)));
  await expect(weights.beginChange({ whole: true })).rejects.toMatchObject({ code: 'version-not-ready' });
  await change.abandon();
  expect(await bytesOf(weights.tensors)).toEqual(await bytesOf(weightsOf(0)));
  expect(() => change.target('model.norm.weight')).toThrow(/no tensor/);
  await write(weights, 1, weightsOf(1), [...weights.tensors.keys()]);
  expect(await bytesOf(weights.tensors)).toEqual(await bytesOf(weightsOf(1)));
  expect(weights.held.version).toBe(1);
});

it('lies in shared memory, uses two buffers a tensor for ever, and keeps that of a tensor that did not change', async () => {
  const weights = await hold();
  const names = [...weights.tensors.keys()];
  const first = buffersOf(weights);
  for (const buffer of first.values()) expect(buffer).toBeInstanceOf(SharedArrayBuffer);
  await write(weights, 1, weightsOf(1), names);
  const second = buffersOf(weights);
  for (const name of names) expect(second.get(name)).not.toBe(first.get(name));
  for (let version = 2; version <= 5; version++) {
    await write(weights, version, weightsOf(version), names);
    const expected = version % 2 === 0 ? first : second;
    for (const name of names) expect(buffersOf(weights).get(name)).toBe(expected.get(name));
  }
  const before = buffersOf(weights);
  await write(weights, 6, weightsOf(6), names.slice(1));
  expect(buffersOf(weights).get(names[0] ?? '')).toBe(before.get(names[0] ?? ''));
  const bytes = await bytesOf(weightsOf(6));
  bytes.set(names[0] ?? '', (await bytesOf(weightsOf(5))).get(names[0] ?? '') ?? Buffer.alloc(0));
  expect(await bytesOf(weights.tensors)).toEqual(bytes);
});

it('copies only what has the checksums that it is said to have', async () => {
  const { held } = await hold();
  const checksums = new Map(held.checksums).set('model.norm.weight', '0'.repeat(32));
  await expect(MemoryWeights.copyOf(weightsOf(0), { ...held, checksums }, { codec })).rejects.toMatchObject({
    code: 'checksum-mismatch',
    message: expect.stringContaining('model.norm.weight'),
  });
});

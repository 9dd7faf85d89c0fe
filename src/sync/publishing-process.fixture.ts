/**
 * A process that opens a publisher and publishes version after version, for tests that kill it. Arguments: store directory, salt,
 * and optionally the store call, counted from 1 after opening, before which it kills itself. Prints each published version.
 * The weights of a version follow from (salt, version), so that a test can tell whole versions from mixed ones.
 */
import { pathToFileURL } from 'node:url';

import { createRandom, policyVersion } from '../domain/ids.ts';
import { elementCount, type Dtype } from '../tensor/dtype.ts';
import { CodecPool } from './delta/codec-pool.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { FileStore } from './store/file-store.ts';
import { Publisher, type PublisherOptions } from './publisher.ts';
import { watchStore } from './store/watched-store.fixture.ts';
import type { TensorPlace, TensorPlaces } from './tensor-place.ts';

/** Widths of 1, 2 and 4 bytes. */
const TENSORS: readonly (readonly [name: string, dtype: Dtype, shape: readonly number[]])[] = [
  ['salt', 'BF16', [2]],
  ['model.layers.0.weight', 'BF16', [60, 50]],
  ['model.layers.1.weight', 'F8_E4M3', [50, 60]],
  ['model.norm.weight', 'F32', [101]],
];
const WIDTH: Readonly<Record<string, number>> = { BF16: 2, F8_E4M3: 1, F32: 4 };
export const TOTAL_ELEMENTS = TENSORS.reduce((sum, [, , shape]) => sum + (elementCount(shape) ?? 0), 0);
export const TOTAL_BYTES = 2 * 2 + 3000 * 2 + 3000 + 101 * 4;

/** All tensors of one version; `salt` itself is stored in the first. Salt 0, version 0 are the boot weights. */
export function weightsOf(salt: number, version: number): Map<string, TensorPlace> {
  const weights = new Map<string, TensorPlace>();
  for (const [name, dtype, shape] of TENSORS) {
    const random = createRandom(7);
    const bytes = Uint8Array.from({ length: (elementCount(shape) ?? 0) * (WIDTH[dtype] ?? 0) }, () =>
      random.below(256),
    );
    const changes = createRandom(salt * 100_003 + version);
    if (version > 0)
      for (let count = 0; count < bytes.length / 40; count++) bytes[changes.below(bytes.length)] = changes.below(256);
    if (name === 'salt') bytes.set([salt & 255, salt >> 8, version, 0]);
    weights.set(name, { dtype, shape, place: { kind: 'memory', bytes } });
  }
  return weights;
}

/** What a test compares: the bytes by name, in memory that is not shared. */
export function bytesOf(tensors: TensorPlaces): Map<string, Uint8Array> {
  return new Map(
    [...tensors].map(([name, { place }]) => [
      name,
      place.kind === 'memory' ? new Uint8Array(place.bytes) : new Uint8Array(),
    ]),
  );
}

export function publisherOptions(codec: TensorCodec): PublisherOptions {
  return {
    runId: 'run',
    bootVersion: policyVersion(0),
    bootWeights: weightsOf(0, 0),
    codec,
    anchorEvery: 4,
  };
}

async function main([root = '', salt = '', killBeforeCall = '']: readonly string[]): Promise<never> {
  let calls = -Infinity;
  const store = watchStore(await FileStore.open(root), ({ when }) => {
    if (when === 'before' && ++calls === Number(killBeforeCall)) process.kill(process.pid, 'SIGKILL');
  });
  const publisher = await Publisher.open(store, publisherOptions(await CodecPool.start({ threads: 1 })));
  process.stdout.write('open\n');
  if (killBeforeCall !== '') calls = 0;
  for (;;) {
    const { version } = await publisher.publish(weightsOf(Number(salt), publisher.version + 1));
    process.stdout.write(`${version}\n`);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main(process.argv.slice(2));

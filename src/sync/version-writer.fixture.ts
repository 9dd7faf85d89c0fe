/**
 * Versions written into a real store for tests of those who read them: any mix of deltas, anchors, encodings and attempts, with or
 * without moving the pointer. The tensors have elements of several widths, and what they hold follows from a number.
 */
import { open } from 'node:fs/promises';

import { createRandom, policyVersion } from '../domain/ids.ts';
import { writeModelFolder } from '../tensor/hugging-face-folder.ts';
import type { Dtype } from '../tensor/dtype.ts';
import type { DeltaEncoding, TensorCodec } from './delta/delta-codec.ts';
import { encodeVersion } from './encode-version.ts';
import { placeSizeBytes, type TensorPlace, type TensorPlaces } from './tensor-place.ts';
import { formatIdentity, LATEST_POINTER, type VersionIdentity } from './version-directory.ts';
import type { WeightStore } from './store/weight-store.ts';

const TENSORS: readonly (readonly [name: string, dtype: Dtype, shape: readonly number[], sizeBytes: number])[] = [
  ['model.embed_tokens.weight', 'BF16', [60, 50], 6000],
  ['model.layers.0.weight', 'F32', [40, 30], 4800],
  ['model.layers.1.weight', 'F8_E4M3', [35, 9], 315],
  ['model.norm.weight', 'BF16', [101], 202],
];
export const MODEL_BYTES = TENSORS.reduce((sum, [, , , sizeBytes]) => sum + sizeBytes, 0);

/** Seed 0 = the boot model. Every other seed changes some elements of every tensor, or of those that are named. */
export function weightsOf(seed: number, changed?: readonly string[]): Map<string, TensorPlace> {
  return new Map(
    TENSORS.map(([name, dtype, shape, sizeBytes]) => {
      const random = createRandom(11);
      const bytes = new Uint8Array(new SharedArrayBuffer(sizeBytes)).map(() => random.below(256));
      const changes = createRandom(seed);
      if (seed !== 0 && (changed === undefined || changed.includes(name)))
        for (let count = 0; count < 1 + sizeBytes / 50; count++)
          bytes[changes.below(sizeBytes)]! ^= 1 + changes.below(255);
      return [name, { dtype, shape, place: { kind: 'memory', bytes } }];
    }),
  );
}

export async function bytesOf(tensors: TensorPlaces): Promise<Map<string, Buffer>> {
  const found = new Map<string, Buffer>();
  for (const [name, { place }] of tensors) {
    const bytes = Buffer.alloc(placeSizeBytes(place));
    if (place.kind === 'memory') bytes.set(place.bytes);
    else {
      await using handle = await open(place.path, 'r');
      await handle.read(bytes, 0, bytes.byteLength, place.offset);
    }
    found.set(name, bytes);
  }
  return found;
}

/** A Hugging Face folder that holds the boot model. */
export async function writeBootModel(path: string, tensors: TensorPlaces = weightsOf(0)): Promise<string> {
  const bytes = await bytesOf(tensors);
  await writeModelFolder(path, {
    config: { model_type: 'test' },
    tokenizerJson: { version: '1.0' },
    tokenizerConfig: {},
    chatTemplate: 'Hello',
    tensors: new Map(
      [...tensors].map(([name, { dtype, shape }]) => [
        name,
        { dtype, shape, bytes: bytes.get(name) ?? Buffer.alloc(0) },
      ]),
    ),
  });
  return path;
}

export interface WriteOptions {
  readonly anchor?: boolean;
  readonly encoding?: DeltaEncoding;
  readonly attempt?: number;
  /** Whether readers get to see it; true by default. */
  readonly visible?: boolean;
  readonly shardBytes?: number;
}

export class VersionWriter {
  readonly #store: WeightStore;
  readonly #codec: TensorCodec;
  readonly #runId: string;
  #base: VersionIdentity;
  #tensors: TensorPlaces = weightsOf(0);
  /** The image checksum of every version that was written. */
  readonly checksums = new Map<number, string>();

  constructor(store: WeightStore, codec: TensorCodec, { runId = 'run', bootVersion = 0 } = {}) {
    this.#store = store;
    this.#codec = codec;
    this.#runId = runId;
    this.#base = { runId, version: policyVersion(bootVersion), attempt: 0 };
  }

  get version(): number {
    return this.#base.version;
  }

  get tensors(): TensorPlaces {
    return this.#tensors;
  }

  async write(next: TensorPlaces, options: WriteOptions = {}): Promise<VersionIdentity> {
    const { anchor = false, encoding = 'sparse', attempt = 0, visible = true, shardBytes = 5000 } = options;
    const identity = { runId: this.#runId, version: policyVersion(this.#base.version + 1), attempt };
    const encoded = await encodeVersion(this.#codec, {
      identity,
      next,
      previous: this.#tensors,
      base: anchor ? undefined : this.#base,
      encoding,
      shardBytes,
    });
    for (const { name, body } of encoded.files)
      await this.#store.putObject(`${formatIdentity(identity)}/${name}`, body);
    this.checksums.set(identity.version, encoded.imageChecksum);
    this.#base = identity;
    this.#tensors = next;
    if (visible) await this.point(formatIdentity(identity));
    return identity;
  }

  async point(text: string): Promise<void> {
    const pointer = await this.#store.readPointer(LATEST_POINTER);
    await this.#store.compareAndSwapPointer(LATEST_POINTER, pointer?.tag, text);
  }
}

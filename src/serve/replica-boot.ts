/**
 * The model folder that a replica starts from, as the engine serves it: every tensor of its config, in bf16. Tensors that already lie
 * so stay where they are; others are converted in memory. Invariant: the bytes are those that a trainer of the same folder publishes
 * its first delta against.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { parameterShapes, parseModelConfig } from '../model/config.ts';
import type { TensorCodec } from '../sync/delta/delta-codec.ts';
import { placeSizeBytes, type BytePlace, type TensorPlace, type TensorPlaces } from '../sync/tensor-place.ts';
import { float32ToBfloat16 } from '../tensor/dtype.ts';
import { checkTensors } from '../tensor/check-tensors.ts';
import { readModelPlaces, tensorToFloat32 } from '../tensor/hugging-face-folder.ts';

export interface BootModel {
  readonly path: string;
  readonly configJson: unknown;
  readonly tensors: TensorPlaces;
}

export async function openBootModel(path: string, codec: TensorCodec): Promise<BootModel> {
  const configJson = await readConfig(path);
  const shapes = parameterShapes(parseModelConfig(configJson));
  const places = await readModelPlaces(path);
  await checkFolder(places, shapes, codec);
  const tensors = new Map<string, TensorPlace>();
  for (const name of shapes.keys()) {
    const tensor = places.get(name);
    if (tensor === undefined) continue; // checkFolder has refused such a folder.
    if (tensor.dtype === 'BF16') tensors.set(name, tensor);
    else {
      const words = float32ToBfloat16(
        tensorToFloat32({ ...tensor, bytes: await loadPlace(codec, name, tensor.place) }),
      );
      const bytes = new Uint8Array(new SharedArrayBuffer(words.byteLength));
      bytes.set(new Uint8Array(words.buffer, words.byteOffset, words.byteLength));
      tensors.set(name, { dtype: 'BF16', shape: tensor.shape, place: { kind: 'memory', bytes } });
    }
  }
  return { path, configJson, tensors };
}

/** The bytes of all tensors in shared memory; with checksums, proven by them. */
export async function loadTensors(
  codec: TensorCodec,
  tensors: TensorPlaces,
  checksums?: ReadonlyMap<string, string>,
): Promise<Map<string, Uint8Array>> {
  const loaded = new Map<string, Uint8Array>();
  for (const [name, { place }] of tensors) loaded.set(name, await loadPlace(codec, name, place, checksums?.get(name)));
  return loaded;
}

async function loadPlace(
  codec: TensorCodec,
  name: string,
  from: BytePlace,
  checksum?: string,
): Promise<Uint8Array<SharedArrayBuffer>> {
  const bytes = new Uint8Array(new SharedArrayBuffer(placeSizeBytes(from)));
  await codec.copy({ name, from, to: { kind: 'memory', bytes }, ...(checksum === undefined ? {} : { checksum }) });
  return bytes;
}

/** The bytes of what the config does not name decide whether it is harmless. */
async function checkFolder(
  places: TensorPlaces,
  shapes: ReadonlyMap<string, readonly number[]>,
  codec: TensorCodec,
): Promise<void> {
  const hasExtra = [...places.keys()].some((name) => !shapes.has(name));
  const none = new Uint8Array(0);
  const tensors = new Map<string, { dtype: TensorPlace['dtype']; shape: readonly number[]; bytes: Uint8Array }>();
  for (const [name, { dtype, shape, place }] of places) {
    const isRead = hasExtra && (name === 'lm_head.weight' || name === 'model.embed_tokens.weight');
    tensors.set(name, { dtype, shape, bytes: isRead ? await loadPlace(codec, name, place) : none });
  }
  checkTensors(tensors, shapes);
}

async function readConfig(path: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(join(path, 'config.json'), 'utf8'));
  } catch (error) {
    throw new HoneError(
      'invalid-model',
      `${path} is no model folder: config.json cannot be read (${reasonOf(error)}).`,
      {
        cure: 'Name a folder in the Hugging Face layout.',
        cause: error,
      },
    );
  }
}

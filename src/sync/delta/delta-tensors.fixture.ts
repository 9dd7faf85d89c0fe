/** Pairs of tensors for the codec's tests: seeded old bytes, new ones that differ at a given density, in any kind of place. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { createRandom } from '../../domain/ids.ts';
import type { Dtype } from '../../tensor/dtype.ts';
import type { BytePlace, TensorPlace } from '../tensor-place.ts';

const DTYPE_OF_WIDTH: Readonly<Record<1 | 2 | 4 | 8, Dtype>> = { 1: 'U8', 2: 'BF16', 4: 'F32', 8: 'F64' };

export interface TensorCase {
  readonly width: 1 | 2 | 4 | 8;
  readonly elements: number;
  readonly density: number;
  /** `small`: a few low bits, as an optimizer's steps. `any`: all bits of an element. */
  readonly values: 'small' | 'any';
  readonly seed: number;
}

export function makePair({ width, elements, density, values, seed }: TensorCase): {
  old: Uint8Array;
  next: Uint8Array;
  changed: number;
} {
  const random = createRandom(seed);
  const old = new Uint8Array(elements * width);
  for (let index = 0; index < old.length; index++) old[index] = random.below(256);
  const next = old.slice();
  let changed = 0;
  for (let element = 0; element < elements; element++) {
    if (random.next() >= density) continue;
    changed++;
    const at = element * width;
    next[at]! ^= 1 + random.below(values === 'small' ? 3 : 255);
    if (values === 'any') for (let byte = 1; byte < width; byte++) next[at + byte] = random.below(256);
  }
  return { old, next, changed };
}

/** Kinds of places that bytes may lie in: shared memory, memory of this thread, a view into a larger buffer, a range of a file. */
export const HOMES = ['shared', 'own', 'view', 'file'] as const;
export type Home = (typeof HOMES)[number];

let files = 0;

export function putInto(home: Home, { bytes, folder }: { bytes: Uint8Array; folder: string }): BytePlace {
  switch (home) {
    case 'shared': {
      const shared = new Uint8Array(new SharedArrayBuffer(bytes.byteLength));
      shared.set(bytes);
      return { kind: 'memory', bytes: shared };
    }
    case 'own':
      return { kind: 'memory', bytes: bytes.slice() };
    case 'view': {
      const larger = new Uint8Array(bytes.byteLength + 13).fill(0xaa);
      larger.set(bytes, 7);
      return { kind: 'memory', bytes: larger.subarray(7, 7 + bytes.byteLength) };
    }
    case 'file': {
      const path = join(folder, `tensor-${files++}.bin`);
      writeFileSync(path, Buffer.concat([Buffer.alloc(5, 0xaa), bytes, Buffer.alloc(3, 0xaa)]));
      return { kind: 'file', path, offset: 5, sizeBytes: bytes.byteLength };
    }
    default:
      return home satisfies never;
  }
}

/** The bytes of a place; throws when something around them was touched. */
export function takeFrom(place: BytePlace): Buffer {
  if (place.kind === 'memory') {
    const whole = Buffer.from(place.bytes.buffer);
    const around = [
      ...whole.subarray(0, place.bytes.byteOffset),
      ...whole.subarray(place.bytes.byteOffset + place.bytes.byteLength),
    ];
    if (around.some((byte) => byte !== 0xaa)) throw new Error('bytes around the place changed');
    return Buffer.from(place.bytes);
  }
  const whole = readFileSync(place.path);
  const around = [...whole.subarray(0, place.offset), ...whole.subarray(place.offset + place.sizeBytes)];
  if (around.length !== 8 || around.some((byte) => byte !== 0xaa)) throw new Error('bytes around the place changed');
  return whole.subarray(place.offset, place.offset + place.sizeBytes);
}

export function tensorAt(
  place: BytePlace,
  { width, elements }: { width: 1 | 2 | 4 | 8; elements: number },
): TensorPlace {
  return { dtype: DTYPE_OF_WIDTH[width], shape: [elements], place };
}

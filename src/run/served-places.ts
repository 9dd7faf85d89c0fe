/**
 * The bf16 bytes that trainer and replica pass around, as the places that versions are made from, and back.
 * Invariant: nothing is copied on the way to a publisher, which takes its snapshot itself; what comes back is a copy, as a
 * publisher uses its memory again.
 */
import { HoneError } from '../domain/errors.ts';
import type { TensorPlace, TensorPlaces } from '../sync/tensor-place.ts';

export function servedPlaces(
  served: ReadonlyMap<string, Uint8Array>,
  shapes: ReadonlyMap<string, readonly number[]>,
): Map<string, TensorPlace> {
  return new Map(
    [...served].map(([name, bytes]) => [
      name,
      { dtype: 'BF16', shape: shapes.get(name) ?? [bytes.byteLength / 2], place: { kind: 'memory', bytes } },
    ]),
  );
}

export function servedBytes(places: TensorPlaces): Map<string, Uint8Array> {
  return new Map(
    [...places].map(([name, { place }]) => {
      if (place.kind === 'memory') return [name, new Uint8Array(place.bytes)];
      throw new HoneError('engine-failed', `Tensor ${name} lies in ${place.path}, the engine takes bytes in memory.`, {
        cure: 'Load the version into memory first.',
      });
    }),
  );
}

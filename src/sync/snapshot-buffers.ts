/**
 * The tensors of a version at one moment, in memory of their own: one parallel copy through the codec, after which their owner may
 * go on changing them. Owns the buffers, which serve again once their version is no longer the baseline.
 * Invariant: a snapshot has exactly the tensors of the run, each whole, with the checksum of what was copied.
 */
import { HoneError } from '../domain/errors.ts';
import { forEachBounded } from './bounded-work.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { placeSizeBytes, type TensorPlace, type TensorPlaces } from './tensor-place.ts';

/** Given at once, so that no thread of the codec waits for the next tensor. */
const COPIES_IN_FLIGHT = 32;

export interface Snapshot {
  readonly tensors: TensorPlaces;
  /** xxh3-128 of each tensor's bytes. */
  readonly checksums: ReadonlyMap<string, string>;
}

interface ExpectedTensor extends Pick<TensorPlace, 'dtype' | 'shape'> {
  readonly sizeBytes: number;
}

export class SnapshotBuffers {
  readonly #codec: TensorCodec;
  /** What every snapshot must look like. Without the places: their memory must not be held by it. */
  readonly #expected: ReadonlyMap<string, ExpectedTensor>;
  readonly #free: TensorPlaces[] = [];

  constructor(codec: TensorCodec, expected: TensorPlaces) {
    this.#codec = codec;
    this.#expected = new Map(
      [...expected].map(([name, { dtype, shape, place }]) => [
        name,
        { dtype, shape, sizeBytes: placeSizeBytes(place) },
      ]),
    );
  }

  /**
   * Copies all tensors. One that is given twice (by two stages of a pipeline) must be the same twice. Throws `delta-base-mismatch`
   * with every problem in one message; the buffers are then free again.
   */
  async take(given: Iterable<readonly [string, TensorPlace]>, signal: AbortSignal): Promise<Snapshot> {
    const first = new Map<string, TensorPlace>();
    const again: [string, TensorPlace][] = [];
    for (const [name, tensor] of given)
      if (first.has(name)) again.push([name, tensor]);
      else first.set(name, tensor);
    this.#check(first, again);
    const tensors = this.#free.pop() ?? allocate(this.#expected);
    try {
      const checksums = new Map<string, string>();
      const bounds = { limit: COPIES_IN_FLIGHT, signal };
      await forEachBounded(first, bounds, async ([name, { place }], ending) => {
        const to = tensors.get(name)?.place;
        if (to !== undefined) checksums.set(name, await this.#codec.copy({ name, from: place, to }, ending));
      });
      const different = new Set<string>();
      await forEachBounded(again, bounds, async ([name, { place }], ending) => {
        if ((await this.#codec.checksum(place, { signal: ending })) !== checksums.get(name)) different.add(name);
      });
      if (different.size > 0)
        throw mismatch([...different].map((name) => `${name} was given twice with different bytes`));
      return { tensors, checksums };
    } catch (error) {
      this.#free.push(tensors);
      throw error;
    }
  }

  /** The snapshot is no longer in use; its buffers may serve the next one. */
  giveBack({ tensors }: Snapshot): void {
    this.#free.push(tensors);
  }

  #check(first: TensorPlaces, again: readonly (readonly [string, TensorPlace])[]): void {
    const problems: string[] = [];
    for (const name of this.#expected.keys()) if (!first.has(name)) problems.push(`${name} is missing`);
    for (const [name, { dtype, shape, place }] of [...first, ...again]) {
      const expected = this.#expected.get(name);
      if (expected === undefined) problems.push(`${name} is new`);
      else if (expected.dtype !== dtype || expected.shape.join() !== shape.join())
        problems.push(
          `${name} is ${describe(dtype, shape)}, the run has it as ${describe(expected.dtype, expected.shape)}`,
        );
      else if (expected.sizeBytes !== placeSizeBytes(place))
        problems.push(
          `${name} has ${placeSizeBytes(place)} bytes, ${describe(dtype, shape)} takes ${expected.sizeBytes}`,
        );
    }
    if (problems.length > 0) throw mismatch([...new Set(problems)]);
  }
}

function allocate(expected: ReadonlyMap<string, ExpectedTensor>): TensorPlaces {
  return new Map(
    [...expected].map(([name, { dtype, shape, sizeBytes }]) => [
      name,
      { dtype, shape, place: { kind: 'memory', bytes: new Uint8Array(new SharedArrayBuffer(sizeBytes)) } },
    ]),
  );
}

function describe(dtype: string, shape: readonly number[]): string {
  return `${dtype} [${shape.join(', ')}]`;
}

function mismatch(problems: readonly string[]): HoneError {
  return new HoneError(
    'delta-base-mismatch',
    `The tensors to publish are not those of the run: ${problems.join('; ')}.`,
    { cure: 'Publish every tensor of the model that the run booted from, once and in the same type and shape.' },
  );
}

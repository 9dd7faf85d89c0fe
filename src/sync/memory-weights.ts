/**
 * LocalWeights in memory that threads share. A change is written beside the old bytes, and taken over tensor by tensor when it is
 * finished. Invariants: until then the old version is whole; buffers of the version before last are written to again, so that in
 * the long run nothing is allocated; a tensor that did not change keeps its buffer.
 */
import { HoneError } from '../domain/errors.ts';
import { throwIfAborted } from './deadline.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import type { HeldVersion, LocalWeights, WeightChange } from './local-weights.ts';
import { forEachBounded } from './bounded-work.ts';
import { placeSizeBytes, type TensorPlace, type TensorPlaces } from './tensor-place.ts';

const TENSORS_IN_FLIGHT = 8;

export interface CopyOptions {
  /** Copies on its threads and checks every tensor against `held`. Without one the bytes are taken as they are, from memory only. */
  readonly codec?: TensorCodec;
  readonly signal?: AbortSignal;
}

export class MemoryWeights implements LocalWeights {
  readonly #tensors: Map<string, TensorPlace>;
  /** A buffer of the right size that nobody reads any more. */
  readonly #spare = new Map<string, Uint8Array>();
  #held: HeldVersion;
  #isChanging = false;

  private constructor(tensors: Map<string, TensorPlace>, held: HeldVersion) {
    this.#tensors = tensors;
    this.#held = held;
  }

  /** A copy of these tensors in shared memory. Checksums that are not given are taken from the bytes, which needs a codec. */
  static async copyOf(
    places: TensorPlaces,
    held: Omit<HeldVersion, 'checksums'> & Partial<HeldVersion>,
    options: CopyOptions = {},
  ): Promise<MemoryWeights> {
    const { codec, signal } = options;
    const known = held.checksums;
    const checksums = new Map(known);
    const tensors = new Map<string, TensorPlace>();
    for (const [name, { dtype, shape, place }] of places)
      tensors.set(name, { dtype, shape, place: { kind: 'memory', bytes: sharedBytes(placeSizeBytes(place)) } });
    await forEachBounded(places, { limit: TENSORS_IN_FLIGHT, signal }, async ([name, { place }], workSignal) => {
      const to = tensors.get(name)?.place;
      if (to?.kind !== 'memory') return; // Made above.
      const checksum = known?.get(name);
      if (codec !== undefined)
        checksums.set(
          name,
          await codec.copy({ name, from: place, to, ...(checksum === undefined ? {} : { checksum }) }, workSignal),
        );
      else if (place.kind === 'memory' && checksum !== undefined) to.bytes.set(place.bytes);
      else
        throw new HoneError('invalid-config', `Tensor ${name} can neither be read from a file nor hashed.`, {
          cure: 'Pass a codec.',
        });
    });
    return new MemoryWeights(tensors, { runId: held.runId, version: held.version, checksums });
  }

  get held(): HeldVersion {
    return this.#held;
  }

  get tensors(): TensorPlaces {
    return this.#tensors;
  }

  // The port lets adapters wait here, so this one answers with a promise, too.
  async beginChange({ signal }: { readonly whole: boolean; readonly signal?: AbortSignal }): Promise<WeightChange> {
    throwIfAborted(signal);
    if (this.#isChanging)
      throw new HoneError('version-not-ready', `Version ${this.#held.version} is being changed already.`, {
        cure: 'Await each change before the next.',
      });
    this.#isChanging = true;
    const written = new Map<string, Uint8Array>();
    let isOpen = true;
    const end = (): void => {
      if (!isOpen) throw new HoneError('store-failed', 'This change of the weights has ended.');
      isOpen = false;
      this.#isChanging = false;
    };
    return {
      target: (name) => {
        const tensor = this.#tensors.get(name);
        if (tensor === undefined || !isOpen)
          throw new HoneError('delta-base-mismatch', `The weights in memory have no tensor ${name} to change.`);
        let bytes = written.get(name) ?? this.#spare.get(name);
        bytes ??= sharedBytes(placeSizeBytes(tensor.place));
        this.#spare.delete(name);
        written.set(name, bytes);
        return { kind: 'memory', bytes };
      },
      finish: async (next) => {
        end();
        for (const [name, bytes] of written) {
          const tensor = this.#tensors.get(name);
          if (tensor?.place.kind !== 'memory') continue; // All places here are.
          this.#spare.set(name, tensor.place.bytes);
          this.#tensors.set(name, { ...tensor, place: { kind: 'memory', bytes } });
        }
        this.#held = next;
        await Promise.resolve();
      },
      abandon: async () => {
        end();
        for (const [name, bytes] of written) this.#spare.set(name, bytes);
        await Promise.resolve();
      },
    };
  }

  /** Nothing to release: the memory goes with the object. */
  close(): Promise<void> {
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

function sharedBytes(sizeBytes: number): Uint8Array {
  return new Uint8Array(new SharedArrayBuffer(sizeBytes));
}

/**
 * What lies in a replica's staging area: hands over the tensors whose bytes differ from what is there, one at a time and proven by
 * their checksum. Invariant: a tensor whose hand-over broke off counts as unknown and is handed over again before any commit.
 */
import { HoneError } from '../domain/errors.ts';
import { Deadline } from './deadline.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { placeSizeBytes, type TensorPlaces } from './tensor-place.ts';

export interface StagingReplica {
  /**
   * Takes the bytes of one tensor without disturbing what is served; may be called again with newer bytes. They lie in shared
   * memory, are only read, and may be written to again once the call has ended.
   */
  stage(name: string, bytes: Uint8Array): Promise<void> | void;
}

export interface StageCosts {
  readonly stagedTensors: number;
  readonly stagedBytes: number;
  readonly stageMs: number;
}

export interface StagedTensorsOptions {
  /** Brings tensors that lie in files into memory. */
  readonly codec: TensorCodec;
  /** Longest time for one tensor. */
  readonly stageMs: number;
  readonly now: () => number;
}

export interface StageRequest {
  /** Checksums of the bytes that are to be served. */
  readonly wanted: ReadonlyMap<string, string>;
  /** Checksums of those that are served. */
  readonly served: ReadonlyMap<string, string>;
  readonly signal: AbortSignal | undefined;
}

export class StagedTensors {
  readonly #replica: StagingReplica;
  readonly #options: StagedTensorsOptions;
  /** Checksum of each tensor in the staging area; undefined where a hand-over broke off. */
  readonly #checksums = new Map<string, string | undefined>();
  /** Memory for the tensors that lie in files, used for one after the other. */
  #buffer: Uint8Array | undefined;

  constructor(replica: StagingReplica, options: StagedTensorsOptions) {
    this.#replica = replica;
    this.#options = options;
  }

  /** After a commit: the staging area is empty, and everything in it is served. */
  clear(): void {
    this.#checksums.clear();
  }

  async stage(tensors: TensorPlaces, { wanted, served, signal }: StageRequest): Promise<StageCosts> {
    const startedMs = this.#options.now();
    let stagedTensors = 0;
    let stagedBytes = 0;
    for (const [name, { place }] of tensors) {
      const checksum = wanted.get(name);
      const there = this.#checksums.has(name) ? this.#checksums.get(name) : served.get(name);
      if (checksum === undefined || there === checksum) continue;
      const { stageMs } = this.#options;
      using deadline = new Deadline({
        signal,
        limitMs: stageMs,
        expired: () =>
          new HoneError('engine-failed', `The replica did not take tensor ${name} within ${stageMs / 1000} s.`, {
            cure: 'It is handed over again at the next poll; a replica that never takes it must be replaced.',
          }),
      });
      const sizeBytes = placeSizeBytes(place);
      let bytes: Uint8Array;
      if (place.kind === 'memory') ({ bytes } = place);
      else {
        bytes = this.#memory(sizeBytes);
        await this.#options.codec.copy({ name, from: place, to: { kind: 'memory', bytes }, checksum }, deadline.signal);
      }
      this.#checksums.set(name, undefined);
      try {
        await deadline.race(Promise.resolve(this.#replica.stage(name, bytes)));
      } catch (error) {
        // The replica may read on from that memory, so it is never written to again.
        this.#buffer = undefined;
        throw error;
      }
      this.#checksums.set(name, checksum);
      stagedTensors += 1;
      stagedBytes += sizeBytes;
    }
    return { stagedTensors, stagedBytes, stageMs: this.#options.now() - startedMs };
  }

  #memory(sizeBytes: number): Uint8Array {
    if (this.#buffer === undefined || this.#buffer.byteLength < sizeBytes)
      this.#buffer = new Uint8Array(new SharedArrayBuffer(sizeBytes));
    return this.#buffer.subarray(0, sizeBytes);
  }
}

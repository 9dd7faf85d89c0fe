/**
 * The bytes that each version has, worked out from the boot weights and the publishers' seeds alone. Where two publishers raced, what
 * the logs say they published tells which of them made a version; a version whose publisher died before it could say so is the one
 * whose checksum replicas report. Invariant: nothing is read from the store or from a replica's disk.
 */
import { xxh3 } from '@node-rs/xxhash';

import { numberIn, textIn, type LogLine } from '../../examples/three-clusters/event-log.ts';
import type { PolicyVersion } from '../../src/domain/ids.ts';
import { imageChecksum } from '../../src/sync/image-checksum.ts';
import { perturbedWeights } from './perturbed-weights.ts';

export interface VersionTruthOptions {
  readonly boot: ReadonlyMap<string, Uint8Array>;
  /** Of every publisher that ran. */
  readonly seeds: readonly number[];
  readonly share: number;
  /** Versions whose bytes are wanted afterwards; others are let go. */
  readonly keep: ReadonlySet<number>;
}

export class VersionTruth {
  readonly checksums = new Map<number, ReadonlySet<string>>();
  readonly #keep: ReadonlySet<number>;
  readonly #weights = new Map<number, ReadonlyMap<string, Uint8Array>>();

  /** Works out all versions up to the newest one that the lines name. */
  constructor(lines: readonly LogLine[], { boot, seeds, share, keep }: VersionTruthOptions) {
    this.#keep = keep;
    const claimed = new Map<number, Set<string>>();
    const published = new Map<number, Set<string>>();
    for (const line of lines) {
      const version = numberIn(line, 'version');
      const checksum = textIn(line, 'imageChecksum');
      if (version === undefined || checksum === undefined) continue;
      add(claimed, version, checksum);
      if (line.event === 'weights-published') add(published, version, checksum);
    }
    let current: ReadonlyMap<string, Uint8Array> = boot;
    this.#add(0, boot, [checksumOfAll(boot)]);
    for (let version = 1; version <= Math.max(0, ...claimed.keys()); version++) {
      const candidates = seeds.map((seed) => {
        const weights = perturbedWeights(current, { seed, version, share });
        return { weights, checksum: checksumOfAll(weights) };
      });
      const said = published.get(version) ?? claimed.get(version);
      const winner = candidates.find(({ checksum }) => said?.has(checksum) === true) ?? candidates[0];
      if (winner === undefined) return;
      // The winner's bytes alone are true; with nobody's word for it any candidate may be.
      const isKnown = said?.has(winner.checksum) === true;
      this.#add(version, winner.weights, isKnown ? [winner.checksum] : candidates.map(({ checksum }) => checksum));
      current = winner.weights;
    }
  }

  weightsOf(version: PolicyVersion): ReadonlyMap<string, Uint8Array> {
    const weights = this.#weights.get(version);
    if (weights === undefined) throw new Error(`version ${version} was claimed by nobody, or not to be kept`);
    return weights;
  }

  #add(version: number, weights: ReadonlyMap<string, Uint8Array>, checksums: readonly string[]): void {
    if (this.#keep.has(version)) this.#weights.set(version, weights);
    this.checksums.set(version, new Set(checksums));
  }
}

function checksumOfAll(weights: ReadonlyMap<string, Uint8Array>): string {
  return imageChecksum(
    new Map([...weights].map(([name, bytes]) => [name, xxh3.xxh128(bytes).toString(16).padStart(32, '0')])),
  );
}

function add(map: Map<number, Set<string>>, key: number, value: string): void {
  const values = map.get(key);
  if (values === undefined) map.set(key, new Set([value]));
  else values.add(value);
}

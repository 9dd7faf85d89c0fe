/**
 * Where a run's versions go: its store, in the run folder or shared with clusters elsewhere, and the publisher over it. It owns
 * what surrounds a publication: telling whoever fetches, and pruning. Invariant: neither can fail a step that is published; what
 * went wrong with them is an event of the run.
 */
import { request } from 'undici';

import type { RunConfig } from './config.ts';
import type { LoadedModel } from './load-model.ts';
import type { RunEvent } from './run-folder.ts';
import { servedPlaces } from './served-places.ts';
import { HoneError, reasonOf } from '../domain/errors.ts';
import { policyVersion } from '../domain/ids.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { TensorCodec } from '../sync/delta/delta-codec.ts';
import { CodecPool } from '../sync/delta/codec-pool.ts';
import { imageChecksum } from '../sync/image-checksum.ts';
import { prune } from '../sync/prune.ts';
import { Publisher } from '../sync/publisher.ts';
import type { PublisherEvent, PublishReport } from '../sync/publisher.ts';
import { FileStore } from '../sync/store/file-store.ts';
import { openWeightStore } from '../sync/store/open-weight-store.ts';
import type { WeightStore } from '../sync/store/weight-store.ts';
import type { TensorPlaces } from '../sync/tensor-place.ts';
import { formatIdentity } from '../sync/version-directory.ts';

/** Values of the process's environment: credentials of a store, the fleet's token. */
export type Environment = Readonly<Record<string, string | undefined>>;

export interface PublishedWeightsOptions {
  readonly config: Pick<RunConfig, 'name' | 'weights' | 'engine'>;
  /** `weights/` of the run folder: the store where none is named. */
  readonly ownFolder: string;
  readonly model: LoadedModel;
  readonly environment: Environment;
  /** Monotone milliseconds. */
  readonly now: () => number;
  /** Milliseconds since 1970, against which leases in the store are read. */
  readonly wallClock: () => number;
  readonly onEvent: (event: RunEvent) => void;
  readonly signal: AbortSignal;
}

const PRUNE_DEADLINE_MS = 60_000;

export class PublishedWeights {
  readonly store: WeightStore;
  readonly codec: TensorCodec;
  readonly #publisher: Publisher;
  readonly #options: PublishedWeightsOptions;
  readonly #imageChecksums = new Map<number, string>();

  private constructor(
    parts: { store: WeightStore; codec: TensorCodec; publisher: Publisher },
    options: PublishedWeightsOptions,
  ) {
    this.store = parts.store;
    this.codec = parts.codec;
    this.#publisher = parts.publisher;
    this.#options = options;
    this.#imageChecksums.set(this.version, imageChecksum(this.#publisher.checksums));
  }

  /** Takes over where the store's pointer is. Throws `pointer-conflict` when the store belongs to another run. */
  static async open(options: PublishedWeightsOptions): Promise<PublishedWeights> {
    const { config, ownFolder, model, environment, now, onEvent, signal } = options;
    const { store: location, encoding, anchorEvery, wake, fork } = config.weights;
    const store =
      location === undefined ? await FileStore.open(ownFolder) : await openWeightStore(location, { environment });
    const codec = await CodecPool.start({ threads: config.engine.threads });
    try {
      const publisher = await Publisher.open(store, {
        runId: config.name,
        bootVersion: policyVersion(0),
        bootWeights: servedPlaces(model.served, model.shapes),
        codec,
        encoding,
        anchorEvery,
        ...(fork ? { fork: {} } : {}),
        now,
        wake: (_identity, wakeSignal) => wakeAll(wake, { token: environment['HONE_TOKEN'], signal: wakeSignal }),
        onEvent: (event) => onEvent(runEvent(event)),
        signal,
      });
      return new PublishedWeights({ store, codec, publisher }, options);
    } catch (error) {
      await codec.close();
      throw error;
    }
  }

  /** Newest version that is known to be visible. */
  get version(): PolicyVersion {
    return this.#publisher.version;
  }

  /** Of a version that this process published or went on from; undefined for others. */
  imageChecksumOf(version: number): string | undefined {
    return this.#imageChecksums.get(version);
  }

  /** The bytes of that version; good until the next one is published. */
  get tensors(): TensorPlaces {
    return this.#publisher.tensors;
  }

  /** Publishes the bf16 bytes of all tensors as the next version, then prunes what the config does not keep. */
  async publish(served: ReadonlyMap<string, Uint8Array>): Promise<PublishReport> {
    const report = await this.#publisher.publish(servedPlaces(served, this.#options.model.shapes));
    this.#imageChecksums.set(report.version, report.imageChecksum);
    await this.#prune();
    return report;
  }

  async close(): Promise<void> {
    await this.#publisher.close();
    await this.codec.close();
  }

  async #prune(): Promise<void> {
    const { config, onEvent, wallClock } = this.#options;
    const { keep } = config.weights;
    if (keep === undefined) return;
    try {
      await prune(this.store, { keep, nowMs: wallClock(), signal: AbortSignal.timeout(PRUNE_DEADLINE_MS) });
    } catch (error) {
      onEvent({ event: 'prune-failed', version: this.version, reason: reasonOf(error) });
    }
  }
}

/** Of a publication what does not depend on the clock; its times are in the step's measurements. */
function runEvent(published: PublisherEvent): RunEvent {
  if (published.type !== 'weights-published') {
    const { type, ...fields } = published;
    return { event: type, ...fields };
  }
  const { type, identity, version, bytes, anchor, imageChecksum } = published;
  return { event: type, version, directory: formatIdentity(identity), bytes, anchor, imageChecksum };
}

/** Every URL is tried; one that does not answer polls by itself. Rejects with those that failed. */
async function wakeAll(
  urls: readonly string[],
  { token, signal }: { token: string | undefined; signal: AbortSignal },
): Promise<void> {
  const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
  const failed = await Promise.all(
    urls.map(async (url) => {
      try {
        const { statusCode, body } = await request(new URL('/wake', url), { method: 'POST', headers, signal });
        await body.dump();
        return statusCode < 300 ? undefined : `${url} answered ${statusCode}`;
      } catch (error) {
        return `${url}: ${reasonOf(error)}`;
      }
    }),
  );
  const reasons = failed.filter((reason) => reason !== undefined);
  if (reasons.length > 0) throw new HoneError('store-unavailable', reasons.join('; '));
}

/**
 * A process that publishes version after version of a model, as a trainer does, without training: weights of a version follow from the
 * boot weights and its seed (perturbed-weights). Takes over where the pointer is, so it may be killed at any moment and started again.
 * Arguments: one JSON object (`PublishingOptions`). Ends by itself when another publisher won a version that it wanted.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

import { HoneError, reasonOf } from '../../src/domain/errors.ts';
import { policyVersion } from '../../src/domain/ids.ts';
import { ServiceLog } from '../../src/serve/service/service-log.ts';
import { CodecPool } from '../../src/sync/delta/codec-pool.ts';
import { Publisher } from '../../src/sync/publisher.ts';
import { openWeightStore } from '../../src/sync/store/open-weight-store.ts';
import type { TensorPlaces } from '../../src/sync/tensor-place.ts';
import { readModelFolder } from '../../src/tensor/hugging-face-folder.ts';
import { perturbedWeights } from './perturbed-weights.ts';
import { checksumOfAll } from './version-truth.ts';

export interface PublishingOptions {
  readonly id: string;
  readonly store: string;
  readonly model: string;
  readonly runId: string;
  readonly seed: number;
  readonly share: number;
  readonly everyMs: number;
  readonly anchorEvery: number;
  readonly events: string;
  /** Default: until it is told to end. */
  readonly versions?: number;
}

async function main(options: PublishingOptions): Promise<void> {
  const stop = new AbortController();
  process.once('SIGTERM', () => stop.abort());
  process.once('SIGINT', () => stop.abort());
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href)
  // Written by whoever starts this process, from the same type.
  await main(JSON.parse(process.argv[2] ?? '{}') as PublishingOptions);

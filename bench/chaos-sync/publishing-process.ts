/**
 * A process that publishes version after version of a model, as a trainer does, without training: weights of a version follow from the
 * boot weights and its seed (perturbed-weights). Takes over where the pointer is, so it may be killed at any moment and started again.
 * Arguments: one JSON object (`PublishingOptions`). Ends by itself when another publisher won a version that it wanted.
 */
import { existsSync } from 'node:fs';
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
  /** Control URLs of those who are told of each version at once. */
  readonly wake?: readonly string[];
  /** Default: until it is told to end. */
  readonly versions?: number;
  /** Publishes only while this file is there. */
  readonly gate?: string;
}

/** Codes of what may work at the next try. */
const PASSES: ReadonlySet<string> = new Set(['store-unavailable', 'store-failed', 'checksum-mismatch']);
const RETRY_MS = 200;
const GATE_EVERY_MS = 50;

async function main(options: PublishingOptions): Promise<void> {
  const { id, model, runId, seed, share, everyMs, anchorEvery, versions = Number.POSITIVE_INFINITY } = options;
  const stop = new AbortController();
  const { signal } = stop;
  process.once('SIGTERM', () => stop.abort());
  process.once('SIGINT', () => stop.abort());
  const log = new ServiceLog({ path: options.events, service: 'publisher', id, wallMs: () => Date.now() });
  const { tensors } = await readModelFolder(model);
  const boot: TensorPlaces = new Map(
    [...tensors].map(([name, { dtype, shape, bytes }]) => [
      name,
      { dtype, shape, place: { kind: 'memory', bytes: new Uint8Array(bytes) } },
    ]),
  );
  await using codec = await CodecPool.start({ threads: 1 });
  // A store that is away for a while is no reason to end: whoever trains would wait as well.
  const opened = await untilItWorks(
    signal,
    (error) => log.append({ event: 'publisher-waits', reason: reasonOf(error) }),
    async () => {
      const store = await openWeightStore(options.store, { environment: process.env });
      const publisher = await Publisher.open(store, {
        runId,
        bootVersion: policyVersion(0),
        bootWeights: boot,
        codec,
        anchorEvery,
        wallMs: () => Date.now(),
        wake: (_identity, ending) => wakeAll(options.wake ?? [], ending),
        deadlineMs: 30_000,
        signal,
        onEvent: ({ type, ...event }) => log.append({ event: type, ...event }),
      });
      return publisher;
    },
  );
  if (opened === undefined) return;
  await using publisher = opened;
  process.stdout.write(`${JSON.stringify({ service: 'publisher', id, version: publisher.version })}\n`);
  for (let count = 0; count < versions && !signal.aborted; count++) {
    while (options.gate !== undefined && !existsSync(options.gate) && !signal.aborted)
      await sleep(GATE_EVERY_MS, undefined, { signal }).catch(() => undefined);
    if (signal.aborted) break;
    const startedMs = performance.now();
    const version = publisher.version + 1;
    const next = perturbedWeights(bytesOf(publisher.tensors), { seed, version, share });
    const places = new Map(
      [...publisher.tensors].map(([name, { dtype, shape }]) => [
        name,
        { dtype, shape, place: { kind: 'memory' as const, bytes: next.get(name) ?? new Uint8Array() } },
      ]),
    );
    // The same bytes again: a publish that failed left the baseline where it was, or finds out that it did not fail.
    const done = await untilItWorks(
      signal,
      (error) => log.append({ event: 'publish-failed', version, reason: reasonOf(error) }),
      async () => {
        if (publisher.version >= version) return true;
        await publisher.publish(places, { signal });
        return true;
      },
    );
    if (done === undefined) break;
    const leftMs = everyMs - (performance.now() - startedMs);
    if (leftMs > 0) await sleep(leftMs, undefined, { signal }).catch(() => undefined);
  }
  log.close();
}

/** Tries again after what passes; undefined = told to end. What does not pass, such as another publisher's win, is thrown. */
async function untilItWorks<T>(
  signal: AbortSignal,
  onFailure: (error: unknown) => void,
  attempt: () => Promise<T>,
): Promise<T | undefined> {
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      if (signal.aborted) return undefined;
      onFailure(error);
      if (!(error instanceof HoneError) || !PASSES.has(error.code)) throw error;
      await sleep(RETRY_MS, undefined, { signal }).catch(() => undefined);
    }
  }
}

/** Best effort: who does not hear of it polls. */
async function wakeAll(urls: readonly string[], signal: AbortSignal): Promise<void> {
  const headers = { authorization: `Bearer ${process.env['HONE_TOKEN'] ?? ''}` };
  await Promise.all(urls.map((url) => fetch(`${url}/wake`, { method: 'POST', headers, signal })));
}

function bytesOf(tensors: TensorPlaces): Map<string, Uint8Array> {
  return new Map(
    [...tensors].map(([name, { place }]) => {
      if (place.kind !== 'memory') throw new Error(`${name} is not in memory`);
      return [name, place.bytes];
    }),
  );
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href)
  // Written by whoever starts this process, from the same type.
  await main(JSON.parse(process.argv[2] ?? '{}') as PublishingOptions);

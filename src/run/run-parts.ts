/**
 * The parts of one run, wired: trainer restored to the newest checkpoint, publisher and replica at its version, buffer
 * open. Invariant: a checkpoint whose version was not published is published here, so that both are at the same step.
 */
import { join } from 'node:path';

import type { RunConfig } from './config.ts';
import type { LoadedModel } from './load-model.ts';
import { openPolicyStack } from './policy-stack.ts';
import type { PolicyStack } from './policy-stack.ts';
import { PublishedWeights } from './published-weights.ts';
import type { Environment } from './published-weights.ts';
import type { RunFolder } from './run-folder.ts';
import type { RunInputs, RunObserver } from './run-inputs.ts';
import { EmbeddedSource, RoutedSource } from './sampling-source.ts';
import type { SamplingSource } from './sampling-source.ts';
import { servedBytes } from './served-places.ts';
import { synchronise } from './synchronise.ts';
import { HoneError } from '../domain/errors.ts';
import { modelFingerprint } from '../model/model-fingerprint.ts';
import { RolloutBuffer } from '../rollout/buffer.ts';
import { loadKeptSets } from '../serve/replica-kept-sets.ts';
import { MemoryWeights } from '../sync/memory-weights.ts';
import { ReplicaReconciler } from '../sync/reconciler.ts';
import { SideDataStore } from '../sync/side-data.ts';
import { EmbeddedTrainer } from '../train/embedded-trainer.ts';

export interface RunParts extends RunInputs {
  readonly folder: RunFolder;
  readonly observer: RunObserver;
  readonly now: () => number;
  /** The step that the run goes on from; 0 = a new run. */
  readonly checkpoint: number;
  readonly stack: PolicyStack;
  readonly trainer: EmbeddedTrainer;
  readonly published: PublishedWeights;
  /** Brings who samples to the version just published; resolves with the milliseconds that sampling stood still, if it did here. */
  readonly follow: () => Promise<number | undefined>;
  readonly buffer: RolloutBuffer;
  close(): Promise<void>;
}

export interface RunPartsOptions {
  readonly folder: RunFolder;
  readonly inputs: RunInputs;
  readonly observer: RunObserver;
  readonly now: () => number;
  /** Milliseconds since 1970, against which leases in the store are read. */
  readonly wallClock: () => number;
  /** Uniform in [0, 1): the jitter of waits. No bit of the run depends on it. */
  readonly random: () => number;
  /** Names of requests to routers. */
  readonly newRequestId: () => string;
  readonly environment: Environment;
  readonly stop: AbortSignal;
}

export async function openRunParts(options: RunPartsOptions): Promise<RunParts> {
  const { folder, inputs, observer, now, wallClock, environment, stop } = options;
  const { config } = folder;
  const { model, training, heldout } = inputs;
  const closers: (() => Promise<void> | void)[] = [];
  const close = async (): Promise<void> => {
    await Promise.allSettled(closers.map(async (closer) => closer()));
  };
  try {
    const trainer = await EmbeddedTrainer.start({
      configJson: model.folder.config,
      weights: model.weights,
      build: config.engine.build,
      threads: config.engine.threads,
      microBatchTokens: config.engine.microBatchTokens,
      objective: {
        importanceCap: config.algorithm.importanceCap,
        entropyCoefficient: config.algorithm.entropyCoefficient,
      },
      optimizer: config.algorithm,
      replayKeptSets: config.replay.keptSets,
    });
    closers.push(() => trainer.close());
    const checkpoint = folder.checkpoints().at(-1) ?? 0;
    if (checkpoint > 0) await trainer.restore(folder.checkpointPath(checkpoint));
    const published = await PublishedWeights.open({
      config,
      ownFolder: folder.weightsPath,
      model,
      environment,
      now,
      wallClock,
      onEvent: (event) => folder.append(event),
      signal: stop,
    });
    closers.push(() => published.close());
    if (published.version > checkpoint)
      throw new HoneError(
        'run-config-changed',
        `${published.store.location} holds version ${published.version} of ${config.name}, but the newest checkpoint in ${folder.path} is of step ${checkpoint}.`,
        { cure: 'Put the missing checkpoint back, or start a run under another --name from the published weights.' },
      );
    // Killed between checkpoint and publication: the version is published now.
    if (published.version < checkpoint) await published.publish(await trainer.served());
    const { source, follow } = await openSampling({ ...options, config, model, published });
    closers.push(() => source.close());
    const stack = await openPolicyStack({ model, source, config, corpora: [training, heldout], now });
    closers.push(() => stack.close());
    const buffer = RolloutBuffer.open(folder.bufferPath);
    closers.push(() => buffer.close());
    return { ...inputs, folder, observer, now, checkpoint, stack, trainer, published, follow, buffer, close };
  } catch (error) {
    await close();
    throw error;
  }
}

interface SamplingOptions extends RunPartsOptions {
  readonly config: RunConfig;
  readonly model: LoadedModel;
  readonly published: PublishedWeights;
}

/** Replicas behind the routers that the config names, else one in this process that follows the store. */
async function openSampling(options: SamplingOptions): Promise<{
  source: SamplingSource;
  follow: () => Promise<number | undefined>;
}> {
  const { config, folder, model, published, environment, now, random, newRequestId, stop } = options;
  const { version } = published;
  if (config.serve.routers.length > 0) {
    const sideData = new SideDataStore(published.store, { runId: config.name });
    const source = await RoutedSource.connect({
      routers: config.serve.routers,
      deadlineSeconds: config.serve.deadlineSeconds,
      loadKeptSets:
        config.serve.keptSets === 'inline' ? undefined : (key, rest) => loadKeptSets(sideData, { key, ...rest }),
      token: environment['HONE_TOKEN'],
      version,
      contextLength: model.config.contextLength,
      model: modelFingerprint(model.config),
      imageChecksumOf: (wanted) => published.imageChecksumOf(wanted),
      now,
      random,
      newRequestId,
      signal: stop,
      onWaiting: (reason) => options.observer.note(`  waiting for a replica, two minutes at most: ${reason}`),
      onResumed: (event) => folder.append({ ...event }),
    });
    return {
      source,
      follow: async () => {
        source.advanceTo(published.version);
        return undefined;
      },
    };
  }
  const source = await EmbeddedSource.start({
    configJson: model.folder.config,
    served: servedBytes(published.tensors),
    version,
    build: config.engine.build,
    threads: config.engine.threads,
    slots: config.engine.slots,
  });
  const { codec, store } = published;
  const held = { runId: version === 0 ? undefined : config.name, version };
  const reconciler = new ReplicaReconciler(store, source.policy, {
    codec,
    weights: await MemoryWeights.copyOf(published.tensors, held, { codec }),
    // Of no use to a store of files, whose objects are read in place.
    cacheDirectory: join(folder.path, 'fetched'),
    runId: config.name,
    now,
  });
  return {
    source,
    follow: () =>
      synchronise({
        reconciler,
        published: published.version,
        served: () => source.version,
        onRetry: (retry) => folder.append({ event: 'sync-retry', ...retry }),
      }),
  };
}

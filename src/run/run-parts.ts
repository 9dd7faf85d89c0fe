/**
 * The parts of one run, wired: trainer restored to the newest checkpoint, publisher and replica at its version, buffer
 * open. Invariant: a checkpoint whose version was not published is published here, so that both are at the same step.
 */
import { join } from 'node:path';

import { openPolicyStack } from './policy-stack.ts';
import type { PolicyStack } from './policy-stack.ts';
import type { RunFolder } from './run-folder.ts';
import type { RunInputs, RunObserver } from './run-inputs.ts';
import { servedBytes, servedPlaces } from './served-places.ts';
import { HoneError } from '../domain/errors.ts';
import { policyVersion } from '../domain/ids.ts';
import { RolloutBuffer } from '../rollout/buffer.ts';
import { CodecPool } from '../sync/delta/codec-pool.ts';
import { MemoryWeights } from '../sync/memory-weights.ts';
import { FileStore } from '../sync/store/file-store.ts';
import { Publisher } from '../sync/publisher.ts';
import { ReplicaReconciler } from '../sync/reconciler.ts';
import { EmbeddedTrainer } from '../train/embedded-trainer.ts';

export interface RunParts extends RunInputs {
  readonly folder: RunFolder;
  readonly observer: RunObserver;
  readonly now: () => number;
  /** The step that the run goes on from; 0 = a new run. */
  readonly checkpoint: number;
  readonly stack: PolicyStack;
  readonly trainer: EmbeddedTrainer;
  readonly publisher: Publisher;
  readonly reconciler: ReplicaReconciler;
  readonly buffer: RolloutBuffer;
  close(): Promise<void>;
}

export async function openRunParts({
  folder,
  inputs,
  observer,
  now,
}: {
  folder: RunFolder;
  inputs: RunInputs;
  observer: RunObserver;
  now: () => number;
}): Promise<RunParts> {
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
    const store = await FileStore.open(folder.weightsPath);
    const codec = await CodecPool.start({ threads: config.engine.threads });
    closers.push(() => codec.close());
    const publisher = await Publisher.open(store, {
      runId: config.name,
      bootVersion: policyVersion(0),
      bootWeights: servedPlaces(model.served, model.shapes),
      codec,
      encoding: 'sparse',
      anchorEvery: config.weights.anchorEvery,
      now,
    });
    closers.push(() => publisher.close());
    if (publisher.version > checkpoint)
      throw new HoneError(
        'run-config-changed',
        `${folder.path} has published version ${publisher.version} but its newest checkpoint is of step ${checkpoint}.`,
        { cure: 'Put the missing checkpoint back, or start a new run from the published weights.' },
      );
    // Killed between checkpoint and publication: the version is published now.
    if (publisher.version < checkpoint) await publisher.publish(servedPlaces(await trainer.served(), model.shapes));
    const served = servedBytes(publisher.tensors);
    const stack = await openPolicyStack({
      model,
      served,
      version: publisher.version,
      config,
      corpora: [training, heldout],
      now,
    });
    closers.push(() => stack.close());
    const isBoot = publisher.version === 0;
    const weights = await MemoryWeights.copyOf(
      publisher.tensors,
      { runId: isBoot ? undefined : config.name, version: publisher.version },
      { codec },
    );
    const reconciler = new ReplicaReconciler(store, stack.policy, {
      codec,
      weights,
      cacheDirectory: join(folder.weightsPath, '.fetched'), // Of no use to a store of files, whose objects are read in place.
      runId: config.name,
      now,
    });
    const buffer = RolloutBuffer.open(folder.bufferPath);
    closers.push(() => buffer.close());
    return { ...inputs, folder, observer, now, checkpoint, stack, trainer, publisher, reconciler, buffer, close };
  } catch (error) {
    await close();
    throw error;
  }
}

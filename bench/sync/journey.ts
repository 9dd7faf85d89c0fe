/**
 * One version's whole way on this machine: published by one side, through a store, into an engine that samples all the while. The
 * model is a transformer of real shape with meaningless weights; its steps change one element in a hundred. Then the same replica
 * is loaded anew, from its folder, to see what a commit saves.
 */
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { policyVersion } from '../../src/domain/ids.ts';
import { DEFAULT_SAMPLING } from '../../src/domain/policy.ts';
import { initialWeights, parameterShapes, parseModelConfig } from '../../src/model/config.ts';
import { EmbeddedPolicy } from '../../src/serve/embedded-policy.ts';
import { loadTensors } from '../../src/serve/replica-boot.ts';
import { CodecPool } from '../../src/sync/delta/codec-pool.ts';
import { FolderWeights } from '../../src/sync/folder-weights.ts';
import { Publisher } from '../../src/sync/publisher.ts';
import { ReplicaReconciler } from '../../src/sync/reconciler.ts';
import type { CommittedWeights } from '../../src/sync/reconciler-report.ts';
import { openWeightStore } from '../../src/sync/store/open-weight-store.ts';
import { float32ToBfloat16 } from '../../src/tensor/dtype.ts';
import { readModelPlaces } from '../../src/tensor/hugging-face-folder.ts';
import { writeSafetensors } from '../../src/tensor/safetensors.ts';
import { hasRadosgw, openStoreUnderTest } from '../chaos-sync/store-under-test.ts';
import { placesOf, stepSyntheticModel, type SyntheticModel, type SyntheticTensor } from '../synthetic-model.ts';

const CONFIG = {
  model_type: 'qwen3',
  architectures: ['Qwen3ForCausalLM'],
  hidden_size: 768,
  intermediate_size: 2048,
  num_hidden_layers: 8,
  num_attention_heads: 12,
  num_key_value_heads: 4,
  head_dim: 64,
  vocab_size: 16_384,
  max_position_embeddings: 2048,
  rms_norm_eps: 1e-6,
  rope_theta: 10_000,
  tie_word_embeddings: true,
  eos_token_id: 1,
};
const STREAMS = 4;
const RELOADS = 3;

export interface Journey {
  readonly store: string;
  readonly sizeBytes: number;
  readonly deltas: readonly {
    readonly wireBytes: number;
    readonly snapshotMs: number;
    readonly encodeMs: number;
    readonly uploadMs: number;
    readonly committed: CommittedWeights;
  }[];
  /** From the folder on disk to an engine that serves, best of a few, nothing else at work. */
  readonly reloadMs: number;
  /** Tokens that were drawn while versions came. */
  readonly sampledTokens: number;
}

export async function measureJourney({ versions, density }: { versions: number; density: number }): Promise<Journey> {
  const folder = await mkdtemp(join(tmpdir(), 'hone-journey-'));
  await using stack = new AsyncDisposableStack();
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  const served = stack.use(
    await openStoreUnderTest(folder, { store: hasRadosgw() ? 's3' : 'folder', isRelayed: false }),
  );
  const store = await openWeightStore(served.location, { environment: served.environment });
  const codec = stack.use(await CodecPool.start({ threads: 2 }));
  const model = decoder();
  const bootModel = join(folder, 'boot');
  await mkdir(bootModel);
  await writeFile(join(bootModel, 'config.json'), JSON.stringify(CONFIG));
  await writeSafetensors(
    join(bootModel, 'model.safetensors'),
    new Map(
      model.tensors.map(({ name, shape, offset, sizeBytes }) => [
        name,
        { dtype: 'BF16', shape, bytes: new Uint8Array(model.bytes.subarray(offset, offset + sizeBytes)) },
      ]),
    ),
  );
  const bootTensors = await readModelPlaces(bootModel);
  const publisher = stack.use(
    await Publisher.open(store, {
      runId: 'journey',
      bootVersion: policyVersion(0),
      bootWeights: bootTensors,
      codec,
      anchorEvery: versions + 2,
      wallMs: Date.now,
    }),
  );
  const weights = stack.use(await FolderWeights.open(join(folder, 'replica'), { bootModel, bootTensors, codec }));
  const start = async (): Promise<EmbeddedPolicy> =>
    EmbeddedPolicy.start({
      configJson: CONFIG,
      served: await loadTensors(codec, weights.tensors),
      version: weights.held?.version ?? policyVersion(0),
      build: 'auto',
      threads: 1,
      slots: STREAMS,
    });
  let policy = await start();
  const reconciler = new ReplicaReconciler(store, policy, {
    codec,
    weights,
    cacheDirectory: join(folder, 'fetched'),
    runId: 'journey',
  });
  // The first version is an anchor: every tensor travels. It brings the replica onto the run and is not counted.
  await publisher.publish(placesOf(model, model.bytes));
  await reconciler.poll();
  const stop = new AbortController();
  const streams = Array.from({ length: STREAMS }, (_, stream) => sampleOn(policy, { stream, signal: stop.signal }));
  const deltas: Journey['deltas'][number][] = [];
  let current = model.bytes;
  for (let version = 0; version < versions; version++) {
    const into = new Uint8Array(new SharedArrayBuffer(model.sizeBytes));
    stepSyntheticModel({ ...model, bytes: current }, { density, seed: version + 2, into });
    const { bytes: wireBytes, snapshotMs, encodeMs, uploadMs } = await publisher.publish(placesOf(model, into));
    const result = await reconciler.poll();
    if (result.kind !== 'committed') throw new Error(`version ${publisher.version} was not committed: ${result.kind}`);
    deltas.push({ wireBytes, snapshotMs, encodeMs, uploadMs, committed: result });
    current = into;
  }
  stop.abort();
  await Promise.all(streams);
  const { sampledTokens } = await policy.stats();
  await policy.close();
  let reloadMs = Infinity;
  for (let round = 0; round < RELOADS; round++) {
    const started = performance.now();
    policy = await start();
    reloadMs = Math.min(reloadMs, performance.now() - started);
    await policy.close();
  }
  return { store: served.description, sizeBytes: model.sizeBytes, deltas, reloadMs, sampledTokens };
}

function decoder(): SyntheticModel {
  const shapes = parameterShapes(parseModelConfig(CONFIG));
  const tensors: SyntheticTensor[] = [];
  let offset = 0;
  for (const [name, shape] of shapes) {
    const sizeBytes = 2 * shape.reduce((product, extent) => product * extent, 1);
    tensors.push({ name, shape, offset, sizeBytes });
    offset += sizeBytes;
  }
  const bytes = new Uint8Array(new SharedArrayBuffer(offset));
  const initial = initialWeights(parseModelConfig(CONFIG), 1);
  for (const { name, offset: at, sizeBytes } of tensors) {
    const words = float32ToBfloat16(initial.get(name) ?? new Float32Array(sizeBytes / 2));
    bytes.set(new Uint8Array(words.buffer, words.byteOffset, sizeBytes), at);
  }
  return { tensors, sizeBytes: offset, bytes };
}

/** Replies one after the other until the signal ends it. */
async function sampleOn(
  policy: EmbeddedPolicy,
  { stream, signal }: { stream: number; signal: AbortSignal },
): Promise<void> {
  for (let seed = stream; !signal.aborted; seed += STREAMS)
    await policy.generate({
      tokens: Int32Array.from({ length: 32 }, (_, place) => 2 + ((place * 31 + seed) % 1000)),
      sampling: { ...DEFAULT_SAMPLING, topK: 40, maxTokens: 256, stopIds: [] },
      seed,
      signal,
    });
}

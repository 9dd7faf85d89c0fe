import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync, truncateSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, expect, test } from 'vitest';

import { EmbeddedTrainer } from './embedded-trainer.ts';
import type { TrainSample } from './trainer.ts';
import { createRandom, policyVersion, rolloutId } from '../domain/ids.ts';
import type { Segment } from '../domain/rollout.ts';
import { initialWeights, parseModelConfig } from '../model/config.ts';

const VOCABULARY = 40;
const configJson = {
  architectures: ['Qwen3ForCausalLM'],
  model_type: 'qwen3',
  hidden_size: 16,
  intermediate_size: 24,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  head_dim: 8,
  rms_norm_eps: 1e-6,
  rope_theta: 10_000,
  max_position_embeddings: 128,
  vocab_size: VOCABULARY,
  tie_word_embeddings: false,
  eos_token_id: 0,
};
const directory = mkdtempSync(join(tmpdir(), 'hone-trainer-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

function start(threads = 1, learningRate = 0.01): Promise<EmbeddedTrainer> {
  return EmbeddedTrainer.start({
    configJson,
    weights: initialWeights(parseModelConfig(configJson), 5),
    build: 'plain',
    threads,
    microBatchTokens: 32,
    objective: { importanceCap: 2, entropyCoefficient: 0.01 },
    optimizer: {
      learningRate,
      warmupSteps: 0,
      learningRateDecay: null,
      beta1: 0.9,
      beta2: 0.98,
      epsilon: 1e-8,
      weightDecay: 0,
      clipNorm: 1,
    },
    replayKeptSets: true,
  });
}

/** Rollouts whose recorded log-probabilities are plausible, not those of the model. */
function batch(step: number): { step: number; samples: TrainSample[] } {
  const random = createRandom(step);
  const samples = Array.from({ length: 6 }, (_, index): TrainSample => {
    const length = 8 + random.below(12);
    const tokens = Int32Array.from({ length }, () => random.below(VOCABULARY));
    const sampled = (t: number): boolean => t >= 4 && t % 3 !== 0;
    const rows = Array.from({ length }, (__, t) =>
      sampled(t)
        ? [...new Set([tokens[t] ?? 0, random.below(VOCABULARY), random.below(VOCABULARY)])].sort((a, b) => a - b)
        : [],
    );
    const offsets = new Int32Array(length + 1);
    for (const [t, row] of rows.entries()) offsets[t + 1] = (offsets[t] ?? 0) + row.length;
    const segment: Segment = {
      tokens,
      trained: Uint8Array.from({ length }, (__, t) => (sampled(t) ? 1 : 0)),
      logprobs: Float32Array.from({ length }, (__, t) => (sampled(t) ? -random.next() : 0)),
      kept: { ids: Int32Array.from(rows.flat()), offsets },
      versions: [{ version: policyVersion(step - 1), start: 4, end: length }],
      temperature: 1,
    };
    return { rolloutId: rolloutId(`r${index}`), advantage: index % 2 === 0 ? 0.5 : -0.5, segments: [segment] };
  });
  return { step, samples };
}

async function hashOf(trainer: EmbeddedTrainer): Promise<string> {
  const hash = createHash('sha256');
  for (const [name, bytes] of [...(await trainer.served())].sort(([a], [b]) => (a < b ? -1 : 1)))
    hash.update(name).update(bytes);
  return hash.digest('hex');
}

test('a restored trainer takes the very step that the uninterrupted one takes, on any number of threads', async () => {
  const path = join(directory, 'step.safetensors');
  const straight = await start();
  await straight.step(batch(1));
  await straight.save(path);
  const before = await hashOf(straight);
  const report = await straight.step(batch(2));
  const after = await hashOf(straight);
  expect(report).toMatchObject({ applied: true, step: 2, sequences: 6, learningRate: 0.01 });
  expect(after).not.toBe(before);
  await straight.close();

  const resumed = await start(2);
  await resumed.restore(path);
  expect(resumed.version).toBe(1);
  expect(await hashOf(resumed)).toBe(before);
  expect({ ...(await resumed.step(batch(2))), computeMs: 0 }).toEqual({ ...report, computeMs: 0 });
  expect(await hashOf(resumed)).toBe(after);
  await resumed.close();
});

test('the order in which rollouts arrive does not show in the weights', async () => {
  const [one, other] = await Promise.all([start(), start()]);
  await one.step(batch(1));
  const shuffled = batch(1);
  shuffled.samples.reverse();
  await other.step(shuffled);
  expect(await hashOf(one)).toBe(await hashOf(other));
  await Promise.all([one.close(), other.close()]);
});

test('a step out of turn and a cut checkpoint are refused, and the trainer lives on', async () => {
  const trainer = await start();
  await expect(trainer.step(batch(3))).rejects.toThrow(/Step 3 was asked of a trainer at version 0/u);
  const path = join(directory, 'cut.safetensors');
  await trainer.save(path);
  truncateSync(path, 2000);
  await expect(trainer.restore(path)).rejects.toMatchObject({ code: 'invalid-safetensors' });
  expect(await trainer.step(batch(1))).toMatchObject({ applied: true });
  await trainer.close();
});

test('what is scored at one place is that place, whatever else is asked there', async () => {
  const trainer = await start();
  const tokens = Int32Array.of(1, 2, 3, 4, 5);
  const everything = Int32Array.from({ length: VOCABULARY }, (_, index) => index);
  const rows = (count: number): { ids: Int32Array; offsets: Int32Array } => ({
    ids: Int32Array.from({ length: count * VOCABULARY }, (_, index) => index % VOCABULARY),
    offsets: Int32Array.from({ length: count + 1 }, (_, index) => index * VOCABULARY),
  });
  const [row] = await trainer.score([
    { tokens, positions: new Int32Array(VOCABULARY).fill(3), targets: everything, kept: rows(VOCABULARY) },
  ]);
  const mass = [...(row ?? [])].reduce((sum, value) => sum + Math.exp(value), 0);
  expect(mass).toBeCloseTo(1, 5);
  const [pair] = await trainer.score([
    { tokens, positions: Int32Array.of(2, 3), targets: Int32Array.of(7, 4), kept: rows(2) },
  ]);
  expect(pair?.[1]).toBe(row?.[4]);
  const [narrow] = await trainer.score([
    {
      tokens,
      positions: Int32Array.of(3, 3),
      targets: Int32Array.of(4, 7),
      kept: { ids: Int32Array.of(4, 7, 4, 7), offsets: Int32Array.of(0, 2, 4) },
    },
  ]);
  expect(Math.exp(narrow?.[0] ?? 0) + Math.exp(narrow?.[1] ?? 0)).toBeCloseTo(1, 6);
  await trainer.close();
});

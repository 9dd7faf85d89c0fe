import { expect, test } from 'vitest';

import type { ModelConfig } from './config.ts';
import { modelFingerprint } from './model-fingerprint.ts';

const config: ModelConfig = {
  architecture: 'qwen3',
  hiddenSize: 64,
  intermediateSize: 128,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  headDim: 16,
  vocabSize: 256,
  contextLength: 512,
  rmsNormEpsilon: 1e-6,
  ropeTheta: 10_000,
  ropeScaling: undefined,
  qkNorm: true,
  qkvBias: false,
  tiedEmbeddings: true,
  eosTokenIds: [1],
};

test('a fingerprint tells models apart by what they compute, not by how far or to what end they sample', () => {
  const fingerprint = modelFingerprint(config);
  expect(fingerprint).toMatch(/^[0-9a-f]{16}$/);
  expect(modelFingerprint({ ...config, contextLength: 1024, eosTokenIds: [2, 3] })).toBe(fingerprint);
  expect(modelFingerprint(Object.fromEntries(Object.entries(config).toReversed()) as unknown as ModelConfig)).toBe(
    fingerprint,
  );
  for (const changed of [{ layers: 3 }, { ropeTheta: 1e6 }, { qkNorm: false }, { architecture: 'llama' as const }])
    expect(modelFingerprint({ ...config, ...changed })).not.toBe(fingerprint);
});

/** A transformer of about 20k parameters with fresh weights, and requests to it, for the tests of replicas. */
import { policyVersion } from '../domain/ids.ts';
import { DEFAULT_SAMPLING, type Sampling } from '../domain/policy.ts';
import { initialWeights, parameterShapes, parseModelConfig } from '../model/config.ts';
import type { TensorPlace } from '../sync/tensor-place.ts';
import { float32ToBfloat16 } from '../tensor/dtype.ts';
import { EmbeddedPolicy, type EmbeddedPolicyOptions } from './embedded-policy.ts';

export const SMALL_CONFIG = {
  model_type: 'qwen3',
  hidden_size: 32,
  intermediate_size: 64,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  head_dim: 16,
  vocab_size: 96,
  max_position_embeddings: 4096,
  rms_norm_eps: 1e-6,
  rope_theta: 10000,
  tie_word_embeddings: true,
  eos_token_id: 1,
};

/** The same with a vocabulary whose kept sets fill the buffers of a socket. */
export const WIDE_CONFIG = { ...SMALL_CONFIG, vocab_size: 8192 };

/** bf16 bytes by name; another seed is another model of the same shapes. */
export function smallWeights(seed: number, config: object = SMALL_CONFIG): Map<string, Uint8Array> {
  return new Map(
    [...initialWeights(parseModelConfig(config), seed)].map(([name, values]) => [
      name,
      new Uint8Array(
        float32ToBfloat16(values.map((value) => (name.endsWith('norm.weight') ? value : value * 8))).buffer,
      ),
    ]),
  );
}

export function placesOf(weights: ReadonlyMap<string, Uint8Array>): Map<string, TensorPlace> {
  const shapes = parameterShapes(parseModelConfig(SMALL_CONFIG));
  return new Map(
    [...weights].map(([name, bytes]) => [
      name,
      { dtype: 'BF16', shape: shapes.get(name) ?? [], place: { kind: 'memory', bytes } },
    ]),
  );
}

export function startSmallPolicy(options: Partial<EmbeddedPolicyOptions> = {}): Promise<EmbeddedPolicy> {
  return EmbeddedPolicy.start({
    configJson: SMALL_CONFIG,
    served: smallWeights(1),
    version: policyVersion(0),
    build: 'plain',
    threads: 1,
    slots: 4,
    ...options,
  });
}

export function samplingOf(maxTokens: number, options: Partial<Sampling> = {}): Sampling {
  return { ...DEFAULT_SAMPLING, topK: 40, maxTokens, stopIds: [], ...options };
}

export function promptOf(length: number, salt = 0): Int32Array {
  return Int32Array.from({ length }, (_, place) => 2 + ((place * 7 + salt * 13) % 90));
}

import { createHash } from 'node:crypto';

import { describe, expect, it } from 'vitest';

import { initialWeights, parameterShapes, parseModelConfig } from './config.ts';

const QWEN3 = {
  model_type: 'qwen3',
  hidden_size: 1024,
  intermediate_size: 3072,
  num_hidden_layers: 28,
  num_attention_heads: 16,
  num_key_value_heads: 8,
  head_dim: 128,
  vocab_size: 151936,
  max_position_embeddings: 40960,
  rms_norm_eps: 1e-6,
  rope_theta: 1000000,
  rope_scaling: null,
  tie_word_embeddings: true,
  hidden_act: 'silu',
  attention_bias: false,
  use_sliding_window: false,
  eos_token_id: 151645,
};
const LLAMA3 = {
  ...QWEN3,
  model_type: 'llama',
  head_dim: undefined,
  tie_word_embeddings: false,
  rope_scaling: {
    rope_type: 'llama3',
    factor: 32,
    low_freq_factor: 1,
    high_freq_factor: 4,
    original_max_position_embeddings: 8192,
  },
  eos_token_id: [128001, 128009],
};

describe('config.json', () => {
  it('of Qwen3, Qwen2 and Llama 3 says what sets them apart', () => {
    expect(parseModelConfig(QWEN3)).toMatchObject({
      qkNorm: true,
      qkvBias: false,
      tiedEmbeddings: true,
      headDim: 128,
      ropeScaling: undefined,
      eosTokenIds: [151645],
    });
    expect(parseModelConfig({ ...QWEN3, model_type: 'qwen2', head_dim: undefined })).toMatchObject({
      qkNorm: false,
      qkvBias: true,
      headDim: 64,
    });
    expect(parseModelConfig(LLAMA3)).toMatchObject({
      qkNorm: false,
      qkvBias: false,
      headDim: 64,
      ropeScaling: { factor: 32, originalContextLength: 8192 },
      eosTokenIds: [128001, 128009],
    });
    expect(
      parseModelConfig({ ...QWEN3, rope_theta: undefined, rope_parameters: { rope_type: 'default', rope_theta: 5000 } })
        .ropeTheta,
    ).toBe(5000);
  });

  it.each([
    [{ model_type: 'gpt2' }, /model_type = "gpt2"/],
    [{ hidden_size: undefined }, /hidden_size = nothing/],
    [{ hidden_size: 100 }, /hidden_size = 100; expected a multiple of 8/],
    [{ head_dim: 12 }, /head_dim = 12; expected a multiple of 8/],
    [{ num_key_value_heads: 3 }, /num_key_value_heads = 3; expected a divisor/],
    [{ hidden_act: 'gelu' }, /hidden_act = "gelu"/],
    [{ attention_bias: true }, /attention_bias = true/],
    [{ use_sliding_window: true }, /use_sliding_window = true/],
    [{ rope_scaling: { type: 'yarn', factor: 4 } }, /rope_scaling = \{"type":"yarn","factor":4\}/],
    [{ layer_types: ['full_attention', 'sliding_attention'] }, /layer_types\.1 = "sliding_attention"/],
  ])('with %j is refused by key and value', (change, message) => {
    expect(() => parseModelConfig({ ...QWEN3, ...change })).toThrow(message);
  });

  it('that is no object is refused', () => {
    expect(() => parseModelConfig(null)).toThrow(/the root = null/);
  });
});

describe('tensors', () => {
  it('have the names and shapes of Hugging Face', () => {
    const shapes = parameterShapes(parseModelConfig(QWEN3));
    expect(shapes.get('model.embed_tokens.weight')).toEqual([151936, 1024]);
    expect(shapes.get('model.layers.27.self_attn.q_proj.weight')).toEqual([2048, 1024]);
    expect(shapes.get('model.layers.0.self_attn.k_norm.weight')).toEqual([128]);
    expect(shapes.has('lm_head.weight')).toBe(false);
    expect(shapes.size).toBe(1 + 28 * 11 + 1);
    expect(parameterShapes(parseModelConfig(LLAMA3)).get('lm_head.weight')).toEqual([151936, 1024]);
    expect(
      parameterShapes(parseModelConfig({ ...QWEN3, model_type: 'qwen2' })).get('model.layers.0.self_attn.v_proj.bias'),
    ).toEqual([1024]);
  });

  it('start from the same bits everywhere, with the spread asked for', () => {
    const config = {
      ...parseModelConfig(QWEN3),
      hiddenSize: 64,
      vocabSize: 100,
      layers: 2,
      intermediateSize: 64,
      heads: 2,
      kvHeads: 1,
      headDim: 32,
    };
    const weights = initialWeights(config, 7);
    const hash = createHash('sha256');
    for (const values of weights.values()) hash.update(new Uint8Array(values.buffer));
    expect(hash.digest('hex').slice(0, 16)).toBe('6d4fb172658e2b67');
    const deviation = (name: string): number => {
      const values = weights.get(name) ?? new Float32Array(1);
      return Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length);
    };
    expect(deviation('model.embed_tokens.weight')).toBeCloseTo(0.02, 3);
    expect(deviation('model.layers.0.mlp.down_proj.weight')).toBeCloseTo(0.01, 3);
    expect(deviation('model.norm.weight')).toBe(1);
  });
});

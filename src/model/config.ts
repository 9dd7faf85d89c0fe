/**
 * What a decoder of the Qwen3 / Qwen2 / Llama family is: sizes read from a Hugging Face config.json, the names and
 * shapes of its tensors, and fresh weights from a seed. Anything that the engine does not compute is refused by name.
 */
import { z } from 'zod';

import { HoneError } from '../domain/errors.ts';
import { createRandom, deriveSeed } from '../domain/ids.ts';

export interface Llama3Scaling {
  readonly factor: number;
  readonly lowFrequencyFactor: number;
  readonly highFrequencyFactor: number;
  readonly originalContextLength: number;
}

export interface ModelConfig {
  readonly architecture: 'qwen3' | 'qwen2' | 'llama';
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly layers: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly rmsNormEpsilon: number;
  readonly ropeTheta: number;
  readonly ropeScaling: Llama3Scaling | undefined;
  /** RMS norm on each query and key head. */
  readonly qkNorm: boolean;
  readonly qkvBias: boolean;
  readonly tiedEmbeddings: boolean;
  readonly eosTokenIds: readonly number[];
}

const positive = z.int().positive();
const configSchema = z.object({
  model_type: z.enum(['qwen3', 'qwen2', 'llama']),
  hidden_size: positive,
  intermediate_size: positive,
  num_hidden_layers: positive,
  num_attention_heads: positive,
  num_key_value_heads: positive.optional(),
  head_dim: positive.nullish(),
  vocab_size: positive,
  max_position_embeddings: positive,
  rms_norm_eps: z.number().positive(),
  rope_theta: z.number().positive().optional(),
  rope_scaling: z.unknown().optional(),
  rope_parameters: z.unknown().optional(),
  tie_word_embeddings: z.boolean().optional(),
  hidden_act: z.literal('silu').optional(),
  attention_bias: z.boolean().optional(),
  mlp_bias: z.literal(false).optional(),
  use_sliding_window: z.literal(false).optional(),
  layer_types: z.array(z.literal('full_attention')).nullish(),
  eos_token_id: z.union([z.int(), z.array(z.int())]).nullish(),
});

const llama3Schema = z.object({
  factor: z.number().positive(),
  low_freq_factor: z.number().positive(),
  high_freq_factor: z.number().positive(),
  original_max_position_embeddings: positive,
});

function refuse(key: string, value: unknown, expected: string): never {
  throw new HoneError(
    'invalid-model',
    `config.json has ${key} = ${JSON.stringify(value) ?? 'nothing'}; expected ${expected}.`,
    {
      cure: 'Use a dense Qwen3, Qwen2 or Llama model, or correct the key.',
    },
  );
}

/** Reads a Hugging Face config.json, already parsed. Throws `invalid-model`, naming the key and its value. */
export function parseModelConfig(json: unknown): ModelConfig {
  const parsed = configSchema.safeParse(json);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    const path = issue?.path.map(String) ?? [];
    let value: unknown = json;
    for (const key of path) value = typeof value === 'object' && value !== null ? Reflect.get(value, key) : undefined;
    refuse(path.join('.') || 'the root', value, issue?.message ?? 'an object');
  }
  const c = parsed.data;
  const architecture = c.model_type;
  const headDim = c.head_dim ?? c.hidden_size / c.num_attention_heads;
  const kvHeads = c.num_key_value_heads ?? c.num_attention_heads;
  // Newer files nest theta and scaling in rope_parameters; older ones have rope_theta and rope_scaling.
  const rope = typeof c.rope_parameters === 'object' && c.rope_parameters !== null ? c.rope_parameters : c.rope_scaling;
  const nestedTheta: unknown = typeof rope === 'object' && rope !== null ? Reflect.get(rope, 'rope_theta') : undefined;
  const ropeTheta = c.rope_theta ?? (typeof nestedTheta === 'number' ? nestedTheta : 10000);
  if (architecture !== 'qwen2' && c.attention_bias === true)
    refuse('attention_bias', true, 'false for this model type');
  if (!Number.isInteger(headDim) || headDim % 8 !== 0) refuse('head_dim', headDim, 'a multiple of 8');
  if (c.hidden_size % 8 !== 0) refuse('hidden_size', c.hidden_size, 'a multiple of 8');
  if (c.intermediate_size % 8 !== 0) refuse('intermediate_size', c.intermediate_size, 'a multiple of 8');
  if (c.num_attention_heads % kvHeads !== 0)
    refuse('num_key_value_heads', kvHeads, `a divisor of num_attention_heads = ${c.num_attention_heads}`);
  if (headDim > 512) refuse('head_dim', headDim, 'at most 512');
  return {
    architecture,
    hiddenSize: c.hidden_size,
    intermediateSize: c.intermediate_size,
    layers: c.num_hidden_layers,
    heads: c.num_attention_heads,
    kvHeads,
    headDim,
    vocabSize: c.vocab_size,
    contextLength: c.max_position_embeddings,
    rmsNormEpsilon: c.rms_norm_eps,
    ropeTheta,
    ropeScaling: parseScaling(rope),
    qkNorm: architecture === 'qwen3',
    qkvBias: architecture === 'qwen2',
    tiedEmbeddings: c.tie_word_embeddings ?? false,
    eosTokenIds: typeof c.eos_token_id === 'number' ? [c.eos_token_id] : (c.eos_token_id ?? []),
  };
}

function parseScaling(scaling: unknown): Llama3Scaling | undefined {
  if (scaling === undefined || scaling === null) return undefined;
  const kind: unknown =
    typeof scaling === 'object' ? (Reflect.get(scaling, 'rope_type') ?? Reflect.get(scaling, 'type')) : scaling;
  if (kind === 'default' || (kind === undefined && typeof scaling === 'object')) return undefined;
  const parsed = llama3Schema.safeParse(scaling);
  if (kind !== 'llama3' || !parsed.success) refuse('rope_scaling', scaling, 'null, "default", or a complete "llama3"');
  return {
    factor: parsed.data.factor,
    lowFrequencyFactor: parsed.data.low_freq_factor,
    highFrequencyFactor: parsed.data.high_freq_factor,
    originalContextLength: parsed.data.original_max_position_embeddings,
  };
}

/** Tensor names as Hugging Face has them, with their shapes ([out, in] for projections), always in this order. */
export function parameterShapes(config: ModelConfig): Map<string, readonly number[]> {
  const { hiddenSize, intermediateSize, headDim } = config;
  const queryWidth = config.heads * headDim;
  const keyWidth = config.kvHeads * headDim;
  const shapes = new Map<string, readonly number[]>([['model.embed_tokens.weight', [config.vocabSize, hiddenSize]]]);
  for (let layer = 0; layer < config.layers; layer++) {
    const put = (name: string, ...shape: number[]): unknown => shapes.set(`model.layers.${layer}.${name}`, shape);
    put('input_layernorm.weight', hiddenSize);
    put('self_attn.q_proj.weight', queryWidth, hiddenSize);
    put('self_attn.k_proj.weight', keyWidth, hiddenSize);
    put('self_attn.v_proj.weight', keyWidth, hiddenSize);
    if (config.qkvBias) {
      put('self_attn.q_proj.bias', queryWidth);
      put('self_attn.k_proj.bias', keyWidth);
      put('self_attn.v_proj.bias', keyWidth);
    }
    if (config.qkNorm) {
      put('self_attn.q_norm.weight', headDim);
      put('self_attn.k_norm.weight', headDim);
    }
    put('self_attn.o_proj.weight', hiddenSize, queryWidth);
    put('post_attention_layernorm.weight', hiddenSize);
    put('mlp.gate_proj.weight', intermediateSize, hiddenSize);
    put('mlp.up_proj.weight', intermediateSize, hiddenSize);
    put('mlp.down_proj.weight', hiddenSize, intermediateSize);
  }
  shapes.set('model.norm.weight', [hiddenSize]);
  if (!config.tiedEmbeddings) shapes.set('lm_head.weight', [config.vocabSize, hiddenSize]);
  return shapes;
}

/** GPT-2's initialisation from a seed: 0.02 times a sum of twelve uniforms, residual outputs scaled by 1/sqrt(2 layers). */
export function initialWeights(config: ModelConfig, seed: number): Map<string, Float32Array> {
  const weights = new Map<string, Float32Array>();
  for (const [name, shape] of parameterShapes(config)) {
    const values = new Float32Array(shape.reduce((product, size) => product * size, 1));
    weights.set(name, values);
    if (name.endsWith('norm.weight')) values.fill(1);
    if (shape.length === 1) continue;
    const random = createRandom(deriveSeed(seed, 'initial-weights', name));
    const residual = name.endsWith('o_proj.weight') || name.endsWith('down_proj.weight');
    const deviation = 0.02 / (residual ? Math.sqrt(2 * config.layers) : 1);
    for (let index = 0; index < values.length; index++) {
      let sum = -6;
      for (let term = 0; term < 12; term++) sum += random.next();
      values[index] = sum * deviation;
    }
  }
  return weights;
}

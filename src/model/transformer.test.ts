import { expect, it } from 'vitest';

import { createRandom } from '../domain/ids.ts';
import type { ModelConfig } from './config.ts';
import { createEngine } from './engine.ts';
import { livelyWeights, randomTokens, SMALL_MODELS } from './small-model.fixture.ts';
import { TrainingModel } from './training.ts';

type Vector = number[];

/** The family's arithmetic as its papers and Hugging Face have it, one sequence, in f64: logits of every position. */
function plainForward(config: ModelConfig, weights: ReadonlyMap<string, Float32Array>, tokens: Int32Array): Vector[] {
  const { hiddenSize, heads, kvHeads, headDim, rmsNormEpsilon, ropeTheta } = config;
  const tensor = (name: string): Vector => [...(weights.get(name) ?? [])];
  const apply = (name: string, x: Vector): Vector => {
    const w = tensor(`${name}.weight`);
    const bias = tensor(`${name}.bias`);
    return Array.from({ length: w.length / x.length }, (_, row) =>
      x.reduce((sum, value, column) => sum + value * (w[row * x.length + column] ?? 0), bias[row] ?? 0),
    );
  };
  const norm = (name: string, x: Vector): Vector => {
    const w = tensor(name);
    const rms = Math.sqrt(x.reduce((sum, value) => sum + value * value, 0) / x.length + rmsNormEpsilon);
    return x.map((value, index) => (value / rms) * (w[index] ?? 0));
  };
  const split = (x: Vector): Vector[] =>
    Array.from({ length: x.length / headDim }, (_, head) => x.slice(head * headDim, (head + 1) * headDim));
  const rotate = (x: Vector, position: number): Vector =>
    x.map((value, channel) => {
      const angle = position * ropeTheta ** ((-2 * (channel % (headDim / 2))) / headDim);
      const isFirstHalf = channel < headDim / 2;
      const partner = (isFirstHalf ? x[channel + headDim / 2] : x[channel - headDim / 2]) ?? 0;
      return value * Math.cos(angle) + (isFirstHalf ? -partner : partner) * Math.sin(angle);
    });
  const dot = (a: Vector, b: Vector): number => a.reduce((sum, value, index) => sum + value * (b[index] ?? 0), 0);
  const plus = (a: Vector, b: Vector): Vector => a.map((value, index) => value + (b[index] ?? 0));

  const embedding = tensor('model.embed_tokens.weight');
  let rows = [...tokens].map((token) => embedding.slice(token * hiddenSize, (token + 1) * hiddenSize));
  for (let layer = 0; layer < config.layers; layer++) {
    const name = `model.layers.${layer}`;
    const normed = rows.map((row) => norm(`${name}.input_layernorm.weight`, row));
    const project = (letter: 'q' | 'k'): Vector[][] =>
      normed.map((row, position) =>
        split(apply(`${name}.self_attn.${letter}_proj`, row)).map((head) =>
          rotate(config.qkNorm ? norm(`${name}.self_attn.${letter}_norm.weight`, head) : head, position),
        ),
      );
    const [queries, keys] = [project('q'), project('k')];
    const values = normed.map((row) => split(apply(`${name}.self_attn.v_proj`, row)));
    rows = rows.map((row, position) => {
      const mixed = (queries[position] ?? []).flatMap((query, head) => {
        const kv = Math.floor(head / (heads / kvHeads));
        const scores = keys
          .slice(0, position + 1)
          .map((key) => Math.exp(dot(query, key[kv] ?? []) / Math.sqrt(headDim)));
        const total = scores.reduce((sum, score) => sum + score, 0);
        return Array.from({ length: headDim }, (_, channel) =>
          scores.reduce((sum, score, t) => sum + (score / total) * (values[t]?.[kv]?.[channel] ?? 0), 0),
        );
      });
      const attended = plus(row, apply(`${name}.self_attn.o_proj`, mixed));
      const h = norm(`${name}.post_attention_layernorm.weight`, attended);
      const up = apply(`${name}.mlp.up_proj`, h);
      const gated = apply(`${name}.mlp.gate_proj`, h).map(
        (gate, index) => (gate / (1 + Math.exp(-gate))) * (up[index] ?? 0),
      );
      return plus(attended, apply(`${name}.mlp.down_proj`, gated));
    });
  }
  return rows.map((row) =>
    apply(config.tiedEmbeddings ? 'model.embed_tokens' : 'lm_head', norm('model.norm.weight', row)),
  );
}

it.each(SMALL_MODELS)('$architecture computes what its plain definition does', async (config) => {
  const engine = await createEngine({ build: 'plain', threads: 1 });
  const weights = livelyWeights(config, 3);
  const tokens = randomTokens(createRandom(4), 40, config.vocabSize);
  const positions = Int32Array.from({ length: 39 }, (_, index) => index + 1);
  const [output] = TrainingModel.create(engine, config, weights).evaluate([{ tokens, positions, temperature: 0.8 }]);
  const logits = plainForward(config, weights, tokens);
  for (const position of positions) {
    const scaled = (logits[position - 1] ?? []).map((x) => x / 0.8);
    const logTotal = Math.log(scaled.reduce((sum, x) => sum + Math.exp(x), 0));
    const logprobs = scaled.map((x) => x - logTotal);
    const entropy = -logprobs.reduce((sum, logprob) => sum + Math.exp(logprob) * logprob, 0);
    expect(Math.abs((output?.logprobs[position - 1] ?? 0) - (logprobs[tokens[position] ?? 0] ?? 0))).toBeLessThan(1e-4);
    expect(Math.abs((output?.entropies[position - 1] ?? 0) - entropy)).toBeLessThan(1e-4);
  }
  await engine.close();
});

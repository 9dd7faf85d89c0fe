/**
 * Whether the tensors of a folder are those that a model's config asks for. Owns the names of left-overs that do no harm. Invariant:
 * whatever is wrong is said at once, in one message.
 */
import { HoneError } from '../domain/errors.ts';
import type { TensorData } from './safetensors.ts';

/**
 * Throws `invalid-model` with every missing, unexpected and wrong-shaped tensor in one message. Left-overs that some exporters
 * write and nothing reads are let through: rotary frequencies, causal-mask buffers, and a head equal to the tied embedding.
 */
export function checkTensors(
  tensors: ReadonlyMap<string, TensorData>,
  expected: ReadonlyMap<string, readonly number[]>,
): void {
  const problems: string[] = [];
  for (const [name, shape] of expected) {
    const tensor = tensors.get(name);
    if (tensor === undefined) problems.push(`${name} is missing`);
    else if (tensor.shape.length !== shape.length || tensor.shape.some((extent, axis) => extent !== shape[axis]))
      problems.push(`${name} has shape [${tensor.shape.join(', ')}], expected [${shape.join(', ')}]`);
  }
  for (const [name, tensor] of tensors)
    if (!expected.has(name) && !isHarmless(name, tensor, tensors)) problems.push(`${name} is unexpected`);
  if (problems.length === 0) return;
  throw new HoneError('invalid-model', `The model's tensors do not fit its config.json: ${problems.join('; ')}.`, {
    cure: 'Use the weights and the config.json of the same model, or download the folder again.',
  });
}

function isHarmless(name: string, tensor: TensorData, tensors: ReadonlyMap<string, TensorData>): boolean {
  if (/(^|\.)rotary_emb\.inv_freq$|\.(attn|attention|self_attn)\.(masked_)?bias$/.test(name)) return true;
  const embedding = tensors.get('model.embed_tokens.weight');
  return (
    name === 'lm_head.weight' &&
    embedding?.dtype === tensor.dtype &&
    Buffer.compare(embedding.bytes, tensor.bytes) === 0
  );
}

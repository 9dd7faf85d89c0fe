/**
 * What a sampler is asked and what it answers. `checkRequest` refuses, by name, what could not be sampled as asked.
 */
import { HoneError } from '../domain/errors.ts';
import type { DrawnToken, Generation, Sampling } from '../domain/policy.ts';

export interface SampleRequest {
  readonly tokens: Int32Array;
  readonly sampling: Sampling;
  readonly seed: number;
  /** Tokens at the end of `tokens` that were drawn before: the draws go on with this number. */
  readonly drawnBefore?: number;
  /** A commit waits for it: it starts even while admission is held. */
  readonly isPinned?: boolean;
  /** False: tokens, log-probabilities and kept sets go to `onToken` alone, and those of `onFinish` are empty. */
  readonly isRecorded?: boolean;
  /** Called once a token, in order, within the step that drew it. */
  readonly onToken?: (id: number, drawn: DrawnToken) => void;
  /** Called once, at the end or on abort. */
  readonly onFinish: (generation: SampledGeneration) => void;
}

export interface SampledGeneration extends Generation {
  /** Prompt tokens whose rows were reused from another request. */
  readonly cachedTokens: number;
}

/** Throws `context-too-small` when the prompt leaves no room for one token, `invalid-config` for what makes no sense. */
export function checkRequest(request: SampleRequest, model: { contextLength: number; vocabSize: number }): void {
  const { contextLength, vocabSize } = model;
  const { tokens, sampling, drawnBefore = 0 } = request;
  if (tokens.length + 1 > contextLength)
    throw new HoneError(
      'context-too-small',
      `The prompt has ${tokens.length} tokens and the context is ${contextLength}.`,
      { cure: 'Shorten the prompt or use a model with a longer context.' },
    );
  if (tokens.length === 0)
    throw new HoneError('invalid-config', 'The prompt is empty.', { cure: 'Send at least one token.' });
  const foreign = tokens.find((id) => id < 0 || id >= vocabSize);
  if (foreign !== undefined)
    throw new HoneError('invalid-config', `The prompt has token ${foreign}; the vocabulary has ${vocabSize}.`, {
      cure: "Use the model's own tokenizer.",
    });
  if (!Number.isInteger(drawnBefore) || drawnBefore < 0 || drawnBefore >= tokens.length)
    throw new HoneError(
      'invalid-config',
      `drawnBefore is ${drawnBefore}, expected a whole number from 0 to below the ${tokens.length} tokens that it is part of.`,
      { cure: 'Send the prompt and, behind it, all tokens that were drawn.' },
    );
  checkSampling(sampling);
}

function checkSampling(sampling: Sampling): void {
  const { temperature, topK, topP, minP, maxTokens, greedy } = sampling;
  const fail = (key: string, value: number, expected: string): never => {
    throw new HoneError('invalid-config', `sampling.${key} is ${value}, expected ${expected}.`, {
      cure: `Set sampling.${key} accordingly.`,
    });
  };
  if (!Number.isInteger(maxTokens) || maxTokens < 1) fail('maxTokens', maxTokens, 'an integer above 0');
  if (greedy) return;
  if (!(temperature >= 1e-3)) fail('temperature', temperature, 'at least 0.001, or greedy: true');
  if (!Number.isInteger(topK) || topK < 0) fail('topK', topK, 'an integer, 0 = off');
  if (!(topP > 0 && topP <= 1)) fail('topP', topP, 'a number above 0 and at most 1');
  if (!(minP >= 0 && minP < 1)) fail('minP', minP, 'a number from 0 to below 1');
}

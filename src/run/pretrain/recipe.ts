/**
 * A pre-training recipe: everything that the weights of a small base model depend on, as one strict JSON file that lies
 * in the model's folder. The same recipe, corpus lock and kernel build give the same bytes.
 */
import { z } from 'zod';

import { HoneError } from '../../domain/errors.ts';

const positive = z.int().positive();

export const recipeSchema = z.strictObject({
  seed: z.int().min(0).describe('weights, tokenizer sample, order of functions and drawn tasks derive from it'),
  build: z.enum(['plain', 'fma']).describe('kernel build; plain has the same bits on every CPU'),
  architecture: z.strictObject({
    hiddenSize: positive,
    intermediateSize: positive,
    layers: positive,
    heads: positive,
    kvHeads: positive,
    headDim: positive,
    contextLength: z.int().min(1024),
    ropeTheta: z.number().positive(),
  }),
  vocabSize: z.int().min(512).describe('256 bytes, merges and added tokens'),
  corpus: z.strictObject({
    maxCharacters: positive.describe('longest function in characters'),
    maxLines: positive,
  }),
  language: z.strictObject({
    steps: z.int().min(0).describe('steps on plain source, all tokens trained'),
    maxTokens: positive.describe('longest piece of source in tokens'),
  }),
  check: z.strictObject({
    steps: positive.describe('steps on sweep conversations, only the answers trained'),
    bugShare: z.number().min(0).max(1).describe('share of tasks with bugs'),
    elsewhereShare: z.number().min(0).max(1),
    lookRate: z
      .number()
      .min(0)
      .max(1)
      .describe('chance that a line with names is looked up before its verdict, whatever the line'),
    firstNameRate: z.number().min(0).max(1).describe('chance that a look-up takes the first name listed'),
    withoutNamesRate: z.number().min(0).max(1).describe('share of conversations that list no names'),
    languageWeight: z.number().min(0).describe('weight of the tokens that are not answers; 0 = only answers'),
  }),
  tokensPerStep: positive,
  learningRate: z
    .number()
    .positive()
    .describe('peak; linear warm-up, then a quadratic fall (no cosine: Math.cos may differ between engines)'),
  finalRateShare: z.number().min(0).max(1).describe('rate at the end as a share of the peak'),
  warmupSteps: z.int().min(0),
  beta1: z.number().min(0).lt(1),
  beta2: z.number().min(0).lt(1),
  weightDecay: z.number().min(0),
  clipNorm: z.number().positive(),
});
export type Recipe = z.infer<typeof recipeSchema>;

export function parseRecipe(json: unknown, source: string): Recipe {
  const parsed = recipeSchema.safeParse(json);
  if (parsed.success) return parsed.data;
  throw new HoneError(
    'invalid-config',
    `${source} is not a recipe: ${parsed.error.issues.map((issue) => `${issue.path.join('.')} ${issue.message}`).join('; ')}.`,
    { cure: 'Mend these fields; models/nano/recipe.json is a working one.' },
  );
}

/** Learning rate of a 0-based step out of `steps`. */
export function learningRateAt(recipe: Recipe, step: number, steps: number): number {
  if (step < recipe.warmupSteps) return (recipe.learningRate * (step + 1)) / recipe.warmupSteps;
  const progress = (step - recipe.warmupSteps) / Math.max(1, steps - recipe.warmupSteps);
  return recipe.learningRate * (recipe.finalRateShare + (1 - recipe.finalRateShare) * (1 - progress) * (1 - progress));
}

import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, expect, test } from 'vitest';

import { pretrain } from './pretrain.ts';
import { learningRateAt, parseRecipe } from './recipe.ts';
import { loadModel } from '../load-model.ts';

const directory = mkdtempSync(join(tmpdir(), 'hone-pretrain-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));
const nano: unknown = JSON.parse(readFileSync('models/nano/recipe.json', 'utf8'));
const recipe = parseRecipe(nano, 'models/nano/recipe.json');
const tiny = {
  ...recipe,
  build: 'plain' as const,
  architecture: {
    ...recipe.architecture,
    hiddenSize: 16,
    intermediateSize: 24,
    layers: 2,
    heads: 2,
    kvHeads: 1,
    headDim: 8,
  },
  vocabSize: 640,
  corpus: { maxCharacters: 160, maxLines: 8 },
  language: { steps: 2, maxTokens: 64 },
  check: { ...recipe.check, steps: 3 },
  tokensPerStep: 512,
};

function hashes(folder: string): Record<string, string> {
  return Object.fromEntries(
    readdirSync(folder)
      .sort()
      .map((name) => [
        name,
        createHash('sha256')
          .update(readFileSync(join(folder, name)))
          .digest('hex'),
      ]),
  );
}

test('a recipe gives the same folder bit for bit, whatever the number of threads, and another one for another seed', async () => {
  const make = async (name: string, seed: number, threads: number): Promise<Record<string, string>> => {
    await pretrain({ ...tiny, seed }, { outDirectory: join(directory, name), threads, onProgress: () => undefined });
    return hashes(join(directory, name));
  };
  const one = await make('one', 1, 1);
  expect(await make('two', 1, 2)).toEqual(one);
  expect((await make('other', 2, 1))['model.safetensors']).not.toBe(one['model.safetensors']);
  // A plain Hugging Face folder: what we wrote, our own strict reader takes.
  const { config, tokenizer } = await loadModel(join(directory, 'one'));
  expect(config).toMatchObject({ architecture: 'qwen3', contextLength: 1024 });
  const text = 'if (a [-<-]{+<=+} héllo) return `x`;\n<|user|>';
  expect(tokenizer.decode(tokenizer.encode(text))).toBe(text);
}, 120_000);

test('the rate rises over the warm-up and falls to its final share', () => {
  const steps = 1000;
  expect(learningRateAt(recipe, 0, steps)).toBeCloseTo(recipe.learningRate / recipe.warmupSteps, 12);
  expect(learningRateAt(recipe, recipe.warmupSteps, steps)).toBe(recipe.learningRate);
  expect(learningRateAt(recipe, steps, steps)).toBeCloseTo(recipe.learningRate * recipe.finalRateShare, 12);
});

test('a recipe with an unknown or impossible field is refused by name', () => {
  expect(() => parseRecipe({ ...tiny, tokensPerStep: 0, flux: 1 }, 'r.json')).toThrow(
    /r\.json is not a recipe: .*tokensPerStep.*flux/u,
  );
});

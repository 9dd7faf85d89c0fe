/** `hone pretrain`: a recipe in, a Hugging Face folder with its model card out. */
import { readFileSync } from 'node:fs';
import { copyFile, mkdir, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';

import { integerOption } from './options.ts';
import { createProgress } from './progress.ts';
import { HoneError, reasonOf } from '../domain/errors.ts';
import { modelCard } from '../run/pretrain/model-card.ts';
import { pretrain } from '../run/pretrain/pretrain.ts';
import { parseRecipe } from '../run/pretrain/recipe.ts';

export async function pretrainCommand(recipePath: string, options: Record<string, unknown>): Promise<void> {
  const recipe = parseRecipe(readJson(recipePath), recipePath);
  const out = resolve(String(options['out']));
  const threads = integerOption('--threads', options['threads'], { min: 1, max: 16 });
  if (options['dryRun'] === true) {
    process.stdout.write(`${JSON.stringify(recipe, null, 2)}\n`);
    return;
  }
  const progress = createProgress({ stream: process.stderr, now: () => performance.now() });
  progress.phase(`pre-training from ${recipePath} into ${out}`);
  const summary = await pretrain(recipe, {
    outDirectory: out,
    threads,
    onProgress: (at) =>
      progress.update(
        at.step,
        at.steps,
        `${at.phase} loss ${at.loss.toFixed(3)}, ${Math.round(at.tokens / at.seconds)} tokens/s`,
      ),
  });
  progress.end();
  await mkdir(out, { recursive: true });
  await writeFile(join(out, 'README.md'), modelCard(recipe, summary));
  if (resolve(dirname(recipePath)) !== out) await copyFile(recipePath, join(out, 'recipe.json'));
  if (options['json'] === true) process.stdout.write(`${JSON.stringify(summary)}\n`);
  else
    process.stdout.write(
      `${summary.parameters} parameters, ${summary.tokens} tokens, loss ${summary.checkLoss.toFixed(3)} on answers; written to ${out}\n`,
    );
}

function readJson(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, 'utf8'));
  } catch (cause) {
    throw new HoneError('invalid-config', `${path} could not be read as JSON: ${reasonOf(cause)}.`, {
      cure: 'Name a recipe.json; models/nano/recipe.json is a working one.',
      cause,
    });
  }
}

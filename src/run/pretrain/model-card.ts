/** The model card of a pre-trained base model: data, licences, tokens seen, loss, limits. Written from the run itself. */
import type { PretrainSummary } from './pretrain.ts';
import type { Recipe } from './recipe.ts';

export function modelCard(recipe: Recipe, summary: PretrainSummary): string {
  const { architecture, check, language } = recipe;
  return `---
license: apache-2.0
language: [code]
tags: [code-review, javascript, typescript]
---

# hone nano

A decoder of ${summary.parameters.toLocaleString('en')} parameters (Qwen3 architecture: ${architecture.layers} layers, width ${architecture.hiddenSize}, ${architecture.heads} heads,
vocabulary ${recipe.vocabSize}, context ${architecture.contextLength}) that reads a change to one JavaScript or TypeScript function and says, line by line,
whether the change is right. It is a starting point for reinforcement learning and stopped early on purpose: it is often
wrong, and it asks for evidence at random.

## Data

- Source of ${summary.functions.toLocaleString('en')} functions from ${summary.packages.length} npm packages under MIT, ISC, BSD and Apache-2.0 licences, read from what the
  \`corpus\` workspace installs. No source is part of this repository. ${language.steps} steps were on plain source.
- ${summary.conversations.toLocaleString('en')} review conversations about injected changes to these functions, each drawn once. ${Math.round(check.bugShare * 100)} % of the changes hold a
  bug; a line is looked up before its verdict with probability ${check.lookRate}, whatever the line.
- ${summary.tokens.toLocaleString('en')} tokens in all, ${summary.answerTokens.toLocaleString('en')} of them answers.

## Training

AdamW, peak rate ${recipe.learningRate}, ${recipe.tokensPerStep} tokens a step, seed ${recipe.seed}. Loss at the end: ${summary.languageLoss.toFixed(3)} nats a token on plain
source, ${summary.checkLoss.toFixed(3)} nats an answer token. \`npm run hone -- pretrain models/nano/recipe.json --out FOLDER\` gives the same
weights bit for bit: kernels of the ${recipe.build} build, any number of threads.

## What it cannot do

It cannot chat, write code or follow instructions. It has not seen functions above ${recipe.corpus.maxCharacters} characters, languages other than
JavaScript and TypeScript, changes that add or delete whole lines, or bugs outside its fifteen kinds. It rarely finds a wrong variable.
It does not know when looking something up is worth a turn.

## Packages that it was trained on

${summary.packages.join(', ')}.
`;
}

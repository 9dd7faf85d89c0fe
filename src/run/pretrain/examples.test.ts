import { afterAll, beforeAll, expect, test } from 'vitest';

import { ConversationEncoder, drawnLooks, perfectConversation } from './examples.ts';
import { parseRecipe } from './recipe.ts';
import { createCheckHarness } from '../../agent/check/harness.ts';
import { findInstalledPackage } from '../../code/installed-packages.ts';
import { createRandom, policyVersion } from '../../domain/ids.ts';
import type { Policy } from '../../domain/policy.ts';
import { Recorder } from '../../serve/recorder.ts';
import { openCorpus } from '../../tasks/corpus.ts';
import type { Corpus } from '../../tasks/corpus.ts';
import { drawTask } from '../../tasks/draw.ts';
import { loadModel } from '../load-model.ts';
import type { LoadedModel } from '../load-model.ts';
import { readFileSync } from 'node:fs';

let model: LoadedModel;
let corpus: Corpus;
let recorder: Recorder;
/** What the policy says next, turn by turn. */
let script: string[] = [];

beforeAll(async () => {
  model = await loadModel('models/nano');
  corpus = await openCorpus({ split: 'heldout', maxCharacters: 600, maxLines: 24 });
  const policy: Policy = {
    version: policyVersion(0),
    contextLength: model.config.contextLength,
    generate: async () => {
      const tokens = model.tokenizer.encode(`${script.shift() ?? 'ok'}${model.tokenizer.endOfSequence.token}`);
      const offsets = Int32Array.from({ length: tokens.length + 1 }, (_, index) => index);
      return {
        tokens,
        logprobs: new Float32Array(tokens.length),
        kept: { ids: tokens, offsets },
        versions: [{ version: policyVersion(0), start: 0, end: tokens.length }],
        finish: 'stop',
      };
    },
  };
  recorder = await Recorder.start({ policy, tokenizer: model.tokenizer, template: model.template, model: 'm' });
}, 120_000);
afterAll(() => recorder.close());

test('a training conversation is token for token what harness and recorder would have produced', async () => {
  const recipe = parseRecipe(JSON.parse(readFileSync('models/nano/recipe.json', 'utf8')), 'recipe');
  const encoder = new ConversationEncoder(model.tokenizer, model.template);
  const harness = createCheckHarness({
    strategy: 'sweep',
    lookups: 'on',
    openPackage: async (name) => ({ directory: findInstalledPackage(name).directory, index: await corpus.index(name) }),
  });
  for (let seed = 1; seed <= 40; seed++) {
    const task = drawTask(corpus, seed);
    const messages = perfectConversation(task, await corpus.index(task.environment.package), {
      listNames: true,
      looks: drawnLooks({ ...recipe.check, lookRate: 0.5 }, createRandom(seed)),
    });
    script = messages.filter(({ role }) => role === 'assistant').map(({ content }) => content);
    const session = recorder.openSession({
      id: `s${seed}`,
      seed: 1,
      secret: 'secret',
      sampling: {
        temperature: 1,
        topK: 0,
        topP: 1,
        minP: 0,
        greedy: false,
        maxTokens: 8,
        stopIds: [model.tokenizer.endOfSequence.id],
      },
    });
    const submission = await harness.run(task.environment, {
      ...session,
      model: 'm',
      budget: { maxTurns: 40, maxTokens: 400, maxSeconds: 30 },
      signal: new AbortController().signal,
    });
    const { segments } = await recorder.seal(`s${seed}`);
    expect(segments).toHaveLength(1);
    const encoded = encoder.encode(messages);
    expect([...(segments[0]?.tokens ?? [])]).toEqual([...encoded.tokens]);
    expect([...(segments[0]?.trained ?? [])].flatMap((flag, position) => (flag === 1 ? [position] : []))).toEqual([
      ...encoded.positions,
    ]);
    // A perfect reviewer finds exactly the bugs.
    expect(submission.findings.map(({ startLine, category }) => ({ startLine, category }))).toEqual(
      task.gold.bugs.map(({ startLine, category }) => ({ startLine, category })),
    );
  }
}, 60_000);

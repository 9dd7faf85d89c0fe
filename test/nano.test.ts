/** The base model that ships: small, standard, and middling on purpose. */
import { readFileSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';

import { expect, test } from 'vitest';

import { deriveSeed, groupId, policyVersion, rolloutId } from '../src/domain/ids.ts';
import { STANDARD_EFFORT } from '../src/domain/effort.ts';
import { groupDropReason } from '../src/reward/advantage.ts';
import { runEpisode } from '../src/rollout/episode.ts';
import { resolveConfig } from '../src/run/config.ts';
import { loadModel } from '../src/run/load-model.ts';
import { openPolicyStack } from '../src/run/policy-stack.ts';
import { EmbeddedSource } from '../src/run/sampling-source.ts';
import { openCorpus } from '../src/tasks/corpus.ts';
import { drawTasks } from '../src/tasks/draw.ts';

const NANO = 'models/nano';

test('models/nano is a Hugging Face folder of a standard architecture, at most 4M parameters and 12 MB', async () => {
  const { config, shapes, folder } = await loadModel(NANO);
  const parameters = [...shapes.values()].reduce((sum, shape) => sum + shape.reduce((a, b) => a * b, 1), 0);
  const bytes = readdirSync(NANO).reduce((sum, name) => sum + statSync(join(NANO, name)).size, 0);
  expect(parameters).toBeLessThanOrEqual(4_000_000);
  expect(bytes).toBeLessThanOrEqual(12_000_000);
  expect(config.contextLength).toBeGreaterThanOrEqual(1024);
  expect(folder.config).toMatchObject({ architectures: ['Qwen3ForCausalLM'], model_type: 'qwen3' });
  expect([...folder.tensors.values()].every(({ dtype }) => dtype === 'BF16')).toBe(true);
  const card = readFileSync(join(NANO, 'README.md'), 'utf8');
  for (const part of ['licences', 'tokens in all', 'Loss at the end', 'What it cannot do'])
    expect(card).toContain(part);
});

test('groups of eight answers differ on most training tasks', async () => {
  const config = resolveConfig({ name: 'nano', model: NANO }, 'test');
  const model = await loadModel(NANO);
  const corpus = await openCorpus({
    split: 'rl',
    maxCharacters: config.tasks.maxCharacters,
    maxLines: config.tasks.maxLines,
  });
  const source = await EmbeddedSource.start({
    configJson: model.folder.config,
    served: model.served,
    version: policyVersion(0),
    build: config.engine.build,
    threads: config.engine.threads,
    slots: config.engine.slots,
  });
  const stack = await openPolicyStack({
    model,
    source,
    config,
    corpora: [corpus],
    now: () => performance.now(),
  });
  try {
    const setting = stack.setting({ greedy: false, lookups: 'on', effort: STANDARD_EFFORT });
    const tasks = drawTasks(corpus, { seed: 5, count: 24 });
    const groups = await Promise.all(
      tasks.map((task, group) =>
        Promise.all(
          Array.from({ length: 8 }, async (_, attempt) => {
            const identity = {
              id: rolloutId(`${group}-${attempt}`),
              groupId: groupId(String(group)),
              attempt,
              seed: deriveSeed(5, group, attempt),
              admittedVersion: policyVersion(0),
              signal: new AbortController().signal,
            };
            return (await runEpisode(task, identity, setting)).rollout;
          }),
        ),
      ),
    );
    expect(groups.flat().every(({ outcome }) => outcome?.valid === true)).toBe(true);
    const varied = groups.filter((members) => groupDropReason(members) === undefined).length;
    expect(varied).toBeGreaterThan(tasks.length / 2);
  } finally {
    await stack.close();
  }
}, 120_000);

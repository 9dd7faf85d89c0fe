import { afterEach, beforeEach, expect, test } from 'vitest';

import { runEpisode } from '../src/rollout/episode.ts';
import type { EpisodeSetting } from '../src/rollout/episode.ts';
import { sampleTask } from '../src/rollout/rollout.fixture.ts';
import { STANDARD_EFFORT } from '../src/domain/effort.ts';
import { HoneError } from '../src/domain/errors.ts';
import type { Submission } from '../src/domain/finding.ts';
import type { Harness } from '../src/domain/harness.ts';
import { groupId, policyVersion, rolloutId } from '../src/domain/ids.ts';
import { openChatTemplate } from '../src/model/chat-template.ts';
import { openTokenizer } from '../src/model/tokenizer.ts';
import { CHATML, byteTokenizerFiles } from '../src/model/tokenizer.fixture.ts';
import { FakePolicy } from '../src/serve/recorder.fixture.ts';
import { Recorder } from '../src/serve/recorder.ts';

const files = byteTokenizerFiles();
const tokenizer = openTokenizer(files.json, files.config);
let recorder: Recorder;
let failure: Error | undefined;
beforeEach(async () => {
  failure = undefined;
  const policy = new FakePolicy({ tokenizer, write: () => 'ok', fail: () => failure });
  const template = openChatTemplate(CHATML, { bos: '', eos: tokenizer.endOfSequence.token });
  recorder = await Recorder.start({ policy, tokenizer, template, model: 'm' });
});
afterEach(() => recorder.close());

/** A harness of one turn that then ends as it is told. */
function harnessThat(end: Submission['end'] | Error, asks = true): Harness {
  return {
    name: 'one turn',
    run: async (_environment, { baseUrl, apiKey }) => {
      if (asks)
        await fetch(`${baseUrl}/chat/completions`, {
          method: 'POST',
          headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' },
          body: JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'x' }] }),
        });
      if (end instanceof Error) throw end;
      return { valid: true, findings: [], end, turns: 1, lookups: [] };
    },
  };
}

function run(
  harness: Harness,
  { controller = new AbortController(), effort = STANDARD_EFFORT, tellsEffort = false } = {},
): ReturnType<typeof runEpisode> {
  const setting: EpisodeSetting = {
    recorder,
    harness,
    budget: { maxTurns: 4, maxTokens: 40, maxSeconds: 5 },
    sampling: {
      temperature: 1,
      topK: 0,
      topP: 1,
      minP: 0,
      greedy: false,
      maxTokens: 8,
      stopIds: [tokenizer.endOfSequence.id],
    },
    model: 'm',
    effort,
    tellsEffort,
    now: () => performance.now(),
  };
  const identity = {
    id: rolloutId('r'),
    groupId: groupId('g'),
    attempt: 0,
    seed: 1,
    admittedVersion: policyVersion(3),
    signal: controller.signal,
  };
  return runEpisode(sampleTask(1), identity, setting);
}

test('a finished episode is scored, and every sampled token is there to be trained', async () => {
  const { rollout } = await run(harnessThat('finished'));
  expect(rollout).toMatchObject({
    status: 'completed',
    effort: 'standard',
    outcome: { precision: 1, recall: 1, valid: true },
  });
  // What it is worth is decided for whole batches.
  expect(rollout.reward).toBeUndefined();
  expect(rollout.latencySeconds).toBeGreaterThan(0);
  const [segment] = rollout.segments;
  expect([...(segment?.trained ?? [])].filter((flag) => flag === 1)).toHaveLength(rollout.cost.sampledTokens);
});

test('a level of effort marks the rollout, and the harness hears of it only where levels are told', async () => {
  const heard: (string | undefined)[] = [];
  const listening: Harness = {
    name: 'listening',
    run: (environment, context) => {
      heard.push(context.effort);
      return harnessThat('finished').run(environment, context);
    },
  };
  const told = await run(listening, { effort: 'low', tellsEffort: true });
  const untold = await run(listening);
  expect([told.rollout.effort, untold.rollout.effort]).toEqual(['low', 'standard']);
  expect(heard).toEqual(['low', undefined]);
});

test('what infrastructure did is a status with its cause, never a score', async () => {
  expect((await run(harnessThat('time-budget'))).rollout).toMatchObject({
    status: 'infra-failed',
    failure: expect.stringContaining('within 5 seconds (harness.maxSeconds)'),
  });
  expect((await run(harnessThat(new Error('socket hang up')))).rollout).toMatchObject({
    status: 'infra-failed',
    failure: 'socket hang up',
  });
  failure = new HoneError('engine-failed', 'The engine is gone.');
  const { rollout } = await run(harnessThat('finished'));
  expect(rollout).toMatchObject({ status: 'infra-failed', failure: expect.stringContaining('The engine is gone.') });
  expect(rollout.outcome).toBeUndefined();
  expect(rollout.reward).toBeUndefined();
});

test('an aborted episode is neither scored nor a failure', async () => {
  const controller = new AbortController();
  controller.abort();
  expect((await run(harnessThat('finished'), { controller })).rollout).toMatchObject({ status: 'aborted' });
});

test('nothing sampled is an error that says why, not silence that may score', async () => {
  await expect(run(harnessThat('finished', false))).rejects.toMatchObject({ code: 'invalid-rollout' });
  await expect(run(harnessThat('context-length', false))).rejects.toMatchObject({ code: 'context-too-small' });
});

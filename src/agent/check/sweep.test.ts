import { afterEach, describe, expect, test } from 'vitest';

import { namesOnLine } from '../../code/line-names.ts';
import { createCheckHarness } from './harness.ts';
import type { CheckHarnessOptions } from './harness.ts';
import { ENVIRONMENT, INDEX, startScriptedModel } from './scripted-model.fixture.ts';
import type { Scripted, ScriptedModel } from './scripted-model.fixture.ts';
import {
  NO_LOOKUP_LEFT,
  REPAIR_TEXT,
  SWEEP_INSTRUCTIONS,
  sweepLookupAnswer,
  sweepOpening,
  sweepQuestion,
} from './sweep-format.ts';

const models: ScriptedModel[] = [];
afterEach(async () => {
  for (const model of models.splice(0)) await model.close();
});

async function sweep(
  script: readonly Scripted[],
  options: Partial<CheckHarnessOptions> & Parameters<typeof startScriptedModel>[1] = {},
) {
  const model = await startScriptedModel(script, options);
  models.push(model);
  let opened = 0;
  const harness = createCheckHarness({
    strategy: 'sweep',
    lookups: 'on',
    openPackage: () => {
      opened++;
      return Promise.resolve({ directory: '/nowhere', index: INDEX });
    },
    ...options,
  });
  const submission = await harness.run(ENVIRONMENT, model.context);
  return { submission, model, opened, last: model.requests.at(-1)?.body.messages ?? [] };
}

const [FIRST, SECOND] = ENVIRONMENT.changes;

describe('sweep', () => {
  test('one question a line in one growing conversation; verdicts become findings', async () => {
    const { submission, model, last } = await sweep(['off-by-one', 'ok']);
    expect(submission).toMatchObject({
      valid: true,
      end: 'finished',
      turns: 2,
      lookups: [],
      verdicts: [
        { line: 5, verdict: 'off-by-one' },
        { line: 6, verdict: 'ok' },
      ],
      findings: [{ file: 'lib/copy.js', startLine: 5, endLine: 5, category: 'off-by-one', severity: 'medium' }],
    });
    expect(model.requests).toHaveLength(2);
    expect(last.map((message) => message.role)).toEqual(['user', 'assistant', 'user']);
    expect(last[0]?.content).toBe(sweepOpening(ENVIRONMENT, sweepQuestion(FIRST!, namesOnLine(FIRST!))));
    expect(last[1]?.content).toBe('off-by-one');
    expect(last[2]?.content).toBe(sweepQuestion(SECOND!, namesOnLine(SECOND!)));
    expect(model.requests[0]?.body).toMatchObject({ model: 'scripted', max_tokens: 1000 });
    expect(model.requests[1]?.body.max_tokens).toBe(998);
  });

  test('a look-up shows the declaration and asks again', async () => {
    const { submission, last } = await sweep(['ok', 'look 1', 'swapped-arguments']);
    expect(submission.lookups).toEqual([{ line: 6, name: 'copy', found: true }]);
    expect(submission.findings.map((finding) => finding.category)).toEqual(['swapped-arguments']);
    expect(last.at(-1)?.content).toBe('function copy(source = target, target = ...)\n?');
  });

  test('look-ups are limited for the line and the task, and a refusal is said once', async () => {
    const perLine = await sweep(['ok', 'look 1', 'look 1', 'ok'], { lookupsPerLine: 1 });
    expect(perLine.submission).toMatchObject({ valid: true, end: 'finished' });
    expect(perLine.submission.lookups).toHaveLength(1);
    expect(perLine.last.at(-1)?.content).toBe(sweepLookupAnswer(NO_LOOKUP_LEFT));
    const perTask = await sweep(['look 1', 'ok', 'look 1', 'ok'], { lookupsPerTask: 1 });
    expect(perTask.submission.lookups).toHaveLength(1);
    // Asking again after the refusal uses up the repair turn, and then the report.
    const stubborn = await sweep(['look 1', 'look 1', 'look 1', 'look 1'], { lookupsPerLine: 1 });
    expect(stubborn.submission).toMatchObject({ valid: false, end: 'malformed', turns: 4 });
  });

  test("the budget's number of look-ups goes before the harness's own, 0 included", async () => {
    const none = await sweep(['look 1', 'ok', 'ok'], { budget: { maxLookups: 0 } });
    expect(none.submission).toMatchObject({ valid: true, end: 'finished', lookups: [] });
    expect(none.last[2]?.content).toBe(sweepLookupAnswer(NO_LOOKUP_LEFT));
    const one = await sweep(['look 1', 'ok', 'look 1', 'ok'], { budget: { maxLookups: 1 }, lookupsPerTask: 6 });
    expect(one.submission.lookups).toHaveLength(1);
  });

  test('a level of effort is told once, at the top of the opening message, and nothing else changes', async () => {
    const { last: plain } = await sweep(['ok', 'ok']);
    const { last: told } = await sweep(['ok', 'ok'], { effort: 'low' });
    expect(told[0]?.content).toBe(`effort: low\n${plain[0]?.content}`);
    expect(told.slice(1)).toEqual(plain.slice(1));
  });

  test('without look-ups no names are listed, no package is opened, and look is malformed', async () => {
    const { submission, opened, last } = await sweep(['look 1', 'ok', 'ok'], { lookups: 'off' });
    expect(opened).toBe(0);
    expect(submission).toMatchObject({ valid: true, end: 'finished', lookups: [] });
    expect(last[0]?.content).toBe(sweepOpening(ENVIRONMENT, sweepQuestion(FIRST!, [])));
    expect(last[2]?.content).toBe(sweepLookupAnswer(REPAIR_TEXT));
  });

  test('one repair turn for the whole episode; the second unreadable reply voids the report', async () => {
    const repaired = await sweep(['hmm', 'negated-condition', 'ok']);
    expect(repaired.submission).toMatchObject({ valid: true, end: 'finished', turns: 3 });
    expect(repaired.submission.findings).toHaveLength(1);
    const voided = await sweep(['off-by-one', 'hmm', 'hmm']);
    expect(voided.submission).toMatchObject({ valid: false, end: 'malformed', findings: [], turns: 3 });
  });

  test('instructions come first when asked for', async () => {
    const { last } = await sweep(['ok', 'ok'], { instructions: 'on' });
    expect(last[0]).toEqual({ role: 'system', content: SWEEP_INSTRUCTIONS });
  });
});

describe('budgets, failures, abort', () => {
  test('turns and tokens end the episode with what was found so far', async () => {
    const turns = await sweep(['off-by-one', 'ok'], { budget: { maxTurns: 1 } });
    expect(turns.submission).toMatchObject({ valid: true, end: 'turn-budget', turns: 1 });
    expect(turns.submission.findings).toHaveLength(1);
    const tokens = await sweep(['ok', 'ok'], { budget: { maxTokens: 5 }, tokensPerReply: 5 });
    expect(tokens.submission).toMatchObject({ end: 'token-budget', turns: 1 });
  });

  test('seconds run out while the model is silent', async () => {
    const { submission } = await sweep(['ok', { hangs: true }], { budget: { maxSeconds: 0.2 } });
    expect(submission).toMatchObject({ valid: true, end: 'time-budget', turns: 1 });
  });

  test('a full context ends the episode and is not tried again', async () => {
    const { submission, model } = await sweep(['ok', { status: 400, code: 'context_length_exceeded' }]);
    expect(submission).toMatchObject({ end: 'context-length', turns: 1 });
    expect(model.requests).toHaveLength(2);
  });

  test('503 and 429 are tried again with the same bytes, marked as retries', async () => {
    const { submission, model } = await sweep([{ status: 503 }, { status: 429 }, 'ok', 'ok']);
    expect(submission).toMatchObject({ end: 'finished', turns: 2 });
    expect(model.requests.map((request) => request.retry)).toEqual([undefined, '1', '2', undefined]);
    expect(new Set(model.requests.slice(0, 3).map((request) => request.raw)).size).toBe(1);
  });

  test('other refusals fail at once, and so does a server that stays down', async () => {
    await expect(sweep([{ status: 401 }])).rejects.toMatchObject({
      code: 'engine-failed',
      message: expect.stringContaining('401'),
    });
    await expect(sweep(Array.from({ length: 5 }, () => ({ status: 500 })))).rejects.toMatchObject({
      code: 'engine-failed',
    });
  });

  test("the caller's signal aborts a turn in flight", async () => {
    const controller = new AbortController();
    const episode = sweep([{ hangs: true }], { signal: controller.signal });
    await expect.poll(() => models.at(-1)?.requests.length).toBe(1);
    controller.abort();
    await expect(episode).rejects.toMatchObject({ code: 'aborted' });
  });
});

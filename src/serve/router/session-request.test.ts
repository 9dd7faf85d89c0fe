import { expect, test } from 'vitest';

import { openChatTemplate } from '../../model/chat-template.ts';
import { CHATML, byteTokenizerFiles } from '../../model/tokenizer.fixture.ts';
import { openTokenizer } from '../../model/tokenizer.ts';
import { startFleet } from './router.fixture.ts';
import type { Fleet } from './router.fixture.ts';

const files = byteTokenizerFiles();
const tokenizer = openTokenizer(files.json, files.config);
const model = { name: 'bytes', tokenizer, template: openChatTemplate(CHATML, { bos: '', eos: '<|im_end|>' }) };
const TOKEN = 'a-token-of-the-whole-fleet';
const EXAMPLE = '{ "id": "mine", "record": { "seed": 1, "sampling": { "maxTokens": 32 } } }';

async function post(url: string, body: string, token: string): Promise<{ status: number; text: string }> {
  const answer = await fetch(url, { method: 'POST', body, headers: { authorization: `Bearer ${token}` } });
  return { status: answer.status, text: await answer.text() };
}

const open = (fleet: Fleet, body: string): ReturnType<typeof post> =>
  post(`${fleet.router.controlUrl}/sessions`, body, TOKEN);

/** The sentence of an error's body. */
function sentence({ text }: { text: string }): string {
  // The one shape of errors.
  return (JSON.parse(text) as { error: { message: string } }).error.message;
}

test('all that is wrong with a session is told at once, with paths and an example that works', async () => {
  await using fleet = await startFleet({ replicas: [{ id: 'a' }], token: TOKEN, model });
  const wrong = { foo: 1, ttlSeconds: 0, record: { seed: -1, bar: 2, sampling: {} } };
  const answer = await open(fleet, JSON.stringify(wrong));
  expect(answer.status).toBe(400);
  expect(sentence(answer)).toMatch(/^The session has 6 problems: /u);
  for (const problem of [
    'id is missing, must be a string',
    'ttlSeconds is 0, must be above 0',
    'record.sampling.maxTokens is missing, must be a number',
    'record.seed is -1, must be at least 0',
    'record.bar is no field of it',
    '; foo is no field of it',
  ])
    expect(sentence(answer)).toContain(problem);
  expect(sentence(await open(fleet, ''))).toContain('The session has a problem: the body is missing');
  expect(sentence(await open(fleet, '{'))).toContain('The body is not JSON');
  expect(sentence(answer)).toContain(EXAMPLE);
  expect((await open(fleet, EXAMPLE)).status).toBe(201);
});

test('an agent with the secret of a session without record is told so wherever it asks for chat', async () => {
  await using fleet = await startFleet({ replicas: [{ id: 'a' }], token: TOKEN, model });
  const { url } = fleet.router;
  const opened = JSON.parse((await open(fleet, '{"id":"me"}')).text) as { secret: string; generateUrl: string };
  expect(opened.generateUrl).toBe(`${url}/generate`);
  for (const path of ['/chat/completions', '/v1/chat/completions', '/sessions/me/v1/chat/completions']) {
    const answer = await post(`${url}${path}`, '{}', opened.secret);
    expect(answer.status).toBe(404);
    expect(sentence(answer)).toContain('The session me was opened without record');
    expect(sentence(answer)).toContain(EXAMPLE);
  }
  const recorded = JSON.parse((await open(fleet, EXAMPLE)).text) as { secret: string };
  expect(sentence(await post(`${url}/v1/chat/completions`, '{}', recorded.secret))).toContain(
    'for this session /sessions/mine/v1/chat/completions.',
  );
  // Without a secret nothing is told of any session.
  const unknown = await post(`${url}/sessions/me/v1/chat/completions`, '{}', 'a-guess');
  expect([unknown.status, unknown.text.includes('without record')]).toEqual([401, false]);
});

test('a router without a model says that it records no sessions', async () => {
  await using fleet = await startFleet({ replicas: [{ id: 'a' }] });
  for (const path of ['/v1/chat/completions', '/chat/completions', '/sessions/me/v1/models'])
    expect(sentence(await post(`${fleet.router.url}${path}`, '{}', ''))).toMatch(
      /records no sessions.*--model <folder>/u,
    );
  expect(sentence(await post(`${fleet.router.url}/x`, '{}', ''))).toBe('Only /generate is served here.');
  const tokens = await post(`${fleet.router.url}/generate`, '{"tokens":[1,2]}', '');
  expect(sentence(tokens)).toMatch(/request\.tokens is a list of 2, must be a string: base64.*docs\/clusters\.md/u);
});

/**
 * `hone serve router` and `hone serve replica` as processes of their own: replicas register, one is killed in mid-answer, and what
 * comes out is what a replica alone would have drawn, to the bit.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, expect, test } from 'vitest';

import { createRandom } from '../src/domain/ids.ts';
import { DEFAULT_SAMPLING } from '../src/domain/policy.ts';
import { HttpTransport } from '../src/serve/router/http-transport.ts';
import { RemotePolicy } from '../src/serve/router/remote-policy.ts';
import type { GenerationResumed } from '../src/serve/router/remote-policy.ts';
import { startHone } from './hone-process.fixture.ts';
import type { HoneProcess } from './hone-process.fixture.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';

let directory = '';
let model = '';

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'hone-serve-router-'));
  model = join(directory, 'model');
  await writeTinyModel(model, { contextLength: 4096 });
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

interface Service extends AsyncDisposable {
  readonly process: HoneProcess;
  readonly id: string;
  readonly url: string;
  readonly controlUrl: string;
}

async function serve(...words: string[]): Promise<Service> {
  const hone = startHone(['serve', ...words, '--json'], { cwd: directory });
  let text = '';
  const address = await new Promise<Omit<Service, 'process'>>((resolve, reject) => {
    hone.child.stdout?.on('data', (piece: string) => {
      text += piece;
      const [line, rest] = text.split('\n', 2);
      // The line is what the command promises to print.
      if (rest !== undefined && line !== undefined) resolve(JSON.parse(line) as Omit<Service, 'process'>);
    });
    void hone.result.then(({ stderr }) => reject(new Error(`it ended early: ${stderr}`)));
  });
  return { ...address, process: hone, [Symbol.asyncDispose]: () => hone[Symbol.asyncDispose]() };
}

const replica = (id: string, router: Service): Promise<Service> =>
  serve(
    'replica',
    '--model',
    model,
    '--data',
    join(directory, id),
    '--id',
    id,
    '--threads',
    '1',
    '--router',
    router.controlUrl,
  );

test('a replica is killed in mid-answer; the reply goes on elsewhere with the bits of one that was never cut', async () => {
  await using router = await serve('router', '--lease-seconds', '3', '--model', model);
  await using first = await replica('first', router);
  const resumed: GenerationResumed[] = [];
  const random = createRandom(3);
  let requests = 0;
  await using policy = await RemotePolicy.connect(new HttpTransport({ routers: [router.url] }), {
    now: () => performance.now(),
    random: () => random.next(),
    newRequestId: () => `r${requests++}`,
    onEvent: (event) => resumed.push(event),
    waitMs: 60_000,
  });
  expect(policy.contextLength).toBe(4096);
  const request = {
    tokens: Int32Array.from({ length: 20 }, (_, index) => index + 5),
    sampling: { ...DEFAULT_SAMPLING, maxTokens: 3500, stopIds: [] },
    seed: 42,
  };
  const whole = await policy.generate(request);
  expect(whole.tokens).toHaveLength(3500);

  await using second = await replica('second', router);
  const told: number[] = [];
  const cut = policy.generate({
    ...request,
    session: 'one',
    onToken: (id) => {
      told.push(id);
      // Whoever answers is the one to go: the other one takes over.
      if (told.length === 100) void victim().then((service) => service.process.child.kill('SIGKILL'));
    },
  });
  const victim = async (): Promise<Service> => {
    const status = await fetch(`${router.controlUrl}/status`);
    // The status page's own form.
    const { replicas } = (await status.json()) as { replicas: { id: string; inFlight: number }[] };
    return replicas.find(({ inFlight }) => inFlight > 0)?.id === 'second' ? second : first;
  };
  expect(await cut).toEqual(whole);
  expect(told).toEqual([...whole.tokens]);
  expect(resumed).toHaveLength(1);
  expect(resumed[0]?.at).toBeGreaterThanOrEqual(100);

  router.process.child.kill('SIGTERM');
  expect((await router.process.result).code).toBe(0);
});

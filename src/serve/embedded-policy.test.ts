import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import type { Sampling } from '../domain/policy.ts';
import { DEFAULT_SAMPLING } from '../domain/policy.ts';
import { checkSegment } from '../domain/rollout.ts';
import { openChatTemplate } from '../model/chat-template.ts';
import { initialWeights, parseModelConfig } from '../model/config.ts';
import { createEngine } from '../model/engine.ts';
import type { Engine } from '../model/engine.ts';
import { Sampler } from '../model/sampler.ts';
import { CHATML, byteTokenizerFiles } from '../model/tokenizer.fixture.ts';
import { openTokenizer } from '../model/tokenizer.ts';
import { float32ToBfloat16 } from '../tensor/dtype.ts';
import { EmbeddedPolicy } from './embedded-policy.ts';
import type { EmbeddedPolicyOptions } from './embedded-policy.ts';
import { samplingFor } from './recorder.fixture.ts';
import { Recorder } from './recorder.ts';

const { json, config: tokenizerConfig } = byteTokenizerFiles();
const tokenizer = openTokenizer(json, tokenizerConfig);

/** A transformer of about 20k parameters, with fresh weights. */
const CONFIG = {
  model_type: 'qwen3',
  hidden_size: 32,
  intermediate_size: 64,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  head_dim: 16,
  vocab_size: tokenizer.vocabSize,
  max_position_embeddings: 4096,
  rms_norm_eps: 1e-6,
  rope_theta: 10000,
  tie_word_embeddings: true,
  eos_token_id: tokenizer.endOfSequence.id,
};
const served = (seed: number): Map<string, Uint8Array> =>
  new Map(
    [...initialWeights(parseModelConfig(CONFIG), seed)].map(([name, values]) => [
      name,
      new Uint8Array(float32ToBfloat16(values).buffer),
    ]),
  );

const policies: EmbeddedPolicy[] = [];
async function start(options: Partial<EmbeddedPolicyOptions> = {}): Promise<EmbeddedPolicy> {
  const policy = await EmbeddedPolicy.start({
    configJson: CONFIG,
    served: served(1),
    version: policyVersion(0),
    build: 'plain',
    threads: 1,
    slots: 4,
    ...options,
  });
  policies.push(policy);
  return policy;
}
afterEach(async () => {
  for (const policy of policies.splice(0)) await policy.close();
});

let engine: Engine;
beforeAll(async () => {
  engine = await createEngine({ build: 'plain', threads: 1 });
});
afterAll(() => engine.close());

const prompt = (text: string): Int32Array => tokenizer.encode(text);
const sampling = (maxTokens: number, options: Partial<Sampling> = {}): Sampling => ({
  ...DEFAULT_SAMPLING,
  topK: 40,
  maxTokens,
  stopIds: [],
  ...options,
});

describe('embedded policy', () => {
  test('draws what the sampler draws in this thread, whatever else is in the batch', async () => {
    const policy = await start();
    const requests = ['one', 'two words', 'three more words', 'four', 'five', 'six'].map((text, index) => ({
      tokens: prompt(text),
      sampling: sampling(5 + index * 3),
      seed: index,
    }));
    const batched = await Promise.all(requests.map((request) => policy.generate(request)));
    const sampler = Sampler.create(engine, parseModelConfig(CONFIG), served(1), {
      version: policyVersion(0),
      slots: 1,
    });
    for (const [index, request] of requests.entries()) {
      sampler.submit({
        ...request,
        onFinish: ({ cachedTokens: _cached, ...expected }) => {
          expect(batched[index]).toEqual(expected);
        },
      });
      while (sampler.step() > 0);
    }
    expect(batched.every((generation) => generation.finish === 'length')).toBe(true);
  });

  test('streams each token once, in order', async () => {
    const policy = await start();
    const streamed: number[] = [];
    const { tokens } = await policy.generate({
      tokens: prompt('stream'),
      sampling: sampling(20),
      seed: 1,
      onToken: (id) => streamed.push(id),
    });
    expect(streamed).toEqual(Array.from(tokens));
  });

  test('a commit lands between two tokens, spans tell which version drew which, and waiting requests wake', async () => {
    const policy = await start();
    const later = policy.generate({
      tokens: prompt('later'),
      sampling: sampling(3),
      seed: 2,
      minVersion: policyVersion(7),
    });
    let laterEnded = false;
    void later.then(() => (laterEnded = true));
    // Long enough to outlive any pause of this thread; ended once the new version has drawn some tokens.
    const enough = new AbortController();
    const begun = Promise.withResolvers<void>();
    let drawnSince = 0;
    const onToken = (): void => {
      begun.resolve();
      if (policy.version === 7 && ++drawnSince === 10) enough.abort();
    };
    const running = policy.generate({
      tokens: prompt('running'),
      sampling: sampling(4000),
      seed: 3,
      signal: enough.signal,
      onToken,
    });
    await begun.promise;
    await Promise.all([...served(9)].map(([name, bytes]) => policy.stage(name, bytes)));
    expect(policy.version).toBe(0);
    expect((await policy.stats()).waiting).toBe(1);
    expect(laterEnded).toBe(false);
    const { pauseMs } = await policy.commit(policyVersion(7));
    expect(pauseMs).toBeGreaterThanOrEqual(0);
    expect(policy.version).toBe(7);
    const { versions, tokens } = await running;
    expect(versions.map((span) => span.version)).toEqual([0, 7]);
    expect(versions[0]?.start).toBe(0);
    expect(versions[1]?.start).toBe(versions[0]?.end);
    expect(versions[1]?.end).toBe(tokens.length);
    expect((await later).versions).toEqual([{ version: 7, start: 0, end: 3 }]);
    // The new weights are really served: a fresh replica with them draws the same.
    const fresh = await start({ served: served(9), version: policyVersion(7) });
    const request = { tokens: prompt('same?'), sampling: sampling(30), seed: 4 };
    expect(await policy.generate(request)).toEqual(await fresh.generate(request));
  });

  test('a request bound to a version is refused once that has passed, also when it passes on the way', async () => {
    const policy = await start({ slots: 1 });
    const begun = Promise.withResolvers<void>();
    const bound = policy.generate({
      tokens: prompt('bound'),
      sampling: sampling(4000),
      seed: 1,
      exactVersion: policyVersion(0),
      onToken: () => begun.resolve(),
    });
    const refused = expect(bound).rejects.toMatchObject({
      code: 'version-not-ready',
      message: expect.stringMatching(/never go back/u),
    });
    await begun.promise;
    await policy.commit(policyVersion(1), { drainMs: 0 });
    await refused;
    await expect(
      policy.generate({ tokens: prompt('x'), sampling: sampling(2), seed: 1, exactVersion: policyVersion(0) }),
    ).rejects.toThrow(/never go back/);
    expect(
      (await policy.generate({ tokens: prompt('x'), sampling: sampling(2), seed: 1, exactVersion: policyVersion(1) }))
        .tokens,
    ).toHaveLength(2);
    // The refused reply gave its slot back instead of being sampled to its end.
    expect((await policy.stats()).sampledTokens).toBeLessThan(4000);
  });

  test('abort ends a running and a waiting request, and the replica goes on', async () => {
    const policy = await start();
    const running = new AbortController();
    const waiting = new AbortController();
    const first = policy.generate({
      tokens: prompt('a'),
      sampling: sampling(4000),
      seed: 1,
      signal: running.signal,
      onToken: () => running.abort(),
    });
    const second = policy.generate({
      tokens: prompt('b'),
      sampling: sampling(5),
      seed: 1,
      minVersion: policyVersion(3),
      signal: waiting.signal,
    });
    const { finish, tokens } = await first;
    expect(finish).toBe('abort');
    expect(tokens.length).toBeLessThan(4000);
    waiting.abort();
    expect(await second).toMatchObject({ finish: 'abort', versions: [] });
    expect(await policy.stats()).toMatchObject({ running: 0, waiting: 0 });
    expect((await policy.generate({ tokens: prompt('c'), sampling: sampling(5), seed: 1 })).tokens).toHaveLength(5);
  });

  test('a replica without requests does not use the processor', async () => {
    const policy = await start();
    await policy.generate({ tokens: prompt('a'), sampling: sampling(5), seed: 1 });
    const before = process.cpuUsage();
    // The span that is measured, not a wait for something to happen.
    await new Promise((resolve) => setTimeout(resolve, 200));
    const { user, system } = process.cpuUsage(before);
    expect((user + system) / 1000).toBeLessThan(40);
  });

  test('threads change nothing that is drawn', async () => {
    const policy = await start();
    const request = { tokens: prompt('threads'), sampling: sampling(40), seed: 5 };
    const alone = await policy.generate(request);
    await policy.setThreads(2);
    expect(await policy.generate(request)).toEqual(alone);
    await expect(policy.setThreads(0)).rejects.toMatchObject({ code: 'invalid-config' });
  });

  test('bad input is refused by name: weights, prompt, sampling', async () => {
    const missing = served(1);
    missing.delete('model.norm.weight');
    await expect(start({ served: missing })).rejects.toMatchObject({
      code: 'invalid-model',
      message: expect.stringContaining('model.norm.weight'),
    });
    const policy = await start();
    await expect(
      policy.generate({ tokens: new Int32Array(4096), sampling: sampling(1), seed: 1 }),
    ).rejects.toMatchObject({ code: 'context-too-small' });
    await expect(
      policy.generate({ tokens: Int32Array.of(tokenizer.vocabSize), sampling: sampling(1), seed: 1 }),
    ).rejects.toMatchObject({ code: 'invalid-config' });
    await expect(policy.stage('model.norm.weight', new Uint8Array(2))).rejects.toMatchObject({ code: 'invalid-model' });
  });

  test('closing fails what is in flight, and everything after', async () => {
    const policy = await start();
    const inFlight = policy.generate({
      tokens: prompt('a'),
      sampling: sampling(5),
      seed: 1,
      minVersion: policyVersion(9),
    });
    const failed = expect(inFlight).rejects.toMatchObject({ code: 'engine-failed' });
    await policy.close();
    await failed;
    await expect(policy.generate({ tokens: prompt('a'), sampling: sampling(5), seed: 1 })).rejects.toThrow(/closed/);
    await policy.close();
  });

  test('weights that diverged break the replica with the cause, and every request learns it', async () => {
    const broken = served(1);
    for (const bytes of broken.values()) new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2).fill(0x7fc0);
    const policy = await start({ served: broken });
    await expect(policy.generate({ tokens: prompt('a'), sampling: sampling(5), seed: 1 })).rejects.toMatchObject({
      code: 'engine-failed',
      message: expect.stringContaining('not finite'),
    });
    await expect(policy.generate({ tokens: prompt('a'), sampling: sampling(5), seed: 1 })).rejects.toThrow(
      /not finite/,
    );
  });

  test('behind the recorder: many conversations at once give valid segments, the same on every run', async () => {
    const run = async (): Promise<number[][]> => {
      const policy = await start({ slots: 8 });
      const recorder = await Recorder.start({
        policy,
        tokenizer,
        template: openChatTemplate(CHATML, { bos: '', eos: '<|im_end|>' }),
        model: 'tiny',
      });
      try {
        return await Promise.all(
          Array.from({ length: 6 }, async (_, index) => {
            const { baseUrl, apiKey } = recorder.openSession({
              id: `c${index}`,
              sampling: { ...samplingFor(tokenizer, 12), topK: 40 },
              seed: index,
              secret: `s${index}`,
            });
            const messages: { role: string; content: string }[] = [];
            for (let turn = 0; turn < 3; turn++) {
              messages.push({ role: 'user', content: `turn ${turn} of ${index}` });
              const response = await fetch(`${baseUrl}/chat/completions`, {
                method: 'POST',
                headers: { authorization: `Bearer ${apiKey}` },
                body: JSON.stringify({ messages }),
              });
              // The recorder's own reply, read for its text only.
              const body = (await response.json()) as { choices: [{ message: { content: string } }] };
              messages.push({ role: 'assistant', content: body.choices[0].message.content });
            }
            const { segments, stats } = await recorder.seal(`c${index}`);
            expect(stats).toMatchObject({ turns: 3, newSegments: 0 });
            for (const segment of segments) checkSegment(segment);
            return segments.flatMap((segment) => Array.from(segment.tokens));
          }),
        );
      } finally {
        await recorder.close();
      }
    };
    expect(await run()).toEqual(await run());
  });
});

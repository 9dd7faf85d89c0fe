import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { createRandom, policyVersion, type Random } from '../domain/ids.ts';
import { DEFAULT_SAMPLING, type Sampling } from '../domain/policy.ts';
import type { ModelConfig } from './config.ts';
import { createEngine, type Engine } from './engine.ts';
import { Sampler, type SampledGeneration, type SamplerOptions } from './sampler.ts';
import { livelyWeights, randomTokens, SMALL_MODELS } from './small-model.fixture.ts';
import { TrainingModel } from './training.ts';

const [QWEN3, QWEN2] = SMALL_MODELS as [ModelConfig, ModelConfig];
const GREEDY: Sampling = { ...DEFAULT_SAMPLING, greedy: true, maxTokens: 8, stopIds: [] };

let engine: Engine;
let mark = 0;
beforeAll(async () => {
  engine = await createEngine({ build: 'plain', threads: 1 });
  mark = engine.mark();
});
afterAll(() => engine.close());

interface Job {
  readonly tokens: Int32Array;
  readonly sampling: Sampling;
  readonly seed: number;
}

function setUp(config: ModelConfig, options: Partial<SamplerOptions> = {}): { model: TrainingModel; sampler: Sampler } {
  engine.release(mark);
  const model = TrainingModel.create(engine, config, livelyWeights(config, 1));
  const sampler = Sampler.create(engine, config, model.servedWeights(), {
    version: policyVersion(0),
    slots: 4,
    ...options,
  });
  return { model, sampler };
}

function submit(sampler: Sampler, job: Job, done: (generation: SampledGeneration) => void): number {
  return sampler.submit({ ...job, onFinish: done });
}

/** Runs all jobs together and returns their generations in order. */
function runAll(sampler: Sampler, jobs: readonly Job[]): SampledGeneration[] {
  const results: (SampledGeneration | undefined)[] = jobs.map(() => undefined);
  for (const [index, job] of jobs.entries()) submit(sampler, job, (generation) => (results[index] = generation));
  while (sampler.step() > 0);
  return results.map((result) => {
    if (result === undefined) throw new Error('a request never finished');
    return result;
  });
}

function randomSampling(random: Random, greedyToo = true): Sampling {
  return {
    temperature: 0.6 + random.next(),
    topK: random.pick([0, 0, 5, 20]),
    topP: random.pick([1, 0.95, 0.8, 0.5]),
    minP: random.pick([0, 0, 0.05]),
    maxTokens: 1 + random.below(12),
    stopIds: random.pick([[], [3, 4, 5, 6]]),
    greedy: greedyToo && random.next() < 0.1,
  };
}

function trainerLogprobs(model: TrainingModel, job: Job, generation: SampledGeneration): Float32Array {
  const tokens = Int32Array.from([...job.tokens, ...generation.tokens]);
  const positions = generation.tokens.map((_, index) => job.tokens.length + index);
  const [output] = model.evaluate([
    { tokens, positions, kept: generation.kept, temperature: job.sampling.temperature },
  ]);
  return output?.logprobs ?? new Float32Array(0);
}

describe('the sampler and the trainer', () => {
  it.each(['plain', 'fma'] as const)('give the same bits in 100 random batches of the %s build', async (build) => {
    const own = await createEngine({ build, threads: 1 });
    const start = own.mark();
    const random = createRandom(build === 'plain' ? 11 : 12);
    let compared = 0;
    for (let round = 0; round < 100; round++) {
      own.release(start);
      own.setThreads(1 + random.below(2));
      const config = random.pick(SMALL_MODELS);
      const model = TrainingModel.create(own, config, livelyWeights(config, round));
      const sampler = Sampler.create(own, config, model.servedWeights(), {
        version: policyVersion(0),
        slots: 1 + random.below(6),
        prefillChunk: 1 + random.below(40),
      });
      const stem = randomTokens(random, 40, config.vocabSize);
      const jobs = Array.from({ length: 1 + random.below(7) }, () => ({
        tokens: Int32Array.from([
          ...stem.subarray(0, random.below(40)),
          ...randomTokens(random, 1 + random.below(30), config.vocabSize),
        ]),
        sampling: randomSampling(random),
        seed: random.below(1e9),
      }));
      for (const [index, generation] of runAll(sampler, jobs).entries()) {
        const job = jobs[index] as Job; // one generation a job
        const expected = trainerLogprobs(model, job, generation);
        for (const [place, logprob] of generation.logprobs.entries())
          expect(Object.is(logprob, expected[place]), `round ${round}, request ${index}, token ${place}`).toBe(true);
        compared += generation.tokens.length;
      }
    }
    expect(compared).toBeGreaterThan(1000);
    await own.close();
  });

  it('agree over the whole vocabulary too, and a full kept row is the full vocabulary', () => {
    const { model, sampler } = setUp(QWEN3);
    const job = {
      tokens: Int32Array.from([1, 2, 3]),
      sampling: { ...DEFAULT_SAMPLING, maxTokens: 6, stopIds: [] },
      seed: 5,
    };
    const [generation] = runAll(sampler, [job]) as [SampledGeneration];
    expect(generation.kept.ids.length).toBe(6 * QWEN3.vocabSize);
    const tokens = Int32Array.from([...job.tokens, ...generation.tokens]);
    const [output] = model.evaluate([{ tokens, positions: Int32Array.from([3, 4, 5, 6, 7, 8]), temperature: 1 }]);
    expect(output?.logprobs).toEqual(generation.logprobs);
    expect(trainerLogprobs(model, job, generation)).toEqual(generation.logprobs);
  });
});

describe('a request', () => {
  it('draws the same tokens alone, in a crowd, after others, and with any chunk or slots', () => {
    const random = createRandom(21);
    const jobs = Array.from({ length: 9 }, () => ({
      tokens: randomTokens(random, 3 + random.below(40), QWEN2.vocabSize),
      sampling: randomSampling(random),
      seed: random.below(1e9),
    }));
    const crowd = runAll(setUp(QWEN2, { slots: 9, prefillChunk: 7 }).sampler, jobs);
    const narrow = runAll(setUp(QWEN2, { slots: 2, prefillChunk: 64 }).sampler, jobs);
    const { sampler } = setUp(QWEN2);
    const alone = jobs
      .toReversed()
      .map((job) => runAll(sampler, [job])[0])
      .toReversed();
    for (const other of [narrow, alone])
      for (const [index, { tokens, logprobs, kept, finish }] of crowd.entries())
        expect(other[index]).toMatchObject({ tokens, logprobs, kept, finish });
  });

  it('with another seed draws other tokens', () => {
    const { sampler } = setUp(QWEN2);
    const sampling = { ...DEFAULT_SAMPLING, maxTokens: 20, stopIds: [] };
    const results = runAll(
      sampler,
      [1, 2, 2].map((seed) => ({ tokens: Int32Array.from([1]), sampling, seed })),
    );
    expect(results[1]?.tokens).toEqual(results[2]?.tokens);
    expect(results[0]?.tokens).not.toEqual(results[1]?.tokens);
  });

  it('draws each token as often as its probability says', () => {
    const { model, sampler } = setUp(QWEN2, { slots: 64 });
    const sampling = { ...DEFAULT_SAMPLING, topP: 0.9, maxTokens: 1, stopIds: [] };
    const results = runAll(
      sampler,
      Array.from({ length: 4000 }, (_, seed) => ({ tokens: Int32Array.from([7, 8]), sampling, seed })),
    );
    const counts = new Map<number, number>();
    for (const { tokens } of results) counts.set(tokens[0] ?? -1, (counts.get(tokens[0] ?? -1) ?? 0) + 1);
    const kept = results[0]?.kept ?? { ids: new Int32Array(0), offsets: new Int32Array(0) };
    let squares = 0;
    for (const id of kept.ids) {
      const [output] = model.evaluate([
        { tokens: Int32Array.from([7, 8, id]), positions: Int32Array.from([2]), kept, temperature: 1 },
      ]);
      const expected = 4000 * Math.exp(output?.logprobs[0] ?? 0);
      squares += ((counts.get(id) ?? 0) - expected) ** 2 / expected;
    }
    const freedom = kept.ids.length - 1;
    // The seeds are fixed, so this holds or not for good; four standard deviations of chi-squared.
    expect(squares).toBeLessThan(freedom + 4 * Math.sqrt(2 * freedom));
  });

  it('is greedy with singleton rows and log-probability 0, whatever the temperature', () => {
    const { model, sampler } = setUp(QWEN3);
    const job = { tokens: Int32Array.from([1, 2, 3]), sampling: { ...GREEDY, temperature: 0 }, seed: 1 };
    const [generation] = runAll(sampler, [job]) as [SampledGeneration];
    expect(generation.kept.ids).toEqual(generation.tokens);
    expect([...generation.logprobs]).toEqual(Array.from({ length: 8 }, () => 0));
    const probabilities = Array.from(
      { length: QWEN3.vocabSize },
      (_, id) =>
        model.evaluate([{ tokens: Int32Array.from([1, 2, 3, id]), positions: Int32Array.from([3]), temperature: 1 }])[0]
          ?.logprobs[0] ?? 0,
    );
    expect(generation.tokens[0]).toBe(probabilities.indexOf(Math.max(...probabilities)));
  });

  it('stops at a stop id, at maxTokens, and where the context ends', () => {
    const { sampler } = setUp(QWEN3, { contextLength: 16 });
    const prompt = Int32Array.from([1, 2, 3]);
    const [free] = runAll(sampler, [{ tokens: prompt, sampling: { ...GREEDY, maxTokens: 100 }, seed: 1 }]) as [
      SampledGeneration,
    ];
    expect(free).toMatchObject({ finish: 'length' });
    expect(free.tokens.length).toBe(13);
    const stop = free.tokens[4] ?? 0;
    const first = free.tokens.indexOf(stop);
    const [stopped] = runAll(sampler, [
      { tokens: prompt, sampling: { ...GREEDY, maxTokens: 100, stopIds: [stop] }, seed: 1 },
    ]) as [SampledGeneration];
    expect(stopped).toMatchObject({ finish: 'stop', tokens: free.tokens.slice(0, first + 1) });
    const full = Int32Array.from({ length: 15 }, () => 1);
    expect(runAll(sampler, [{ tokens: full, sampling: GREEDY, seed: 1 }])[0]?.tokens.length).toBe(1);
    expect(() =>
      submit(sampler, { tokens: Int32Array.from({ length: 16 }, () => 1), sampling: GREEDY, seed: 1 }, () => {}),
    ).toThrow(/16 tokens and the context is 16/);
  });

  it('can be aborted while queued, while running, and from its own callback', () => {
    const { sampler } = setUp(QWEN3, { slots: 1 });
    const ends: string[] = [];
    const job = { tokens: Int32Array.from([1, 2]), sampling: { ...GREEDY, maxTokens: 30 }, seed: 1 };
    let seen = 0;
    const first = sampler.submit({
      ...job,
      onToken: () => {
        seen++;
        if (seen === 3) sampler.abort(first);
      },
      onFinish: ({ finish, tokens }) => ends.push(`first ${finish} ${tokens.length}`),
    });
    const second = submit(sampler, job, ({ finish, tokens }) => ends.push(`second ${finish} ${tokens.length}`));
    const third = submit(sampler, job, ({ finish, tokens }) => ends.push(`third ${finish} ${tokens.length}`));
    sampler.abort(second);
    while (sampler.step() > 1);
    sampler.step();
    sampler.abort(third);
    sampler.abort(third);
    expect(sampler.step()).toBe(0);
    expect(ends.slice(0, 2)).toEqual(['second abort 0', 'first abort 3']);
    expect(ends[2]).toMatch(/^third abort \d/);
  });

  it('aborted by another one in the same step gets nothing any more', () => {
    const { sampler } = setUp(QWEN3);
    const job = { tokens: Int32Array.from([1, 2]), sampling: GREEDY, seed: 1 };
    const ends: string[] = [];
    let victim = 0;
    sampler.submit({ ...job, onToken: () => sampler.abort(victim), onFinish: ({ finish }) => ends.push(finish) });
    victim = sampler.submit({
      ...job,
      onToken: () => ends.push('token'),
      onFinish: ({ finish, tokens }) => ends.push(`${finish} ${tokens.length}`),
    });
    while (sampler.step() > 0);
    expect(ends).toEqual(['abort 0', 'length']);
  });

  it.each([
    [{ temperature: 0 }, /sampling\.temperature is 0/],
    [{ topP: 0 }, /sampling\.topP is 0/],
    [{ topP: 1.5 }, /sampling\.topP is 1\.5/],
    [{ minP: 1 }, /sampling\.minP is 1/],
    [{ topK: -1 }, /sampling\.topK is -1/],
    [{ maxTokens: 0 }, /sampling\.maxTokens is 0/],
  ] as const)('with %j is refused by name', (change, message) => {
    const { sampler } = setUp(QWEN3);
    const sampling = { ...DEFAULT_SAMPLING, maxTokens: 1, stopIds: [], ...change };
    expect(() => submit(sampler, { tokens: Int32Array.from([1]), sampling, seed: 1 }, () => {})).toThrow(message);
    expect(() => submit(sampler, { tokens: Int32Array.from([67]), sampling: GREEDY, seed: 1 }, () => {})).toThrow(
      /token 67/,
    );
  });
});

describe('prefix reuse', () => {
  const sampling = { ...DEFAULT_SAMPLING, topP: 0.9, maxTokens: 4, stopIds: [] };

  it('takes a conversation up where it left off, with the bits of a fresh prefill', () => {
    const { sampler } = setUp(QWEN3, { contextLength: 96 });
    const fresh: Job[] = [];
    let tokens = randomTokens(createRandom(1), 20, QWEN3.vocabSize);
    const reused: SampledGeneration[] = [];
    for (let turn = 0; turn < 5; turn++) {
      const job = { tokens, sampling, seed: turn };
      fresh.push(job);
      const [generation] = runAll(sampler, [job]) as [SampledGeneration];
      reused.push(generation);
      // All rows of the turn before are there, but the one of its last token, which was never computed.
      if (turn > 0) expect(generation.cachedTokens).toBe(tokens.length - 6 - 1);
      tokens = Int32Array.from([
        ...tokens,
        ...generation.tokens,
        ...randomTokens(createRandom(turn + 2), 6, QWEN3.vocabSize),
      ]);
    }
    for (const [turn, job] of fresh.entries()) {
      const [generation] = runAll(setUp(QWEN3).sampler, [job]) as [SampledGeneration];
      expect(generation.cachedTokens).toBe(0);
      expect({ ...generation, cachedTokens: 0 }).toEqual({ ...(reused[turn] as SampledGeneration), cachedTokens: 0 });
    }
  });

  it('computes the prompt of a group once, also when all arrive together', () => {
    const { sampler } = setUp(QWEN3, { slots: 8, prefillChunk: 16 });
    const tokens = randomTokens(createRandom(4), 60, QWEN3.vocabSize);
    const results = runAll(
      sampler,
      Array.from({ length: 8 }, (_, seed) => ({ tokens, sampling, seed })),
    );
    expect(results.map(({ cachedTokens }) => cachedTokens)).toEqual([0, 59, 59, 59, 59, 59, 59, 59]);
    expect(sampler.stats.computedPromptTokens).toBe(60 + 7);
  });

  it('keeps what was used last, and never reuses rows of other weights', () => {
    const { model, sampler } = setUp(QWEN3, { slots: 2 });
    const jobOf = (seed: number): Job => ({
      tokens: randomTokens(createRandom(seed), 30, QWEN3.vocabSize),
      sampling,
      seed,
    });
    const [a, b, c] = [jobOf(1), jobOf(2), jobOf(3)];
    const cached = (job: Job): number => runAll(sampler, [job])[0]?.cachedTokens ?? -1;
    expect([cached(a), cached(b), cached(a), cached(c), cached(a), cached(b)]).toEqual([0, 0, 29, 0, 29, 0]);
    for (const [name, bytes] of model.servedWeights()) sampler.stage(name, bytes);
    expect(cached(a)).toBe(29);
    sampler.commit(policyVersion(1));
    expect(cached(a)).toBe(0);
  });
});

describe('a commit', () => {
  it('lets running requests go on with their cache, and spans say which version drew what', () => {
    const { sampler } = setUp(QWEN3);
    const other = TrainingModel.create(engine, QWEN3, livelyWeights(QWEN3, 77)).servedWeights();
    const tokens = Int32Array.from([1, 2, 3, 4, 5]);
    const sampling = { ...DEFAULT_SAMPLING, maxTokens: 10, stopIds: [] };
    const [before] = runAll(sampler, [{ tokens, sampling, seed: 3 }]) as [SampledGeneration];
    let mixed: SampledGeneration | undefined;
    submit(sampler, { tokens, sampling, seed: 3 }, (generation) => (mixed = generation));
    for (let step = 0; step < 4; step++) sampler.step();
    for (const [name, bytes] of other) sampler.stage(name, bytes);
    sampler.step();
    const computed = sampler.stats.computedPromptTokens;
    sampler.commit(policyVersion(5));
    expect(sampler.version).toBe(5);
    while (sampler.step() > 0);
    expect(sampler.stats.computedPromptTokens).toBe(computed);
    expect(mixed?.versions).toEqual([
      { version: 0, start: 0, end: 5 },
      { version: 5, start: 5, end: 10 },
    ]);
    expect(mixed?.tokens.slice(0, 5)).toEqual(before.tokens.slice(0, 5));
    expect(mixed?.logprobs.slice(5)).not.toEqual(before.logprobs.slice(5));
  });

  it('lets a request that has drawn nothing begin again under the new weights: no token of old rows bears the new version', () => {
    const { sampler } = setUp(QWEN3, { prefillChunk: 8 });
    const other = TrainingModel.create(engine, QWEN3, livelyWeights(QWEN3, 77)).servedWeights();
    const job = {
      tokens: randomTokens(createRandom(9), 30, QWEN3.vocabSize),
      sampling: { ...DEFAULT_SAMPLING, maxTokens: 6, stopIds: [] },
      seed: 3,
    };
    let got: SampledGeneration | undefined;
    submit(sampler, job, (generation) => (got = generation));
    sampler.step();
    for (const [name, bytes] of other) sampler.stage(name, bytes);
    sampler.commit(policyVersion(5));
    while (sampler.step() > 0);
    const fresh = Sampler.create(engine, QWEN3, other, { version: policyVersion(5), slots: 1 });
    const [expected] = runAll(fresh, [job]);
    expect(got?.versions).toEqual([{ version: 5, start: 0, end: 6 }]);
    expect({ tokens: got?.tokens, logprobs: got?.logprobs }).toEqual({
      tokens: expected?.tokens,
      logprobs: expected?.logprobs,
    });
  });

  it('carries over tensors that were not staged, over several versions', () => {
    const { model, sampler } = setUp(QWEN2);
    const served = model.servedWeights();
    const other = TrainingModel.create(engine, QWEN2, livelyWeights(QWEN2, 78)).servedWeights();
    const mixed = new Map(served);
    const groups = [
      ['model.layers.1.self_attn.k_proj.weight', 'model.layers.1.self_attn.q_proj.bias'],
      ['model.embed_tokens.weight', 'model.norm.weight'],
      ['lm_head.weight', 'model.layers.2.mlp.up_proj.weight'],
      [],
    ];
    for (const [index, names] of groups.entries()) {
      for (const name of names) {
        const bytes = other.get(name) ?? new Uint8Array(0);
        sampler.stage(name, bytes);
        mixed.set(name, bytes);
      }
      sampler.commit(policyVersion(index + 1));
      const job = {
        tokens: Int32Array.from([1, 2, 3]),
        sampling: { ...DEFAULT_SAMPLING, maxTokens: 5, stopIds: [] },
        seed: index,
      };
      const [got] = runAll(sampler, [job]);
      const [expected] = runAll(Sampler.create(engine, QWEN2, mixed, { version: policyVersion(index + 1), slots: 1 }), [
        job,
      ]);
      expect(got).toEqual(expected);
    }
  });

  it('refuses a tensor of the wrong name or size', () => {
    const { sampler } = setUp(QWEN3);
    expect(() => sampler.stage('lm_head.weight', new Uint8Array(2))).toThrow(/no tensor lm_head\.weight/);
    expect(() => sampler.stage('model.norm.weight', new Uint8Array(2))).toThrow(/staged with 2 bytes; it has 64/);
  });
});

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { createRandom, policyVersion } from '../domain/ids.ts';
import { DEFAULT_SAMPLING, type DrawnToken } from '../domain/policy.ts';
import type { ModelConfig } from './config.ts';
import { createEngine, type Engine } from './engine.ts';
import { Sampler, type SampledGeneration, type SamplerOptions, type SampleRequest } from './sampler.ts';
import { livelyWeights, randomTokens, SMALL_MODELS } from './small-model.fixture.ts';
import { TrainingModel } from './training.ts';

const [QWEN3, QWEN2, LLAMA] = SMALL_MODELS as [ModelConfig, ModelConfig, ModelConfig];
const SAMPLING = { ...DEFAULT_SAMPLING, topP: 0.95, maxTokens: 12, stopIds: [] };

let engine: Engine;
let mark = 0;
beforeAll(async () => {
  engine = await createEngine({ build: 'plain', threads: 1 });
  mark = engine.mark();
});
afterAll(() => engine.close());

function weightsOf(config: ModelConfig, seed: number): Map<string, Uint8Array> {
  const start = engine.mark();
  const served = TrainingModel.create(engine, config, livelyWeights(config, seed)).servedWeights();
  engine.release(start);
  return served;
}

function setUp(config: ModelConfig, options: Partial<SamplerOptions> = {}): Sampler {
  engine.release(mark);
  return Sampler.create(engine, config, weightsOf(config, 1), { version: policyVersion(0), slots: 4, ...options });
}

interface Sampled extends SampledGeneration {
  readonly streamed: readonly (DrawnToken & { id: number })[];
}

function start(sampler: Sampler, request: Omit<SampleRequest, 'onFinish' | 'onToken'>): () => Sampled {
  const streamed: (DrawnToken & { id: number })[] = [];
  let end: SampledGeneration | undefined;
  sampler.submit({
    ...request,
    onToken: (id, drawn) => streamed.push({ id, ...drawn }),
    onFinish: (generation) => (end = generation),
  });
  return () => {
    if (end === undefined) throw new Error('the request has not ended');
    return { ...end, streamed };
  };
}

function run(sampler: Sampler, request: Omit<SampleRequest, 'onFinish' | 'onToken'>): Sampled {
  const end = start(sampler, request);
  while (sampler.step() > 0);
  return end();
}

const concatenate = (...parts: readonly Int32Array[]): Int32Array =>
  Int32Array.from(parts.flatMap((part) => [...part]));

describe('a reply that goes on elsewhere', () => {
  it.each(SMALL_MODELS)('has the bits of the uncut one at every cut ($architecture)', (config) => {
    const tokens = randomTokens(createRandom(5), 17, config.vocabSize);
    const whole = run(setUp(config), { tokens, sampling: SAMPLING, seed: 9 });
    expect(whole.tokens.length).toBe(12);
    const other = setUp(config, { prefillChunk: 5, slots: 2 });
    for (let cut = 1; cut < 12; cut++) {
      const drawn = whole.tokens.slice(0, cut);
      const rest = run(other, {
        tokens: concatenate(tokens, drawn),
        sampling: { ...SAMPLING, maxTokens: 12 - cut },
        seed: 9,
        drawnBefore: cut,
      });
      expect(concatenate(drawn, rest.tokens), `cut at ${cut}`).toEqual(whole.tokens);
      expect(Array.from(rest.logprobs), `cut at ${cut}`).toEqual(Array.from(whole.logprobs.slice(cut)));
      expect(rest.streamed).toEqual(whole.streamed.slice(cut));
    }
  });

  it('draws other tokens when the number of those before is left out', () => {
    const tokens = randomTokens(createRandom(5), 17, QWEN2.vocabSize);
    const sampler = setUp(QWEN2);
    const whole = run(sampler, { tokens, sampling: { ...SAMPLING, topP: 1 }, seed: 9 });
    const prompt = concatenate(tokens, whole.tokens.slice(0, 4));
    const rest = run(sampler, { tokens: prompt, sampling: { ...SAMPLING, topP: 1, maxTokens: 8 }, seed: 9 });
    expect(rest.tokens).not.toEqual(whole.tokens.slice(4));
  });

  it('cannot have drawn more than it sends', () => {
    const sampler = setUp(QWEN2);
    const tokens = Int32Array.of(1, 2);
    expect(() => start(sampler, { tokens, sampling: SAMPLING, seed: 1, drawnBefore: 2 })).toThrow(/drawnBefore is 2/u);
  });
});

describe('what is drawn', () => {
  it('comes with log-probability, kept set and version, whether it is recorded or not', () => {
    const sampler = setUp(QWEN3);
    const tokens = Int32Array.of(1, 2, 3);
    const recorded = run(sampler, { tokens, sampling: SAMPLING, seed: 4 });
    const { kept } = recorded;
    expect(recorded.streamed).toEqual(
      [...recorded.tokens].map((id, place) => ({
        id,
        logprob: recorded.logprobs[place],
        kept: kept.ids.slice(kept.offsets[place], kept.offsets[place + 1]),
        version: 0,
      })),
    );
    const passing = run(sampler, { tokens, sampling: SAMPLING, seed: 4, isRecorded: false });
    expect(passing.streamed).toEqual(recorded.streamed);
    expect(passing).toMatchObject({ finish: 'length', versions: [{ version: 0, start: 0, end: 12 }] });
    expect(passing.tokens.length + passing.logprobs.length + passing.kept.ids.length).toBe(0);
  });
});

describe('a commit', () => {
  const tokens = randomTokens(createRandom(8), 21, QWEN3.vocabSize);

  /** Commits new weights after so many tokens; the reply then holds both versions. */
  function across(inFlight: 'keep' | 'recompute', drawnBefore: number, options: Partial<SamplerOptions> = {}): Sampled {
    const sampler = setUp(QWEN3, { inFlight, ...options });
    const next = weightsOf(QWEN3, 77);
    const end = start(sampler, { tokens, sampling: SAMPLING, seed: 3 });
    while (sampler.stats.sampledTokens < drawnBefore) sampler.step();
    for (const [name, bytes] of next) sampler.stage(name, bytes);
    sampler.commit(policyVersion(2));
    while (sampler.step() > 0);
    return end();
  }

  it.each([7, 64])('with recompute answers as the new weights alone would, in chunks of %d', (prefillChunk) => {
    const { tokens: drawn, logprobs, versions } = across('recompute', 5, { prefillChunk });
    expect(versions).toEqual([
      { version: 0, start: 0, end: 5 },
      { version: 2, start: 5, end: 12 },
    ]);
    const fresh = Sampler.create(engine, QWEN3, weightsOf(QWEN3, 77), { version: policyVersion(2), slots: 1 });
    const rest = run(fresh, {
      tokens: concatenate(tokens, drawn.slice(0, 5)),
      sampling: { ...SAMPLING, maxTokens: 7 },
      seed: 3,
      drawnBefore: 5,
    });
    expect(rest.tokens).toEqual(drawn.slice(5));
    expect(rest.logprobs).toEqual(logprobs.slice(5));
  });

  it('with keep goes on with the rows of the old weights', () => {
    expect(across('keep', 5).logprobs.slice(5)).not.toEqual(across('recompute', 5).logprobs.slice(5));
  });

  it('never lets a prompt meet rows of other weights, neither of idle slots nor of replies that crossed it', () => {
    for (const inFlight of ['keep', 'recompute'] as const) {
      const sampler = setUp(QWEN3, { inFlight, slots: 4 });
      const next = weightsOf(QWEN3, 77);
      run(sampler, { tokens, sampling: SAMPLING, seed: 1 });
      const crossing = start(sampler, { tokens, sampling: SAMPLING, seed: 2 });
      for (let step = 0; step < 4; step++) sampler.step();
      for (const [name, bytes] of next) sampler.stage(name, bytes);
      sampler.commit(policyVersion(1));
      // Both while the reply that crossed still runs, and after it ended.
      const during = start(sampler, { tokens, sampling: SAMPLING, seed: 4 });
      while (sampler.step() > 0);
      const { tokens: drawn } = crossing();
      const after = run(sampler, { tokens: concatenate(tokens, drawn), sampling: SAMPLING, seed: 4 });
      const fresh = Sampler.create(engine, QWEN3, next, { version: policyVersion(1), slots: 1 });
      expect(during().logprobs).toEqual(run(fresh, { tokens, sampling: SAMPLING, seed: 4 }).logprobs);
      const alone = run(fresh, { tokens: concatenate(tokens, drawn), sampling: SAMPLING, seed: 4 });
      expect(after.logprobs).toEqual(alone.logprobs);
      // Rows that the new weights computed are shared: those of a recomputed reply, or of the prompt that came after.
      expect(after.cachedTokens).toBeGreaterThan(0);
    }
  });

  it('does not hold up a prompt for ever: after a few it goes on with the rows it has', () => {
    const sampler = setUp(QWEN3, { prefillChunk: 8 });
    const end = start(sampler, { tokens, sampling: SAMPLING, seed: 1 });
    let steps = 0;
    for (; sampler.step() > 0; steps++) if (steps < 50) sampler.commit(policyVersion(steps + 1));
    expect(end().tokens.length).toBe(12);
    expect(steps).toBeLessThan(50);
  });

  it('in slices serves the same as one in one go, sampling in between', () => {
    const sampler = setUp(QWEN2);
    const next = new Map([...weightsOf(QWEN2, 5)].filter((_, index) => index % 2 === 0));
    const end = start(sampler, { tokens: Int32Array.of(1, 2), sampling: { ...SAMPLING, maxTokens: 60 }, seed: 1 });
    const slices = (work: Iterator<undefined>): number => {
      let count = 0;
      for (; work.next().done !== true; count++) sampler.step();
      return count;
    };
    for (const [name, bytes] of next) expect(slices(sampler.staging(name, bytes))).toBeGreaterThan(0);
    expect(slices(sampler.preparing())).toBeGreaterThan(0);
    // Nothing is left to copy: a commit moves no bytes.
    expect(slices(sampler.preparing())).toBe(0);
    sampler.commit(policyVersion(1));
    while (sampler.step() > 0);
    expect(end().versions.at(-1)?.version).toBe(1);
    const mixed = new Map([...weightsOf(QWEN2, 1), ...next]);
    const fresh = Sampler.create(engine, QWEN2, mixed, { version: policyVersion(1), slots: 1 });
    const job = { tokens: Int32Array.of(4, 5, 6), sampling: SAMPLING, seed: 2 };
    expect(run(sampler, job).logprobs).toEqual(run(fresh, job).logprobs);
  });

  it('takes no half of a tensor: one whose staging broke off is the old one again', () => {
    const sampler = setUp(QWEN3);
    const name = 'model.embed_tokens.weight';
    const before = run(sampler, { tokens, sampling: SAMPLING, seed: 1 });
    sampler.stage(name, weightsOf(QWEN3, 4).get(name) ?? new Uint8Array(0));
    sampler.staging(name, weightsOf(QWEN3, 5).get(name) ?? new Uint8Array(0)).next();
    sampler.commit(policyVersion(1));
    expect(run(sampler, { tokens, sampling: SAMPLING, seed: 1 }).logprobs).toEqual(before.logprobs);
  });
});

describe('held admission', () => {
  it('lets only pinned requests start, and the others later in their order', () => {
    const sampler = setUp(QWEN3);
    sampler.holdAdmission(true);
    const order: string[] = [];
    for (const [name, isPinned] of [
      ['a', false],
      ['b', true],
      ['c', false],
    ] as const)
      sampler.submit({
        tokens: Int32Array.of(1),
        sampling: { ...SAMPLING, maxTokens: 2 },
        seed: 1,
        isPinned,
        onFinish: () => order.push(name),
      });
    for (let step = 0; step < 10; step++) sampler.step();
    expect(order).toEqual(['b']);
    sampler.holdAdmission(false);
    while (sampler.step() > 0);
    expect(order).toEqual(['b', 'a', 'c']);
  });
});

describe('what the engine computes with', () => {
  /** The bytes themselves stand for their hash, so that a difference would show where it is. */
  function readBack(sampler: Sampler): Map<string, string> {
    const slices = sampler.servedChecksums(() => {
      const chunks: Uint8Array[] = [];
      return {
        update: (bytes) => chunks.push(bytes.slice()),
        digest: () => Buffer.concat(chunks).toString('hex'),
      };
    });
    for (;;) {
      const { done, value } = slices.next();
      if (done === true) return value;
    }
  }
  const hexOf = (weights: ReadonlyMap<string, Uint8Array>): Map<string, string> =>
    new Map([...weights].map(([name, bytes]) => [name, Buffer.from(bytes).toString('hex')]));
  const sorted = (map: ReadonlyMap<string, string>): [string, string][] =>
    [...map].sort(([left], [right]) => left.localeCompare(right));

  it.each([QWEN3, QWEN2, LLAMA])('reads back as the bytes that were loaded and staged ($architecture)', (config) => {
    const sampler = setUp(config);
    expect(sorted(readBack(sampler))).toEqual(sorted(hexOf(weightsOf(config, 1))));
    const next = weightsOf(config, 6);
    for (const [name, bytes] of next) sampler.stage(name, bytes);
    expect(sorted(readBack(sampler))).toEqual(sorted(hexOf(weightsOf(config, 1))));
    sampler.commit(policyVersion(1));
    expect(sorted(readBack(sampler))).toEqual(sorted(hexOf(next)));
  });

  it('shows a bit that flipped in any of its forms', () => {
    const good = hexOf(weightsOf(QWEN3, 1));
    const sampler = setUp(QWEN3);
    // Everything that the sampler allocated lies between these marks; one bit in each of some places.
    const end = engine.mark();
    let shown = 0;
    const random = createRandom(3);
    for (let trial = 0; trial < 60; trial++) {
      const place = mark + random.below(end - mark);
      const view = engine.bytes(place, 1);
      view[0] = (view[0] ?? 0) ^ 0x10;
      try {
        if (JSON.stringify(sorted(readBack(sampler))) !== JSON.stringify(sorted(good))) shown++;
      } catch (error) {
        expect(error).toMatchObject({ code: 'engine-failed' });
        shown++;
      }
      view[0] = (view[0] ?? 0) ^ 0x10;
    }
    // The rest of the places are caches, tables and the standby.
    expect(shown).toBeGreaterThan(5);
    expect(sorted(readBack(sampler))).toEqual(sorted(good));
  });
});

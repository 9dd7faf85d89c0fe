/** A finished generation is sampled again bit for bit, through version changes and a change of replica; anything else is noticed. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { perturbedWeights } from '../bench/chaos-sync/perturbed-weights.ts';
import { resample, type FinishedGeneration } from '../bench/chaos-sync/resample.ts';
import { policyVersion, type PolicyVersion } from '../src/domain/ids.ts';
import { DEFAULT_SAMPLING } from '../src/domain/policy.ts';
import { parseModelConfig } from '../src/model/config.ts';
import { createEngine } from '../src/model/engine.ts';
import { Sampler } from '../src/model/sampler.ts';
import { readModelFolder } from '../src/tensor/hugging-face-folder.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';

type Weights = ReadonlyMap<string, Uint8Array>;

const directory = mkdtempSync(join(tmpdir(), 'hone-resample-'));
const versions: Weights[] = [];
let configJson: unknown;

beforeAll(async () => {
  await writeTinyModel(directory);
  const folder = await readModelFolder(directory);
  configJson = folder.config;
  versions.push(new Map([...folder.tensors].map(([name, { bytes }]) => [name, bytes])));
  // A large share, so that a reply from other weights is another reply.
  for (let version = 1; version <= 3; version++)
    versions.push(perturbedWeights(versions[version - 1] ?? new Map(), { seed: 3, version, share: 0.5 }));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const weightsOf = (version: PolicyVersion): Weights => versions[version] ?? new Map();

/** What a fleet would do: 20 tokens at version 1, 12 at version 2, then another replica that serves 2 and after 9 tokens 3. */
async function generateThroughFleet(): Promise<FinishedGeneration> {
  const prompt = [5, 9, 13, 40, 7];
  const sampling = { ...DEFAULT_SAMPLING, maxTokens: 60, stopIds: [] };
  const tokens: number[] = [];
  const logprobs: number[] = [];
  const draw = async (start: number, stages: readonly { version: number; until: number }[]): Promise<void> => {
    const engine = await createEngine({ build: 'auto', threads: 1 });
    const sampler = Sampler.create(
      engine,
      parseModelConfig(configJson),
      weightsOf(policyVersion(stages[0]?.version ?? 0)),
      {
        version: policyVersion(stages[0]?.version ?? 0),
        slots: 2,
      },
    );
    // Somebody else is in the batch.
    sampler.submit({ tokens: Int32Array.of(3, 4), sampling, seed: 1, onFinish: () => undefined });
    sampler.submit({
      tokens: Int32Array.from([...prompt, ...tokens]),
      sampling: { ...sampling, maxTokens: sampling.maxTokens - start },
      seed: 11,
      drawnBefore: start,
      onToken: (id, { logprob }) => {
        tokens.push(id);
        logprobs.push(logprob);
      },
      onFinish: () => undefined,
    });
    for (const { version, until } of stages) {
      if (version !== sampler.version) {
        for (const [name, bytes] of weightsOf(policyVersion(version))) sampler.stage(name, bytes);
        sampler.commit(policyVersion(version));
      }
      while (tokens.length < until) sampler.step();
    }
    await engine.close();
  };
  await draw(0, [
    { version: 1, until: 20 },
    { version: 2, until: 32 },
  ]);
  await draw(32, [
    { version: 2, until: 41 },
    { version: 3, until: 60 },
  ]);
  return {
    request: 'request-1',
    prompt,
    sampling,
    seed: 11,
    tokens,
    logprobs: Float32Array.from(logprobs),
    versions: [
      { version: policyVersion(1), start: 0, end: 20 },
      { version: policyVersion(2), start: 20, end: 41 },
      { version: policyVersion(3), start: 41, end: 60 },
    ],
    resumedAt: [32],
  };
}

describe('a finished generation', () => {
  let generation: FinishedGeneration;
  beforeAll(async () => {
    generation = await generateThroughFleet();
  });

  it('is the same again', async () => {
    expect(generation.tokens).toHaveLength(60);
    expect(await resample(generation, { configJson, weightsOf })).toBeUndefined();
  });

  it('is noticed when one log-probability differs in its last bit', async () => {
    const logprobs = generation.logprobs.slice();
    const bits = new Int32Array(logprobs.buffer);
    bits[30] = (bits[30] ?? 0) ^ 1;
    expect(await resample({ ...generation, logprobs }, { configJson, weightsOf })).toContain('position 30');
  });

  it('is noticed when a token was drawn from other bytes than its version has', async () => {
    const other = perturbedWeights(weightsOf(policyVersion(1)), { seed: 4, version: 2, share: 0.5 });
    const spoilt = (version: PolicyVersion): Weights => (version === 2 ? other : weightsOf(version));
    expect(await resample(generation, { configJson, weightsOf: spoilt })).toMatch(/position \d+/u);
  });

  it('is noticed when its spans tell of a switch at another place', async () => {
    const [one, two, three] = generation.versions;
    if (one === undefined || two === undefined || three === undefined) throw new Error('three spans');
    const moved = [{ ...one, end: 19 }, { ...two, start: 19 }, three];
    expect(await resample({ ...generation, versions: moved }, { configJson, weightsOf })).toMatch(/position (19|2\d)/u);
  });

  it('is noticed when it went on elsewhere and does not say so', async () => {
    expect(await resample({ ...generation, resumedAt: [] }, { configJson, weightsOf })).toMatch(/position \d+/u);
  });
});

import { afterEach, describe, expect, test } from 'vitest';

import { policyVersion } from '../domain/ids.ts';
import type { Generation } from '../domain/policy.ts';
import { parseModelConfig } from '../model/config.ts';
import { createEngine } from '../model/engine.ts';
import { Sampler } from '../model/sampler.ts';
import { CodecPool } from '../sync/delta/codec-pool.ts';
import type { EmbeddedPolicy, EmbeddedPolicyOptions, StreamEnd } from './embedded-policy.ts';
import { promptOf, samplingOf, SMALL_CONFIG, smallWeights, startSmallPolicy } from './small-replica.fixture.ts';

const policies: EmbeddedPolicy[] = [];
async function start(options: Partial<EmbeddedPolicyOptions> = {}): Promise<EmbeddedPolicy> {
  const policy = await startSmallPolicy(options);
  policies.push(policy);
  return policy;
}
afterEach(async () => {
  for (const policy of policies.splice(0)) await policy.close();
});

/** A stream whose tokens and versions are watched. */
interface Watched {
  readonly ended: Promise<StreamEnd>;
  readonly versions: number[];
  readonly ids: number[];
  readonly admittedAt: Promise<number>;
  /** Resolves with the n-th token. */
  reached(count: number): Promise<void>;
  abort(): void;
}

function watch(
  policy: EmbeddedPolicy,
  request: { length?: number; maxTokens: number; exactVersion?: number; minVersion?: number; seed?: number },
): Watched {
  const { length = 5, maxTokens, exactVersion, minVersion, seed = 1 } = request;
  const versions: number[] = [];
  const ids: number[] = [];
  const admitted = Promise.withResolvers<number>();
  const waits: { count: number; resolve: () => void }[] = [];
  const { ended, abort } = policy.stream(
    {
      tokens: promptOf(length, seed),
      sampling: samplingOf(maxTokens),
      seed,
      ...(exactVersion === undefined ? {} : { exactVersion: policyVersion(exactVersion) }),
      ...(minVersion === undefined ? {} : { minVersion: policyVersion(minVersion) }),
    },
    {
      admitted: (version) => admitted.resolve(version),
      token: ({ id, version }) => {
        ids.push(id);
        versions.push(version);
        for (const { count, resolve } of waits) if (ids.length >= count) resolve();
      },
    },
  );
  ended.catch(() => undefined);
  return {
    ended,
    abort,
    ids,
    versions,
    admittedAt: admitted.promise,
    reached: (count) => {
      if (ids.length >= count) return Promise.resolve();
      return new Promise((resolve) => waits.push({ count, resolve }));
    },
  };
}

const stageAll = async (policy: EmbeddedPolicy, seed: number): Promise<void> => {
  for (const [name, bytes] of smallWeights(seed)) await policy.stage(name, bytes);
};

describe('a version that is not served', () => {
  test('is refused at once for streams, with what is served; an older one for good', async () => {
    const policy = await start({ version: policyVersion(4) });
    expect(await watch(policy, { maxTokens: 2, minVersion: 5 }).ended).toEqual({
      kind: 'refused',
      reason: 'not-ready',
      served: 4,
    });
    expect(await watch(policy, { maxTokens: 2, exactVersion: 5 }).ended).toMatchObject({ reason: 'not-ready' });
    expect(await watch(policy, { maxTokens: 2, exactVersion: 3 }).ended).toMatchObject({ reason: 'passed', served: 4 });
    const fits = watch(policy, { maxTokens: 2, exactVersion: 4, minVersion: 4 });
    expect(await fits.ended).toMatchObject({ kind: 'ended', finish: 'length', versionEnd: 4 });
    expect(await fits.admittedAt).toBe(4);
  });
});

describe('a commit', () => {
  test('waits for what is bound to the served version, keeps out what is new, and lets the others cross it', async () => {
    const policy = await start();
    const crossing = watch(policy, { maxTokens: 4000, seed: 2 });
    const bound = watch(policy, { maxTokens: 300, exactVersion: 0, seed: 3 });
    await Promise.all([crossing.reached(3), bound.reached(3)]);
    await stageAll(policy, 9);
    // This comes after all that is staged, so the commit has nothing to wait for but requests.
    await policy.servedChecksums();
    const order: string[] = [];
    const committed = policy.commit(policyVersion(1)).then(() => order.push('committed'));
    void bound.ended.then(() => order.push('bound'));
    const late = watch(policy, { maxTokens: 3, seed: 4 });
    await Promise.all([bound.ended, committed, late.ended]);
    expect(order).toEqual(['bound', 'committed']);
    expect(bound.versions).toEqual(Array.from({ length: 300 }, () => 0));
    // It was asked for before the commit ended, and did not start before.
    expect(await late.admittedAt).toBe(1);
    expect(new Set(late.versions)).toEqual(new Set([1]));
    await crossing.reached(crossing.ids.length + 1);
    crossing.abort();
    await crossing.ended;
    expect([...new Set(crossing.versions)]).toEqual([0, 1]);
  });

  test('ends what is bound and does not end in time, with the version that came instead', async () => {
    const policy = await start();
    const bound = watch(policy, { maxTokens: 4000, exactVersion: 0 });
    await bound.reached(2);
    await policy.commit(policyVersion(1), { drainMs: 1 });
    expect(await bound.ended).toEqual({ kind: 'refused', reason: 'passed', served: 1 });
    expect(new Set(bound.versions)).toEqual(new Set([0]));
    expect(await policy.stats()).toMatchObject({ running: 0, waiting: 0 });
  });

  test('quiesce waits for all that have begun, and nothing holds tokens of two versions', async () => {
    const policy = await start({ slots: 2 });
    const begun = [1, 2].map((seed) => watch(policy, { maxTokens: 200, seed }));
    await Promise.all(begun.map((stream) => stream.reached(2)));
    // No slot is free for these: they wait through the commit and belong to the new version.
    const queued = [3, 4].map((seed) => watch(policy, { maxTokens: 20, seed }));
    await Promise.all(queued.map((stream) => stream.admittedAt));
    await stageAll(policy, 9);
    await policy.commit(policyVersion(1), { mode: 'quiesce' });
    await Promise.all([...begun, ...queued].map((stream) => stream.ended));
    for (const { versions } of begun) expect(versions).toEqual(Array.from({ length: 200 }, () => 0));
    for (const { versions } of queued) expect(versions).toEqual(Array.from({ length: 20 }, () => 1));
  });

  test('quiesce cuts off what does not end in time', async () => {
    const policy = await start();
    const endless = watch(policy, { maxTokens: 4000 });
    await endless.reached(2);
    await policy.commit(policyVersion(1), { mode: 'quiesce', drainMs: 1 });
    await expect(endless.ended).rejects.toThrow(/did not end within the 1 ms/u);
    expect(new Set(endless.versions)).toEqual(new Set([0]));
  });

  test('is refused while another is under way, and so is staging; versions never go back', async () => {
    const policy = await start({ version: policyVersion(3) });
    const bound = watch(policy, { maxTokens: 4000, exactVersion: 3 });
    await bound.reached(2);
    const first = policy.commit(policyVersion(4), { drainMs: 60_000 });
    await expect(policy.commit(policyVersion(5))).rejects.toThrow(/5 cannot be committed while version 4 is/u);
    await expect(policy.stage('model.norm.weight', new Uint8Array(64))).rejects.toThrow(
      /while version 4 is committed/u,
    );
    bound.abort();
    await first;
    await expect(policy.commit(policyVersion(3))).rejects.toThrow(/versions never go back/u);
    expect(policy.version).toBe(4);
  });

  test('is told to requests in the turn in which it happens: none says a version that another had already left', async () => {
    const policy = await start({ slots: 8 });
    const running = watch(policy, { maxTokens: 4000 });
    await running.reached(1);
    let version = 0;
    let newest = 0;
    const seen: Promise<void>[] = [];
    while (version < 20) {
      const commit = policy.commit(policyVersion(++version));
      for (let request = 0; request < 4; request++) {
        const stream = watch(policy, { maxTokens: 1, seed: version * 10 + request });
        seen.push(
          stream.ended.then(async () => {
            const admitted = await stream.admittedAt;
            expect(stream.versions[0]).toBeGreaterThanOrEqual(admitted);
            // Answers come in the order of the engine's turns.
            expect(admitted).toBeGreaterThanOrEqual(newest);
            newest = admitted;
          }),
        );
      }
      await commit;
      expect(policy.version).toBe(version);
    }
    running.abort();
    await Promise.all([...seen, running.ended]);
    expect(running.versions).toEqual(running.versions.toSorted((left, right) => left - right));
  });
});

describe('what is served', () => {
  test('has the checksums of what was loaded, staged and carried over', async () => {
    const policy = await start();
    await using codec = await CodecPool.start({ threads: 1 });
    const checksumsOf = async (weights: ReadonlyMap<string, Uint8Array>): Promise<[string, string][]> =>
      Promise.all(
        [...weights].map(async ([name, bytes]) => [name, await codec.checksum({ kind: 'memory', bytes })] as const),
      ).then((list) => list.map(([name, checksum]): [string, string] => [name, checksum]).sort());
    expect([...(await policy.servedChecksums())].sort()).toEqual(await checksumsOf(smallWeights(1)));
    const changed = [...smallWeights(5)].filter((_, index) => index % 3 === 0);
    for (const [name, bytes] of changed) await policy.stage(name, bytes);
    await policy.commit(policyVersion(1));
    expect([...(await policy.servedChecksums())].sort()).toEqual(
      await checksumsOf(new Map([...smallWeights(1), ...changed])),
    );
  });

  test('the bytes that were staged may be written over as soon as the call has ended', async () => {
    const policy = await start();
    const scratch = new Uint8Array(new SharedArrayBuffer(1 << 16));
    for (const [name, bytes] of smallWeights(9)) {
      scratch.set(bytes);
      await policy.stage(name, scratch.subarray(0, bytes.length));
      scratch.fill(255);
    }
    await policy.commit(policyVersion(1));
    const engine = await createEngine({ build: 'plain', threads: 1 });
    const sampler = Sampler.create(engine, parseModelConfig(SMALL_CONFIG), smallWeights(9), {
      version: policyVersion(1),
      slots: 1,
    });
    const request = { tokens: promptOf(9), sampling: samplingOf(20), seed: 3 };
    const expected = Promise.withResolvers<Generation>();
    sampler.submit({ ...request, onFinish: ({ cachedTokens: _cached, ...rest }) => expected.resolve(rest) });
    while (sampler.step() > 0);
    await engine.close();
    expect(await policy.generate(request)).toEqual(await expected.promise);
  });
});

describe('a stream', () => {
  test('goes on with the draws of another replica', async () => {
    const [left, right] = await Promise.all([start(), start()]);
    const request = { tokens: promptOf(9), sampling: samplingOf(30), seed: 3 };
    const whole = await left.generate(request);
    const drawn = whole.tokens.slice(0, 11);
    const rest = await right.generate({
      ...request,
      tokens: Int32Array.from([...request.tokens, ...drawn]),
      sampling: samplingOf(19),
      drawnBefore: 11,
    });
    expect([...drawn, ...rest.tokens]).toEqual([...whole.tokens]);
    expect(rest.logprobs).toEqual(whole.logprobs.slice(11));
  });

  test('hands over what a generation would have gathered', async () => {
    const policy = await start();
    const request = { tokens: promptOf(9), sampling: samplingOf(30), seed: 3 };
    const seen: unknown[] = [];
    const whole = await policy.generate({ ...request, onToken: (id, drawn) => seen.push({ id, ...drawn }) });
    const { ids, offsets } = whole.kept;
    expect(seen).toEqual(
      [...whole.tokens].map((id, place) => ({
        id,
        logprob: whole.logprobs[place],
        kept: ids.slice(offsets[place], offsets[place + 1]),
        version: 0,
      })),
    );
  });
});

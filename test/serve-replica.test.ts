/** Replicas as processes: versions published and committed while they sample, checked token by token; kills, faults and the end. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { request as httpRequest } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { policyVersion, type PolicyVersion } from '../src/domain/ids.ts';
import type { Sampling } from '../src/domain/policy.ts';
import { parameterShapes, parseModelConfig } from '../src/model/config.ts';
import { createEngine } from '../src/model/engine.ts';
import { Sampler, type SampledGeneration } from '../src/model/sampler.ts';
import { startControllerServer } from '../src/serve/controller-server.ts';
import { placesOf, promptOf, samplingOf, SMALL_CONFIG, smallWeights } from '../src/serve/small-replica.fixture.ts';
import { BearerToken } from '../src/serve/service/bearer-token.ts';
import { startControlServer } from '../src/serve/service/control-server.ts';
import { decodeTokensEvent, EventReader } from '../src/serve/wire/event-reader.ts';
import { encodeGenerateRequest } from '../src/serve/wire/generate-request.ts';
import { CodecPool } from '../src/sync/delta/codec-pool.ts';
import { exportVersion } from '../src/sync/export-version.ts';
import { Publisher } from '../src/sync/publisher.ts';
import { FileStore } from '../src/sync/store/file-store.ts';
import { readModelFolder, writeModelFolder } from '../src/tensor/hugging-face-folder.ts';

const LAUNCHER = fileURLToPath(new URL('../bin/hone.js', import.meta.url));
const RUN = 'run';
/** Without a token that the tests may have been started with. */
const ENVIRONMENT = { ...process.env, HONE_TOKEN: '' };
const BIND_MS = 60_000;
const STREAMS = 8;
const REPLY_TOKENS = 1000;
/** A replica that no reply crosses a commit at in so many tries never lets one. */
const MOST_VERSIONS = 200;

interface Line {
  readonly event: string;
  readonly version?: number;
  readonly [field: string]: unknown;
}

class Replica {
  readonly child: ChildProcess;
  readonly #events: string;
  stdout = '';
  stderr = '';

  constructor(args: readonly string[], events: string) {
    this.#events = events;
    this.child = spawn(process.execPath, [LAUNCHER, 'serve', 'replica', ...args, '--json', '--events', events], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: ENVIRONMENT,
    });
    this.child.stdout?.setEncoding('utf8').on('data', (text: string) => (this.stdout += text));
    this.child.stderr?.setEncoding('utf8').on('data', (text: string) => (this.stderr += text));
  }

  /** The line that it prints once it takes requests. */
  async ready(): Promise<{ url: string; controlUrl: string }> {
    await expect.poll(() => this.stdout + this.#lastWords(), { timeout: BIND_MS }).toContain('\n');
    // Its own line.
    return JSON.parse(this.stdout) as { url: string; controlUrl: string };
  }

  /** A process that ended will never say more. */
  #lastWords(): string {
    return this.child.exitCode === null ? '' : `ended\n${this.stderr}`;
  }

  events(): Line[] {
    if (!existsSync(this.#events)) return [];
    const lines = readFileSync(this.#events, 'utf8').split('\n').slice(0, -1);
    return lines.map((line) => JSON.parse(line) as Line); // Lines that a replica wrote.
  }

  async ended(): Promise<number | null> {
    if (this.child.exitCode === null && this.child.signalCode === null) await once(this.child, 'close');
    return this.child.exitCode;
  }

  async kill(): Promise<void> {
    this.child.kill('SIGKILL');
    await this.ended();
  }
}

interface Asked {
  readonly tokens: Int32Array;
  readonly sampling: Sampling;
  readonly seed: number;
  readonly minVersion?: PolicyVersion;
  readonly exactVersion?: PolicyVersion;
}

interface Reply {
  readonly status: number;
  readonly ids: number[];
  readonly logprobs: number[];
  readonly versions: number[];
  /** `end`, `error`, or `cut` for a stream without either. */
  last: string;
}

function ask(url: string, asked: Asked, onToken: () => void = () => undefined): Promise<Reply> {
  return new Promise((resolve, reject) => {
    const sent = httpRequest(`${url}/generate`, { method: 'POST', agent: false }, (response) => {
      const reply: Reply = { status: response.statusCode ?? 0, ids: [], logprobs: [], versions: [], last: 'cut' };
      if (reply.status !== 200) {
        response.resume().on('end', () => resolve(reply));
        return;
      }
      const reader = new EventReader();
      response.on('data', (chunk: Buffer) => {
        for (const event of reader.push(chunk)) {
          if (event.type !== 'tokens') {
            reply.last = event.type;
            continue;
          }
          const { ids, logprobs, version } = decodeTokensEvent(event);
          reply.ids.push(...ids);
          reply.logprobs.push(...logprobs);
          reply.versions.push(...Array.from(ids, () => version));
          onToken();
        }
      });
      response.on('close', () => resolve(reply));
      response.on('error', () => undefined);
    });
    sent.on('error', reject);
    sent.end(encodeGenerateRequest(asked));
  });
}

/** Versions that drew the reply. */
const spans = ({ versions }: Reply): number => new Set(versions).size;

let directory = '';
let store: FileStore;
const replicas: Replica[] = [];

beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'hone-serve-replica-'));
  store = await FileStore.open(join(directory, 'store'));
  const shapes = parameterShapes(parseModelConfig(SMALL_CONFIG));
  await writeModelFolder(join(directory, 'model'), {
    config: SMALL_CONFIG,
    tokenizerJson: {},
    tokenizerConfig: {},
    tensors: new Map(
      [...smallWeights(1)].map(([name, bytes]) => [name, { dtype: 'BF16', shape: shapes.get(name) ?? [], bytes }]),
    ),
  });
});
afterEach(async () => {
  for (const replica of replicas.splice(0)) await replica.kill();
  rmSync(directory, { recursive: true, force: true });
});

function start(name: string, ...more: readonly string[]): Replica {
  const replica = new Replica(
    [
      `--model=${join(directory, 'model')}`,
      `--data=${join(directory, name)}`,
      `--id=${name}`,
      '--build=plain',
      '--threads=1',
      '--slots=8',
      '--poll-seconds=0.1',
      ...more,
    ],
    join(directory, `${name}.jsonl`),
  );
  replicas.push(replica);
  return replica;
}

const withStore = (): string[] => ['--store', join(directory, 'store')];

async function openPublisher(codec: CodecPool, anchorEvery = 3): Promise<Publisher> {
  return Publisher.open(store, {
    runId: RUN,
    bootVersion: policyVersion(0),
    bootWeights: placesOf(smallWeights(1)),
    codec,
    anchorEvery,
  });
}

/** Weights of a version: every third tensor is another one. */
function weightsAt(version: number): Map<string, Uint8Array> {
  const weights = smallWeights(1);
  for (let step = 1; step <= version; step++)
    for (const [index, [name, bytes]] of [...smallWeights(100 + step)].entries())
      if (index % 3 === step % 3) weights.set(name, bytes);
  return weights;
}

/** Samples the reply again, with each version's weights in its span, as a replica that keeps its cache would. */
async function resample(
  asked: Asked,
  reply: Reply,
  exported: ReadonlyMap<number, Map<string, Uint8Array>>,
): Promise<SampledGeneration> {
  const engine = await createEngine({ build: 'plain', threads: 1 });
  const weightsOf = (version: number): Map<string, Uint8Array> => {
    const weights = exported.get(version);
    if (weights === undefined) throw new Error(`version ${version} was never exported`);
    return weights;
  };
  const sampler = Sampler.create(engine, parseModelConfig(SMALL_CONFIG), weightsOf(reply.versions[0] ?? 0), {
    version: policyVersion(reply.versions[0] ?? 0),
    slots: 1,
  });
  let end: SampledGeneration | undefined;
  sampler.submit({ ...asked, onFinish: (generation) => (end = generation) });
  for (;;) {
    const next = reply.versions[sampler.stats.sampledTokens];
    if (next !== undefined && next !== sampler.version) {
      for (const [name, bytes] of weightsOf(next)) sampler.stage(name, bytes);
      sampler.commit(policyVersion(next));
    }
    if (sampler.step() === 0) break;
  }
  await engine.close();
  if (end === undefined) throw new Error('nothing was sampled');
  return end;
}

describe('hone serve replica', () => {
  test('eight streams go on while versions come: none fails, and every token is that of the version it names', async () => {
    await using codec = await CodecPool.start({ threads: 1 });
    await using publisher = await openPublisher(codec);
    const replica = start('r', ...withStore(), '--verify-served');
    const { url, controlUrl } = await replica.ready();
    const done: { stream: number; asked: Asked; reply: Reply }[] = [];
    const tokens = new Array<number>(STREAMS).fill(0);
    let isOver = false;
    const streams = tokens.map(async (_, stream) => {
      for (let turn = 0; !isOver; turn++) {
        const asked = {
          tokens: promptOf(8 + stream, turn),
          sampling: samplingOf(REPLY_TOKENS),
          seed: stream * 1000 + turn,
        };
        const reply = await ask(url, asked, () => {
          tokens[stream] = (tokens[stream] ?? 0) + 1;
        });
        done.push({ stream, asked, reply });
      }
    });
    const drawsOn = async (): Promise<void> => {
      const before = [...tokens];
      const least = (): number => Math.min(...tokens.map((count, stream) => count - (before[stream] ?? 0)));
      await expect.poll(least, { timeout: BIND_MS }).toBeGreaterThan(0);
    };
    const crossing = (): Set<number> =>
      new Set(done.filter(({ reply }) => spans(reply) > 1).map(({ stream }) => stream));
    // Which reply a commit falls into is chance: versions come until one has fallen into a reply of every stream.
    let served = 0;
    while (served < 5 || crossing().size < STREAMS) {
      const version = ++served;
      expect(version).toBeLessThan(MOST_VERSIONS);
      await drawsOn();
      await publisher.publish(placesOf(weightsAt(version)));
      await fetch(`${controlUrl}/wake`, { method: 'POST' });
      const isCommitted = (): boolean =>
        replica.events().some((line) => line.event === 'weights-committed' && line.version === version);
      await expect.poll(isCommitted, { timeout: BIND_MS }).toBe(true);
    }
    await drawsOn();
    isOver = true;
    await Promise.all(streams);

    // The weights that the store gives anybody, as plain folders.
    const exported = new Map<number, Map<string, Uint8Array>>([[0, smallWeights(1)]]);
    for (let version = 1; version <= served; version++) {
      const folder = join(directory, `exported-${version}`);
      await exportVersion(
        store,
        { runId: RUN, version: policyVersion(version), attempt: 0 },
        { directory: folder, bootModel: join(directory, 'model'), codec },
      );
      const { tensors } = await readModelFolder(folder);
      exported.set(version, new Map([...tensors].map(([name, { bytes }]) => [name, bytes])));
      expect(exported.get(version)).toEqual(weightsAt(version));
    }
    for (const { reply } of done) {
      expect(reply).toMatchObject({ status: 200, last: 'end' });
      expect(reply.ids.length).toBe(REPLY_TOKENS);
      expect(reply.versions).toEqual(reply.versions.toSorted((left, right) => left - right));
    }
    // Those that crossed most are the hardest; some are enough.
    const hardest = done.toSorted((left, right) => spans(right.reply) - spans(left.reply));
    for (const { asked, reply } of hardest.slice(0, 16)) {
      const again = await resample(asked, reply, exported);
      expect(reply.ids).toEqual([...again.tokens]);
      expect(reply.logprobs).toEqual([...again.logprobs]);
    }
    for (const line of replica.events().filter(({ event }) => event === 'weights-committed'))
      expect(line['servedChecksum']).toBe(line['imageChecksum']);
    replica.child.kill('SIGTERM');
    expect(await replica.ended()).toBe(0);
  }, 180_000);

  test('killed in the middle of a reply it leaves a cut stream, and comes back where it was, ready after it caught up', async () => {
    await using codec = await CodecPool.start({ threads: 1 });
    await using publisher = await openPublisher(codec);
    await publisher.publish(placesOf(weightsAt(1)));
    const first = start('r', ...withStore());
    const { url } = await first.ready();
    const asked = { tokens: promptOf(8), sampling: samplingOf(4000), seed: 1 };
    const reply = await ask(url, asked, () => first.child.kill('SIGKILL'));
    expect(reply.last).toBe('cut');
    expect(new Set(reply.versions)).toEqual(new Set([1]));
    await first.ended();
    await publisher.publish(placesOf(weightsAt(2)));
    const second = start('r', ...withStore());
    const again = await second.ready();
    expect(await ask(again.url, { ...asked, sampling: samplingOf(3), minVersion: policyVersion(2) })).toMatchObject({
      last: 'end',
      versions: [2, 2, 2],
    });
    // It started from its own folder, and fetched only what was new.
    const events = second.events().slice(first.events().length === 0 ? 0 : -4);
    expect(
      second
        .events()
        .filter(({ event }) => event === 'replica-start')
        .at(-1),
    ).toMatchObject({
      version: 1,
      source: 'folder',
    });
    expect(events.map(({ event }) => event)).toContain('replica-ready');
  }, 120_000);

  test('takes nothing before its first catch-up, and says why', async () => {
    await using codec = await CodecPool.start({ threads: 1 });
    await using publisher = await openPublisher(codec);
    await publisher.publish(placesOf(weightsAt(1)));
    const [file] = (await store.list(`${RUN}/`)).filter(({ key }) => key.endsWith('.safetensors'));
    const path = store.localPath(file?.key ?? '') ?? '';
    const good = readFileSync(path);
    writeFileSync(path, good.subarray(0, 200));
    const replica = start('r', ...withStore());
    await expect.poll(() => replica.stderr, { timeout: BIND_MS }).toContain('catches up');
    const [, url = '', controlUrl = ''] = /listens on (\S+), control on (\S+);/u.exec(replica.stderr) ?? [];
    await expect
      .poll(() => replica.events().some(({ event }) => event === 'sync-retry' || event === 'sync-refused'), {
        timeout: BIND_MS,
      })
      .toBe(true);
    const health = await fetch(`${controlUrl}/health`);
    expect([health.status, await health.text()]).toMatchObject([503, expect.stringContaining('not caught up')]);
    expect((await ask(url, { tokens: promptOf(4), sampling: samplingOf(2), seed: 1 })).status).toBe(503);
    expect(replica.stdout).toBe('');
    writeFileSync(path, good);
    await replica.ready();
    expect((await ask(url, { tokens: promptOf(4), sampling: samplingOf(2), seed: 1 })).versions).toEqual([1, 1]);
  }, 120_000);

  test('says once what it cannot follow and what would help, that it is over, and then each version', async () => {
    await using codec = await CodecPool.start({ threads: 1 });
    await using publisher = await openPublisher(codec);
    await publisher.publish(placesOf(weightsAt(1)));
    const wrong = start('wrong', ...withStore(), '--run', 'runn');
    const right = start('right', ...withStore(), '--run', RUN);
    const { controlUrl } = await right.ready();
    await expect.poll(() => wrong.stderr, { timeout: BIND_MS }).toContain('belongs to run');
    expect(wrong.stderr).toMatch(
      /hone: replica wrong: The weight store now belongs to run run, this replica follows runn\. Start it with --run run/u,
    );
    const [, wrongUrl = ''] = /control on (\S+);/u.exec(wrong.stderr) ?? [];
    const problems = async (url: string): Promise<object[]> =>
      // The page's own form.
      ((await (await fetch(`${url}/status`)).json()) as { problems: object[] }).problems;
    expect(await problems(wrongUrl)).toMatchObject([{ about: 'weights', problem: expect.stringContaining('runn') }]);

    // It stands still until the version is damaged, whenever it would have looked.
    right.child.kill('SIGSTOP');
    await publisher.publish(placesOf(weightsAt(2)));
    const [file] = (await store.list(`${RUN}/weight_v000002/`)).filter(({ key }) => key.endsWith('.safetensors'));
    const path = store.localPath(file?.key ?? '') ?? '';
    const good = readFileSync(path);
    writeFileSync(path, good.subarray(0, 200));
    right.child.kill('SIGCONT');
    const retries = (): number => right.events().filter(({ event }) => event === 'sync-retry').length;
    await expect.poll(retries, { timeout: BIND_MS }).toBeGreaterThan(2);
    expect(await problems(controlUrl)).toMatchObject([{ about: 'weights' }]);
    writeFileSync(path, good);
    await expect.poll(() => right.stderr, { timeout: BIND_MS }).toContain('serves version 2');
    expect(await problems(controlUrl)).toEqual([]);
    const lines = right.stderr.trimEnd().split('\n').slice(1);
    const costs = String.raw`\([\d.]+ (B|KiB|MiB) fetched, \d+ ms; paused [\d.]+ ms\)`;
    expect(lines).toEqual([
      expect.stringMatching(new RegExp(`^hone: replica right serves version 1 ${costs}$`, 'u')),
      expect.stringMatching(/^hone: replica right: \S.*weight_v000002/u),
      'hone: replica right: It follows the weights again.',
      expect.stringMatching(new RegExp(`^hone: replica right serves version 2 ${costs}$`, 'u')),
    ]);
    right.child.kill('SIGINT');
    expect(await right.ended()).toBe(0);
    expect(right.stderr).toMatch(/ends when what it samples has ended, in at most 30 s; press Ctrl-C again/u);
    // Standard output is the one line of --json.
    expect(right.stdout.split('\n')).toHaveLength(2);
  }, 120_000);

  test('says who does not let it in: a router and a controller with a token of their own, and that it follows nothing', async () => {
    const token = new BearerToken('the token of the fleet');
    const closed = { host: '127.0.0.1', port: 0, token, health: () => ({ ready: true }), routes: () => undefined };
    await using router = await startControlServer({ ...closed, service: 'router' });
    await using controller = await startControlServer({ ...closed, service: 'controller' });
    const alone = start('alone', '--router', router.url);
    const member = start('member', '--controller', controller.url, '--cache-gib', '0.5');
    await expect.poll(() => alone.stderr, { timeout: BIND_MS }).toContain('token');
    expect(alone.stderr).toMatch(/follows nothing, and serves the model as it is, version 0, for good/u);
    expect(alone.stderr).toContain(
      `The router ${router.url} lets in only who has its token, and none is given here. Set HONE_TOKEN`,
    );
    await expect.poll(() => member.stderr, { timeout: BIND_MS }).toContain('token');
    expect(member.stderr).toContain(
      `The cluster controller ${controller.url} lets in only who has its token, and none is given here. Set HONE_TOKEN`,
    );
    // Some tries later it has said no more.
    await expect
      .poll(() => member.events().filter(({ event }) => event === 'sync-retry').length, { timeout: BIND_MS })
      .toBeGreaterThan(3);
    expect(member.stderr.trimEnd().split('\n')).toHaveLength(2);
    const bound = start('bound', '--controller', controller.url, '--cache-gib', '0');
    expect(await bound.ended()).toBe(1);
    expect(bound.stderr).toContain('--cache-gib is 0, not a number above 0');
  }, 60_000);

  test('keeps the copies that it hands to others within --cache-gib', async () => {
    await using codec = await CodecPool.start({ threads: 1 });
    await using publisher = await openPublisher(codec);
    await using controller = await startControllerServer({
      store,
      cluster: 'west',
      cacheDirectory: join(directory, 'controller'),
      cacheBytes: 2 ** 40,
      fanOut: 2,
      pollEveryMs: 50,
      memberLeaseMs: 5_000,
      host: '127.0.0.1',
      port: 0,
      token: undefined,
      now: () => performance.now(),
      wallMs: Date.now,
    });
    const through = ['--controller', controller.url];
    const names = ['plenty', 'bounded'];
    const members = [start('plenty', ...through), start('bounded', ...through, '--cache-gib', '0.0000001')];
    for (const version of [1, 2]) {
      await publisher.publish(placesOf(weightsAt(version)));
      for (const member of members)
        await expect.poll(() => member.stderr, { timeout: BIND_MS }).toContain(`serves version ${version}`);
    }
    const copiesOfFirst = (): number[] =>
      names.map((name) => {
        const folder = join(directory, name, 'cache', 'whole', RUN, 'weight_v000001');
        const files = existsSync(folder) ? readdirSync(folder) : [];
        return files.filter((file) => file.endsWith('.safetensors')).length;
      });
    await expect.poll(copiesOfFirst, { timeout: BIND_MS }).toEqual([1, 0]);
  }, 60_000);

  test('does not tell routers or peers an address that stands for every one', async () => {
    for (const host of ['0.0.0.0', '::']) {
      const replica = start('r', '--host', host, '--router', 'http://127.0.0.1:1');
      expect(await replica.ended()).toBe(1);
      expect(replica.stderr).toContain(`to reach it at ${host}, which is no address. Add --advertise-host`);
    }
    const replica = start('r', '--advertise-host', 'http://10.0.0.7:80', '--router', 'http://127.0.0.1:1');
    expect(await replica.ended()).toBe(1);
    expect(replica.stderr).toContain('--advertise-host is "http://10.0.0.7:80", not a host');
  }, 60_000);

  test('finishes what runs when it is asked to end', async () => {
    const replica = start('r');
    const { url } = await replica.ready();
    let asked = false;
    const reply = await ask(url, { tokens: promptOf(8), sampling: samplingOf(2000), seed: 1 }, () => {
      if (!asked) replica.child.kill('SIGTERM');
      asked = true;
    });
    expect(reply).toMatchObject({ last: 'end' });
    expect(reply.ids.length).toBe(2000);
    expect(await replica.ended()).toBe(0);
  }, 60_000);

  test('ends with an error when its engine dies', async () => {
    await using codec = await CodecPool.start({ threads: 1 });
    await using publisher = await openPublisher(codec);
    const replica = start('r', ...withStore());
    const { url } = await replica.ready();
    const broken = weightsAt(1);
    for (const bytes of broken.values()) new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2).fill(0x7fc0);
    await publisher.publish(placesOf(broken));
    await expect
      .poll(() => replica.events().some(({ event }) => event === 'weights-committed'), { timeout: BIND_MS })
      .toBe(true);
    const reply = await ask(url, { tokens: promptOf(8), sampling: samplingOf(20), seed: 1 });
    // Refused, or answered with the error, as the engine broke before or after it said that the request may start.
    expect([reply.status === 503 ? 'refused' : reply.last, reply.ids.length]).toEqual([
      expect.stringMatching(/refused|error/u),
      0,
    ]);
    expect(await replica.ended()).toBe(1);
    expect(replica.stderr).toContain('not finite');
  }, 60_000);
});

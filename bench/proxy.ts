/**
 * What router and recorder cost, as ratios within one run: streams a second of the router's relay against two proxies on fetch (by
 * hand, as most are written: the reference of the bound, as no framework's cost counts for us there; and hono's), and latency and
 * requests a second of a hosted session (router and recorder together) against the bare replica. Everything alternates, so that a machine
 * that is busy slows all sides alike. Run: npm run bench:proxy.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

import { pinThisProcess } from './proxy/pinning.ts';
import { RawClient } from './proxy/raw-client.ts';
import type { RawRequest } from './proxy/raw-client.ts';
import { ServiceProcess } from './proxy/service-process.ts';
import { aSwitch, readScriptOptions } from '../scripts/script-options.ts';
import { DEFAULT_SAMPLING } from '../src/domain/policy.ts';
import { openHostedModel } from '../src/serve/router/hosted-model.ts';
import { encodeGenerateRequest } from '../src/serve/wire/generate-request.ts';

const {
  quick: isQuick,
  relay: isRelayOnly,
  noReplica,
} = readScriptOptions({
  name: 'bench:proxy',
  summary: 'What router and recorder cost: streams against fetch proxies, hosted sessions against the bare replica.',
  options: {
    quick: aSwitch('fewer rounds'),
    relay: aSwitch('the relay against fetch proxies alone, without hosted sessions'),
    noReplica: aSwitch('hosted sessions before a stand-in replica alone'),
  },
});
const pinning = pinThisProcess();
const EVENTS = 200;
const STREAMS_AT_ONCE = 32;
const ROUNDS = isQuick ? 5 : 15;
/** Few, so that the sides of a round meet the machine in the same state. */
const STREAMS_A_ROUND = 640;

interface Measured {
  readonly streamsPerSecond: number;
  /** Processor time of the side under test, in whole ticks: to be summed over rounds. */
  readonly cpuMs: number;
  /** Processor time of client and stand-in replica a second: near 1 = they were what was waited for. */
  readonly besideShare: number;
}

const generate = (maxTokens: number, promptTokens: number): RawRequest => ({
  path: '/generate',
  body: encodeGenerateRequest({
    tokens: Int32Array.from({ length: promptTokens }, (_, index) => 20 + (index % 200)),
    sampling: { ...DEFAULT_SAMPLING, maxTokens, stopIds: [] },
    seed: 1,
  }),
});

/** Runs all requests over so many connections; resolves with milliseconds. */
async function drive(url: string, requests: readonly RawRequest[], connections: number): Promise<number> {
  const clients = await Promise.all(Array.from({ length: connections }, () => RawClient.connect(url)));
  let next = 0;
  const start = performance.now();
  await Promise.all(
    clients.map(async (client) => {
      for (let request = requests[next++]; request !== undefined; request = requests[next++]) await client.ask(request);
    }),
  );
  const tookMs = performance.now() - start;
  for (const client of clients) client.close();
  return tookMs;
}

async function streamsOf(service: ServiceProcess, replica: ServiceProcess, count: number): Promise<Measured> {
  const requests = Array.from({ length: count }, () => generate(EVENTS, 256));
  const besideMs = (): number => process.cpuUsage().user / 1000 + process.cpuUsage().system / 1000 + replica.cpuMs();
  const [cpuBefore, besideBefore] = [service.cpuMs(), besideMs()];
  const tookMs = await drive(service.address.url, requests, STREAMS_AT_ONCE);
  return {
    streamsPerSecond: (count * 1000) / tookMs,
    cpuMs: service.cpuMs() - cpuBefore,
    besideShare: (besideMs() - besideBefore) / tookMs,
  };
}

/** `stepMs`: 0 = whole replies at once; else an event a stream and decode step. */
async function relayAgainstFetch(stepMs: number): Promise<void> {
  const { underTest, beside } = pinning;
  const place = { placement: underTest };
  await using replica = await ServiceProcess.start('stand-in-process.ts', [String(stepMs)], { placement: beside });
  const { url, controlUrl = '' } = replica.address;
  await using fetchProxy = await ServiceProcess.start('plain-fetch-proxy.ts', [url], place);
  await using honoProxy = await ServiceProcess.start('fetch-proxy.ts', [url], place);
  const words = ['serve', 'router', '--json', '--replica', `${url},${controlUrl}`];
  await using router = await ServiceProcess.start('../../bin/hone.js', words, place);
  const services = { bare: replica, router, fetch: fetchProxy, hono: honoProxy };
  const isFast = stepMs === 0;
  const streams = isFast ? STREAMS_A_ROUND : STREAMS_AT_ONCE;
  const count = isFast ? ROUNDS : Math.ceil(ROUNDS / 4);
  // All sides are measured as they run for hours: compiled, with their connections open.
  for (const service of Object.values(services)) await streamsOf(service, replica, isFast ? 2_000 : STREAMS_AT_ONCE);
  const rounds: Record<keyof typeof services, Measured>[] = [];
  for (let round = 0; round < count; round++)
    rounds.push({
      bare: await streamsOf(services.bare, replica, streams),
      router: await streamsOf(services.router, replica, streams),
      fetch: await streamsOf(services.fetch, replica, streams),
      hono: await streamsOf(services.hono, replica, streams),
    });
  const of = (name: keyof typeof services, figure: keyof Measured): number =>
    median(rounds.map((round) => round[name][figure]));
  const cpuMs = (name: keyof typeof services): number =>
    rounds.reduce((sum, round) => sum + round[name].cpuMs, 0) / (count * streams);
  const line = (label: string, name: keyof typeof services): void =>
    print(
      `  ${label} ${of(name, 'streamsPerSecond').toFixed(0)} streams/s, ${cpuMs(name).toFixed(3)} ms of processor a stream; client and replica busy ${(of(name, 'besideShare') * 100).toFixed(0)} %`,
    );
  print(
    `Streams of ${EVENTS} events, ${STREAMS_AT_ONCE} at once, stand-in replica ${isFast ? 'at full speed' : `with decode steps of ${stepMs} ms`}; medians of ${count} rounds; ${pinning.description}`,
  );
  print(`  bare replica      ${of('bare', 'streamsPerSecond').toFixed(0)} streams/s`);
  line('router’s relay   ', 'router');
  line('plain fetch proxy', 'fetch');
  line('hono fetch proxy ', 'hono');
  for (const name of ['fetch', 'hono'] as const) {
    const ratios = rounds.map((round) => round.router.streamsPerSecond / round[name].streamsPerSecond);
    print(
      `  relay / ${name.padEnd(5)}    ${spread(ratios)} x streams/s, ${(cpuMs(name) / cpuMs('router')).toFixed(2)} x streams a second of processor${name === 'fetch' ? ' (the bound’s reference)' : ''}`,
    );
  }
}

/** The median, and between which bounds all rounds lie. */
function spread(values: readonly number[]): string {
  return `${median(values).toFixed(2)} (${Math.min(...values).toFixed(2)}-${Math.max(...values).toFixed(2)})`;
}

interface Pairs {
  readonly bareMs: number[];
  readonly hostedMs: number[];
}

/** A hosted turn (chat in, text out, recorded) beside the same number of tokens from the bare replica, by turns. */
async function hostedAgainstBare(name: string, replicaWords: readonly string[]): Promise<void> {
  const folder = fileURLToPath(new URL('../models/nano', import.meta.url));
  const data = mkdtempSync(join(tmpdir(), 'hone-proxy-'));
  try {
    const isStandIn = replicaWords.length === 0;
    await using replica = isStandIn
      ? await ServiceProcess.start('stand-in-process.ts', ['0'], { placement: pinning.beside })
      : await ServiceProcess.start('../../bin/hone.js', [...replicaWords, '--data', data, '--json'], {
          placement: pinning.beside,
        });
    const { url, controlUrl = '' } = replica.address;
    const words = ['serve', 'router', '--json', '--model', folder, '--replica', `${url},${controlUrl}`];
    await using router = await ServiceProcess.start('../../bin/hone.js', words, { placement: pinning.underTest });
    const { tokenizer } = await openHostedModel(folder);
    const maxTokens = 32;
    const text =
      'const total = items.map((item) => item.price * item.count).reduce((sum, price) => sum + price, 0);\n'.repeat(8);
    const prompt = tokenizer.encode(text);
    const sampling = { ...DEFAULT_SAMPLING, maxTokens, stopIds: [] as number[] };
    const bare = (seed: number): RawRequest => ({
      path: '/generate',
      body: encodeGenerateRequest({ tokens: prompt, sampling, seed }),
    });
    let sessions = 0;
    const open = async (): Promise<RawRequest> => {
      const id = `s${sessions++}`;
      const answer = await fetch(`${router.address.controlUrl}/sessions`, {
        method: 'POST',
        body: JSON.stringify({ id, record: { sampling: { maxTokens, stopIds: [] }, seed: sessions } }),
      });
      // The route's own form.
      const { secret } = (await answer.json()) as { secret: string };
      const body = JSON.stringify({ model: 'nano', messages: [{ role: 'user', content: text }] });
      return { path: `/sessions/${id}/v1/chat/completions`, body, token: secret };
    };
    const pairs: Pairs = { bareMs: [], hostedMs: [] };
    const [direct, hosted] = [await RawClient.connect(url), await RawClient.connect(router.address.url)];
    const count = (isQuick ? 60 : 400) / (isStandIn ? 1 : 4);
    for (let index = 0; index < count + 20; index++) {
      const turn = await open();
      const bareMs = await timed(() => direct.ask(bare(index)));
      const hostedMs = await timed(() => hosted.ask(turn));
      if (index < 20) continue;
      pairs.bareMs.push(bareMs);
      pairs.hostedMs.push(hostedMs);
    }
    direct.close();
    hosted.close();
    const rates: { bare: number; hosted: number }[] = [];
    const many = (isQuick ? 64 : 320) / (isStandIn ? 1 : 4);
    for (let round = 0; round < ROUNDS; round++) {
      const turns = await Promise.all(Array.from({ length: many }, open));
      const bareMs = await drive(
        url,
        Array.from({ length: many }, (_, index) => bare(index)),
        16,
      );
      const hostedMs = await drive(router.address.url, turns, 16);
      rates.push({ bare: (many * 1000) / bareMs, hosted: (many * 1000) / hostedMs });
    }
    const added = (share: number): string =>
      (quantile(pairs.hostedMs, share) - quantile(pairs.bareMs, share)).toFixed(2);
    print(
      `Router and recorder before ${name}: prompts of ${prompt.length} tokens, ${maxTokens} tokens drawn, by turns`,
    );
    print(
      `  bare    p50 ${quantile(pairs.bareMs, 0.5).toFixed(2)} ms, p99 ${quantile(pairs.bareMs, 0.99).toFixed(2)} ms`,
    );
    print(
      `  hosted  p50 ${quantile(pairs.hostedMs, 0.5).toFixed(2)} ms, p99 ${quantile(pairs.hostedMs, 0.99).toFixed(2)} ms`,
    );
    print(`  added   p50 ${added(0.5)} ms, p99 ${added(0.99)} ms`);
    const share = median(rates.map(({ bare: one, hosted: other }) => other / one));
    print(
      `  16 at once: bare ${median(rates.map(({ bare: one }) => one)).toFixed(0)} requests/s, hosted ${median(rates.map(({ hosted: one }) => one)).toFixed(0)}: ${share.toFixed(2)} of it`,
    );
  } finally {
    rmSync(data, { recursive: true, force: true });
  }
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await work();
  return performance.now() - start;
}

function median(values: readonly number[]): number {
  return quantile(values, 0.5);
}

function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].toSorted((left, right) => left - right);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

await relayAgainstFetch(0);
await relayAgainstFetch(5);
const hasHosted = !isRelayOnly;
if (hasHosted) await hostedAgainstBare('a stand-in replica at full speed', []);
if (hasHosted && !noReplica)
  await hostedAgainstBare('a real replica of models/nano', [
    'serve',
    'replica',
    '--model',
    'models/nano',
    '--threads',
    '1',
  ]);

/**
 * What router and recorder cost, as ratios within one run: streams a second of the router's relay against two proxies on fetch (by
 * hand, as most are written: the reference of the bound, as no framework's cost counts for us there; and hono's), and latency and requests a second of a hosted session (router and recorder together) against the bare replica. Everything
 * alternates, so that a machine that is busy slows all sides alike. Run: npm run bench:proxy [-- --quick] [-- --relay] [-- --no-replica].
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

import { RawClient } from './proxy/raw-client.ts';
import type { RawRequest } from './proxy/raw-client.ts';
import { ServiceProcess } from './proxy/service-process.ts';
import { DEFAULT_SAMPLING } from '../src/domain/policy.ts';
import { openHostedModel } from '../src/serve/router/hosted-model.ts';
import { encodeGenerateRequest } from '../src/serve/wire/generate-request.ts';

const isQuick = process.argv.includes('--quick');
const EVENTS = 200;
const STREAMS_AT_ONCE = 32;
const ROUNDS = isQuick ? 2 : 5;
const STREAMS_A_ROUND = isQuick ? 640 : 2_000;

interface Measured {
  readonly streamsPerSecond: number;
  readonly cpuMsPerStream: number;
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

async function streamsOf(service: ServiceProcess, count: number): Promise<Measured> {
  const requests = Array.from({ length: count }, () => generate(EVENTS, 256));
  const cpuBefore = service.cpuMs();
  const tookMs = await drive(service.address.url, requests, STREAMS_AT_ONCE);
  return { streamsPerSecond: (count * 1000) / tookMs, cpuMsPerStream: (service.cpuMs() - cpuBefore) / count };
}

/** `stepMs`: 0 = whole replies at once; else an event a stream and decode step. */
async function relayAgainstFetch(stepMs: number): Promise<void> {
  await using replica = await ServiceProcess.start('stand-in-process.ts', [String(stepMs)]);
  const { url, controlUrl = '' } = replica.address;
  await using fetchProxy = await ServiceProcess.start('plain-fetch-proxy.ts', [url]);
  await using honoProxy = await ServiceProcess.start('fetch-proxy.ts', [url]);
  await using router = await ServiceProcess.start('../../bin/hone.js', [
    'serve',
    'router',
    '--json',
    '--replica',
    `${url},${controlUrl}`,
  ]);
  const services = { bare: replica, router, fetch: fetchProxy, hono: honoProxy };
  const streams = stepMs === 0 ? STREAMS_A_ROUND : STREAMS_AT_ONCE * 2;
  // All sides are measured as they run for hours: compiled, with their connections open.
  for (const service of Object.values(services)) await streamsOf(service, stepMs === 0 ? 2_000 : STREAMS_AT_ONCE);
  const rounds: Record<keyof typeof services, Measured>[] = [];
  for (let round = 0; round < ROUNDS; round++)
    rounds.push({
      bare: await streamsOf(services.bare, streams),
      router: await streamsOf(services.router, streams),
      fetch: await streamsOf(services.fetch, streams),
      hono: await streamsOf(services.hono, streams),
    });
  const rate = (name: keyof typeof services): number => median(rounds.map((round) => round[name].streamsPerSecond));
  const cpu = (name: keyof typeof services): number => median(rounds.map((round) => round[name].cpuMsPerStream));
  const ratio = (name: 'fetch' | 'hono'): string =>
    median(rounds.map((round) => round.router.streamsPerSecond / round[name].streamsPerSecond)).toFixed(2);
  const line = (label: string, name: keyof typeof services): void =>
    print(`  ${label} ${rate(name).toFixed(0)} streams/s, ${cpu(name).toFixed(2)} ms of processor a stream`);
  print(
    `Streams of ${EVENTS} events, ${STREAMS_AT_ONCE} at once, stand-in replica ${stepMs === 0 ? 'at full speed' : `with decode steps of ${stepMs} ms`}; medians of ${ROUNDS} rounds`,
  );
  print(`  bare replica      ${rate('bare').toFixed(0)} streams/s`);
  line('router’s relay   ', 'router');
  line('plain fetch proxy', 'fetch');
  line('hono fetch proxy ', 'hono');
  for (const name of ['fetch', 'hono'] as const)
    print(
      `  relay / ${name.padEnd(5)}    ${ratio(name)} x streams/s, ${(cpu(name) / cpu('router')).toFixed(2)} x streams a processor${name === 'fetch' ? ' (the bound’s reference)' : ''}`,
    );
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
      ? await ServiceProcess.start('stand-in-process.ts', ['0'])
      : await ServiceProcess.start('../../bin/hone.js', [...replicaWords, '--data', data, '--json']);
    const { url, controlUrl = '' } = replica.address;
    await using router = await ServiceProcess.start('../../bin/hone.js', [
      'serve',
      'router',
      '--json',
      '--model',
      folder,
      '--replica',
      `${url},${controlUrl}`,
    ]);
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
const hasHosted = !process.argv.includes('--relay');
if (hasHosted) await hostedAgainstBare('a stand-in replica at full speed', []);
if (hasHosted && !process.argv.includes('--no-replica'))
  await hostedAgainstBare('a real replica of models/nano', [
    'serve',
    'replica',
    '--model',
    'models/nano',
    '--threads',
    '1',
  ]);

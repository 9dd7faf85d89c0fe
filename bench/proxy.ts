/**
 * What router and recorder cost, as ratios within one run: streams a second of the router's relay against a proxy written with
 * fetch, and latency and requests a second of a hosted session (router and recorder together) against the bare replica. Everything
 * alternates, so that a machine that is busy slows all sides alike. Run: npm run bench:proxy [-- --quick] [-- --no-replica].
 */
import process from 'node:process';

import { RawClient } from './proxy/raw-client.ts';
import type { RawRequest } from './proxy/raw-client.ts';
import { ServiceProcess } from './proxy/service-process.ts';
import { DEFAULT_SAMPLING } from '../src/domain/policy.ts';
import { encodeGenerateRequest } from '../src/serve/wire/generate-request.ts';

const isQuick = process.argv.includes('--quick');
const EVENTS = 200;
const STREAMS_AT_ONCE = 32;
const ROUNDS = isQuick ? 2 : 5;
const STREAMS_A_ROUND = isQuick ? 128 : 640;

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

async function relayAgainstFetch(): Promise<void> {
  await using replica = await ServiceProcess.start('stand-in-process.ts', [process.env['STEP'] ?? '0']);
  const { url, controlUrl = '' } = replica.address;
  await using fetchProxy = await ServiceProcess.start('fetch-proxy.ts', [url]);
  await using router = await ServiceProcess.start('../../bin/hone.js', [
    'serve',
    'router',
    '--json',
    '--replica',
    `${url},${controlUrl}`,
  ]);
  const services = { bare: replica, router, fetch: fetchProxy };
  for (const service of Object.values(services)) await streamsOf(service, 64);
  const rounds: Record<keyof typeof services, Measured>[] = [];
  for (let round = 0; round < ROUNDS; round++)
    rounds.push({
      bare: await streamsOf(services.bare, STREAMS_A_ROUND),
      router: await streamsOf(services.router, STREAMS_A_ROUND),
      fetch: await streamsOf(services.fetch, STREAMS_A_ROUND),
    });
  const rate = (name: keyof typeof services): number => median(rounds.map((round) => round[name].streamsPerSecond));
  const cpu = (name: keyof typeof services): number => median(rounds.map((round) => round[name].cpuMsPerStream));
  const ratio = median(rounds.map((round) => round.router.streamsPerSecond / round.fetch.streamsPerSecond));
  print(
    `Streams of ${EVENTS} events, ${STREAMS_AT_ONCE} at once, stand-in replica at full speed; medians of ${ROUNDS} rounds`,
  );
  print(`  bare replica   ${rate('bare').toFixed(0)} streams/s`);
  print(
    `  router's relay ${rate('router').toFixed(0)} streams/s, ${cpu('router').toFixed(2)} ms of processor a stream`,
  );
  print(`  fetch proxy    ${rate('fetch').toFixed(0)} streams/s, ${cpu('fetch').toFixed(2)} ms of processor a stream`);
  print(
    `  relay / fetch  ${ratio.toFixed(2)} x streams/s, ${(cpu('fetch') / cpu('router')).toFixed(2)} x streams a processor`,
  );
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

await relayAgainstFetch();

/**
 * `npm run bench:load`: what weight updates cost a fleet under load. Six replicas behind a router sample for 64 streams, in blocks that
 * take turns: an update every 2 s, and none. Prints tokens a second of both as a ratio, gaps between tokens, failed requests, how long
 * until a version is everywhere, and pauses. Exits 1 when a bound is missed.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { numberIn, readLogs, type LogLine } from '../examples/three-clusters/event-log.ts';
import { Fleet } from '../examples/three-clusters/fleet.ts';
import { ServiceProcess } from '../examples/three-clusters/service-process.ts';
import { aCount, aNumber, aText, oneOf, readScriptOptions } from '../scripts/script-options.ts';
import { reasonOf } from '../src/domain/errors.ts';
import { createRandom, deriveSeed } from '../src/domain/ids.ts';
import { DEFAULT_SAMPLING } from '../src/domain/policy.ts';
import { renderTextTable } from '../src/frontier/text-table.ts';
import { parseModelConfig } from '../src/model/config.ts';
import { HttpTransport } from '../src/serve/router/http-transport.ts';
import { RemotePolicy } from '../src/serve/router/remote-policy.ts';
import { readModelFolder } from '../src/tensor/hugging-face-folder.ts';
import type { PublishingOptions } from './chaos-sync/publishing-process.ts';
import { hasRadosgw, openStoreUnderTest } from './chaos-sync/store-under-test.ts';

const values = readScriptOptions({
  name: 'bench:load',
  summary: 'Streams on a fleet while its weights are updated, against the same fleet without updates.',
  options: {
    seconds: aNumber(180, 'with updates, and as long without'),
    blockSeconds: aNumber(20, 'the two alternate after so long'),
    streams: aCount(64, 'requests under way at a time'),
    replicas: aCount(6, 'replicas in all'),
    updateEveryMs: aNumber(2000, 'milliseconds between two versions'),
    maxTokens: aCount(128, 'tokens of an answer, at most'),
    store: oneOf(['s3', 'folder'], hasRadosgw() ? 's3' : 'folder', 'a real S3 server on loopback, or a folder'),
    model: aText(fileURLToPath(new URL('../models/nano', import.meta.url)), 'Hugging Face folder', '<folder>'),
  },
});
const { seconds, streams, replicas, updateEveryMs, maxTokens } = values;
const blockMs = Math.min(values.blockSeconds, seconds) * 1000;
const BOUNDS = { ratio: 0.95 };
/** At the start of a block what the block before left behind is still under way. */
const SETTLE_MS = 2_500;
const SEED = 1;

type Mode = 'with updates' | 'without';
class Measured {
  tokens = 0;
  milliseconds = 0;
  requests = 0;
  readonly gapsMs: number[] = [];
  readonly rates: number[] = [];
}
const measured: Readonly<Record<Mode, Measured>> = { 'with updates': new Measured(), without: new Measured() };
let current: Measured | undefined;
const failures: string[] = [];

const stop = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.once(signal, () => stop.abort(new Error(`ended by ${signal}`)));
const { signal } = stop;

const directory = mkdtempSync(join(tmpdir(), 'hone-load-'));
try {
  await run();
} finally {
  rmSync(directory, { recursive: true, force: true });
}

async function run(): Promise<void> {
  await using cleanup = new AsyncDisposableStack();
  const logs = join(directory, 'logs');
  mkdirSync(logs, { recursive: true });
  const gate = join(directory, 'publish');
  const store = cleanup.use(
    await openStoreUnderTest(directory, { store: values.store === 's3' ? 's3' : 'folder', isRelayed: false }),
  );
  const environment = { PATH: process.env['PATH'] ?? '', HOME: process.env['HOME'] ?? '', ...store.environment };
  const token = `load-${deriveSeed(SEED, 'token')}-${process.pid}`;
  const { model } = values;
  const fleet = cleanup.use(
    await Fleet.start({
      directory,
      model,
      clusters: [{ name: 'load', replicas, store: store.location }],
      routers: 1,
      replicaArguments: ['--threads', '1', '--slots', String(Math.ceil(streams / replicas) + 4)],
      token,
      environment,
      pollEveryMs: 200,
    }),
  );
  await fleet.ready(signal);
  const publishing: PublishingOptions = {
    id: 'publisher',
    store: store.location,
    model,
    runId: 'load',
    seed: SEED,
    share: 0.01,
    everyMs: updateEveryMs,
    anchorEvery: 1000,
    wake: fleet.controllers,
    events: join(logs, 'publisher.jsonl'),
    gate,
  };
  const publisher = cleanup.use(
    new ServiceProcess({
      name: 'publisher',
      program: fileURLToPath(new URL('chaos-sync/publishing-process.ts', import.meta.url)),
      arguments: [JSON.stringify(publishing)],
      environment: { ...environment, HONE_TOKEN: token },
      errorFile: join(logs, 'publisher.txt'),
    }),
  );
  await publisher.ready({ signal });
  console.log(
    `${replicas} replicas of one engine thread each, ${streams} streams, ${availableParallelism()} cores, load ${loadavg()[0]?.toFixed(1) ?? '?'} at the start; store: ${store.description}`,
  );

  const { config } = await readModelFolder(model);
  const { vocabSize } = parseModelConfig(config);
  const transport = new HttpTransport({ routers: fleet.routers.map(({ url }) => url), token });
  cleanup.defer(() => transport.close());
  const ending = new AbortController();
  const all = AbortSignal.any([signal, ending.signal]);
  const clients = Array.from({ length: streams }, (_, stream) => client(stream, { transport, vocabSize, signal: all }));
  cleanup.defer(async () => {
    ending.abort();
    await Promise.all(clients);
  });
  await sleep(3_000, undefined, { signal });

  const blocks = Math.max(1, Math.round((seconds * 1000) / blockMs));
  for (let block = 0; block < blocks * 2; block++) {
    // The order turns with each pair, so that a drift of the machine falls on both.
    const mode: Mode = (block % 2 === 0) === block % 4 < 2 ? 'without' : 'with updates';
    if (mode === 'with updates') writeFileSync(gate, '');
    else rmSync(gate, { force: true });
    await sleep(SETTLE_MS, undefined, { signal });
    await measure(mode);
    console.log(
      `block ${block + 1} of ${blocks * 2}, ${mode}: ${measured[mode].rates.at(-1)?.toFixed(0) ?? '?'} tokens/s, ${failures.length} failed requests`,
    );
  }
  rmSync(gate, { force: true });
  await sleep(updateEveryMs, undefined, { signal });
  report(readLogs(logs));
}

async function measure(mode: Mode): Promise<void> {
  const block = new Measured();
  const startedMs = performance.now();
  current = block;
  await sleep(blockMs, undefined, { signal });
  current = undefined;
  block.milliseconds = performance.now() - startedMs;
  const sum = measured[mode];
  sum.tokens += block.tokens;
  sum.requests += block.requests;
  sum.milliseconds += block.milliseconds;
  for (const gapMs of block.gapsMs) sum.gapsMs.push(gapMs);
  sum.rates.push((block.tokens * 1000) / block.milliseconds);
}

/** One stream: a request after the other until the end, which aborts the last. */
async function client(
  stream: number,
  { transport, vocabSize, signal: ended }: { transport: HttpTransport; vocabSize: number; signal: AbortSignal },
): Promise<void> {
  const random = createRandom(deriveSeed(SEED, 'stream', stream));
  for (let count = 0; !ended.aborted; count++) {
    const request = `stream-${stream}-${count}`;
    const policy = new RemotePolicy(transport, {
      now: () => performance.now(),
      random: () => random.next(),
      newRequestId: () => request,
      mostAttempts: 1,
      deadlineMs: 120_000,
      firstEventTimeoutMs: 60_000,
    });
    let lastMs: number | undefined;
    try {
      const { finish } = await policy.generate({
        tokens: Int32Array.from({ length: 32 + random.below(64) }, () => random.below(vocabSize)),
        sampling: { ...DEFAULT_SAMPLING, topP: 0.95, maxTokens, stopIds: [] },
        seed: deriveSeed(SEED, request),
        session: `stream-${stream}`,
        signal: ended,
        onToken: () => {
          const nowMs = performance.now();
          if (current !== undefined) {
            current.tokens += 1;
            if (lastMs !== undefined) current.gapsMs.push(nowMs - lastMs);
          }
          lastMs = nowMs;
        },
      });
      if (finish === 'abort' && !ended.aborted) failures.push(`${request}: aborted`);
      if (current !== undefined) current.requests += 1;
    } catch (error) {
      if (!ended.aborted) failures.push(`${request}: ${reasonOf(error)}`);
    }
  }
}

function report(lines: readonly LogLine[]): void {
  const held: boolean[] = [];
  const verdict = (name: string, { value, holds, note }: { value: string; holds: boolean; note: string }): void => {
    console.log(`${name.padEnd(40)} ${value.padStart(12)}   ${holds ? 'held' : 'MISSED'}   ${note}`);
    held.push(holds);
  };
  const rate = ({ tokens, milliseconds }: Measured): number => (tokens * 1000) / milliseconds;
  const rows = (['without', 'with updates'] as const).map((mode) => {
    const { requests, gapsMs, rates } = measured[mode];
    const gaps = gapsMs.toSorted((one, other) => one - other);
    return [
      mode,
      rate(measured[mode]).toFixed(0),
      `${Math.min(...rates).toFixed(0)}..${Math.max(...rates).toFixed(0)}`,
      String(requests),
      ...[0.5, 0.99, 0.999, 1].map((share) => `${quantile(gaps, share).toFixed(1)} ms`),
    ];
  });
  const heads = ['', 'tokens/s', 'by block', 'replies', 'gap p50', 'p99', 'p99.9', 'max'];
  console.log(`\n${renderTextTable(heads, rows, { gap: 3 })}\n`);

  const spread = spreadTimes(lines);
  const commits = lines.filter(({ event }) => event === 'weights-committed');
  const sorted = (key: string): number[] =>
    commits.map((line) => numberIn(line, key) ?? Number.NaN).toSorted((one, other) => one - other);
  const ratio = rate(measured['with updates']) / rate(measured.without);
  verdict('failed requests', {
    value: String(failures.length),
    holds: failures.length === 0,
    note:
      failures.slice(0, 3).join('; ') ||
      `of ${measured.without.requests + measured['with updates'].requests} that ended in a block`,
  });
  verdict('tokens/s with updates against without', {
    value: ratio.toFixed(3),
    holds: ratio >= BOUNDS.ratio,
    note: `bound ${BOUNDS.ratio}; an update every ${updateEveryMs / 1000} s`,
  });
  const times = spread.map(({ ms }) => ms).toSorted((one, other) => one - other);
  const late = spread.filter(({ ms }) => ms > updateEveryMs);
  verdict('a version on all replicas, longest', {
    value: `${quantile(times, 1).toFixed(0)} ms`,
    holds: times.length > 0 && late.length === 0,
    note: `bound ${updateEveryMs} ms; median ${quantile(times, 0.5).toFixed(0)}, p95 ${quantile(times, 0.95).toFixed(0)} ms over ${times.length} versions, ${late.length} past the bound`,
  });
  for (const { version, ms, course } of spread.toSorted((one, other) => other.ms - one.ms).slice(0, 3))
    console.log(`  slow: version ${version} after ${ms.toFixed(0)} ms: ${course}`);
  const text = (key: string): string =>
    [0.5, 0.99, 1].map((share) => quantile(sorted(key), share).toFixed(share === 1 ? 1 : 2)).join(' / ');
  console.log(
    `${commits.length} commits, median / p99 / longest in ms: fetch ${text('fetchMs')}; apply ${text('applyMs')}; stage ${text('stageMs')}; pause ${text('pauseMs')}`,
  );
  console.log(`load ${loadavg()[0]?.toFixed(1) ?? '?'} at the end, ${availableParallelism()} cores`);
  if (held.includes(false)) process.exitCode = 1;
}

/** Of each version, milliseconds from its publication until the last replica served it or a newer one. */
interface Spread {
  readonly version: number;
  /** From the pointer's swap to the last replica's commit. */
  readonly ms: number;
  /** Where the time went, for the last replica. */
  readonly course: string;
}

function spreadTimes(lines: readonly LogLine[]): Spread[] {
  const commits = Map.groupBy(
    lines.filter(({ event }) => event === 'weights-committed'),
    ({ id }) => id,
  );
  return lines
    .filter(({ event }) => event === 'weights-published')
    .map((published) => {
      const version = numberIn(published, 'version') ?? 0;
      const publishedMs = numberIn(published, 'time') ?? 0;
      const served = [...commits.values()].flatMap(
        (own) => own.find((commit) => (numberIn(commit, 'version') ?? -1) >= version) ?? [],
      );
      const last = served.toSorted((one, other) => (numberIn(other, 'time') ?? 0) - (numberIn(one, 'time') ?? 0))[0];
      if (last === undefined || served.length < replicas)
        return { version, ms: Number.POSITIVE_INFINITY, course: 'it did not reach all of them' };
      const seen = lines.find(
        ({ event, fields }) => event === 'version-seen' && String(fields['version']).endsWith(String(version)),
      );
      const seenMs = (seen === undefined ? Number.NaN : (numberIn(seen, 'time') ?? 0)) - publishedMs;
      const [fetchMs, applyMs, stageMs] = ['fetchMs', 'applyMs', 'stageMs'].map((key) => numberIn(last, key) ?? 0);
      return {
        version,
        ms: (numberIn(last, 'time') ?? 0) - publishedMs,
        course: `seen by the controller after ${seenMs.toFixed(0)} ms; ${last.id}: fetch ${fetchMs?.toFixed(0)}, apply ${applyMs?.toFixed(0)}, stage ${stageMs?.toFixed(0)} ms`,
      };
    });
}

function quantile(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}

/**
 * `npm run example:three-clusters`: `hone train` on models/nano, a weight store, three clusters of two replicas behind links of different
 * speed, and a router that trainer and agents sample through, all on this machine. Prints each version's way, then ends everything.
 * Invariant: however it ends, Ctrl-C included, no process, network namespace or file of it is left.
 */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { hasRadosgw, openStoreUnderTest } from '../../bench/chaos-sync/store-under-test.ts';
import { aCount, aNumber, oneOf, readScriptOptions } from '../../scripts/script-options.ts';
import { Agents } from './agents.ts';
import { parseLog, readLogs, type LogLine } from './event-log.ts';
import { Fleet } from './fleet.ts';
import { canMakeNamespaces, openLinks, type Link } from './link-shaping.ts';
import { ServiceProcess } from './service-process.ts';
import { timelineHead, timelineText, versionTimes } from './timeline.ts';

const LINKS: readonly Link[] = [
  { name: 'virginia', megabitsPerSecond: 500, delayMs: 2 },
  { name: 'frankfurt', megabitsPerSecond: 100, delayMs: 40 },
  { name: 'sydney', megabitsPerSecond: 25, delayMs: 100 },
];

const values = readScriptOptions({
  name: 'example:three-clusters',
  summary: 'A trainer, a store, three clusters on shaped links, a router and agents, on this machine.',
  options: {
    minutes: aNumber(3, 'how long the trainer works'),
    store: oneOf(['s3', 'folder'], hasRadosgw() ? 's3' : 'folder', 'a real S3 server on loopback, or a folder'),
    links: oneOf(
      ['namespaces', 'relay'],
      canMakeNamespaces() ? 'namespaces' : 'relay',
      'how links are made slow: by the kernel (needs root on Linux), or by a relay',
    ),
    agents: aCount(6, 'agents that chat all the while'),
  },
});
const { minutes, store: storeKind, links: linkKind, agents: agentCount } = values;

const MODEL = fileURLToPath(new URL('../../models/nano', import.meta.url));
const REPLICAS = 2;
/** How long a version may still travel when the time is over. */
const STRAGGLER_MS = 20_000;
const RUN = 'three-clusters';
const stop = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
  process.once(signal, () => {
    console.error(`\n${signal}: stopping everything`);
    process.exitCode = 130;
    stop.abort();
  });

const directory = mkdtempSync(join(tmpdir(), 'hone-three-clusters-'));
try {
  await run(stop.signal);
} catch (error) {
  if (!stop.signal.aborted) throw error;
} finally {
  rmSync(directory, { recursive: true, force: true });
}

async function run(signal: AbortSignal): Promise<void> {
  await using cleanup = new AsyncDisposableStack();
  const links = cleanup.use(await openLinks(LINKS, { kind: linkKind }));
  const store = cleanup.use(await openStoreUnderTest(directory, { store: storeKind, isRelayed: false }));
  console.log(`store      ${store.description}`);
  const clusters = await Promise.all(
    links.clusters.map(async (link) => ({
      name: link.link.name,
      replicas: REPLICAS,
      link,
      store: await store.through((url) => link.expose(url)),
    })),
  );
  for (const { name, link } of clusters) console.log(`${name.padEnd(10)} ${link.description}`);
  const environment = { PATH: process.env['PATH'] ?? '', HOME: process.env['HOME'] ?? '', ...store.environment };
  const token = randomBytes(24).toString('hex');
  const fleet = cleanup.use(
    await Fleet.start({
      directory,
      model: MODEL,
      clusters,
      routers: 1,
      routerArguments: ['--model', MODEL],
      replicaArguments: ['--threads', '1'],
      token,
      environment,
      pollEveryMs: 1000,
    }),
  );
  await fleet.ready(signal);
  console.log(`fleet      ${fleet.services.size} services are ready on ${availableParallelism()} cores`);
  const logs = join(directory, 'logs');
  const [router] = fleet.routers;
  const config = join(directory, 'config.json');
  writeFileSync(
    config,
    JSON.stringify({
      name: RUN,
      model: MODEL,
      algorithm: { steps: 1000, groupSize: 8, groupsPerStep: 8, learningRate: 5e-4, entropyCoefficient: 0.012 },
      schedule: { mode: 'async', maxStaleness: 2, concurrency: 48 },
      eval: { tasks: 0 },
      weights: { store: store.location, anchorEvery: 20, wake: fleet.controllers },
      serve: { routers: [router?.url] },
    }),
  );
  cleanup.use(
    new ServiceProcess({
      name: 'trainer',
      arguments: ['train', config, '--runs', directory],
      environment: { ...environment, HONE_TOKEN: token },
      errorFile: join(logs, 'trainer.txt'),
      onExit: (how) => {
        if (!signal.aborted) console.log(`trainer    ended: ${how}`);
      },
    }),
  );
  const agents = new Agents({
    routerControlUrl: router?.controlUrl ?? '',
    token,
    count: agentCount,
    model: 'nano',
    maxTokens: 64,
  });
  cleanup.defer(() => agents.stop());
  console.log(`trainer    hone train on models/nano, its rollouts through the router`);
  console.log(`agents     ${agentCount} besides, at work through ${router?.url ?? ''}\n`);
  await watch({ logs, fleet, agents, signal });
}

/** Prints each version once it is everywhere, and a line of what the agents do, until the time is over. */
async function watch({
  logs,
  fleet,
  agents,
  signal,
}: {
  logs: string;
  fleet: Fleet;
  agents: Agents;
  signal: AbortSignal;
}): Promise<void> {
  const replicas = new Map(
    LINKS.map(({ name }) => [name, Array.from({ length: REPLICAS }, (_, index) => `${name}-${index + 1}`)]),
  );
  const startedMs = performance.now();
  const endMs = startedMs + minutes * 60_000;
  let printed = 0;
  let everywhere = 0;
  const worst = { ms: 0, version: 0 };
  console.log(timelineHead());
  /** The newest one when the time was over: it is still waited for. */
  let last: number | undefined;
  for (;;) {
    const trained = readTrainer();
    const versions = versionTimes([...readLogs(logs), ...trained], replicas);
    if (performance.now() >= endMs) last ??= versions.reduce((newest, { version }) => Math.max(newest, version), 0);
    const due = versions.filter(({ version }) => last === undefined || version <= last);
    const isLast =
      signal.aborted ||
      performance.now() >= endMs + STRAGGLER_MS ||
      (last !== undefined && due.every(({ isEverywhere }) => isEverywhere));
    for (const version of due) {
      if (version.version <= printed || !(version.isEverywhere || isLast)) continue;
      printed = version.version;
      if (version.isEverywhere) everywhere++;
      console.log(timelineText(version));
      const everywhereMs = Math.max(...version.clusters.map(({ committedMs }) => committedMs ?? 0));
      if (everywhereMs > worst.ms) Object.assign(worst, { ms: everywhereMs, version: version.version });
      const reward = rewardAt(trained, version.version);
      const seconds = (performance.now() - startedMs) / 1000;
      console.log(
        `          ${reward === undefined ? '' : `reward ${reward.toFixed(3)}; agents: `}${(agents.tokens / seconds).toFixed(0)} tokens/s of ${agents.sessions} sealed sessions, ${agents.mixed} of them by several versions, ${agents.failures} failures${agents.failures > 0 ? ` (last: ${agents.lastFailure})` : ''}`,
      );
    }
    if (isLast) break;
    await sleep(500, undefined, { signal }).catch(() => undefined);
  }
  const states = await Promise.all(
    fleet.ofRole('replica').map(async (name) => [name, await fleet.status(name)] as const),
  );
  const versions = states.map(([, status]) => servedVersion(status));
  console.log(
    `\n${everywhere} of ${printed} versions reached all ${versions.length} replicas in 3 clusters; slowest: version ${worst.version}, ${worst.ms.toFixed(0)} ms after it was published; at the end they serve ${[...new Set(versions)].join(', ')}`,
  );
}

/** Events of the run, as lines of a service's log. */
function readTrainer(): LogLine[] {
  let text: string;
  try {
    text = readFileSync(join(directory, RUN, 'events.jsonl'), 'utf8');
  } catch {
    return []; // The run has not begun.
  }
  const lines = text.split('\n').flatMap((line) => {
    try {
      const { time, ...event } = JSON.parse(line) as { time: string }; // As the run writes them.
      return [JSON.stringify({ ...event, time: Date.parse(time), service: 'publisher', id: 'trainer' })];
    } catch {
      return [];
    }
  });
  return parseLog('events.jsonl', lines.join('\n'));
}

/** Mean reward of the step that made the version. */
function rewardAt(trained: readonly LogLine[], version: number): number | undefined {
  const step = trained.find(({ event, fields }) => event === 'step-end' && fields['version'] === version);
  const metrics = step?.fields['metrics'];
  const reward =
    typeof metrics === 'object' && metrics !== null
      ? Object.entries(metrics).find(([key]) => key === 'rollout/reward_mean')
      : undefined;
  return typeof reward?.[1] === 'number' ? reward[1] : undefined;
}

function servedVersion(status: unknown): string {
  const version = typeof status === 'object' && status !== null && 'version' in status ? status.version : undefined;
  return typeof version === 'number' ? String(version) : 'nothing';
}

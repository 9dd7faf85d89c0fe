/**
 * One chaos run: a fleet with real load, a plan of faults carried out on it, then quiet, and the verdict over what everybody logged.
 * Owns the order of things. Invariant: when it returns or throws, no process, mount or file of it is left, but the logs of a run that
 * broke something.
 */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { readLogs, type LogLine } from '../../examples/three-clusters/event-log.ts';
import { Fleet } from '../../examples/three-clusters/fleet.ts';
import { ServiceProcess } from '../../examples/three-clusters/service-process.ts';
import { createRandom, deriveSeed } from '../../src/domain/ids.ts';
import { parseModelConfig } from '../../src/model/config.ts';
import { RolloutBuffer } from '../../src/rollout/buffer.ts';
import { ServiceLog } from '../../src/serve/service/service-log.ts';
import { HttpTransport } from '../../src/serve/router/http-transport.ts';
import { RemotePolicy } from '../../src/serve/router/remote-policy.ts';
import { readModelFolder } from '../../src/tensor/hugging-face-folder.ts';
import { CLOCK_FILE_VARIABLE } from './clock-shift.ts';
import { mountSmallDisk, type SmallDisk } from './disk-faults.ts';
import { FaultInjector, type InjectedFault } from './fault-injector.ts';
import { createFaultPlan, type Fault } from './fault-plan.ts';
import type { Convergence, ReplayedRequest } from './fleet-record.ts';
import { findBreaches, type Breach } from './invariants.ts';
import type { PublishingOptions } from './publishing-process.ts';
import { resample, type FinishedGeneration } from './resample.ts';
import { RolloutClients } from './rollout-clients.ts';
import { openStoreUnderTest } from './store-under-test.ts';
import { VersionTruth } from './version-truth.ts';

export interface ChaosOptions {
  readonly seed: number;
  /** How long faults strike. */
  readonly seconds: number;
  readonly model: string;
  readonly store: 's3' | 'folder';
  /** Replicas of each cluster. */
  readonly clusters: readonly number[];
  readonly routers: number;
  readonly streams: number;
  readonly maxTokens: number;
  readonly publishEveryMs: number;
  readonly faultEveryMs: number;
  /** From the last fault to a fleet that serves the newest version everywhere. */
  readonly convergeWithinMs: number;
  /** Finished generations that are sampled again. */
  readonly replays: number;
  readonly print: (line: string) => void;
  readonly signal: AbortSignal;
  /** Keep the logs of a run that broke nothing, too. */
  readonly keepsLogs?: boolean;
  /** What services need of this process's environment, such as PATH. */
  readonly environment: Readonly<Record<string, string>>;
}

export interface ChaosResult {
  readonly plan: readonly Fault[];
  readonly injected: readonly InjectedFault[];
  readonly breaches: readonly Breach[];
  readonly convergence: Convergence;
  readonly accepted: number;
  readonly dropped: ReadonlyMap<string, number>;
  readonly resumed: number;
  readonly tokens: number;
  readonly replayed: number;
  readonly replayedVersions: number;
  readonly published: number;
  readonly commits: number;
  readonly starts: number;
  readonly storeFaults: Readonly<Record<string, number>>;
  /** With the logs; undefined = removed. */
  readonly directory: string | undefined;
}

const PUBLISHER = fileURLToPath(new URL('publishing-process.ts', import.meta.url));
const CLOCK = fileURLToPath(new URL('clock-shift.ts', import.meta.url));
const CLUSTER_NAMES = ['east', 'north', 'west', 'south'];
/** Of the elements of each tensor, changed by a version. */
const SHARE = 0.01;
/** Room for a few anchors and deltas of the model, and little more. */
const SMALL_DISK_MODELS = 12;
const REQUEST_DEADLINE_MS = 25_000;

export async function runChaos(options: ChaosOptions): Promise<ChaosResult> {
  const directory = mkdtempSync(join(tmpdir(), 'hone-chaos-'));
  let isKept = false;
  try {
    const result = await runIn(directory, options);
    isKept = result.breaches.length > 0 || options.keepsLogs === true;
    return { ...result, directory: isKept ? directory : undefined };
  } finally {
    if (!isKept) rmSync(directory, { recursive: true, force: true });
  }
}

async function runIn(directory: string, options: ChaosOptions): Promise<ChaosResult> {
  const { seed, seconds, model, print, signal, streams } = options;
  await using cleanup = new AsyncDisposableStack();
  const logs = join(directory, 'logs');
  const clocks = join(directory, 'clocks');
  for (const folder of [logs, clocks]) mkdirSync(folder, { recursive: true });
  const store = cleanup.use(await openStoreUnderTest(directory, options));
  print(`store: ${store.description}`);

  const smallDisks = new Map<string, SmallDisk>();
  const { config, tensors } = await readModelFolder(model);
  const modelBytes = [...tensors.values()].reduce((sum, { bytes }) => sum + bytes.byteLength, 0);
  const boot = new Map([...tensors].map(([name, { bytes }]) => [name, new Uint8Array(bytes)]));
  const disks = join(directory, 'disks');
  const clusters = options.clusters.map((replicas, index) => ({
    name: CLUSTER_NAMES[index] ?? `cluster-${index}`,
    replicas,
    store: store.location,
  }));
  for (const { name } of clusters) {
    const replica = `${name}-1`;
    const disk = mountSmallDisk(join(disks, replica), SMALL_DISK_MODELS * modelBytes);
    if (disk === undefined) continue;
    cleanup.use(disk);
    smallDisks.set(replica, disk);
  }

  const token = `chaos-${deriveSeed(seed, 'token')}-${deriveSeed(seed, 'secret')}`;
  const clockFileOf = (name: string): string => join(clocks, name);
  const dress = (name: string): { nodeArguments: string[]; environment: Record<string, string> } => ({
    nodeArguments: ['--import', CLOCK],
    environment: { [CLOCK_FILE_VARIABLE]: clockFileOf(name) },
  });
  const environment = { ...options.environment, ...store.environment };
  const fleet = cleanup.use(
    await Fleet.start({
      directory,
      model,
      clusters,
      routers: options.routers,
      // More kills than any fleet in its right mind has.
      routerArguments: ['--restart-budget', '100000', '--lease-seconds', '3'],
      replicaArguments: ['--threads', '1', '--verify-served', '--drain-seconds', '5'],
      controllerArguments: ['--lease-seconds', '3'],
      token,
      environment,
      pollEveryMs: 500,
      restart: { afterMs: 300 },
      dress,
    }),
  );
  const publishers: ServiceProcess[] = [];
  const publish = (id: string, more: Partial<PublishingOptions>, restart?: { afterMs: number }): ServiceProcess => {
    const publishing: PublishingOptions = {
      id,
      store: store.location,
      model,
      runId: 'chaos',
      seed: deriveSeed(seed, id),
      share: SHARE,
      everyMs: options.publishEveryMs,
      anchorEvery: 8,
      wake: fleet.controllers,
      events: join(logs, `${id}.jsonl`),
      ...more,
    };
    const service = new ServiceProcess({
      name: id,
      program: PUBLISHER,
      arguments: [JSON.stringify(publishing)],
      environment: { ...environment, HONE_TOKEN: token, ...dress(id).environment },
      nodeArguments: dress(id).nodeArguments,
      errorFile: join(logs, `${id}.txt`),
      ...(restart === undefined ? {} : { restart }),
    });
    publishers.push(service);
    cleanup.use(service);
    return service;
  };
  const startedMs = performance.now();
  const clock = (): string => `${((performance.now() - startedMs) / 1000).toFixed(1).padStart(6)} s`;
  await fleet.ready(signal);
  const publisher = publish('publisher', {}, { afterMs: 300 });
  await publisher.ready({ signal });
  print(`${clock()}  ${fleet.services.size} services and a publisher are ready`);

  const clientLog = new ServiceLog({
    path: join(logs, 'client.jsonl'),
    service: 'client',
    id: 'client',
    wallMs: () => Date.now(),
  });
  cleanup.defer(() => clientLog.close());
  const buffer = RolloutBuffer.open(join(directory, 'buffer.sqlite'));
  cleanup.defer(() => buffer.close());
  const { vocabSize } = parseModelConfig(config);
  const transport = new HttpTransport({ routers: fleet.routers.map(({ url }) => url), token });
  cleanup.defer(() => transport.close());
  const clients = new RolloutClients({
    policyFor: (request, onResume) =>
      new RemotePolicy(transport, {
        now: () => performance.now(),
        random: () => Math.random(),
        newRequestId: () => request,
        deadlineMs: REQUEST_DEADLINE_MS,
        firstEventTimeoutMs: 8_000,
        stallTimeoutMs: 4_000,
        mostAttempts: 100,
        onEvent: (event) => {
          clientLog.append({ ...event });
          onResume(event.at);
        },
      }),
    buffer,
    log: clientLog,
    streams,
    seed,
    vocabSize,
    stopIds: [],
    maxTokens: options.maxTokens,
    deadlineMs: REQUEST_DEADLINE_MS + 5_000,
  });
  // Whatever comes, no stream is left behind; the deadline of their requests bounds the wait.
  cleanup.defer(() => clients.stop());

  const plan = createFaultPlan({
    seed,
    seconds,
    targets: {
      replica: fleet.ofRole('replica'),
      controller: fleet.ofRole('controller'),
      router: fleet.ofRole('router'),
      publisher: [publisher.name],
    },
    smallDisks: [...smallDisks.keys()],
    hasStoreRelay: store.faults !== undefined,
    everyMs: options.faultEveryMs,
  });
  print(`${clock()}  ${plan.length} faults planned from seed ${seed} over ${seconds} s`);
  let rivals = 0;
  const injector = new FaultInjector(
    {
      process: (name) => (name === publisher.name ? publisher : fleet.services.get(name)?.process),
      diskOf: (name) => fleet.services.get(name)?.disk ?? disks,
      smallDisks,
      clockFileOf,
      store: store.faults,
      startRival: () => void publish(`rival-${++rivals}`, { versions: 3, everyMs: 0 }),
    },
    ({ fault, done }) => print(`${clock()}  ${done ?? `${fault.kind}: nothing to strike yet`}`),
  );
  await injector.run(plan, signal);

  const quietMs = performance.now();
  print(`${clock()}  faults are over: ${clients.accepted} rollouts accepted, ${clients.resumed} went on elsewhere`);
  for (const rival of publishers.filter((service) => service !== publisher)) await rival.stop();
  await publisher.ready({ signal });
  await publisher.stop();
  const target = newestPublished(readLogs(logs));
  const convergence = await converge({ fleet, target, quietMs, boundMs: options.convergeWithinMs, signal });
  print(
    `${clock()}  ${convergence.tookMs === undefined ? 'not' : `after ${(convergence.tookMs / 1000).toFixed(1)} s`} all on version ${target}`,
  );
  await clients.stop();
  const starts = [...fleet.services.values()].reduce((sum, { process }) => sum + process.starts, publisher.starts);
  await fleet.stop();

  const lines = readLogs(logs);
  const sample = drawSample(clients.finished, { count: options.replays, seed });
  const truth = new VersionTruth(lines, {
    boot,
    seeds: publishers.map(({ name }) => deriveSeed(seed, name)),
    share: SHARE,
    keep: new Set(sample.flatMap(({ versions }) => versions.map(({ version }) => version))),
  });
  print(`${clock()}  sampling ${sample.length} generations again from the published bytes`);
  const replayed: ReplayedRequest[] = [];
  for (const generation of sample) {
    const detail = await resample(generation, {
      configJson: config,
      weightsOf: (version) => truth.weightsOf(version),
    }).catch((error: unknown) => `it cannot be drawn again: ${String(error)}`);
    replayed.push({
      request: generation.request,
      outcome: detail === undefined ? 'equal' : 'different',
      ...(detail === undefined ? {} : { detail }),
    });
  }
  const breaches = findBreaches({
    lines,
    bufferIds: buffer.groups('ready').flatMap(({ rollouts }) => rollouts.map(({ id }) => String(id))),
    trueChecksums: truth.checksums,
    replayed,
    convergence,
  });
  return {
    plan,
    injected: injector.injected,
    breaches,
    convergence,
    accepted: clients.accepted,
    dropped: clients.dropReasons,
    resumed: clients.resumed,
    tokens: clients.tokens,
    replayed: replayed.length,
    replayedVersions: new Set(sample.flatMap(({ versions }) => versions.map(({ version }) => version))).size,
    published: target,
    commits: lines.filter(({ event }) => event === 'weights-committed').length,
    starts,
    storeFaults: { ...store.faults?.counts },
    directory: undefined,
  };
}

function newestPublished(lines: readonly LogLine[]): number {
  return lines.reduce(
    (newest, { event, fields }) =>
      event === 'weights-published' && typeof fields['version'] === 'number'
        ? Math.max(newest, fields['version'])
        : newest,
    0,
  );
}

interface ConvergeOptions {
  readonly fleet: Fleet;
  readonly target: number;
  readonly quietMs: number;
  readonly boundMs: number;
  readonly signal: AbortSignal;
}

/** Watches from outside until every replica serves the version and every service answers, or the bound is past. */
async function converge({ fleet, target, quietMs, boundMs, signal }: ConvergeOptions): Promise<Convergence> {
  for (;;) {
    const names = [...fleet.services.keys()];
    const states = new Map(await Promise.all(names.map(async (name) => [name, await fleet.status(name)] as const)));
    const replicas = fleet.ofRole('replica').map((id) => ({ id, ...replicaState(states.get(id)) }));
    const areUp = names.every((name) => states.get(name) !== undefined);
    const tookMs = performance.now() - quietMs;
    if (areUp && replicas.every(({ version, state }) => (version ?? -1) >= target && state === 'serving'))
      return { boundMs, tookMs, target, replicas };
    if (tookMs > boundMs) return { boundMs, tookMs: undefined, target, replicas };
    await sleep(100, undefined, { signal });
  }
}

function replicaState(status: unknown): { version: number | undefined; state: string } {
  if (typeof status !== 'object' || status === null) return { version: undefined, state: 'down' };
  const { version, state } = status as { version?: unknown; state?: unknown }; // Looked at field by field below.
  return {
    version: typeof version === 'number' ? version : undefined,
    state: typeof state === 'string' ? state : 'unknown',
  };
}

/** Interrupted and many-version generations first: half of the sample are those that went through most. */
function drawSample(
  finished: readonly FinishedGeneration[],
  { count, seed }: { count: number; seed: number },
): FinishedGeneration[] {
  const random = createRandom(deriveSeed(seed, 'replays'));
  const rank = ({ versions, resumedAt }: FinishedGeneration): number => versions.length + 2 * resumedAt.length;
  const hardest = finished.toSorted((one, other) => rank(other) - rank(one)).slice(0, Math.ceil(count / 2));
  const others = finished.filter((generation) => !hardest.includes(generation));
  while (hardest.length < count && others.length > 0) hardest.push(...others.splice(random.below(others.length), 1));
  return hardest;
}

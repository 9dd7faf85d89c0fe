/** `hone serve replica`: one replica as a process. It says when it takes requests, and ends with 0 on SIGTERM, with 1 when it failed. */
import { createHash, randomUUID } from 'node:crypto';
import { isIP } from 'node:net';
import { availableParallelism, hostname } from 'node:os';
import { resolve } from 'node:path';

import { choiceOption, integerOption, numberOption, pathOption } from './options.ts';
import { formatBytes } from './weights-store.ts';
import { HoneError } from '../domain/errors.ts';
import type { ReplicaServiceOptions } from '../serve/replica-options.ts';
import { startReplica, type ReplicaService } from '../serve/replica-service.ts';
import { VersionLines } from '../serve/version-lines.ts';
import { ClusterMember } from '../sync/cluster/cluster-member.ts';
import type { CommittedWeights } from '../sync/reconciler.ts';
import { openWeightStore } from '../sync/store/open-weight-store.ts';

const MAX_PORT = 65_535;
const GIB = 2 ** 30;

export async function serveReplica(options: Record<string, unknown>): Promise<void> {
  const controllerUrl = urlOption('--controller', options['controller']);
  const location = pathOption('--store', options['store']);
  const dataDirectory = pathOption('--data', options['data']) ?? '';
  const id = nameOption('--id', options['id'] ?? defaultId(dataDirectory));
  const host = String(options['host']);
  const routers = listOption(options['router']).map((url) => urlOption('--router', url) ?? '');
  const advertisedHost =
    options['advertiseHost'] === undefined ? undefined : hostOption('--advertise-host', options['advertiseHost']);
  if (routers.length > 0 || controllerUrl !== undefined) requireReachable(host, advertisedHost);
  const token = process.env['HONE_TOKEN'] === '' ? undefined : process.env['HONE_TOKEN'];
  const cacheBytes = GIB * numberOption('--cache-gib', options['cacheGib'], { above: 0, max: 2 ** 20, example: 64 });
  const drainSeconds = numberOption('--drain-seconds', options['drainSeconds'], { above: 0, max: 3600, example: 30 });
  const now = (): number => performance.now();
  const store = location === undefined ? undefined : await openWeightStore(location, { environment: process.env });
  const clock = { now, wallMs: Date.now };
  let openSource: ReplicaServiceOptions['openSource'];
  if (controllerUrl !== undefined)
    openSource = (hooks) => ClusterMember.join({ ...hooks, controllerUrl, token, id, cacheBytes, ...clock });
  else if (store !== undefined) openSource = () => Promise.resolve(store);

  const stop = new AbortController();
  const say = (sentence: string): void => void process.stderr.write(`hone: replica ${id}${sentence}\n`);
  const onSignal = (signal: NodeJS.Signals): void => {
    const again = signal === 'SIGINT' ? '; press Ctrl-C again to stop at once' : '';
    say(` ends when what it samples has ended, in at most ${drainSeconds} s${again}`);
    stop.abort();
  };
  process.once('SIGTERM', onSignal);
  process.once('SIGINT', onSignal);
  let isReady = false;
  using lines = new VersionLines({
    now,
    say: (weights) => say(` serves version ${weights.version} ${costsOf(weights)}`),
  });
  try {
    const replica = await startReplica({
      model: pathOption('--model', options['model']) ?? '',
      dataDirectory,
      openSource,
      followsController: controllerUrl !== undefined,
      sideDataStore: store,
      routers,
      id,
      bootId: randomUUID(),
      cluster: nameOption('--cluster', options['cluster']),
      slots: integerOption('--slots', options['slots'], { min: 1, max: 4096 }),
      threads:
        options['threads'] === undefined
          ? Math.min(8, availableParallelism())
          : integerOption('--threads', options['threads'], { min: 1, max: 16 }),
      build: choiceOption('--build', options['build'], ['auto', 'plain', 'fma']),
      contextLength:
        options['context'] === undefined ? undefined : integerOption('--context', options['context'], { min: 2 }),
      maxWaiting: integerOption('--max-waiting', options['maxWaiting'], { min: 0 }),
      commitMode: choiceOption('--commit', options['commit'], ['in-place', 'quiesce']),
      inFlight: choiceOption('--in-flight', options['inFlight'], ['keep', 'recompute']),
      drainMs: 1000 * drainSeconds,
      verifyServed: options['verifyServed'] === true,
      pollEveryMs: 1000 * numberOption('--poll-seconds', options['pollSeconds'], { above: 0, max: 86_400, example: 5 }),
      runId: options['run'] === undefined ? undefined : nameOption('--run', options['run']),
      host,
      port: integerOption('--port', options['port'], { min: 0, max: MAX_PORT }),
      controlPort: integerOption('--control-port', options['controlPort'], { min: 0, max: MAX_PORT }),
      advertisedHost,
      token,
      eventsPath: pathOption('--events', options['events']),
      say: (sentence) => say(`: ${sentence}`),
      onCommitted: (weights) => {
        if (isReady) lines.add(weights);
      },
      random: Math.random,
      newRequestId: randomUUID,
      ...clock,
    });
    const stopped = new Promise<undefined>((ended) => {
      if (stop.signal.aborted) ended(undefined);
      else stop.signal.addEventListener('abort', () => ended(undefined), { once: true });
    });
    const { url, controlUrl } = replica;
    const follows =
      openSource === undefined
        ? 'without --store or --controller it follows nothing, and serves the model as it is, version 0, for good'
        : `it catches up with ${controllerUrl ?? store?.location}`;
    say(` listens on ${url}, control on ${controlUrl}; ${follows}`);
    void replica.ready.then(() => {
      isReady = true;
      say(` ${servedAtFirst(replica)}`);
      if (options['json'] === true)
        process.stdout.write(`${JSON.stringify({ service: 'replica', id, url, controlUrl })}\n`);
    });
    const failure = await Promise.race([replica.ended, stopped]);
    await replica.close();
    if (failure !== undefined) throw failure;
  } finally {
    process.removeListener('SIGTERM', onSignal);
    process.removeListener('SIGINT', onSignal);
  }
}

/** What the first catch-up brought. */
function servedAtFirst({ policy, syncStatus }: ReplicaService): string {
  const serves = `serves version ${policy.version}`;
  if (syncStatus === undefined) return serves;
  const { lastCommit, targetVersion } = syncStatus;
  if (lastCommit !== undefined) return `${serves} ${costsOf(lastCommit)}`;
  if (targetVersion !== undefined) return `${serves}, the newest, from its own folder`;
  return `${serves}${policy.version === 0 ? ', the model folder itself' : ''}: nothing is published there yet`;
}

function costsOf({ bytes, fetchMs, applyMs, stageMs, pauseMs }: CommittedWeights): string {
  const pause = pauseMs.toFixed(pauseMs < 10 ? 2 : 0);
  return `(${formatBytes(bytes)} fetched, ${(fetchMs + applyMs + stageMs).toFixed(0)} ms; paused ${pause} ms)`;
}

/** Throws `invalid-config` when routers and peers would be told an address that stands for every one. */
function requireReachable(host: string, advertisedHost: string | undefined): void {
  if (advertisedHost !== undefined || !(host === '0.0.0.0' || host === '::')) return;
  throw new HoneError('invalid-config', `The replica would tell others to reach it at ${host}, which is no address.`, {
    cure: 'Add --advertise-host with the name or address of this machine that they know.',
  });
}

/** The same for each start with this folder on this machine, another one for any other. */
function defaultId(dataDirectory: string): string {
  const host = hostname().replaceAll(/[^\w.-]/gu, '-');
  return `${host}-${createHash('sha256').update(resolve(dataDirectory)).digest('hex').slice(0, 8)}`;
}

function nameOption(name: string, value: unknown): string {
  if (typeof value === 'string' && /^[A-Za-z0-9_][\w.-]{0,127}$/u.test(value)) return value;
  throw new HoneError('invalid-config', `${name} is ${JSON.stringify(value)}, not a name.`, {
    cure: 'Use up to 128 letters, digits, dots, hyphens and underscores.',
  });
}

function hostOption(name: string, value: unknown): string {
  if (typeof value === 'string' && (isIP(value) !== 0 || /^[A-Za-z0-9_][\w.-]{0,252}$/u.test(value))) return value;
  throw new HoneError('invalid-config', `${name} is ${JSON.stringify(value)}, not a host.`, {
    cure: `Give a name or an address without scheme and port, such as ${name} 10.0.0.7.`,
  });
}

function urlOption(name: string, value: unknown): string | undefined {
  if (value === undefined) return undefined;
  if (typeof value === 'string' && /^https?:\/\//u.test(value) && URL.canParse(value)) return value;
  throw new HoneError('invalid-config', `${name} is ${JSON.stringify(value)}, not the URL of a service.`, {
    cure: `Give a URL such as ${name} http://127.0.0.1:8080.`,
  });
}

function listOption(value: unknown): readonly unknown[] {
  if (value === undefined) return [];
  return Array.isArray(value) ? value : [value];
}

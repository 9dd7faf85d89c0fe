/** `hone serve controller`: the controller of one cluster as a process. It says when members can register, and ends with 0 on SIGTERM. */
import { join } from 'node:path';

import { integerOption, numberOption, pathOption } from './options.ts';
import { HoneError } from '../domain/errors.ts';
import { startControllerServer } from '../serve/controller-server.ts';
import { BearerToken } from '../serve/service/bearer-token.ts';
import { ServiceLog } from '../serve/service/service-log.ts';
import { openWeightStore } from '../sync/store/open-weight-store.ts';

const MAX_PORT = 65_535;
const DAY_SECONDS = 86_400;
const GIB = 2 ** 30;

export async function serveController(options: Record<string, unknown>): Promise<void> {
  const cluster = nameOption('--cluster', options['cluster']);
  const cacheDirectory = pathOption('--cache', options['cache']) ?? join('.hone', `controller-${cluster}`);
  const seconds = (name: string, key: string, example: number): number =>
    1000 * numberOption(name, options[key], { above: 0, max: DAY_SECONDS, example });
  const secret = process.env['HONE_TOKEN'] === '' ? undefined : process.env['HONE_TOKEN'];
  const eventsPath = pathOption('--events', options['events']);
  const settings = {
    cluster,
    cacheDirectory,
    cacheBytes: GIB * numberOption('--cache-gib', options['cacheGib'], { above: 0, max: 2 ** 20, example: 64 }),
    fanOut: integerOption('--fan-out', options['fanOut'], { min: 1, max: 64 }),
    pollEveryMs: seconds('--poll-seconds', 'pollSeconds', 5),
    memberLeaseMs: seconds('--lease-seconds', 'leaseSeconds', 6),
    runId: options['run'] === undefined ? undefined : nameOption('--run', options['run']),
    host: String(options['host']),
    port: integerOption('--port', options['port'], { min: 0, max: MAX_PORT }),
    token: secret === undefined ? undefined : new BearerToken(secret),
    now: () => performance.now(),
    wallMs: () => Date.now(),
  };
  const store = await openWeightStore(pathOption('--store', options['store']) ?? '', { environment: process.env });
  const log = new ServiceLog({ path: eventsPath, service: 'controller', id: cluster, wallMs: settings.wallMs });
  const stopped = Promise.withResolvers<void>();
  const name = `hone: controller of cluster ${cluster}`;
  const onSignal = (): void => {
    process.stderr.write(`${name} ends; its replicas go on with what they have\n`);
    stopped.resolve();
  };
  process.once('SIGTERM', onSignal);
  process.once('SIGINT', onSignal);
  /** What is met before it listens is said after that line. */
  const early: string[] = [];
  let say = (sentence: string): void => void early.push(sentence);
  try {
    await using server = await startControllerServer({
      ...settings,
      store,
      onEvent: (event) => log.append({ ...event }),
      say: (sentence) => say(sentence),
    });
    const { url } = server;
    log.append({ event: 'controller-start', url, store: store.location });
    process.stderr.write(`${name} listens on ${url} and follows ${store.location}\n`);
    say = (sentence) => void process.stderr.write(`${name}: ${sentence}\n`);
    for (const sentence of early) say(sentence);
    if (options['json'] === true)
      process.stdout.write(`${JSON.stringify({ service: 'controller', id: cluster, url, controlUrl: url })}\n`);
    await stopped.promise;
    log.append({ event: 'controller-stop' });
  } finally {
    process.removeListener('SIGTERM', onSignal);
    process.removeListener('SIGINT', onSignal);
    log.close();
  }
}

function nameOption(name: string, value: unknown): string {
  if (typeof value === 'string' && /^[A-Za-z0-9_][\w.-]{0,127}$/u.test(value)) return value;
  throw new HoneError('invalid-config', `${name} is ${JSON.stringify(value)}, not a name.`, {
    cure: 'Use up to 128 letters, digits, dots, hyphens and underscores.',
  });
}

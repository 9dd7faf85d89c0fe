/**
 * `hone serve router`: the door of a fleet. Replicas register at its control port, agents and recorders ask at its data port. Ends
 * with exit code 0 on SIGTERM and SIGINT, after what runs has ended or its time is over.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';

import { HoneError } from '../domain/errors.ts';
import { openHostedModel } from '../serve/router/hosted-model.ts';
import { startRouter } from '../serve/router/router-server.ts';
import type { FixedReplica } from '../serve/router/router-server.ts';
import { ServiceLog } from '../serve/service/service-log.ts';
import { integerOption, numberOption, pathOption } from './options.ts';

const DRAIN_MS = 30_000;

export async function serveRouter(options: Record<string, unknown>): Promise<void> {
  const port = integerOption('--port', options['port'], { min: 0, max: 65_535 });
  const controlPort = integerOption('--control-port', options['controlPort'], { min: 0, max: 65_535 });
  const leaseSeconds = numberOption('--lease-seconds', options['leaseSeconds'], { above: 0, max: 3_600, example: 10 });
  const restarts = integerOption('--restart-budget', options['restartBudget'], { min: 0 });
  const mostWaiting = integerOption('--max-waiting', options['maxWaiting'], { min: 0 });
  const fixedReplicas = listOption(options['replica']).map(readFixedReplica);
  const folder = pathOption('--model', options['model']);
  const events = pathOption('--events', options['events']);
  const token = process.env['HONE_TOKEN'];
  const id = typeof options['id'] === 'string' ? options['id'] : `router-${randomUUID().slice(0, 8)}`;
  const log = new ServiceLog({ path: events, service: 'router', id, wallMs: () => Date.now() });
  const say = (sentence: string): void => void process.stderr.write(`hone: router ${id}${sentence}\n`);
  const stopped = Promise.race([
    once(process, 'SIGTERM').then(() => ''),
    once(process, 'SIGINT').then(() => '; press Ctrl-C again to stop at once'),
  ]);
  try {
    const router = await startRouter({
      id,
      host: String(options['host']),
      port,
      controlPort,
      token: token === '' ? undefined : token,
      leaseMs: leaseSeconds * 1000,
      // Three failed probes find a dead replica in about the time of a lease.
      probe: { everyMs: (leaseSeconds * 1000) / 5, timeoutMs: (leaseSeconds * 1000) / 5 },
      limits: { failedProbes: 3, goodProbes: 2, restarts, restartWindowMs: 600_000 },
      fixedReplicas,
      mostWaiting,
      ...(folder === undefined ? {} : { model: await openHostedModel(folder) }),
      log,
      say: (sentence) => say(`: ${sentence}`),
      now: () => performance.now(),
      wallSeconds: () => Math.floor(Date.now() / 1000),
      random: Math.random,
      newSecret: () => randomBytes(24).toString('base64url'),
    });
    const { url, controlUrl } = router;
    if (options['json'] === true)
      process.stdout.write(`${JSON.stringify({ service: 'router', id, url, controlUrl })}\n`);
    say(` answers at ${url}; replicas register and operators look at ${controlUrl} (/status, /metrics)`);
    const again = await stopped;
    say(` ends when what it relays has ended, in at most ${DRAIN_MS / 1000} s${again}`);
    await router.drain({ deadlineMs: DRAIN_MS });
  } finally {
    log.close();
  }
}

function listOption(value: unknown): string[] {
  return Array.isArray(value) ? value.map(String) : [];
}

function readFixedReplica(text: string): FixedReplica {
  const [url, controlUrl, ...rest] = text.split(',');
  if (url !== undefined && controlUrl !== undefined && rest.length === 0 && [url, controlUrl].every(isHttp))
    return { url, controlUrl };
  throw new HoneError('invalid-config', `--replica is ${text}, not two URLs with a comma between them.`, {
    cure: 'Give data and control port, such as --replica http://10.0.0.7:8000,http://10.0.0.7:8001.',
  });
}

function isHttp(text: string): boolean {
  return URL.canParse(text) && /^https?:$/u.test(new URL(text).protocol);
}

/**
 * The router: agents and recorders on its data port, replicas and operators on its control port, and the clockwork between them
 * (leases, probes, what dead replicas left behind). It owns the life of these parts and no rule of its own. Invariant: nothing of
 * the control port can be reached through the data port. Long because it wires every part once: routes, clockwork and status page
 * read the same dozen fields.
 */
import { Agent } from 'undici';
import type { Context, Hono } from 'hono';
import { z } from 'zod';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { BearerToken, requireTokenBeyondLoopback } from '../service/bearer-token.ts';
import { errorBody, startControlServer } from '../service/control-server.ts';
import type { ControlServer } from '../service/control-server.ts';
import type { ServiceLog } from '../service/service-log.ts';
import { GENERATE_PATH } from '../wire/generate-wire.ts';
import { startDataServer } from './data-server.ts';
import type { DataServer } from './data-server.ts';
import { HostedRecorder } from './hosted-recorder.ts';
import type { HostedModel } from './hosted-recorder.ts';
import { REPLICAS_PATH, readReplicaDescription, replicaDescriptionSchema } from './registration.ts';
import { Relay } from './relay.ts';
import type { RelayReport } from './relay.ts';
import { RelayTransport } from './relay-transport.ts';
import { HEALTH_LIMITS } from './replica-health.ts';
import type { HealthLimits } from './replica-health.ts';
import { ReplicaProber } from './replica-prober.ts';
import { ReplicaRegistry } from './replica-registry.ts';
import type { ReplicaEntry, StateChange } from './replica-registry.ts';
import { RemotePolicy } from './remote-policy.ts';
import { RouterMetrics } from './router-metrics.ts';
import { sealedSessionJson } from './sealed-session-code.ts';
import { readSessionRequest } from './session-request.ts';
import { SessionSecrets } from './session-secrets.ts';
import { TokenRefusals } from './token-refusals.ts';

export interface RouterOptions {
  readonly id: string;
  readonly host: string;
  /** 0 = any free port. */
  readonly port: number;
  readonly controlPort: number;
  /** The fleet's secret; undefined only on a loopback. */
  readonly token: string | undefined;
  readonly leaseMs: number;
  readonly probe: { readonly everyMs: number; readonly timeoutMs: number };
  readonly limits?: HealthLimits;
  /** Replicas that hold no lease: the status of each is asked for with every round of probes. */
  readonly fixedReplicas?: readonly FixedReplica[];
  /** Hosts recorder sessions of this model for agents. */
  readonly model?: HostedModel;
  readonly mostWaiting?: number;
  readonly firstByteTimeoutMs?: number;
  readonly stallTimeoutMs?: number;
  /** How long a client may take no byte of its answer. */
  readonly readerTimeoutMs?: number;
  readonly log: ServiceLog;
  /** Takes what the person who started the router should know. */
  readonly say?: (sentence: string) => void;
  /** Monotone milliseconds. */
  readonly now: () => number;
  /** Seconds since 1970. */
  readonly wallSeconds: () => number;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** A new secret of at least 128 bits. */
  readonly newSecret: () => string;
}

export interface FixedReplica {
  readonly url: string;
  readonly controlUrl: string;
}

export interface Router extends AsyncDisposable {
  readonly url: string;
  readonly controlUrl: string;
  /** Takes nothing new, lets what runs end within the deadline, then closes. */
  drain(options: { deadlineMs: number }): Promise<void>;
  close(): Promise<void>;
}

export async function startRouter(options: RouterOptions): Promise<Router> {
  const router = new RouterServer(options);
  try {
    await router.start();
  } catch (error) {
    await router.close();
    throw error;
  }
  return router;
}

const describedSchema = z.object({
  ...replicaDescriptionSchema.omit({ url: true, controlUrl: true, runId: true }).shape,
  sync: z.object({ runId: z.string().optional() }).optional(),
});

class RouterServer implements Router {
  readonly #options: RouterOptions;
  readonly #stop = new AbortController();
  readonly #registry: ReplicaRegistry;
  readonly #relay: Relay;
  readonly #prober: ReplicaProber;
  readonly #secrets: SessionSecrets;
  readonly #metrics: RouterMetrics;
  readonly #agent = new Agent({ connections: 1, connect: { timeout: 5_000 } });
  readonly #startedMs: number;
  #recorder: HostedRecorder | undefined;
  #data: DataServer | undefined;
  #control: ControlServer | undefined;
  #ticks: Promise<void> = Promise.resolve();
  #timer: NodeJS.Timeout | undefined;
  #waking: Promise<void> | undefined;
  #isDraining = false;
  readonly #requestPrefix: string;
  #requests = 0;

  constructor(options: RouterOptions) {
    this.#options = options;
    const { token, leaseMs, now } = options;
    this.#startedMs = now();
    this.#requestPrefix = options.newSecret().slice(0, 12);
    this.#registry = new ReplicaRegistry({
      leaseMs,
      now,
      ...(options.limits === undefined ? {} : { limits: options.limits }),
      onChange: (change) => this.#changed(change),
    });
    this.#secrets = new SessionSecrets({
      fleet: token === undefined ? undefined : new BearerToken(token),
      now,
      newSecret: options.newSecret,
    });
    this.#metrics = new RouterMetrics(this.#registry, () => this.#secrets.size);
    this.#prober = new ReplicaProber({
      registry: this.#registry,
      timeoutMs: options.probe.timeoutMs,
      signal: this.#stop.signal,
    });
    this.#relay = new Relay({
      registry: this.#registry,
      token,
      now,
      ...(options.mostWaiting === undefined ? {} : { mostWaiting: options.mostWaiting }),
      ...(options.firstByteTimeoutMs === undefined ? {} : { firstByteTimeoutMs: options.firstByteTimeoutMs }),
      ...(options.stallTimeoutMs === undefined ? {} : { stallTimeoutMs: options.stallTimeoutMs }),
      onEnd: (report) => this.#reported(report),
      onTrouble: (entry) => void this.#prober.probe(entry),
      onVersionMissing: () => void this.#wake(),
    });
  }

  get url(): string {
    return this.#data?.url ?? '';
  }

  get controlUrl(): string {
    return this.#control?.url ?? '';
  }

  async start(): Promise<void> {
    const { host, port, controlPort, token, model, now, random, log, say = () => undefined } = this.#options;
    const refusals = new TokenRefusals({ say, now, onEvent: (event) => log.append(event) });
    const fleet = token === undefined ? undefined : new BearerToken(token);
    requireTokenBeyondLoopback('router', host, fleet);
    if (model !== undefined) {
      const policy = new RemotePolicy(new RelayTransport(this.#relay), {
        now,
        random,
        newRequestId: () => this.#newRequestId(),
        onEvent: (event) => this.#options.log.append({ ...event }),
      });
      this.#recorder = new HostedRecorder({ model, policy, now, wallSeconds: this.#options.wallSeconds });
    }
    this.#data = await startDataServer({
      host,
      port,
      relay: this.#relay,
      secrets: this.#secrets,
      chat: this.#recorder,
      known: () => ({ version: this.#registry.newestVersion(), contextLength: this.#registry.contextLength() }),
      servedModels: () => this.#registry.servedModels(),
      newRequestId: () => this.#newRequestId(),
      readerTimeoutMs: this.#options.readerTimeoutMs,
    });
    this.#recorder?.mountedAt(this.#data.url);
    this.#control = await startControlServer({
      service: 'router',
      host,
      port: controlPort,
      token: fleet,
      health: () => this.#health(),
      routes: (app) => this.#routes(app),
      onUnauthorized: (request) => refusals.note(request),
    });
    this.#options.log.append({ event: 'router-start', url: this.url, controlUrl: this.controlUrl });
    await this.#adoptFixed();
    this.#schedule();
  }

  async drain({ deadlineMs }: { deadlineMs: number }): Promise<void> {
    this.#isDraining = true;
    this.#data?.drain();
    const untilMs = this.#options.now() + deadlineMs;
    while ((this.#data?.active ?? 0) > 0 && this.#options.now() < untilMs)
      await new Promise((resolve) => setTimeout(resolve, 20));
    await this.close();
  }

  async close(): Promise<void> {
    if (this.#stop.signal.aborted) return;
    this.#stop.abort();
    clearTimeout(this.#timer);
    await this.#ticks;
    await this.#recorder?.close();
    this.#relay.close();
    await this.#data?.close();
    await this.#control?.close();
    await this.#prober.close();
    await this.#agent.destroy();
    await this.#waking;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Unlike those of every other router, and of this one before it was started again. */
  #newRequestId(): string {
    this.#requests += 1;
    return `${this.#requestPrefix}-${this.#requests}`;
  }

  #health(): { ready: boolean; reason?: string } {
    if (this.#isDraining) return { ready: false, reason: 'the router closes' };
    if (this.#registry.newestVersion() === undefined) return { ready: false, reason: 'no replica serves' };
    return { ready: true };
  }

  #routes(app: Hono): void {
    app.post(REPLICAS_PATH, (context) =>
      answered(context, 200, async () => {
        this.#registry.register(readReplicaDescription(await readJson(context.req)));
        return { leaseMs: this.#registry.leaseMs };
      }),
    );
    app.get(REPLICAS_PATH, (context) => context.json({ replicas: this.#replicas() }));
    app.delete(`${REPLICAS_PATH}/:id`, (context) => {
      const id = context.req.param('id');
      const bootId = context.req.query('boot');
      const known = bootId === undefined ? this.#registry.forget(id) : this.#registry.leave(id, bootId);
      if (!known) return context.json(errorBody('not_found', `The router has no replica ${id} of this boot.`), 404);
      return context.json({ id });
    });
    app.post('/sessions', (context) =>
      answered(context, 201, async () => this.#openSession(await readJson(context.req))),
    );
    app.delete('/sessions/:id', async (context) => {
      const id = context.req.param('id');
      await this.#recorder?.discard(id);
      this.#relay.affinity.delete(id);
      if (!this.#secrets.revoke(id))
        return context.json(errorBody('not_found', `The router has no session ${id}.`), 404);
      return context.json({ id });
    });
    app.post('/sessions/:id/seal', async (context) => {
      const id = context.req.param('id');
      if (this.#recorder === undefined)
        return context.json(errorBody('not_found', 'This router hosts no recorder; start it with --model.'), 404);
      if (!this.#recorder.isOpen(id))
        return context.json(errorBody('not_found', `The session ${id} is not open here.`), 404);
      this.#secrets.revoke(id);
      this.#relay.affinity.delete(id);
      return context.body(sealedSessionJson(await this.#recorder.seal(id)), 200, {
        'content-type': 'application/json',
      });
    });
    app.post('/wake', async (context) => context.json({ woken: await this.#wakeAll() }));
    app.get('/status', (context) => context.json(this.#status()));
    app.get('/metrics', async (context) =>
      context.body(await this.#metrics.text(), 200, { 'content-type': this.#metrics.contentType }),
    );
  }

  #openSession(body: unknown): object {
    const { id, ttlSeconds, record } = readSessionRequest(body);
    if (record === undefined) {
      const secret = this.#secrets.issue(id, { ttlMs: ttlSeconds * 1000, use: 'generate' });
      return { id, secret, generateUrl: `${this.url}${GENERATE_PATH}`, expiresInSeconds: ttlSeconds };
    }
    if (this.#recorder === undefined)
      throw new HoneError('invalid-config', 'record is set, and this router hosts no recorder.', {
        cure: 'Start the router with --model <folder>, or leave record out and record where the rollout runs.',
      });
    const secret = this.#secrets.issue(id, { ttlMs: ttlSeconds * 1000, use: 'chat' });
    try {
      const { baseUrl } = this.#recorder.open({ id, secret, ...record });
      return { id, secret, baseUrl, expiresInSeconds: ttlSeconds };
    } catch (error) {
      this.#secrets.revoke(id);
      throw error;
    }
  }

  #schedule(): void {
    if (this.#stop.signal.aborted) return;
    this.#timer = setTimeout(() => {
      this.#ticks = this.#tick().finally(() => this.#schedule());
    }, this.#options.probe.everyMs);
  }

  async #tick(): Promise<void> {
    this.#registry.expire();
    this.#relay.sweep();
    for (const id of this.#secrets.expire()) await this.#recorder?.discard(id);
    // Not waited for: one that hangs for its whole time-out delays nobody's lease.
    void this.#prober.probeAll();
    void this.#adoptFixed();
  }

  /** What the replicas that were named to the router say of themselves. */
  async #adoptFixed(): Promise<void> {
    const { log, fixedReplicas = [] } = this.#options;
    const adopt = async ({ url, controlUrl }: FixedReplica): Promise<void> => {
      try {
        const { statusCode, text } = await this.#askReplica('GET', controlUrl, '/status');
        if (statusCode !== 200) throw new Error(`answered ${statusCode}: ${text.slice(0, 200)}`);
        const description = readReplicaDescription({ ...describedByStatus(JSON.parse(text)), url, controlUrl });
        this.#registry.register(description, { isFixed: true });
      } catch (error) {
        if (!this.#stop.signal.aborted)
          log.append({ event: 'replica-unreachable', controlUrl, reason: reasonOf(error) });
      }
    };
    await Promise.all(fixedReplicas.map(adopt));
  }

  async #askReplica(
    method: 'GET' | 'POST',
    controlUrl: string,
    path: string,
  ): Promise<{ statusCode: number; text: string }> {
    const { token, probe } = this.#options;
    const { origin, pathname } = new URL(controlUrl);
    const answer = await this.#agent.request({
      origin,
      path: `${pathname.replace(/\/$/u, '')}${path}`,
      method,
      headers: token === undefined ? {} : { authorization: `Bearer ${token}` },
      signal: AbortSignal.any([this.#stop.signal, AbortSignal.timeout(probe.timeoutMs)]),
    });
    return { statusCode: answer.statusCode, text: await answer.body.text() };
  }

  /** Joins a round of wakes that has not begun to be answered. */
  #wake(): Promise<void> {
    this.#waking ??= this.#wakeAll()
      .then(() => undefined)
      .finally(() => (this.#waking = undefined));
    return this.#waking;
  }

  /** Best effort: who cannot be woken polls. Resolves with the number of replicas that took it. */
  async #wakeAll(): Promise<number> {
    const wake = async ({ description: { controlUrl } }: ReplicaEntry): Promise<number> => {
      try {
        return (await this.#askReplica('POST', controlUrl, '/wake')).statusCode < 300 ? 1 : 0;
      } catch {
        return 0;
      }
    };
    const alive = [...this.#registry.entries()].filter(({ health }) => health.state !== 'DEAD');
    const woken = await Promise.all(alive.map(wake));
    return woken.reduce((sum, one) => sum + one, 0);
  }

  #changed(change: StateChange): void {
    this.#options.log.append({ event: 'replica-state', ...change });
    if (change.to !== 'FORGOTTEN') return;
    const isShared = Array.from(this.#registry.entries()).some(({ description }) => description.url === change.url);
    if (!isShared) this.#relay.forget(change.url);
  }

  #reported(report: RelayReport): void {
    this.#metrics.observe(report);
    this.#options.log.append({ event: 'request-end', ...report });
  }

  #replicas(): object[] {
    const nowMs = this.#options.now();
    return Array.from(this.#registry.entries(), (entry) => {
      const { description, health, leaseUntilMs, inFlight, load, breaker, prefixes, counts } = entry;
      return {
        ...description,
        reported: description.state,
        state: health.state,
        reason: health.reason,
        requiredVersion: health.requiredVersion,
        restarts: health.restartsAtMs.length,
        restartsBorne: (this.#options.limits ?? HEALTH_LIMITS).restarts,
        leaseMsLeft: leaseUntilMs === undefined ? null : Math.round(leaseUntilMs - nowMs),
        load,
        inFlight,
        breaker: breaker.state(nowMs),
        breakerReason: breaker.condemned?.reason,
        prefixBlocks: prefixes.size,
        ...counts,
      };
    });
  }

  #status(): object {
    return {
      service: 'router',
      id: this.#options.id,
      url: this.url,
      version: this.#registry.newestVersion() ?? null,
      contextLength: this.#registry.contextLength() ?? null,
      uptimeSeconds: Math.round((this.#options.now() - this.#startedMs) / 1000),
      active: this.#data?.active ?? 0,
      sessions: this.#secrets.size,
      recorder: this.#recorder === undefined ? null : { model: this.#recorder.model, open: this.#recorder.openCount },
      eventsLost: this.#options.log.lost,
      replicas: this.#replicas(),
    };
  }
}

/** Of a replica's status page, the fields that describe it to routers. */
function describedByStatus(status: unknown): object {
  const described = describedSchema.parse(status);
  const { sync, ...rest } = described;
  return sync?.runId === undefined ? rest : { ...rest, runId: sync.runId };
}

/** The answer as JSON; what the caller did wrong is 400 with the sentence and its cure. */
async function answered(context: Context, status: 200 | 201, work: () => Promise<object>): Promise<Response> {
  try {
    return context.json(await work(), status);
  } catch (error) {
    if (!(error instanceof HoneError) || !error.code.startsWith('invalid-')) throw error;
    return context.json(errorBody(error.code, `${error.message} ${error.cure ?? ''}`.trimEnd()), 400);
  }
}

/** Undefined for an empty body: what it should have held is the schema's to say. */
async function readJson(request: { text(): Promise<string> }): Promise<unknown> {
  try {
    const text = await request.text();
    if (text.trim() === '') return undefined;
    return JSON.parse(text);
  } catch (error) {
    throw new HoneError('invalid-config', `The body is not JSON: ${reasonOf(error)}.`, {
      cure: 'Send one JSON object.',
    });
  }
}

/**
 * A replica as a service: the embedded engine behind a data port (`POST /generate`) and a control port (`/health`, `/status`,
 * `/metrics`, `POST /wake`, objects for peers). It owns the gate: closed until the first catch-up, closed again on the way down, and
 * for good once the replica failed. Invariant: what the gate refuses was never handed to the engine.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';

import type { HoneError } from '../domain/errors.ts';
import type { SideDataStore } from '../sync/side-data.ts';
import type { EmbeddedPolicy, ReplicaStats } from './embedded-policy.ts';
import { ReplicaDataServer } from './replica-data-server.ts';
import { ReplicaMetrics } from './replica-metrics.ts';
import type { BearerToken } from './service/bearer-token.ts';
import { startControlServer, type ControlServer } from './service/control-server.ts';
import type { ServiceLog } from './service/service-log.ts';
import type { ReplicaDescription } from './router/registration.ts';

/** Where a replica is in its life; it never goes back to an earlier one. */
export type ReplicaState = 'starting' | 'serving' | 'closing' | 'failed';

export interface ReplicaServerOptions {
  readonly policy: EmbeddedPolicy;
  readonly id: string;
  readonly bootId: string;
  readonly cluster: string;
  readonly slots: number;
  /** What it computes, and the weights of now, as routers compare them. */
  readonly served: () => Pick<ReplicaDescription, 'model' | 'weights'>;
  readonly host?: string;
  /** 0 = any free port. */
  readonly port?: number;
  readonly controlPort?: number;
  readonly token?: BearerToken | undefined;
  /** Requests beyond the slots that may wait; more are refused with 429. */
  readonly maxWaiting?: number;
  readonly maxPendingBytes?: number;
  readonly stallMs?: number;
  /** Looks for a newer version now. */
  readonly wake?: () => void;
  /** Added to `/status`: what keeps it from its work while it goes on trying. */
  readonly problems?: () => readonly object[];
  /** Added to `/status`: where the weights come from and how the last updates went. */
  readonly syncStatus?: () => object;
  /** Why the first catch-up takes so long, for the gate's refusals. */
  readonly startingReason?: () => string | undefined;
  readonly sideData?: () => SideDataStore | undefined;
  /** Takes requests of peers on the control port; false = not its path. */
  readonly peerRequest?: (request: IncomingMessage, response: ServerResponse) => boolean;
  readonly metrics?: ReplicaMetrics;
  readonly log: ServiceLog;
  /** Milliseconds of a clock that only goes forward. */
  readonly now: () => number;
  readonly newRequestId: () => string;
}

export interface ReplicaServer extends AsyncDisposable {
  readonly url: string;
  readonly controlUrl: string;
  readonly state: ReplicaState;
  readonly metrics: ReplicaMetrics;
  /** Requests that are sampled, and those that wait. */
  load(): { readonly running: number; readonly waiting: number };
  /** Opens the gate: the first catch-up is done. */
  serve(): void;
  /** Closes the gate for good: every request from now on, and `/health`, get the reason. */
  fail(error: HoneError): void;
  /** Closes the gate, lets what runs end until the deadline, then closes both ports. Safe to call twice. */
  close(options?: { readonly drainMs?: number }): Promise<void>;
}

const DEFAULT_MAX_WAITING = 256;
/** For the status page. */
const STATS_LIMIT_MS = 1000;

export async function startReplicaServer(options: ReplicaServerOptions): Promise<ReplicaServer> {
  const { policy, id, bootId, slots, host = '127.0.0.1', token, log, now, newRequestId } = options;
  const { maxWaiting = DEFAULT_MAX_WAITING, wake = () => undefined, metrics = new ReplicaMetrics() } = options;
  let state: ReplicaState = 'starting';
  let failure: HoneError | undefined;
  const started = now();

  const gate = (): { ready: boolean; reason?: string } => {
    const broken = failure ?? (state === 'closing' ? undefined : policy.failure);
    if (broken !== undefined) return { ready: false, reason: `it has failed: ${broken.message}` };
    switch (state) {
      case 'serving':
        return { ready: true };
      case 'starting': {
        const reason = options.startingReason?.();
        const cause = reason === undefined ? '' : ` (${reason})`;
        return { ready: false, reason: `it has not caught up with the newest version yet${cause}` };
      }
      case 'closing':
        return { ready: false, reason: 'it is closing' };
      case 'failed':
        return { ready: false, reason: 'it has failed' };
      default:
        return state satisfies never;
    }
  };

  const data = await ReplicaDataServer.start({
    policy,
    name: `${id}/${bootId}`,
    host,
    port: options.port ?? 0,
    token,
    gate,
    maxActive: slots + maxWaiting,
    onVersionMissing: wake,
    sideData: options.sideData ?? (() => undefined),
    metrics,
    log,
    now,
    newRequestId,
    ...(options.maxPendingBytes === undefined ? {} : { maxPendingBytes: options.maxPendingBytes }),
    ...(options.stallMs === undefined ? {} : { stallMs: options.stallMs }),
  });
  const load = (): { running: number; waiting: number } => ({
    running: Math.min(data.active, slots),
    waiting: Math.max(0, data.active - slots),
  });

  let control: ControlServer;
  try {
    control = await startControlServer({
      service: 'replica',
      host,
      port: options.controlPort ?? 0,
      token,
      health: gate,
      ...(options.peerRequest === undefined ? {} : { raw: options.peerRequest }),
      routes: (app) => {
        app.get('/status', async (context) => {
          const engine = await engineStats(policy);
          const { ready, reason } = gate();
          return context.json({
            service: 'replica',
            id,
            bootId,
            cluster: options.cluster,
            state,
            ready,
            reason,
            version: policy.version,
            ...options.served(),
            ...load(),
            slots,
            contextLength: policy.contextLength,
            build: policy.build,
            uptimeMs: now() - started,
            engine,
            eventsLost: options.log.lost,
            problems: options.problems?.() ?? [],
            sync: options.syncStatus?.(),
          });
        });
        app.get('/metrics', async (context) => {
          metrics.version.set(policy.version);
          metrics.ready.set(gate().ready ? 1 : 0);
          return context.body(await metrics.registry.metrics(), 200, { 'content-type': metrics.registry.contentType });
        });
        app.post('/wake', (context) => {
          wake();
          return context.json({ version: policy.version }, 202);
        });
      },
    });
  } catch (error) {
    await data.close();
    throw error;
  }

  let closed: Promise<void> | undefined;
  const close = async (drainMs: number): Promise<void> => {
    if (state !== 'failed') state = 'closing';
    const deadline = AbortSignal.timeout(drainMs);
    // What a failed replica still samples is of unknown weights: it ends now.
    if (failure === undefined && policy.failure === undefined) await data.drained(deadline);
    await data.close();
    await control.close();
  };
  return {
    url: data.url,
    controlUrl: control.url,
    metrics,
    get state() {
      return state;
    },
    load,
    serve: () => {
      if (state === 'starting') state = 'serving';
    },
    fail: (error) => {
      failure ??= error;
      state = 'failed';
      data.fail(failure);
    },
    close: ({ drainMs = 30_000 } = {}) => (closed ??= close(drainMs)),
    [Symbol.asyncDispose]: () => (closed ??= close(0)),
  };
}

/** Undefined when the engine does not answer soon: a status page is read most when something hangs. */
async function engineStats(policy: EmbeddedPolicy): Promise<ReplicaStats | undefined> {
  if (policy.failure !== undefined) return undefined;
  const limit = Promise.withResolvers<undefined>();
  const timer = setTimeout(() => limit.resolve(undefined), STATS_LIMIT_MS);
  const stats = policy.stats().catch(() => undefined);
  return Promise.race([stats, limit.promise]).finally(() => clearTimeout(timer));
}

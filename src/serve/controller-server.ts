/**
 * The cluster controller as a service: its routes for members, people and Prometheus on one control server, behind the fleet's token.
 * Owns HTTP and metrics; what is true of the cluster is the ClusterController's. Invariant: bytes of objects go past hono as frames, and
 * every body that comes in is checked by its schema.
 */
import type { Hono } from 'hono';
import { Counter, Gauge, Registry } from 'prom-client';
import type { z } from 'zod';

import { HoneError, reasonOf } from '../domain/errors.ts';
import {
  ClusterController,
  type ClusterControllerOptions,
  type ControllerEvent,
} from '../sync/cluster/cluster-controller.ts';
import {
  DIGESTS_PATH,
  FACTS_PATH,
  heartbeatSchema,
  MEMBERS_PATH,
  parentReportSchema,
  POINTER_PATH,
  WAKE_PATH,
} from '../sync/cluster/cluster-protocol.ts';
import { ControllerProblems } from './controller-problems.ts';
import type { BearerToken } from './service/bearer-token.ts';
import { errorBody, startControlServer } from './service/control-server.ts';
import type { ProblemEvent } from './service-problems.ts';

export interface ControllerServerOptions extends Omit<ClusterControllerOptions, 'onEvent'> {
  readonly host: string;
  readonly port: number;
  readonly token: BearerToken | undefined;
  readonly onEvent?: (event: ControllerEvent | ProblemEvent) => void;
  /** Takes each distinct problem with the store once, and its end once. */
  readonly say?: (sentence: string) => void;
}

export interface ControllerServer extends AsyncDisposable {
  readonly url: string;
  readonly controller: ClusterController;
  close(): Promise<void>;
}

const LONGEST_WAIT_MS = 60_000;

export async function startControllerServer(options: ControllerServerOptions): Promise<ControllerServer> {
  const { onEvent = () => undefined, say = () => undefined, store, wallMs, now } = options;
  const problems = new ControllerProblems({ say, onEvent, wallMs, now, location: store.location });
  const controller = await ClusterController.start({
    ...options,
    onEvent: (event) => {
      onEvent(event);
      problems.note(event);
    },
  });
  const metrics = controllerMetrics(controller);
  try {
    const server = await startControlServer({
      service: 'controller',
      host: options.host,
      port: options.port,
      token: options.token,
      health: () => ({ ready: true }),
      routes: (app) => addRoutes(app, { controller, metrics, problems }),
      raw: (request, response) => controller.handlePeerRequest(request, response),
    });
    const close = async (): Promise<void> => {
      await server.close();
      await controller.close();
    };
    return { url: server.url, controller, close, [Symbol.asyncDispose]: close };
  } catch (error) {
    await controller.close();
    throw error;
  }
}

interface Routed {
  readonly controller: ClusterController;
  readonly metrics: Registry;
  readonly problems: ControllerProblems;
}

function addRoutes(app: Hono, { controller, metrics, problems }: Routed): void {
  app.get('/status', (context) => context.json({ ...controller.status(), problems: problems.list() }));
  app.get('/timeline', (context) => context.json({ versions: controller.timeline() }));
  app.get('/metrics', async (context) => {
    const text = await metrics.metrics();
    return context.body(text, 200, { 'content-type': metrics.contentType });
  });
  app.post(WAKE_PATH, (context) => {
    controller.wake();
    return context.json({ status: 'woken' });
  });
  app.get(POINTER_PATH, async (context) => {
    const wait = Number(context.req.query('wait') ?? 0);
    const announcement = await controller.announcement({
      after: context.req.query('after'),
      waitMs: Math.min(Math.max(0, Number.isFinite(wait) ? wait : 0), LONGEST_WAIT_MS),
      signal: context.req.raw.signal,
    });
    return context.json(announcement);
  });
  app.post(MEMBERS_PATH, async (context) => {
    const body = await parsed(heartbeatSchema, context.req);
    return body.kind === 'ok' ? context.json(controller.heartbeat(body.value)) : context.json(body.error, 400);
  });
  app.delete(`${MEMBERS_PATH}/:id`, (context) =>
    controller.leave(context.req.param('id'))
      ? context.json({ status: 'left' })
      : context.json(errorBody('not_found', `No member ${context.req.param('id')} is registered.`), 404),
  );
  app.post(`${MEMBERS_PATH}/:id/reports`, async (context) => {
    const body = await parsed(parentReportSchema, context.req);
    if (body.kind === 'wrong') return context.json(body.error, 400);
    return context.json({ parent: controller.report(context.req.param('id'), body.value) });
  });
  app.get(FACTS_PATH, async (context) => {
    const key = context.req.query('key') ?? '';
    const facts = await answered(async () => controller.facts(key, context.req.raw.signal));
    if (facts.kind === 'failed') return context.json(facts.error, 503);
    if (facts.value === undefined) return context.json(errorBody('not_found', `The weight store has no ${key}.`), 404);
    return context.json({ ...facts.value, checksum: facts.value.checksum ?? null });
  });
  app.get(DIGESTS_PATH, async (context) => {
    const key = context.req.query('key') ?? '';
    const digests = await answered(async () => controller.provenDigests(key, context.req.raw.signal));
    if (digests.kind === 'failed') return context.json(digests.error, 503);
    if (digests.value === undefined)
      return context.json(errorBody('not_found', `The weight store has no ${key}.`), 404);
    return context.json({ digests: digests.value });
  });
}

type Body<T> = { readonly kind: 'ok'; readonly value: T } | { readonly kind: 'wrong'; readonly error: unknown };

async function parsed<T>(schema: z.ZodType<T>, request: { json(): Promise<unknown> }): Promise<Body<T>> {
  try {
    return { kind: 'ok', value: schema.parse(await request.json()) };
  } catch (error) {
    return { kind: 'wrong', error: errorBody('invalid_request', `The body is not understood: ${reasonOf(error)}`) };
  }
}

type Answer<T> = { readonly kind: 'ok'; readonly value: T } | { readonly kind: 'failed'; readonly error: unknown };

/** What the store cannot give now is for the member to ask again. */
async function answered<T>(work: () => Promise<T>): Promise<Answer<T>> {
  try {
    return { kind: 'ok', value: await work() };
  } catch (error) {
    const type = error instanceof HoneError ? error.code : 'internal_error';
    return { kind: 'failed', error: errorBody(type, reasonOf(error)) };
  }
}

/** Everything is read from the controller when it is asked for, so that a scrape sees one moment. */
function controllerMetrics(controller: ClusterController): Registry {
  const registry = new Registry();
  const registers = [registry];
  type Status = ReturnType<ClusterController['status']>;
  type Counts = Status['members'][number]['counts'];
  const gauge = (metric: { name: string; help: string }, value: (status: Status) => number): void => {
    new Gauge({
      ...metric,
      registers,
      collect() {
        this.set(value(controller.status()));
      },
    });
  };
  const perMember = (
    metric: { name: string; help: string },
    value: (member: Status['members'][number]) => number | undefined,
  ): void => {
    new Gauge({
      ...metric,
      labelNames: ['member'],
      registers,
      collect() {
        this.reset();
        for (const member of controller.status().members) {
          const number = value(member);
          if (number !== undefined) this.set({ member: member.id }, number);
        }
      },
    });
  };
  const counter = (metric: { name: string; help: string }, value: () => number): void => {
    new Counter({
      ...metric,
      registers,
      collect() {
        this.reset();
        this.inc(value());
      },
    });
  };
  const sumOf = (count: keyof Counts): number =>
    controller.status().members.reduce((sum, { counts }) => sum + counts[count], 0);

  gauge({ name: 'hone_controller_members', help: 'Members whose lease runs.' }, ({ members }) => members.length);
  gauge(
    { name: 'hone_controller_cache_bytes', help: 'Bytes of objects in the cache.' },
    ({ cachedBytes }) => cachedBytes,
  );
  gauge({ name: 'hone_controller_version', help: 'Version that is announced to the members.' }, ({ version }) =>
    Number(/weight_v(\d+)/.exec(version ?? '')?.[1] ?? 0),
  );
  gauge(
    { name: 'hone_controller_store_reachable', help: '1 while the last look at the store went well.' },
    ({ storeProblem }) => (storeProblem === undefined ? 1 : 0),
  );
  perMember(
    {
      name: 'hone_controller_member_versions_behind',
      help: 'Versions between the announced one and that of the member.',
    },
    ({ versionsBehind }) => versionsBehind,
  );
  perMember(
    { name: 'hone_controller_member_depth', help: 'Hops between the controller and the member.' },
    ({ depth }) => depth,
  );
  perMember(
    { name: 'hone_controller_member_received_bytes', help: 'Bytes that the member received since it started.' },
    ({ counts }) => counts.receivedBytes,
  );
  perMember(
    {
      name: 'hone_controller_member_hop_seconds_mean',
      help: 'Mean time from the first byte of a chunk at the member until it is verified and open to its children.',
    },
    ({ counts }) => (counts.receivedChunks === 0 ? undefined : counts.hopSeconds / counts.receivedChunks),
  );
  counter(
    { name: 'hone_controller_store_bytes_total', help: 'Bytes read from the weight store.' },
    () => controller.counts.bytesFromStore,
  );
  counter(
    { name: 'hone_controller_objects_fetched_total', help: 'Objects brought in whole.' },
    () => controller.counts.objectsFetched,
  );
  counter(
    { name: 'hone_controller_sent_bytes_total', help: 'Bytes that the controller itself sent to members.' },
    () => controller.status().sentBytes,
  );
  gauge(
    { name: 'hone_controller_relayed_bytes', help: 'Bytes that members sent to each other, since each started.' },
    () => sumOf('sentBytes'),
  );
  counter(
    { name: 'hone_controller_polls_total', help: 'Looks at the pointer of the store.' },
    () => controller.counts.polls,
  );
  counter(
    { name: 'hone_controller_poll_failures_total', help: 'Looks that the store did not answer.' },
    () => controller.counts.pollFailures,
  );
  counter(
    { name: 'hone_controller_versions_seen_total', help: 'Versions that were announced.' },
    () => controller.counts.versionsSeen,
  );
  counter(
    { name: 'hone_controller_parent_replacements_total', help: 'Times that a member was given another parent.' },
    () => controller.status().parentReplacements,
  );
  counter(
    { name: 'hone_controller_damaged_chunks_total', help: 'Chunks that did not have their digest, at any hop.' },
    () => controller.counts.damagedChunks,
  );
  return registry;
}

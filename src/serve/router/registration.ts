/**
 * How a replica makes itself known to routers: a description, sent at once, again on every change, and at a third of the lease
 * that the router granted. Owns the shape and the client's side. Invariants: a router that is away never stops the replica or
 * the other routers' renewals; what goes out is always the newest description; `close` says goodbye to all, within a deadline.
 */
import { Pool } from 'undici';
import { z } from 'zod';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { schemaProblem } from '../../domain/schema-problem.ts';

export const REPLICAS_PATH = '/replicas';

const replicaName = z
  .string()
  .regex(/^[\w.:-]{1,128}$/u, 'must be 1 to 128 letters, digits, dots, colons, dashes or underscores');

const hexDigits = (count: number): z.ZodString =>
  z.string().regex(new RegExp(`^[0-9a-f]{${count}}$`, 'u'), `must be ${count} hex digits`);

const httpUrl = z.url({ protocol: /^https?$/u, error: 'must be a URL such as http://10.0.0.7:8000' });

export const replicaDescriptionSchema = z.strictObject({
  id: replicaName.describe('stays the same over restarts'),
  bootId: replicaName.describe('another one after each start of the process'),
  cluster: z.string().max(128),
  url: httpUrl.describe('base URL of the data port, as routers reach it'),
  controlUrl: httpUrl.describe('base URL of the control port, as routers reach it'),
  runId: z.string().max(256).optional().describe('run whose versions it serves; absent while it serves the boot model'),
  version: z.int().min(0).describe('served now'),
  state: z.enum(['starting', 'serving', 'closing', 'failed']),
  running: z.int().min(0).describe('requests that are being sampled'),
  waiting: z.int().min(0).describe('requests in the queue'),
  slots: z.int().min(1).describe('requests that it samples at once'),
  contextLength: z.int().min(1).describe('tokens'),
  model: hexDigits(16).describe('fingerprint of what it computes, weights aside'),
  weights: z
    .strictObject({ version: z.int().min(0), imageChecksum: hexDigits(32).describe('of all its tensors') })
    .describe('proven last; a version behind for a moment in mid-commit'),
});

export type ReplicaDescription = Readonly<z.infer<typeof replicaDescriptionSchema>>;

const leaseSchema = z.object({ leaseMs: z.number().positive() });

/** Throws `invalid-config` with the first thing that is wrong. */
export function readReplicaDescription(value: unknown): ReplicaDescription {
  const parsed = replicaDescriptionSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const problem = issue === undefined ? 'is no description' : schemaProblem(issue, value);
  throw new HoneError(
    'invalid-config',
    `A replica's description is wrong: ${issue?.path.join('.') || 'it'} ${problem}.`,
    {
      cure: 'Run router and replicas of one release of Hone.',
    },
  );
}

export type RegistrationEvent =
  | { readonly type: 'registered'; readonly router: string; readonly leaseMs: number }
  | { readonly type: 'router-lost'; readonly router: string; readonly reason: string }
  /** Each try that failed, the first of a row as well. */
  | { readonly type: 'router-unheard'; readonly router: string; readonly error: unknown };

export interface RegistrationOptions {
  /** Base URLs of the routers' control ports. */
  readonly routers: readonly string[];
  /** The fleet's secret. */
  readonly token?: string;
  readonly describe: () => ReplicaDescription;
  /** Ends the renewals without a goodbye, as `close` does with one. */
  readonly signal?: AbortSignal;
  /** Between two tries while a router is away; doubles from the first to the second, with full jitter. */
  readonly retryMs?: { readonly first: number; readonly most: number };
  /** How long one call may take. */
  readonly timeoutMs?: number;
  /** Uniform in [0, 1): the jitter. */
  readonly random?: () => number;
  readonly onEvent?: (event: RegistrationEvent) => void;
}

export interface Registration extends AsyncDisposable {
  /** Sends the description of now to every router, such as after a commit. Resolves when each took it or failed. */
  renew(): Promise<void>;
  /** Routers that hold a lease of this replica at the last look. */
  readonly registered: readonly string[];
  /** Says goodbye, then renews no more. Safe to call twice. */
  close(): Promise<void>;
}

/** Starts at once and returns; a router that cannot be reached yet is tried until it can. */
export function keepRegistered(options: RegistrationOptions): Registration {
  const stop = new AbortController();
  const end = (): void => stop.abort();
  options.signal?.addEventListener('abort', end, { once: true });
  if (options.signal?.aborted === true) end();
  const leases = options.routers.map((router) => new RouterLease(router, options, stop.signal));
  let closed: Promise<void> | undefined;
  const close = async (): Promise<void> => {
    end();
    options.signal?.removeEventListener('abort', end);
    await Promise.all(leases.map((lease) => lease.close()));
  };
  return {
    renew: async () => {
      await Promise.all(leases.map((lease) => lease.renew()));
    },
    get registered() {
      return leases.filter((lease) => lease.isHeld).map((lease) => lease.router);
    },
    close: () => (closed ??= close()),
    [Symbol.asyncDispose]: () => (closed ??= close()),
  };
}

/** The lease at one router. Renewals never overlap; one asked for while another is under way follows it. */
class RouterLease {
  readonly router: string;
  readonly #options: RegistrationOptions;
  readonly #signal: AbortSignal;
  readonly #pool: Pool;
  #sending: Promise<void> | undefined;
  #next: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #failures = 0;
  isHeld = false;

  constructor(router: string, options: RegistrationOptions, signal: AbortSignal) {
    this.router = router;
    this.#options = options;
    this.#signal = signal;
    this.#pool = new Pool(new URL(router).origin, { connections: 1, keepAliveTimeout: 60_000 });
    signal.addEventListener('abort', () => clearTimeout(this.#timer), { once: true });
    void this.renew();
  }

  async renew(): Promise<void> {
    if (this.#signal.aborted) return;
    if (this.#sending === undefined) {
      this.#sending = this.#send().finally(() => (this.#sending = undefined));
      return this.#sending;
    }
    this.#next ??= this.#sending.then(() => {
      this.#next = undefined;
      return this.renew();
    });
    return this.#next;
  }

  async close(): Promise<void> {
    clearTimeout(this.#timer);
    await this.#sending;
    if (this.isHeld) {
      const { id, bootId } = this.#options.describe();
      const path = `${REPLICAS_PATH}/${encodeURIComponent(id)}?boot=${encodeURIComponent(bootId)}`;
      // A goodbye that does not arrive costs the router one lease, no more.
      await this.#call('DELETE', path).catch(() => undefined);
      this.isHeld = false;
    }
    await this.#pool.destroy();
  }

  async #send(): Promise<void> {
    clearTimeout(this.#timer);
    const { onEvent, random = Math.random, retryMs = { first: 100, most: 2_000 } } = this.#options;
    let waitMs: number;
    try {
      const { leaseMs } = leaseSchema.parse(await this.#call('POST', REPLICAS_PATH, this.#options.describe()));
      this.#failures = 0;
      if (!this.isHeld) onEvent?.({ type: 'registered', router: this.router, leaseMs });
      this.isHeld = true;
      waitMs = leaseMs / 3;
    } catch (error) {
      if (this.#signal.aborted) return;
      onEvent?.({ type: 'router-unheard', router: this.router, error });
      if (this.isHeld || this.#failures === 0)
        onEvent?.({ type: 'router-lost', router: this.router, reason: reasonOf(error) });
      this.isHeld = false;
      waitMs = random() * Math.min(retryMs.most, retryMs.first * 2 ** this.#failures);
      this.#failures = Math.min(this.#failures + 1, 30);
    }
    if (this.#signal.aborted) return;
    this.#timer = setTimeout(() => void this.renew(), waitMs);
    this.#timer.unref();
  }

  async #call(method: 'POST' | 'DELETE', path: string, body?: unknown): Promise<unknown> {
    const { token, timeoutMs = 2_000 } = this.#options;
    let status: number;
    let text: string;
    try {
      const answer = await this.#pool.request({
        method,
        path,
        headers: {
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
        },
        body: body === undefined ? null : JSON.stringify(body),
        signal: AbortSignal.timeout(timeoutMs),
      });
      status = answer.statusCode;
      text = await answer.body.text();
    } catch (error) {
      throw new HoneError('no-replica', `The router ${this.router} cannot be reached: ${reasonOf(error)}.`, {
        cure: 'Start it, or name the control port that it prints with --router.',
        cause: error,
      });
    }
    if (status >= 300) throw refusal(this.router, { status, text, hasToken: token !== undefined });
    try {
      return text === '' ? undefined : JSON.parse(text);
    } catch (error) {
      throw new HoneError('invalid-config', `${this.router} answers, but not as a router does.`, {
        cure: 'Name the control port that hone serve router prints with --router.',
        cause: error,
      });
    }
  }
}

function refusal(
  router: string,
  { status, text, hasToken }: { status: number; text: string; hasToken: boolean },
): HoneError {
  if (status === 401)
    return new HoneError(
      'unauthorized',
      `The router ${router} lets in only who has its token, and ${hasToken ? 'the one given here is another' : 'none is given here'}.`,
      { cure: 'Set HONE_TOKEN to the same secret for routers and replicas.' },
    );
  if (status === 404 || status === 405)
    return new HoneError('invalid-config', `${router} is no router's control port: replicas are not known there.`, {
      cure: 'Name the control port that hone serve router prints, not the data port, with --router.',
    });
  return new HoneError('no-replica', `The router ${router} answered ${status}: ${text.slice(0, 500)}`, {
    cure: 'Run router and replicas of one release of Hone.',
  });
}

/**
 * Tokens by routers over HTTP: one is used until it fails, then the next. It owns the connections. Invariant: a call goes to one
 * router once; trying again is the caller's to decide, as only the caller knows what it has already. A router that does not know the
 * token is left like one that is gone; that it is refused for good is told once every router says so.
 */
import type { IncomingHttpHeaders } from 'node:http';

import { Pool } from 'undici';
import type { Dispatcher } from 'undici';
import { z } from 'zod';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import {
  AVOID_HEADER,
  GENERATE_PATH,
  GENERATE_STATUS,
  REPLICA_HEADER,
  REQUEST_ID_HEADER,
} from '../wire/generate-wire.ts';
import { MOST_SERVED_KINDS, readRetryAfter } from './generate-transport.ts';
import type {
  AnswerReceiver,
  GenerateCall,
  GenerateInFlight,
  GenerateTransport,
  ServedModel,
} from './generate-transport.ts';

export interface HttpTransportOptions {
  /** Base URLs of data ports, best first. A replica's own works too, where it answers `GET /generate`. */
  readonly routers: readonly string[];
  /** The fleet's secret, or a session's. */
  readonly token?: string | undefined;
  readonly connectTimeoutMs?: number;
}

const knownSchema = z.object({
  version: z.int().min(0),
  contextLength: z.int().min(1),
  serves: z
    .array(
      z.object({
        replica: z.string(),
        model: z.string(),
        version: z.int().min(0),
        imageChecksum: z.string(),
      }),
    )
    .max(MOST_SERVED_KINDS),
});

interface RouterConnection {
  readonly url: string;
  readonly path: string;
  readonly pool: Pool;
}

export class HttpTransport implements GenerateTransport {
  readonly #options: HttpTransportOptions;
  readonly #routers: readonly RouterConnection[];
  #current = 0;
  /** Routers that did not know the token when they were asked last. */
  readonly #denied = new Set<RouterConnection>();
  #version: number | undefined;
  #contextLength: number | undefined;
  #serves: readonly ServedModel[] = [];

  constructor(options: HttpTransportOptions) {
    this.#options = options;
    const { routers, connectTimeoutMs = 5_000 } = options;
    if (routers.length === 0)
      throw new HoneError('invalid-config', 'No router is named.', { cure: 'Name the data URL of one.' });
    this.#routers = routers.map((router) => {
      const url = new URL(router);
      const pool = new Pool(url.origin, {
        pipelining: 1,
        connect: { noDelay: true, timeout: connectTimeoutMs },
        // Who asks has deadlines of its own, which know what the reply is at.
        headersTimeout: 0,
        // For what stays open behind a last event.
        bodyTimeout: 600_000,
        allowH2: false,
      });
      return { url: router, path: `${url.pathname.replace(/\/$/u, '')}${GENERATE_PATH}`, pool };
    });
  }

  get routers(): number {
    return this.#routers.length;
  }

  send({ requestId, body, avoid = [] }: GenerateCall, receiver: AnswerReceiver): GenerateInFlight {
    const router = this.#router;
    const stream = new AnswerStream(receiver, {
      onFailure: () => this.#leave(router),
      statusOf: (status) => this.#judge(router, status),
    });
    router.pool.dispatch(
      {
        method: 'POST',
        path: router.path,
        headers: {
          'content-type': 'application/json',
          [REQUEST_ID_HEADER]: requestId,
          ...(avoid.length === 0 ? {} : { [AVOID_HEADER]: avoid.join(', ') }),
          ...this.#authorization(),
        },
        body,
      },
      stream,
    );
    return stream;
  }

  known(): { version: number | undefined; contextLength: number | undefined } {
    return { version: this.#version, contextLength: this.#contextLength };
  }

  servedModels(): readonly ServedModel[] {
    return this.#serves;
  }

  async refresh(signal: AbortSignal): Promise<void> {
    let failure: unknown;
    for (let tries = 0; tries < this.#routers.length; tries++) {
      const router = this.#router;
      try {
        const answer = await router.pool.request({
          method: 'GET',
          path: router.path,
          headers: this.#authorization(),
          signal,
        });
        const text = await answer.body.text();
        if (this.#judge(router, answer.statusCode) === GENERATE_STATUS.unauthorized)
          throw new HoneError('unauthorized', `The router ${router.url} does not know this token.`, {
            cure: 'Set HONE_TOKEN to the secret of the fleet.',
          });
        if (answer.statusCode === 404)
          throw new HoneError(
            'invalid-config',
            `${router.url} serves no ${GENERATE_PATH}: it is no router's data port.`,
            {
              cure: 'Name the address at which hone serve router says that it answers, not the one where replicas register.',
            },
          );
        if (answer.statusCode !== 200) throw new Error(`it answered ${answer.statusCode}: ${text.slice(0, 200)}`);
        const { version, contextLength, serves } = knownSchema.parse(JSON.parse(text));
        this.#version = Math.max(this.#version ?? 0, version);
        this.#contextLength = contextLength;
        this.#serves = serves;
        return;
      } catch (error) {
        if (error instanceof HoneError) throw error;
        failure = new Error(`${router.url}: ${reasonOf(error)}`);
        this.#leave(router);
      }
    }
    throw new HoneError('no-replica', `No router can tell what is served: ${reasonOf(failure)}.`, {
      cure: 'Start a router with hone serve router and replicas with --router, or mend serve.routers.',
      cause: failure,
    });
  }

  async close(): Promise<void> {
    await Promise.all(this.#routers.map(({ pool }) => pool.destroy()));
  }

  get #router(): RouterConnection {
    const router = this.#routers[this.#current];
    if (router === undefined) throw new RangeError('no router');
    return router;
  }

  #authorization(): Record<string, string> {
    const { token } = this.#options;
    return token === undefined ? {} : { authorization: `Bearer ${token}` };
  }

  /** The status to act on: while another router may know the token, one that does not is of no more use than one that is busy. */
  #judge(router: RouterConnection, status: number): number {
    if (status !== GENERATE_STATUS.unauthorized) {
      if (status < 500) this.#denied.delete(router);
      return status;
    }
    this.#denied.add(router);
    return this.#denied.size < this.#routers.length ? GENERATE_STATUS.unavailable : status;
  }

  /** Goes to the next router, unless another call has gone there already. */
  #leave(router: RouterConnection): void {
    if (this.#router === router) this.#current = (this.#current + 1) % this.#routers.length;
  }
}

interface AnswerRules {
  readonly onFailure: () => void;
  readonly statusOf: (status: number) => number;
}

class AnswerStream implements Dispatcher.DispatchHandler, GenerateInFlight {
  readonly #receiver: AnswerReceiver;
  readonly #rules: AnswerRules;
  #controller: Dispatcher.DispatchController | undefined;
  #isOver = false;

  constructor(receiver: AnswerReceiver, rules: AnswerRules) {
    this.#receiver = receiver;
    this.#rules = rules;
  }

  abort(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#controller?.abort(new HoneError('aborted', 'Nobody waits for this answer any more.'));
  }

  resume(): void {
    this.#controller?.resume();
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    if (this.#isOver) controller.abort(new HoneError('aborted', 'Nobody waits for this answer any more.'));
  }

  onResponseStart(_controller: Dispatcher.DispatchController, answered: number, headers: IncomingHttpHeaders): void {
    if (this.#isOver) return;
    const status = this.#rules.statusOf(answered);
    if (status >= 500 || status === GENERATE_STATUS.allAvoided) this.#rules.onFailure();
    const replica = headers[REPLICA_HEADER];
    this.#receiver.onStart(status, {
      contentType: headers['content-type'] ?? '',
      replica: typeof replica === 'string' ? replica : undefined,
      retryAfterSeconds: readRetryAfter(headers['retry-after']),
    });
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (!this.#isOver && !this.#receiver.onData(chunk)) controller.pause();
  }

  onResponseEnd(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#receiver.onEnd();
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#rules.onFailure();
    this.#receiver.onError(error);
  }
}

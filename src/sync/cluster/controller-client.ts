/**
 * A member's words to its controller: JSON over HTTP with one bearer token, each call with a deadline, none tried again here.
 * Invariant: an answer is either understood by its schema or an error that names the controller; `store-unavailable` means
 * that trying later may help.
 */
import type { Dispatcher } from 'undici';
import type { z } from 'zod';

import { HoneError, reasonOf } from '../../domain/errors.ts';

export interface ControllerClientOptions {
  readonly url: string;
  readonly token: string | undefined;
  readonly dispatcher: Dispatcher;
}

export interface CallControllerOptions<T> {
  readonly method: 'GET' | 'POST' | 'DELETE';
  readonly path: string;
  readonly body?: unknown;
  readonly schema: z.ZodType<T>;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

export class ControllerClient {
  readonly url: string;
  readonly #options: ControllerClientOptions;

  constructor(options: ControllerClientOptions) {
    this.#options = options;
    this.url = options.url.replace(/\/+$/, '');
  }

  get headers(): Record<string, string> {
    const { token } = this.#options;
    return token === undefined ? {} : { authorization: `Bearer ${token}` };
  }

  /** Undefined when the controller answers 404. */
  async call<T>({ method, path, body, schema, timeoutMs, signal }: CallControllerOptions<T>): Promise<T | undefined> {
    const { dispatcher } = this.#options;
    let status: number;
    let text: string;
    try {
      const answer = await dispatcher.request({
        origin: this.url,
        method,
        path,
        headers: { ...this.headers, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
        body: body === undefined ? null : JSON.stringify(body),
        signal: AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]),
      });
      status = answer.statusCode;
      text = await answer.body.text();
    } catch (error) {
      if (signal.aborted)
        throw new HoneError('aborted', 'The call to the controller was called off.', { cause: error });
      throw new HoneError(
        'store-unavailable',
        `The cluster controller ${this.url} cannot be reached: ${reasonOf(error)}.`,
        {
          cure: 'Start it, or correct its URL; its members go on with what they have meanwhile.',
          cause: error,
        },
      );
    }
    if (status === 404) return undefined;
    if (status < 200 || status > 299)
      throw new HoneError(
        status === 401 ? 'unauthorized' : 'store-unavailable',
        `The cluster controller ${this.url} answered ${status} to ${method} ${path}: ${text.slice(0, 500)}`,
        {
          cure:
            status === 401 ? 'Give all services of the fleet the same HONE_TOKEN.' : 'See what the controller says.',
        },
      );
    try {
      return schema.parse(JSON.parse(text));
    } catch (error) {
      throw new HoneError(
        'store-failed',
        `The cluster controller ${this.url} answered what this release does not understand to ${path}.`,
        {
          cure: 'Run the same release of hone on controller and replicas.',
          cause: error,
        },
      );
    }
  }
}

/**
 * The recorder inside a router: agents talk to it on the data port, sessions are opened and sealed on the control port, and tokens
 * come from the router's own relay. It owns which sessions are open here; the recorder owns all that is recorded.
 * Invariant: a session that ends without a seal is aborted and dropped, and leaves nothing behind.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';

import { z } from 'zod';

import { HoneError } from '../../domain/errors.ts';
import { policyVersion } from '../../domain/ids.ts';
import { DEFAULT_SAMPLING } from '../../domain/policy.ts';
import type { Policy, Sampling } from '../../domain/policy.ts';
import { Recorder } from '../recorder.ts';
import type { SealedSession } from '../session.ts';
import type { ChatRoutes } from './data-server.ts';
import type { HostedModel } from './hosted-model.ts';

export type { HostedModel } from './hosted-model.ts';

export const recordOptionsSchema = z.strictObject({
  sampling: z.strictObject({
    temperature: z.number().positive().default(DEFAULT_SAMPLING.temperature),
    topK: z.int().min(0).default(DEFAULT_SAMPLING.topK),
    topP: z.number().gt(0).max(1).default(DEFAULT_SAMPLING.topP),
    minP: z.number().min(0).lt(1).default(DEFAULT_SAMPLING.minP),
    greedy: z.boolean().default(DEFAULT_SAMPLING.greedy),
    maxTokens: z.int().min(1).describe('tokens of one turn'),
    stopIds: z.array(z.int().min(0)).max(1024).optional().describe("the model's end of sequence if left out"),
  }),
  seed: z.int().min(0).max(0xffffffff),
  minVersion: z.int().min(0).optional(),
  exactVersion: z.int().min(0).optional(),
});

export type RecordOptions = z.infer<typeof recordOptionsSchema>;

export interface HostedRecorderOptions {
  readonly model: HostedModel;
  readonly policy: Policy & AsyncDisposable;
  /** Monotone milliseconds. */
  readonly now: () => number;
  /** Seconds since 1970. */
  readonly wallSeconds: () => number;
}

export class HostedRecorder implements ChatRoutes {
  readonly #options: HostedRecorderOptions;
  readonly #recorder: Recorder;
  readonly #open = new Set<string>();
  #origin = '';

  constructor(options: HostedRecorderOptions) {
    this.#options = options;
    const { model, policy, now, wallSeconds } = options;
    const { tokenizer, template, name } = model;
    this.#recorder = Recorder.mounted({ policy, tokenizer, template, model: name, now, wallSeconds });
  }

  get model(): string {
    return this.#options.model.name;
  }

  get openCount(): number {
    return this.#open.size;
  }

  /** Where agents reach it: the data port, known once it listens. */
  mountedAt(origin: string): void {
    this.#origin = origin;
  }

  handle(request: IncomingMessage, response: ServerResponse): boolean {
    return this.#recorder.handle(request, response);
  }

  isOpen(id: string): boolean {
    return this.#open.has(id);
  }

  open({ id, secret, sampling, seed, minVersion, exactVersion }: RecordOptions & { id: string; secret: string }): {
    baseUrl: string;
  } {
    const stopIds = sampling.stopIds ?? [this.#options.model.tokenizer.endOfSequence.id];
    const whole: Sampling = { ...sampling, stopIds };
    if (minVersion !== undefined && exactVersion !== undefined && minVersion > exactVersion)
      throw new HoneError(
        'invalid-config',
        `exactVersion is ${exactVersion}, below minVersion, which is ${minVersion}.`,
        {
          cure: 'Give one of them.',
        },
      );
    const { path } = this.#recorder.openSession({
      id,
      secret,
      sampling: whole,
      seed,
      ...(minVersion === undefined ? {} : { minVersion: policyVersion(minVersion) }),
      ...(exactVersion === undefined ? {} : { exactVersion: policyVersion(exactVersion) }),
    });
    this.#open.add(id);
    return { baseUrl: `${this.#origin}${path}` };
  }

  seal(id: string): Promise<SealedSession> {
    this.#open.delete(id);
    return this.#recorder.seal(id);
  }

  /** Ends a session whose tokens nobody wants. */
  async discard(id: string): Promise<void> {
    if (this.#open.delete(id)) await this.#recorder.seal(id);
  }

  async close(): Promise<void> {
    this.#open.clear();
    await this.#recorder.close();
    await this.#options.policy[Symbol.asyncDispose]();
  }
}

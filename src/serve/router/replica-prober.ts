/**
 * Looks at every replica's control port now and then, with a deadline, so that one that hangs is found as surely as one that is
 * gone. It owns the requests; what they mean is the health machine's to say. Invariant: one probe at most is under way at a replica.
 */
import { Agent } from 'undici';

import { reasonOf } from '../../domain/errors.ts';
import type { ReplicaEntry, ReplicaRegistry } from './replica-registry.ts';

export interface ProberOptions {
  readonly registry: ReplicaRegistry;
  /** A probe that takes longer has failed. */
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

export class ReplicaProber {
  readonly #options: ProberOptions;
  readonly #agent = new Agent({ connections: 1, keepAliveTimeout: 30_000, connect: { timeout: 5_000 } });
  readonly #underWay = new Map<string, Promise<void>>();

  constructor(options: ProberOptions) {
    this.#options = options;
  }

  /** Resolves when each replica was looked at. */
  async probeAll(): Promise<void> {
    await Promise.all(Array.from(this.#options.registry.entries(), (entry) => this.probe(entry)));
  }

  /** Joins a probe of this replica that is under way. */
  probe(entry: ReplicaEntry): Promise<void> {
    if (entry.health.state === 'RETIRED' || this.#options.signal.aborted) return Promise.resolve();
    const running = this.#underWay.get(entry.id);
    if (running !== undefined) return running;
    const probing = this.#look(entry).finally(() => this.#underWay.delete(entry.id));
    this.#underWay.set(entry.id, probing);
    return probing;
  }

  async close(): Promise<void> {
    await this.#agent.destroy();
    await Promise.all(this.#underWay.values());
  }

  async #look(entry: ReplicaEntry): Promise<void> {
    const { registry, timeoutMs, signal } = this.#options;
    const { bootId, controlUrl } = entry.description;
    let event: Parameters<ReplicaRegistry['report']>[1];
    try {
      const answer = await this.#agent.request({
        origin: new URL(controlUrl).origin,
        path: `${new URL(controlUrl).pathname.replace(/\/$/u, '')}/health`,
        method: 'GET',
        signal: AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]),
      });
      const text = await answer.body.text();
      event =
        answer.statusCode === 200
          ? { type: 'probe-ok' }
          : { type: 'probe-unready', reason: `answered ${answer.statusCode}: ${text.slice(0, 200)}` };
    } catch (error) {
      if (signal.aborted) return;
      event = { type: 'probe-failed', reason: reasonOf(error) };
    }
    // An answer of another boot than the one that was asked says nothing about either.
    if (registry.get(entry.id) === entry && entry.description.bootId === bootId) registry.report(entry, event);
  }
}

/**
 * Who may use the data port: the fleet's token for everything, and secrets that are good for one session each, for a time.
 * Only digests are kept. Invariants: a secret opens its own session's requests and nothing else; what has ended opens nothing; the
 * time that a refusal takes tells nothing about a secret.
 */
import { hash, timingSafeEqual } from 'node:crypto';

import { HoneError } from '../../domain/errors.ts';
import { presentedToken } from '../service/bearer-token.ts';
import type { BearerToken } from '../service/bearer-token.ts';

export interface SessionSecretsOptions {
  /** Undefined on a loopback without one: everybody there may do everything. */
  readonly fleet: BearerToken | undefined;
  /** Monotone milliseconds. */
  readonly now: () => number;
  /** A new secret of at least 128 bits. */
  readonly newSecret: () => string;
  readonly mostSessions?: number;
}

/** `chat`: its agent talks to the hosted recorder and cannot ask for tokens by itself. */
export type SessionUse = 'generate' | 'chat';

export type Access =
  | { readonly kind: 'fleet' }
  | { readonly kind: 'session'; readonly id: string; readonly use: SessionUse }
  | { readonly kind: 'refused' };

interface IssuedSession {
  readonly id: string;
  readonly use: SessionUse;
  readonly digest: Buffer;
  readonly untilMs: number;
}

export class SessionSecrets {
  readonly #options: SessionSecretsOptions;
  readonly #byId = new Map<string, IssuedSession>();
  readonly #byDigest = new Map<string, IssuedSession>();

  constructor(options: SessionSecretsOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#byId.size;
  }

  /** Throws `invalid-config` when the session has a secret already, or there are too many. */
  issue(id: string, { ttlMs, use }: { ttlMs: number; use: SessionUse }): string {
    const { now, newSecret, mostSessions = 100_000 } = this.#options;
    if (this.#byId.has(id))
      throw new HoneError('invalid-config', `The session ${id} has a secret already.`, {
        cure: 'Give each session its own id, or end the old one first.',
      });
    if (this.#byId.size >= mostSessions)
      throw new HoneError('invalid-config', `The router has ${mostSessions} sessions; ${id} is one more.`, {
        cure: 'End sessions that are done, or give them less time to live.',
      });
    const secret = newSecret();
    const digest = hash('sha256', secret, 'buffer');
    const issued = { id, use, digest, untilMs: now() + ttlMs };
    this.#byId.set(id, issued);
    this.#byDigest.set(digest.toString('hex'), issued);
    return secret;
  }

  revoke(id: string): boolean {
    const issued = this.#byId.get(id);
    if (issued === undefined) return false;
    this.#byId.delete(id);
    this.#byDigest.delete(issued.digest.toString('hex'));
    return true;
  }

  /** Ends the sessions whose time is over, and names them. */
  expire(): string[] {
    const nowMs = this.#options.now();
    const over = [...this.#byId.values()].filter(({ untilMs }) => nowMs >= untilMs).map(({ id }) => id);
    for (const id of over) this.revoke(id);
    return over;
  }

  access(authorization: string | undefined): Access {
    const { fleet } = this.#options;
    if (fleet === undefined || fleet.accepts(authorization)) return { kind: 'fleet' };
    const session = this.sessionOf(authorization);
    return session === undefined ? { kind: 'refused' } : { kind: 'session', ...session };
  }

  /** The session that the secret is of. */
  sessionOf(authorization: string | undefined): { readonly id: string; readonly use: SessionUse } | undefined {
    // Looked up by a digest: what is compared byte by byte is nothing that the caller could steer.
    const digest = hash('sha256', presentedToken(authorization), 'buffer');
    const issued = this.#byDigest.get(digest.toString('hex'));
    if (issued === undefined || !timingSafeEqual(issued.digest, digest) || this.#options.now() >= issued.untilMs)
      return undefined;
    return { id: issued.id, use: issued.use };
  }
}

/**
 * Bearer tokens: read from a request, compared in constant time. Invariant: a service that listens on anything but loopback has
 * a token, or does not start.
 */
import { hash, timingSafeEqual } from 'node:crypto';
import { isIP } from 'node:net';

import { HoneError } from '../../domain/errors.ts';

const digest = (text: string): Buffer => hash('sha256', text, 'buffer');

/** A secret that requests are compared with; only its digest is kept. */
export class BearerToken {
  readonly #digest: Buffer;

  constructor(secret: string) {
    if (secret.length < 16)
      throw new HoneError('invalid-config', `A bearer token has ${secret.length} characters, too few to be a secret.`, {
        cure: 'Use at least 16, such as the output of: openssl rand -hex 32.',
      });
    this.#digest = digest(secret);
  }

  /** `authorization` as the header came; the time it takes tells nothing about the secret. */
  accepts(authorization: string | undefined): boolean {
    return timingSafeEqual(digest(presentedToken(authorization)), this.#digest);
  }
}

export function presentedToken(authorization: string | undefined): string {
  return authorization?.replace(/^Bearer +/i, '') ?? '';
}

/** Throws `invalid-config` when a service that others can reach would let anybody in. */
export function requireTokenBeyondLoopback(service: string, host: string, token: BearerToken | undefined): void {
  if (token !== undefined || isLoopback(host)) return;
  throw new HoneError(
    'invalid-config',
    `The ${service} would listen on ${host}, which others can reach, without a token.`,
    {
      cure: 'Set HONE_TOKEN to a secret of at least 16 characters, the same for all services of the fleet, or listen on 127.0.0.1.',
    },
  );
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'));
}

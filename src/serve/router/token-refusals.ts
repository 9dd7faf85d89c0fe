/**
 * Says that somebody was refused for the token, as who is refused may have no one who looks. Invariant: at most one line in a while,
 * however often, and by however many, the door is tried.
 */
import type { IncomingMessage } from 'node:http';

import { REPLICAS_PATH } from './registration.ts';

export interface TokenRefusalsOptions {
  readonly say: (sentence: string) => void;
  readonly onEvent: (event: { readonly event: 'token-refused'; readonly from: string; readonly path: string }) => void;
  /** Milliseconds of a clock that only goes forward. */
  readonly now: () => number;
  readonly everyMs?: number;
}

export class TokenRefusals {
  readonly #options: TokenRefusalsOptions;
  #saidMs = -Infinity;

  constructor(options: TokenRefusalsOptions) {
    this.#options = options;
  }

  note(request: IncomingMessage): void {
    const { say, onEvent, now, everyMs = 60_000 } = this.#options;
    if (now() - this.#saidMs < everyMs) return;
    this.#saidMs = now();
    const path = request.url?.split('?', 1)[0] ?? '';
    const from = request.socket.remoteAddress ?? 'somebody';
    onEvent({ event: 'token-refused', from, path });
    const who = path === REPLICAS_PATH && request.method === 'POST' ? 'A replica' : 'A request';
    say(`${who} from ${from} was refused, as it has no token or another one. Set HONE_TOKEN to the same secret there.`);
  }
}

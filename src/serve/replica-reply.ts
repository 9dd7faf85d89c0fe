/**
 * One reply on its way to its reader: an event a decode step while the reader keeps up, several steps in one event when it does not.
 * It never holds up anybody else. Invariants: every token is sent once, in order, an event never mixes versions; a reader that
 * falls too far behind, or stands still too long, is given up, not waited for; what waits here keeps nothing else alive.
 */
import type { ServerResponse } from 'node:http';

import type { PolicyVersion } from '../domain/ids.ts';
import type { VersionSpan } from '../domain/rollout.ts';
import type { EventWriter } from './wire/event-writer.ts';
import type { GenerateWireEvent } from './wire/generate-wire.ts';

export interface ReplyOptions {
  readonly response: ServerResponse;
  readonly writer: EventWriter;
  /** `store`: kept rows are gathered here instead of being sent. */
  readonly keptSets: 'inline' | 'store';
  /** Bytes that may wait for a slow reader. */
  readonly maxPendingBytes: number;
  /** How long a reader may take nothing. */
  readonly stallMs: number;
  /** The reader was given up, or has gone: nothing more is sent. */
  readonly onLost: (reason: string) => void;
}

/** Tokens of one version that wait for the reader. */
interface Waiting {
  readonly version: PolicyVersion;
  readonly ids: number[];
  readonly logprobs: number[];
  readonly kept: Uint8Array[];
}

export interface ReplyToken {
  readonly id: number;
  readonly logprob: number;
  /** A view into the rows of the whole decode step. */
  readonly kept: Uint8Array;
  readonly version: PolicyVersion;
}

/** Of an id and a log-probability while they wait. */
const TOKEN_BYTES = 16;

/** Of its own: a view would keep the rows of every other request of the step for as long as this reader is slow. */
const copyOf = (kept: Uint8Array): Uint8Array => Uint8Array.prototype.slice.call(kept);

export class ReplicaReply {
  readonly #options: ReplyOptions;
  readonly #versions: VersionSpan[] = [];
  readonly #gathered: Uint8Array[] = [];
  #tokens = 0;
  #waiting: Waiting[] = [];
  #waitingBytes = 0;
  #isBlocked = false;
  #isOver = false;
  #stall: NodeJS.Timeout | undefined;
  /** Of one token, used again for each. */
  readonly #one = { ids: [0], logprobs: [0] };

  constructor(options: ReplyOptions) {
    this.#options = options;
    const { response } = options;
    response.on('drain', () => this.#drained());
    response.on('close', () => {
      clearTimeout(this.#stall);
      if (!response.writableFinished) this.#lose('the reader has gone');
    });
    // A reader that resets its connection is one that has gone: `close` follows.
    response.on('error', () => undefined);
  }

  /** Tokens that were handed over. */
  get tokens(): number {
    return this.#tokens;
  }

  get versions(): readonly VersionSpan[] {
    return this.#versions;
  }

  /** Rows in the kept-set code, with `keptSets: 'store'`. */
  get gatheredKept(): Buffer {
    return Buffer.concat(this.#gathered);
  }

  token({ id, logprob, kept, version }: ReplyToken): void {
    if (this.#isOver) return;
    const { response, writer, keptSets } = this.#options;
    const place = this.#tokens++;
    const span = this.#versions.at(-1);
    if (span?.version === version) this.#versions[this.#versions.length - 1] = { ...span, end: place + 1 };
    else this.#versions.push({ version, start: place, end: place + 1 });
    if (keptSets === 'store') this.#gathered.push(copyOf(kept));
    if (this.#isBlocked) {
      this.#keepBack({ id, logprob, kept, version });
      return;
    }
    this.#one.ids[0] = id;
    this.#one.logprobs[0] = logprob;
    if (!response.write(writer.tokens(this.#one, keptSets === 'inline' ? kept : undefined, version))) this.#block();
  }

  /** Sends what is left and the last event; the response ends when the reader has taken all. */
  end(event: Exclude<GenerateWireEvent, { type: 'tokens' }>): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#sendWaiting();
    this.#options.response.end(this.#options.writer.last(event));
    this.#watch();
  }

  #keepBack({ id, logprob, kept, version }: ReplyToken): void {
    let last = this.#waiting.at(-1);
    if (last?.version !== version) {
      last = { version, ids: [], logprobs: [], kept: [] };
      this.#waiting.push(last);
    }
    last.ids.push(id);
    last.logprobs.push(logprob);
    const isInline = this.#options.keptSets === 'inline';
    if (isInline) last.kept.push(copyOf(kept));
    this.#waitingBytes += (isInline ? kept.length : 0) + TOKEN_BYTES;
    if (this.#waitingBytes > this.#options.maxPendingBytes)
      this.#giveUp(`the reader is ${this.#waitingBytes} bytes behind`);
  }

  #sendWaiting(): boolean {
    const { response, writer, keptSets } = this.#options;
    let isTaken = true;
    for (const group of this.#waiting)
      isTaken = response.write(
        writer.tokens(group, keptSets === 'inline' ? Buffer.concat(group.kept) : undefined, group.version),
      );
    this.#waiting = [];
    this.#waitingBytes = 0;
    return isTaken;
  }

  #block(): void {
    this.#isBlocked = true;
    this.#watch();
  }

  #watch(): void {
    clearTimeout(this.#stall);
    const { stallMs } = this.#options;
    this.#stall = setTimeout(() => this.#giveUp(`the reader took nothing for ${stallMs} ms`), stallMs);
    this.#stall.unref();
  }

  #drained(): void {
    clearTimeout(this.#stall);
    if (this.#isOver) {
      if (!this.#options.response.writableFinished) this.#watch();
      return;
    }
    this.#isBlocked = false;
    if (!this.#sendWaiting()) this.#block();
  }

  #giveUp(reason: string): void {
    this.#lose(reason);
    this.#options.response.destroy();
  }

  #lose(reason: string): void {
    clearTimeout(this.#stall);
    const wasOver = this.#isOver;
    this.#isOver = true;
    this.#waiting = [];
    if (!wasOver) this.#options.onLost(reason);
  }
}

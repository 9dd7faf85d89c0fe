/**
 * One try at a reply that is sampled elsewhere: the rest of the reply asked for, its events written into the reply as they come, and
 * how it ended. Whether another try follows is the policy's to decide. Invariants: a try ends once; whatever ends it before it is
 * whole stops what samples.
 */
import { HoneError, reasonOf } from '../../domain/errors.ts';
import type { HoneErrorCode } from '../../domain/errors.ts';
import { policyVersion } from '../../domain/ids.ts';
import type { GenerateRequest, Generation } from '../../domain/policy.ts';
import { EventReader, decodeTokensEvent } from '../wire/event-reader.ts';
import { encodeGenerateRequest } from '../wire/generate-request.ts';
import type { DecodedGenerateRequest } from '../wire/generate-request.ts';
import { GENERATE_STATUS } from '../wire/generate-wire.ts';
import type { AnswerHeaders, AnswerReceiver, GenerateInFlight, GenerateTransport } from './generate-transport.ts';
import type { RecordedReply } from './recorded-reply.ts';
import { readError, servedVersion } from './refusal.ts';

/** How one try ended. */
export type AttemptEnd =
  | { readonly kind: 'whole'; readonly finish: Generation['finish']; readonly keptObject?: string | undefined }
  | { readonly kind: 'aborted' }
  /** Something failed on the way: another try may do better. */
  | { readonly kind: 'cut'; readonly error: HoneError }
  /** The replica is set up wrong: another one may do better. */
  | { readonly kind: 'unfit'; readonly error: HoneError }
  /** The router has none but those that are left out. */
  | { readonly kind: 'exhausted'; readonly error: HoneError }
  /** Nobody can answer yet: a later try may do better. */
  | { readonly kind: 'not-yet'; readonly error: HoneError; readonly retryAfterMs: number | undefined }
  /** No try would do better. */
  | { readonly kind: 'refused'; readonly error: HoneError };

const REFUSAL_BYTES = 64 * 1024;

export interface AttemptOptions {
  /** Monotone milliseconds. */
  readonly now: () => number;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  readonly firstEventTimeoutMs?: number;
  readonly stallTimeoutMs?: number;
  /** Where there is one, kept sets come by the store. */
  readonly keptSets?: object;
}

export interface AttemptParts {
  readonly transport: GenerateTransport;
  readonly options: AttemptOptions;
  readonly request: GenerateRequest;
  readonly reply: RecordedReply;
  readonly requestId: string;
  /** Replicas to leave out. */
  readonly avoid: readonly string[];
  readonly untilMs: number;
  readonly onStart: (replica: string | undefined) => void;
}

/** One try: the rest of the reply asked for, and its events written into the reply as they come. */
export class RemoteAttempt implements AnswerReceiver {
  readonly #parts: AttemptParts;
  readonly #events = new EventReader();
  readonly #lengthBefore: number;
  #inFlight: GenerateInFlight | undefined;
  #status = 0;
  #headers: AnswerHeaders | undefined;
  #refusal: Buffer[] = [];
  #refusalBytes = 0;
  #timer: NodeJS.Timeout | undefined;
  #settle: (end: AttemptEnd) => void = () => undefined;
  #isSettled = false;
  #hasEvent = false;
  replica: string | undefined;

  constructor(parts: AttemptParts) {
    this.#parts = parts;
    this.#lengthBefore = parts.reply.length;
  }

  async run(): Promise<AttemptEnd> {
    const { transport, options, request, reply, requestId, avoid, untilMs } = this.#parts;
    const { tokens, sampling, seed, drawnBefore = 0, minVersion, exactVersion, session, signal } = request;
    const decoded: DecodedGenerateRequest = {
      tokens: reply.after(tokens),
      sampling: { ...sampling, maxTokens: sampling.maxTokens - reply.length },
      seed: seed >>> 0,
      drawnBefore: drawnBefore + reply.length,
      minVersion:
        minVersion === undefined && reply.length === 0
          ? undefined
          : policyVersion(Math.max(minVersion ?? 0, reply.version)),
      exactVersion,
      session,
      keptSets: options.keptSets === undefined ? 'inline' : 'store',
    };
    const body = encodeGenerateRequest(decoded);
    const abort = (): void => this.#end({ kind: 'aborted' });
    signal?.addEventListener('abort', abort, { once: true });
    const { now, firstEventTimeoutMs = 120_000 } = options;
    const firstMs = Math.min(firstEventTimeoutMs, Math.max(1, untilMs - now()));
    const overdue = setTimeout(() => this.#cut('the time for the whole reply is over'), Math.max(1, untilMs - now()));
    this.#timer = setTimeout(() => this.#cut(`no event came within ${Math.round(firstMs)} ms`), firstMs);
    try {
      return await new Promise<AttemptEnd>((resolve) => {
        this.#settle = resolve;
        this.#inFlight = transport.send({ requestId, body, decoded, avoid }, this);
      });
    } finally {
      clearTimeout(overdue);
      clearTimeout(this.#timer);
      signal?.removeEventListener('abort', abort);
    }
  }

  onStart(status: number, headers: AnswerHeaders): void {
    this.#status = status;
    this.#headers = headers;
    this.replica = headers.replica;
  }

  onData(chunk: Buffer): boolean {
    if (this.#isSettled) return true;
    if (this.#status !== 200) {
      this.#refusalBytes += chunk.length;
      if (this.#refusalBytes <= REFUSAL_BYTES) this.#refusal.push(chunk);
      return true;
    }
    try {
      for (const event of this.#events.push(chunk)) {
        if (!this.#take(event)) return true;
      }
    } catch (error) {
      this.#cut(reasonOf(error));
    }
    return true;
  }

  onEnd(): void {
    if (this.#status === 200) this.#cut('the stream ended without its last event');
    else this.#end(this.#readRefusal(Buffer.concat(this.#refusal).toString('utf8')));
  }

  onError(error: Error): void {
    this.#cut(reasonOf(error));
  }

  /** False when the event was the last that counts. */
  #take(event: ReturnType<EventReader['push']>[number]): boolean {
    const { reply, options } = this.#parts;
    switch (event.type) {
      case 'tokens': {
        if (!this.#hasEvent) {
          this.#hasEvent = true;
          this.#parts.onStart(this.replica);
          clearTimeout(this.#timer);
          const { stallTimeoutMs = 30_000 } = options;
          this.#timer = setTimeout(() => this.#cut(`no event came within ${stallTimeoutMs} ms`), stallTimeoutMs);
        } else this.#timer?.refresh();
        reply.append(decodeTokensEvent(event));
        return true;
      }
      case 'end':
        if (event.tokens !== this.#drawn)
          this.#cut(`the stream has ${this.#drawn} tokens and should have ${event.tokens}`);
        else if (event.finish === 'abort') this.#cut('the replica ended the reply before it was whole');
        else this.#end({ kind: 'whole', finish: event.finish, keptObject: event.keptObject });
        return false;
      case 'error':
        this.#end(this.#readError(event.code, event.message));
        return false;
      default:
        event satisfies never;
        return false;
    }
  }

  /** Tokens of this try. */
  get #drawn(): number {
    const { reply } = this.#parts;
    return reply.length - this.#lengthBefore + reply.apartLength;
  }

  #readError(code: string, message: string): AttemptEnd {
    if (code === 'context-too-small' || code === 'invalid-config')
      return { kind: 'refused', error: new HoneError(code, message) };
    if (code === 'store-denied' || code === 'unauthorized')
      return {
        kind: 'unfit',
        error: new HoneError(
          code,
          `The weight store refuses the replica ${this.replica ?? 'that answered'}: ${message}`,
          {
            cure: 'Give the replicas credentials that may write into the store, and start them again.',
          },
        ),
      };
    return { kind: 'cut', error: new HoneError('engine-failed', `A replica could not go on: ${message}`) };
  }

  #readRefusal(body: string): AttemptEnd {
    const { type, message = `The answer was: ${body.slice(0, 500)}` } = readError(body);
    const refused = (code: HoneErrorCode, cure: string): HoneError => new HoneError(code, message, { cure });
    const { retryAfterSeconds } = this.#headers ?? {};
    const retryAfterMs =
      retryAfterSeconds === undefined ? undefined : retryAfterSeconds * 1000 * (1 + this.#parts.options.random() / 4);
    switch (this.#status) {
      case GENERATE_STATUS.invalid: {
        const { reply } = this.#parts;
        // What was drawn filled the context to its end.
        if (type === 'context-too-small' && reply.length > 0) return { kind: 'whole', finish: 'length' };
        const code = type === 'context-too-small' ? type : 'invalid-config';
        return { kind: 'refused', error: refused(code, 'Ask for what the model can do.') };
      }
      case GENERATE_STATUS.unauthorized:
        return {
          kind: 'refused',
          error: refused('unauthorized', 'Set HONE_TOKEN to the fleet’s secret, or use the secret of this session.'),
        };
      case GENERATE_STATUS.versionNotReady: {
        const served = servedVersion(body);
        if (served === undefined)
          return { kind: 'cut', error: refused('engine-failed', 'Give every request its own id.') };
        const { exactVersion } = this.#parts.request;
        const error = refused('version-not-ready', 'Publish the version, or ask for one that is served.');
        // Versions do not go back: one that the fleet has left is not served again.
        if (exactVersion !== undefined && served > exactVersion) return { kind: 'refused', error };
        return { kind: 'not-yet', error, retryAfterMs: undefined };
      }
      case GENERATE_STATUS.allAvoided:
        return { kind: 'exhausted', error: refused('no-replica', 'Start replicas that can answer.') };
      case GENERATE_STATUS.busy:
      case GENERATE_STATUS.unavailable:
        return {
          kind: 'not-yet',
          error: refused('no-replica', 'Start more replicas, or ask for less at once.'),
          retryAfterMs,
        };
      default:
        return { kind: 'cut', error: refused('engine-failed', `The answer had the status ${this.#status}.`) };
    }
  }

  #cut(reason: string): void {
    if (this.#isSettled) return;
    this.#end({ kind: 'cut', error: new HoneError('engine-failed', `The stream of a reply was cut: ${reason}.`) });
  }

  #end(end: AttemptEnd): void {
    if (this.#isSettled) return;
    this.#isSettled = true;
    // What samples stops; an answer that is whole ends by itself, and leaves its connection for the next one.
    if (end.kind !== 'whole') this.#inFlight?.abort();
    this.#settle(end);
  }
}

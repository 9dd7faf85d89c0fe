/**
 * A policy that is sampled elsewhere. It keeps every token as it is drawn, and when a stream is cut, stalls or turns out wrong, it
 * goes on somewhere else from the tokens that it has: draws are numbered through, so that a reply pieced together at one version
 * has the bits of one that was never cut. Invariants: no position is told twice; the versions of a reply never go back; tries are
 * bounded, and so is the time; an abort stops what samples.
 */
import { HoneError, reasonOf, type HoneErrorCode } from '../../domain/errors.ts';
import { policyVersion } from '../../domain/ids.ts';
import type { PolicyVersion } from '../../domain/ids.ts';
import type { GenerateRequest, Generation, Policy } from '../../domain/policy.ts';
import type { KeptSets } from '../../domain/rollout.ts';
import type { GenerateTransport, ServedModel } from './generate-transport.ts';
import { RecordedReply } from './recorded-reply.ts';
import { RemoteAttempt } from './remote-attempt.ts';
import type { AttemptEnd } from './remote-attempt.ts';
import { UnfitReplicas } from './unfit-replicas.ts';

export interface RemotePolicyOptions {
  /** Monotone milliseconds. */
  readonly now: () => number;
  /** Uniform in [0, 1): the jitter of waits. */
  readonly random: () => number;
  /** A name for a request; tries add their number to it. */
  readonly newRequestId: () => string;
  /** For one reply, all tries and waits together. */
  readonly deadlineMs?: number;
  /** An answer whose first event takes longer is given up: what waits in a replica's queue counts too. */
  readonly firstEventTimeoutMs?: number;
  /** Without a further event for so long a stream counts as cut. */
  readonly stallTimeoutMs?: number;
  /** Tries in a row that bring no token, until the reply fails. */
  readonly mostAttempts?: number;
  /** Between tries; doubles from the first to the second, with full jitter. */
  readonly backoffMs?: { readonly first: number; readonly most: number };
  /** Of this, the version that `version` tells follows the fleet's; 0 = it follows replies alone. */
  readonly refreshEveryMs?: number;
  readonly onEvent?: (event: GenerationResumed) => void;
  /**
   * Where kept sets come from; inline when left out. With `store` replicas put a reply's rows into the weight store as one object,
   * which `load` reads. A reply that is cut has no rows then and starts anew with the same seed, so tokens are told together once
   * the reply is whole, and an aborted reply has none.
   */
  readonly keptSets?: { readonly from: 'store'; readonly load: LoadKeptSets };
}

/** Reads the object that a reply names, of so many tokens. */
export type LoadKeptSets = (
  keptObject: string,
  options: { readonly tokens: number; readonly signal: AbortSignal },
) => Promise<KeptSets>;

export interface GenerationResumed {
  readonly event: 'generation-resumed';
  readonly request: string;
  /** Tokens that the reply had. */
  readonly at: number;
  readonly from: string | undefined;
  readonly to: string | undefined;
  /** How the stream before ended. */
  readonly reason: string;
}

export interface ConnectOptions {
  /** How long nobody may answer. */
  readonly waitMs: number;
  readonly signal?: AbortSignal;
  /** Why it waits: once for each reason that follows another. */
  readonly onWait?: (reason: string) => void;
}

/** What no waiting mends. */
const FINAL_AT_CONNECT: ReadonlySet<HoneErrorCode> = new Set(['unauthorized', 'invalid-config']);
const UNKNOWN_CONTEXT = 0x7fffffff;

export class RemotePolicy implements Policy {
  readonly #transport: GenerateTransport;
  readonly #options: RemotePolicyOptions;
  readonly #unfit: UnfitReplicas;
  readonly #closing = new AbortController();
  #version = 0;
  #contextLength = UNKNOWN_CONTEXT;
  #timer: NodeJS.Timeout | undefined;

  constructor(transport: GenerateTransport, options: RemotePolicyOptions) {
    this.#transport = transport;
    this.#options = options;
    this.#unfit = new UnfitReplicas(options.now);
  }

  /** Waits until somebody tells version and context. Rejects with `no-replica` when the time is over before. */
  static async connect(
    transport: GenerateTransport,
    { waitMs, signal, onWait, ...options }: RemotePolicyOptions & ConnectOptions,
  ): Promise<RemotePolicy> {
    const policy = new RemotePolicy(transport, options);
    const untilMs = options.now() + waitMs;
    let told: string | undefined;
    for (let failures = 0; ; failures++) {
      try {
        await transport.refresh(
          AbortSignal.any([AbortSignal.timeout(5_000), ...(signal === undefined ? [] : [signal])]),
        );
        break;
      } catch (error) {
        const delayMs = policy.#backoff(failures);
        const isFinal = error instanceof HoneError && FINAL_AT_CONNECT.has(error.code);
        if (signal?.aborted === true || isFinal || options.now() + delayMs >= untilMs) throw error;
        if (told !== reasonOf(error)) onWait?.((told = reasonOf(error)));
        await sleep(delayMs, signal);
      }
    }
    policy.#follow();
    return policy;
  }

  get version(): PolicyVersion {
    this.#version = Math.max(this.#version, this.#transport.known().version ?? 0);
    return policyVersion(this.#version);
  }

  /** What the replicas sampled from at the last look. */
  get servedModels(): readonly ServedModel[] {
    return this.#transport.servedModels();
  }

  /** Stays what it was while no replica serves. */
  get contextLength(): number {
    return (this.#contextLength = this.#transport.known().contextLength ?? this.#contextLength);
  }

  /** An aborted request resolves with what was drawn so far and finish `abort`. */
  async generate(request: GenerateRequest): Promise<Generation> {
    const { signal, tokens, sampling } = request;
    if (signal?.aborted === true) throw new HoneError('aborted', 'The request was aborted before it was sent.');
    if (tokens.length >= this.contextLength)
      throw new HoneError(
        'context-too-small',
        `The prompt has ${tokens.length} tokens, and the context holds ${this.contextLength}.`,
        { cure: 'Shorten the prompt, or use a model with a longer context.' },
      );
    const { now, deadlineMs = 600_000, mostAttempts = 8 } = this.#options;
    const isKeptApart = this.#options.keptSets !== undefined;
    const reply = new RecordedReply(sampling, request.onToken, { isKeptApart });
    const name = this.#options.newRequestId();
    const untilMs = now() + deadlineMs;
    const avoids = this.#unfit.forReply();
    let fruitless = 0;
    let waits = 0;
    let before: { readonly replica: string | undefined; readonly error: HoneError } | undefined;
    for (let number = 0; ; number++) {
      const length = reply.length;
      const attempt = new RemoteAttempt({
        transport: this.#transport,
        options: this.#options,
        request,
        reply,
        requestId: `${name}.${number}`,
        avoid: avoids.names(),
        untilMs,
        onStart: (to) => {
          if (before === undefined || reply.length === 0) return;
          const { replica: from, error } = before;
          this.#options.onEvent?.({
            event: 'generation-resumed',
            request: name,
            at: length,
            from,
            to,
            reason: error.message,
          });
        },
      });
      const drawn = await attempt.run();
      const end = drawn.kind === 'whole' ? await this.#fetchKept(reply, drawn, { untilMs, signal }) : drawn;
      reply.clear();
      this.#version = Math.max(this.#version, reply.version);
      if (end.kind === 'whole') return reply.toGeneration(end.finish);
      if (end.kind === 'aborted') return reply.toGeneration('abort');
      if (end.kind === 'refused') throw end.error;
      // The last event alone was lost: the reply is whole all the same.
      const finish = isKeptApart ? undefined : (reply.finish ?? this.#filledContext(tokens.length + reply.length));
      if (finish !== undefined) return reply.toGeneration(finish);
      if (reply.length > length) fruitless = waits = 0;
      let delayMs: number;
      if (end.kind === 'unfit' && attempt.replica !== undefined) avoids.add(attempt.replica, end.error);
      if (end.kind === 'exhausted') {
        const final = avoids.exhausted(this.#transport.routers);
        if (final !== undefined) throw final;
        fruitless += 1;
        if (fruitless >= mostAttempts) throw gaveUp(end.error, `${fruitless} tries`, reply.length);
        delayMs = 0;
      } else if (end.kind === 'cut' || end.kind === 'unfit') {
        before = { replica: attempt.replica, error: end.error };
        fruitless += 1;
        if (fruitless >= mostAttempts) throw gaveUp(end.error, `${fruitless} tries`, reply.length);
        delayMs = reply.length > length ? 0 : this.#backoff(fruitless - 1);
      } else {
        delayMs = end.retryAfterMs ?? this.#backoff(waits);
        waits += 1;
      }
      if (now() + delayMs >= untilMs) throw gaveUp(end.error, `${Math.round(deadlineMs / 1000)} s`, reply.length);
      if (delayMs > 0) await sleep(delayMs, signal);
      if (isAborted(signal)) return reply.toGeneration('abort');
    }
  }

  async close(): Promise<void> {
    this.#closing.abort();
    clearTimeout(this.#timer);
    await this.#transport.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Where the rows of a whole reply come by the store: whole is the reply once they are there. */
  async #fetchKept(
    reply: RecordedReply,
    whole: Extract<AttemptEnd, { kind: 'whole' }>,
    { untilMs, signal }: { untilMs: number; signal: AbortSignal | undefined },
  ): Promise<AttemptEnd> {
    const { keptSets, now } = this.#options;
    if (keptSets === undefined || reply.apartLength === 0) return whole;
    const { keptObject } = whole;
    try {
      if (keptObject === undefined)
        throw new HoneError('engine-failed', 'A reply names no object with its kept sets.', {
          cure: 'Start replicas with --store, or ask for kept sets inline.',
        });
      const overdue = AbortSignal.timeout(Math.max(1, Math.ceil(untilMs - now())));
      const either = signal === undefined ? overdue : AbortSignal.any([signal, overdue]);
      reply.complete(await keptSets.load(keptObject, { tokens: reply.apartLength, signal: either }));
      return whole;
    } catch (error) {
      if (isAborted(signal)) return { kind: 'aborted' };
      const failure =
        error instanceof HoneError ? error : new HoneError('store-failed', reasonOf(error), { cause: error });
      return { kind: 'cut', error: failure };
    }
  }

  #filledContext(length: number): 'length' | undefined {
    return length >= this.contextLength ? 'length' : undefined;
  }

  #backoff(failures: number): number {
    const { random, backoffMs: { first, most } = { first: 50, most: 5_000 } } = this.#options;
    return random() * Math.min(most, first * 2 ** Math.min(failures, 30));
  }

  #follow(): void {
    const { refreshEveryMs = 1_000 } = this.#options;
    if (refreshEveryMs === 0 || this.#closing.signal.aborted) return;
    this.#timer = setTimeout(() => {
      const signal = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(5_000)]);
      // What is known stays known while nobody tells anything newer.
      void this.#transport
        .refresh(signal)
        .catch(() => undefined)
        .finally(() => this.#follow());
    }, refreshEveryMs);
    this.#timer.unref();
  }
}

function gaveUp(cause: HoneError, after: string, tokens: number): HoneError {
  const code = cause.code === 'version-not-ready' || cause.code === 'engine-failed' ? cause.code : 'no-replica';
  return new HoneError(code, `A reply was given up after ${after}, at ${tokens} tokens: ${cause.message}`, {
    cure: cause.cure ?? 'Look at the status page of the router, and start replicas that serve.',
    cause,
  });
}

/** A call, as a check of the property before an await would hold for the checker after it too. */
function isAborted(signal: AbortSignal | undefined): boolean {
  return signal?.aborted === true;
}

async function sleep(delayMs: number, signal: AbortSignal | undefined): Promise<void> {
  if (signal?.aborted === true) return;
  await new Promise<void>((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, delayMs);
    signal?.addEventListener('abort', done, { once: true });
  });
}

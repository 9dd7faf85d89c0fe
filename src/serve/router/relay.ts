/**
 * Requests on their way to replicas: each is sent to the replica that the choice names, and its answer is passed on byte by byte
 * as it comes, with back-pressure both ways. Invariants: a replica that fails before its first byte is replaced by another one
 * unnoticed, a bounded number of times; once a byte went out the answer is this replica's to its end, or is cut; whoever asked and
 * went away leaves nothing running behind.
 */
import type { DecodedGenerateRequest } from '../wire/generate-request.ts';
import { GENERATE_PATH, GENERATE_STATUS } from '../wire/generate-wire.ts';
import type { AnswerHeaders, AnswerReceiver, GenerateCall, GenerateInFlight } from './generate-transport.ts';
import { hashBlocks } from './prefix-index.ts';
import { refusal, readError, versionRefusal } from './refusal.ts';
import type { Refusal } from './refusal.ts';
import { RelayAttempt } from './relay-attempt.ts';
import type { AttemptListener, ReplicaConnection, RetryReason } from './relay-attempt.ts';
import type { ReplicaEntry, ReplicaRegistry } from './replica-registry.ts';
import { chooseRoute } from './route-choice.ts';
import type { RouteCandidate } from './route-choice.ts';
import { SessionAffinity } from './session-affinity.ts';
import { UpstreamPool } from './upstream-pool.ts';
import type { BodyPiece } from './upstream-pool.ts';

export interface RelayOptions {
  readonly registry: ReplicaRegistry;
  /** The fleet's secret, which replicas ask for. */
  readonly token: string | undefined;
  /** Monotone milliseconds. */
  readonly now: () => number;
  /** Replicas that one request is sent to, at most. */
  readonly mostAttempts?: number;
  /** Requests that may wait at one replica beyond those that it samples. */
  readonly mostWaiting?: number;
  /** Without a first byte for so long a replica counts as failed. */
  readonly firstByteTimeoutMs?: number;
  /** Without a further byte for so long an answer is cut. */
  readonly stallTimeoutMs?: number;
  readonly onEnd?: (report: RelayReport) => void;
  /** A replica failed a request: reason to look at it now. */
  readonly onTrouble?: (entry: ReplicaEntry) => void;
  /** Nobody serves the version that a request asks for. */
  readonly onVersionMissing?: () => void;
}

export interface RelayReport {
  readonly requestId: string;
  readonly session: string | undefined;
  /** The replica that answered last; undefined when none was asked. */
  readonly replica: string | undefined;
  readonly status: number;
  readonly end: 'whole' | 'cut' | 'client-gone' | 'refused';
  /** Why each try before the last one failed. */
  readonly retries: readonly RetryReason[];
  readonly firstByteMs: number | undefined;
  readonly totalMs: number;
  readonly bytes: number;
}

/** A dead replica's answer that has been silent for so long is given up. */
const SILENT_MS = 1_000;
/** Replicas that may refuse one request for good before that is believed. */
const MOST_MISFITS = 32;

export class Relay {
  readonly #options: RelayOptions;
  readonly #connections = new Map<string, ReplicaConnection>();
  readonly #affinity = new SessionAffinity();
  readonly #attempts = new Map<string, Set<RelayAttempt>>();
  #isClosed = false;

  constructor(options: RelayOptions) {
    this.#options = options;
  }

  get options(): RelayOptions {
    return this.#options;
  }

  get affinity(): SessionAffinity {
    return this.#affinity;
  }

  send(call: GenerateCall, request: DecodedGenerateRequest, receiver: AnswerReceiver): GenerateInFlight {
    const relayed = new RelayedRequest(this, { call, request, receiver });
    relayed.next();
    return relayed;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Kept alive between requests, one pool a replica. */
  connection(url: string): ReplicaConnection {
    let connection = this.#connections.get(url);
    if (connection === undefined) {
      const { origin, pathname } = new URL(url);
      const pool = new UpstreamPool({ origin, now: this.#options.now });
      connection = { pool, path: `${pathname.replace(/\/$/u, '')}${GENERATE_PATH}` };
      this.#connections.set(url, connection);
    }
    return connection;
  }

  /** Ends the connections to a replica that nobody sends to any more. */
  forget(url: string): void {
    const connection = this.#connections.get(url);
    this.#connections.delete(url);
    connection?.pool.destroy();
  }

  began(attempt: RelayAttempt): void {
    const { entry } = attempt;
    entry.inFlight += 1;
    entry.counts.requests += 1;
    let attempts = this.#attempts.get(entry.id);
    if (attempts === undefined) this.#attempts.set(entry.id, (attempts = new Set()));
    attempts.add(attempt);
  }

  ended(attempt: RelayAttempt): void {
    const { entry } = attempt;
    entry.inFlight -= 1;
    const attempts = this.#attempts.get(entry.id);
    attempts?.delete(attempt);
    if (attempts?.size === 0) this.#attempts.delete(entry.id);
  }

  /** Gives up what a dead replica, or one that was forgotten, has not answered for a while. Call it now and then. */
  sweep(): void {
    const { registry, now } = this.#options;
    for (const { pool } of this.#connections.values()) pool.sweep();
    for (const [id, attempts] of this.#attempts) {
      const state = registry.get(id)?.health.state ?? 'DEAD';
      if (state !== 'DEAD' && state !== 'RETIRED') continue;
      for (const attempt of attempts)
        if (attempt.silentMs(now()) >= SILENT_MS || attempt.entry !== registry.get(id))
          attempt.giveUp(new Error(`the replica ${id} is dead`));
    }
  }

  /** Cuts what is under way. */
  close(): void {
    this.#isClosed = true;
    for (const attempts of this.#attempts.values())
      for (const attempt of attempts) attempt.giveUp(new Error('the router closes'));
    for (const { pool } of this.#connections.values()) pool.destroy();
  }
}

interface RelayedParts {
  readonly call: GenerateCall;
  readonly request: DecodedGenerateRequest;
  readonly receiver: AnswerReceiver;
}

/** One request over all its tries. */
class RelayedRequest implements GenerateInFlight, AttemptListener {
  readonly #relay: Relay;
  readonly #parts: RelayedParts;
  readonly #tried = new Set<string>();
  readonly #retries: RetryReason[] = [];
  /** Those that say that nobody could answer this: believed once all say so. */
  readonly #misfits = new Map<ReplicaEntry, Refusal>();
  /** Those that whoever asks does not want, by id and boot id. */
  readonly #avoided: ReadonlySet<string>;
  readonly #blocks: Float64Array;
  readonly #startMs: number;
  #attempt: RelayAttempt | undefined;
  #refusal: Refusal | undefined;
  #firstByteMs: number | undefined;
  #bytes = 0;
  #isOver = false;

  constructor(relay: Relay, parts: RelayedParts) {
    this.#relay = relay;
    this.#parts = parts;
    this.#avoided = new Set(parts.call.avoid);
    this.#startMs = relay.options.now();
    this.#blocks = hashBlocks(parts.request.tokens);
  }

  abort(): void {
    if (this.#isOver) return;
    const attempt = this.#attempt;
    this.#finish('client-gone', attempt === undefined ? 0 : 499);
    attempt?.abandon();
  }

  resume(): void {
    this.#attempt?.resume();
  }

  /** Sends the request to the next replica, or answers it here when there is none. */
  next(): void {
    const { options, affinity } = this.#relay;
    const { registry, mostAttempts = 4, now } = options;
    const { call, request } = this.#parts;
    const session = request.session === undefined ? undefined : affinity.get(request.session);
    const nowMs = now();
    const choice = chooseRoute(this.#candidates(nowMs), {
      key: request.session ?? call.requestId,
      promptTokens: request.tokens.length,
      minVersion: request.minVersion,
      exactVersion: request.exactVersion,
      session,
      tried: this.#tried,
    });
    const isLastWord = this.#refusal !== undefined && (choice.kind !== 'replica' || !choice.isCertain);
    const isOutOfTries = this.#tried.size - this.#misfits.size >= mostAttempts || this.#misfits.size >= MOST_MISFITS;
    if (isOutOfTries || isLastWord || this.#relay.isClosed) {
      this.#refuse(this.#refusal ?? this.#lastWord('No replica could answer.'));
      return;
    }
    switch (choice.kind) {
      case 'replica': {
        const entry = registry.get(choice.id);
        if (entry === undefined) return this.#refuse(refusal(503, 'no_replica', 'The replica is gone.'));
        this.#tried.add(entry.id);
        if (!choice.isCertain) options.onVersionMissing?.();
        const { version } = entry.description;
        entry.prefixes.add(this.#blocks, version);
        if (request.session !== undefined) affinity.set(request.session, { replica: entry.id, version });
        entry.breaker.admit(nowMs);
        this.#attempt = new RelayAttempt(this.#relay, entry, this);
        this.#attempt.send(call);
        return;
      }
      case 'full':
        this.#refuse(refusal(GENERATE_STATUS.busy, 'busy', 'Every replica that may answer has all that it can queue.'));
        return;
      case 'version':
        options.onVersionMissing?.();
        this.#refuse(versionRefusal(choice.newest, request));
        return;
      case 'none':
        this.#refuse(this.#lastWord('No replica serves now.'));
        return;
      default:
        choice satisfies never;
    }
  }

  onFirstByte(headers: AnswerHeaders): void {
    const nowMs = this.#relay.options.now();
    this.#firstByteMs = nowMs - this.#startMs;
    // What one takes and another refuses is not the request's fault.
    for (const [{ breaker }, answer] of this.#misfits)
      breaker.condemn(nowMs, {
        kind: 'misfit',
        reason: `refuses what others take: ${(readError(answer.body).message ?? answer.body.toString()).slice(0, 200)}`,
      });
    this.#parts.receiver.onStart(200, headers);
  }

  onPiece(piece: BodyPiece): boolean {
    this.#bytes += piece.payloadBytes;
    const { receiver } = this.#parts;
    if (piece.isChunked && receiver.takesFrames === true && receiver.onFrames !== undefined)
      return receiver.onFrames(piece.bytes, piece.isLast);
    const payload = piece.payload();
    const [only] = payload;
    return receiver.onData(payload.length === 1 && only !== undefined ? only : Buffer.concat(payload));
  }

  onWhole(): void {
    if (this.#isOver) return;
    this.#finish('whole', 200);
    this.#parts.receiver.onEnd();
  }

  onCut(error: Error): void {
    if (this.#isOver) return;
    this.#finish('cut', 200);
    this.#parts.receiver.onError(error);
  }

  /** A try failed before its first byte. */
  onFailed(reason: RetryReason, answer?: Refusal): void {
    if (this.#isOver) return;
    this.#attempt = undefined;
    this.#retries.push(reason);
    this.#refusal = answer ?? this.#refusal;
    this.next();
  }

  /** The replica says that nobody could answer this: the others are asked all the same. */
  onMisfit(entry: ReplicaEntry, answer: Refusal): void {
    if (this.#isOver) return;
    this.#misfits.set(entry, answer);
    this.onFailed('status');
  }

  /** The replica refused, and so would any other. */
  onRefused(answer: Refusal): void {
    if (!this.#isOver) this.#refuse(answer);
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  /** What is answered when no replica is left: for good only where every one that serves says that it is for good. */
  #lastWord(message: string): Refusal {
    const unauthorized: string[] = [];
    const avoided: string[] = [];
    let isForGood = true;
    for (const entry of this.#relay.options.registry.entries()) {
      if (!isServing(entry) || this.#misfits.has(entry)) continue;
      if (this.#avoids(entry)) avoided.push(entry.id);
      else if (entry.breaker.condemned?.kind === 'unauthorized') unauthorized.push(entry.id);
      else isForGood = false;
    }
    const [answer] = this.#misfits.values();
    if (isForGood && answer !== undefined) return answer;
    if (isForGood && avoided.length > 0)
      return refusal(
        GENERATE_STATUS.allAvoided,
        'all_avoided',
        `All replicas that serve are left out, as the request asks: ${avoided.join(', ')}.`,
      );
    if (!isForGood || unauthorized.length === 0) return refusal(GENERATE_STATUS.unavailable, 'no_replica', message);
    const names = unauthorized.join(', ');
    return refusal(GENERATE_STATUS.unauthorized, 'unauthorized', `No replica takes the router’s token: ${names}.`);
  }

  #refuse({ status, headers, body }: Refusal): void {
    this.#finish('refused', status);
    const { receiver } = this.#parts;
    receiver.onStart(status, headers);
    receiver.onData(body);
    receiver.onEnd();
  }

  #finish(end: RelayReport['end'], status: number): void {
    this.#isOver = true;
    const { onEnd, now } = this.#relay.options;
    onEnd?.({
      requestId: this.#parts.call.requestId,
      session: this.#parts.request.session,
      replica: this.#attempt?.entry.id ?? [...this.#tried].at(-1),
      status,
      end,
      retries: this.#retries,
      firstByteMs: this.#firstByteMs,
      totalMs: now() - this.#startMs,
      bytes: this.#bytes,
    });
  }

  #avoids({ description: { id, bootId } }: ReplicaEntry): boolean {
    return this.#avoided.size > 0 && this.#avoided.has(`${id}/${bootId}`);
  }

  *#candidates(nowMs: number): Generator<RouteCandidate> {
    const { registry, mostWaiting = 64 } = this.#relay.options;
    for (const entry of registry.entries()) {
      const { id, state, version, slots } = entry.description;
      yield {
        id,
        health: entry.health.state,
        isOpen: state === 'serving' && entry.breaker.allows(nowMs) && !this.#avoids(entry),
        version,
        load: entry.load,
        slots,
        mostLoad: slots + mostWaiting,
        cachedTokens: entry.prefixes.cachedTokens(this.#blocks, version),
      };
    }
  }
}

function isServing({ health, description }: ReplicaEntry): boolean {
  return (health.state === 'HEALTHY' || health.state === 'SUSPECT') && description.state === 'serving';
}

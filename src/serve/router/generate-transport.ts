/**
 * The port between who asks for tokens and who has them sampled: one call, whose answer comes as it is written. Adapters: routers
 * over HTTP, and the relay of the router in whose process the caller runs. Invariant: a receiver hears `onStart` at most once
 * before its data, then exactly one of `onEnd` and `onError`, and nothing after an abort.
 */

import type { DecodedGenerateRequest } from '../wire/generate-request.ts';

export interface GenerateCall {
  /** Another one for every call, retries included: a replica refuses one that it is at work on. */
  readonly requestId: string;
  /** The body of `POST /generate`, as `encodeGenerateRequest` writes it. */
  readonly body: string | Buffer;
  /** What the body says, where whoever wrote it has it at hand. */
  readonly decoded?: DecodedGenerateRequest;
  /** Replicas to leave out, as `REPLICA_HEADER` names them. */
  readonly avoid?: readonly string[];
}

export interface AnswerHeaders {
  readonly contentType: string;
  /** Who answered, by id and boot id. */
  readonly replica: string | undefined;
  readonly retryAfterSeconds: number | undefined;
}

export interface AnswerReceiver {
  onStart(status: number, headers: AnswerHeaders): void;
  /** False = no more until `resume`. */
  onData(chunk: Buffer): boolean;
  /**
   * Where there is one and `takesFrames` holds, data comes here instead: with the frames of HTTP's chunks around it as they came,
   * cut anywhere, and without the last chunk, which `onEnd` stands for. `isLast` = `onEnd` follows at once.
   */
  onFrames?(frames: Buffer, isLast: boolean): boolean;
  /** Asked after `onStart`. */
  readonly takesFrames?: boolean;
  onEnd(): void;
  /** The answer was cut, or never began. */
  onError(error: Error): void;
}

export interface GenerateInFlight {
  /** The one who asked is gone: what samples for it stops. Safe to call at any time. */
  abort(): void;
  resume(): void;
}

/** Kinds of what a fleet serves that are told apart: in a sound one there are as many as versions are served at once. */
export const MOST_SERVED_KINDS = 64;

/** One kind of what replicas serve. */
export interface ServedModel {
  /** One of the replicas that serve it. */
  readonly replica: string;
  /** Fingerprint of what it computes, weights aside. */
  readonly model: string;
  readonly version: number;
  readonly imageChecksum: string;
}

export interface GenerateTransport {
  /** Places that choose among replicas of their own; after one that has nobody left, the next call goes to another. */
  readonly routers: number;
  send(call: GenerateCall, receiver: AnswerReceiver): GenerateInFlight;
  /** Newest version that is known to be served, and tokens that every replica has room for; undefined until they are known. */
  known(): { readonly version: number | undefined; readonly contextLength: number | undefined };
  /** What the replicas sample from, as far as it is known. */
  servedModels(): readonly ServedModel[];
  /** Asks for all of it anew. Rejects with `no-replica` when nobody can tell. */
  refresh(signal: AbortSignal): Promise<void>;
  close(): Promise<void>;
}

export function readRetryAfter(value: string | string[] | undefined): number | undefined {
  const seconds = Number(value);
  return value !== undefined && Number.isFinite(seconds) && seconds >= 0 ? seconds : undefined;
}

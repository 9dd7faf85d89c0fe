/**
 * The way to one bucket: the AWS client, loaded and connected on first use, and every request's tries, deadlines and judgement.
 * The client itself never tries twice. Credentials come from the environment that was handed in, else from the client's own chain,
 * which renews them; when the server says that they have expired, the chain is asked once more.
 */
import type { S3, S3ClientConfig } from '@aws-sdk/client-s3';

import { HoneError } from '../../domain/errors.ts';
import { Attempts, attemptSignal, type Clockwork, type RetryPolicy } from './retry.ts';
import {
  isServiceError,
  isWordless,
  judgeS3Error,
  noSuchBucket,
  s3Unavailable,
  type S3ErrorContext,
} from './s3-errors.ts';
import type { Environment, S3Location } from './s3-location.ts';
import type { CallOptions } from './weight-store.ts';

export type S3Answer<T> =
  /** `tries` above 1: an earlier try may have been carried out although its answer never came. */
  | { readonly kind: 'done'; readonly value: T; readonly tries: number }
  | { readonly kind: 'missing'; readonly tries: number }
  | { readonly kind: 'refused'; readonly tries: number };

export interface S3CallOptions extends CallOptions {
  /** Instead of the policy's, for requests that carry many bytes. */
  readonly attemptTimeoutMs?: number;
}

export interface S3ConnectionOptions {
  readonly environment: Environment;
  readonly retry: RetryPolicy;
  readonly clockwork: Clockwork;
}

const CONNECT_TIMEOUT_MS = 10_000;
const MAX_SOCKETS = 64;

export class S3Connection {
  readonly location: S3Location;
  readonly retry: RetryPolicy;
  readonly clockwork: Clockwork;
  readonly #environment: Environment;
  #client: Promise<S3> | undefined;
  /** An answer said so, or could not have come otherwise. */
  #isBucketThere = false;

  constructor(location: S3Location, { environment, retry, clockwork }: S3ConnectionOptions) {
    this.location = location;
    this.retry = retry;
    this.clockwork = clockwork;
    this.#environment = environment;
  }

  /** `action` completes "Could not …" in messages. Throws HoneErrors, and the reason of a signal that aborts. */
  async call<T>(
    action: string,
    send: (s3: S3, options: { abortSignal: AbortSignal }) => Promise<T>,
    { signal, attemptTimeoutMs = this.retry.attemptTimeoutMs }: S3CallOptions = {},
  ): Promise<S3Answer<T>> {
    const context = { action, location: this.location, now: this.clockwork.now };
    const attempts = new Attempts(this.retry, this.clockwork);
    let isRenewed = false;
    for (;;) {
      signal?.throwIfAborted();
      const client = await this.#connect();
      attempts.begin();
      const attempt = attemptSignal(signal, attemptTimeoutMs);
      try {
        const value = await unlessAborted(send(client, { abortSignal: attempt.signal }), attempt.signal);
        this.#isBucketThere = true;
        return { kind: 'done', value, tries: attempts.made };
      } catch (error) {
        signal?.throwIfAborted();
        if (error instanceof HoneError) throw error;
        const judgement = attempt.hasTimedOut()
          ? { kind: 'retry' as const, reason: `no answer within ${attemptTimeoutMs} ms`, atLeastMs: 0 }
          : judgeS3Error(await this.#withWords(client, error, { abortSignal: attempt.signal }), context);
        switch (judgement.kind) {
          case 'missing':
            if (judgement.isBucketThere) this.#isBucketThere = true;
            await this.#expectBucket(client, context, { abortSignal: attempt.signal });
            return { kind: 'missing', tries: attempts.made };
          case 'refused':
            return { kind: judgement.kind, tries: attempts.made };
          case 'expired':
            if (isRenewed) throw judgement.error;
            isRenewed = true;
            this.close();
            break;
          case 'final':
            throw judgement.error;
          case 'retry':
            if (!(await attempts.wait({ atLeastMs: judgement.atLeastMs, signal })))
              throw s3Unavailable(context, {
                reason: judgement.reason,
                tries: attempts.made,
                elapsedMs: attempts.elapsedMs,
                cause: error,
              });
            break;
          default:
            judgement satisfies never;
        }
      } finally {
        attempt.release();
      }
    }
  }

  /** Closes idle sockets; the next call opens new ones. */
  close(): void {
    const client = this.#client;
    this.#client = undefined;
    client?.then(
      (s3) => s3.destroy(),
      () => undefined,
    );
  }

  /** An answer without words may mean the key or the bucket; asked once, and only when nothing else has told. */
  async #expectBucket(client: S3, context: S3ErrorContext, options: { abortSignal: AbortSignal }): Promise<void> {
    if (this.#isBucketThere) return;
    try {
      await unlessAborted(client.headBucket({ Bucket: this.location.bucket }, options), options.abortSignal);
      this.#isBucketThere = true;
    } catch (error) {
      // Any other failure says nothing about the bucket; the next call asks again.
      if (judgeS3Error(error, context).kind === 'missing') throw noSuchBucket(context, error);
    }
  }

  /**
   * A refusal of a HEAD has no body, so expired credentials, a wrong clock and missing rights all look alike: a list with one key is
   * refused for the same reason, and says it.
   */
  async #withWords(client: S3, error: unknown, options: { abortSignal: AbortSignal }): Promise<unknown> {
    if (!isWordless(error)) return error;
    try {
      const { bucket, prefix } = this.location;
      const list = client.listObjectsV2({ Bucket: bucket, Prefix: prefix, MaxKeys: 1 }, options);
      await unlessAborted(list, options.abortSignal);
    } catch (spoken) {
      if (isServiceError(spoken)) return spoken;
    }
    return error;
  }

  async #connect(): Promise<S3> {
    this.#client ??= createClient(this.location, this.#environment);
    return await this.#client;
  }
}

/** The client looks at the signal only once it has credentials; what brings those may hang. */
async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  let onAbort = (): void => undefined;
  const aborted = new Promise<never>((_, reject) => {
    onAbort = (): void => reject(signal.reason as Error); // Set by attemptSignal, or its caller's own.
    if (signal.aborted) onAbort();
    else signal.addEventListener('abort', onAbort, { once: true });
  });
  try {
    return await Promise.race([work, aborted]);
  } finally {
    signal.removeEventListener('abort', onAbort);
    aborted.catch(() => undefined);
    work.catch(() => undefined);
  }
}

async function createClient(location: S3Location, environment: Environment): Promise<S3> {
  const { S3 } = await import('@aws-sdk/client-s3');
  const accessKeyId = environment['AWS_ACCESS_KEY_ID'];
  const secretAccessKey = environment['AWS_SECRET_ACCESS_KEY'];
  const sessionToken = environment['AWS_SESSION_TOKEN'];
  const agent = { keepAlive: true, maxSockets: MAX_SOCKETS };
  const config: S3ClientConfig = {
    region: location.region,
    forcePathStyle: location.isPathStyle,
    maxAttempts: 1,
    // Versions carry checksums of their own, which are looked at where the bytes are used.
    responseChecksumValidation: 'WHEN_REQUIRED',
    requestHandler: { connectionTimeout: CONNECT_TIMEOUT_MS, httpAgent: agent, httpsAgent: agent },
  };
  if (location.endpoint !== undefined) config.endpoint = location.endpoint;
  if (accessKeyId !== undefined && secretAccessKey !== undefined)
    config.credentials = { accessKeyId, secretAccessKey, ...(sessionToken === undefined ? {} : { sessionToken }) };
  return new S3(config);
}

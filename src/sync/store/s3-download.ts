/**
 * The bytes of one object as a stream that goes on after a break: the next request asks for the rest of the very same object
 * (`If-Match`), so no byte comes twice and none of another object. An answer that ends early, or stands still, is a break as well.
 * Tries are bounded: they start anew only when a good piece has arrived in between.
 */
import { createHash } from 'node:crypto';
import type { Readable } from 'node:stream';

import type { GetObjectCommandOutput } from '@aws-sdk/client-s3';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { checkByteRange } from './byte-range.ts';
import { Attempts } from './retry.ts';
import type { S3Answer, S3Connection } from './s3-connection.ts';
import { s3Unavailable } from './s3-errors.ts';
import { headObject, storedObjectOf } from './s3-stored-object.ts';
import type { ByteRange, CallOptions } from './weight-store.ts';

/** Objects up to this size are proven before a byte is given out: indexes have no other proof, weights have their index. */
const PROVEN_BYTES = 16 << 20;
/** This many bytes since the last break are progress. */
const PROGRESS_BYTES = 1 << 20;

export interface DownloadRequest {
  readonly key: string;
  /** The key with the store's prefix. */
  readonly path: string;
  readonly range: ByteRange | undefined;
}

/** Undefined when the key is free or only claimed. Throws `store-failed` for a range that is not inside the object. */
export async function openDownload(
  connection: S3Connection,
  { key, path, range }: DownloadRequest,
  options: CallOptions,
): Promise<AsyncIterable<Uint8Array> | undefined> {
  if (range !== undefined && !(range.end > range.start && range.start >= 0)) {
    // Nothing, or nonsense: neither can be said in a request.
    const found = await headObject(connection, { key, path }, options);
    if (found === undefined || found.isClaim) return undefined;
    checkByteRange(key, range, found.sizeBytes);
    return nothing();
  }
  let first: S3Answer<GetObjectCommandOutput>;
  try {
    first = await request(connection, { key, path, range, etag: undefined }, options);
  } catch (error) {
    // A range that begins behind the end is refused as a whole.
    if (range === undefined || !(error instanceof HoneError) || error.code !== 'store-failed') throw error;
    const found = await headObject(connection, { key, path }, options);
    if (found !== undefined && !found.isClaim) checkByteRange(key, range, found.sizeBytes);
    throw error;
  }
  if (first.kind !== 'done') return undefined;
  const answer = first.value;
  const stored = storedObjectOf(key, answer);
  const totalBytes = Number(/\/(\d+)$/.exec(answer.ContentRange ?? '')?.[1] ?? stored.sizeBytes);
  try {
    if (range !== undefined) checkByteRange(key, range, totalBytes);
  } catch (error) {
    bodyOfAnswer(answer).destroy();
    // A claim is no object, so nothing is wrong with the range.
    if (stored.isClaim) return undefined;
    throw error;
  }
  if (stored.isClaim) {
    bodyOfAnswer(answer).destroy();
    return undefined;
  }
  const body = bodyOfAnswer(answer);
  // A stream that nobody reads must not hold its socket; read later, it begins with a new request.
  const unread = setTimeout(() => body.destroy(), connection.retry.attemptTimeoutMs).unref();
  body.on('error', () => undefined);
  const end = range?.end ?? totalBytes;
  const opened: OpenedDownload = {
    key,
    path,
    etag: stored.etag,
    first: body,
    onFirstRead: () => clearTimeout(unread),
    range: { start: range?.start ?? 0, end },
    signal: options.signal,
  };
  const isWhole = opened.range.start === 0 && end === totalBytes;
  if (!isWhole || stored.sha256 === undefined || totalBytes > PROVEN_BYTES) return stream(connection, opened);
  return proven(connection, opened, stored.sha256);
}

interface OpenedDownload {
  readonly key: string;
  readonly path: string;
  readonly etag: string;
  readonly first: Readable;
  readonly onFirstRead: () => void;
  readonly range: ByteRange;
  readonly signal: AbortSignal | undefined;
}

/** All bytes of a small object, held back until they have the checksum that was stored with them; damaged ones are read again. */
async function* proven(connection: S3Connection, opened: OpenedDownload, sha256: string): AsyncGenerator<Uint8Array> {
  const { key, path, etag, signal } = opened;
  const attempts = new Attempts(connection.retry, connection.clockwork);
  for (let download = opened; ;) {
    attempts.begin();
    const pieces: Uint8Array[] = [];
    const hash = createHash('sha256');
    for await (const piece of stream(connection, download)) {
      pieces.push(piece);
      hash.update(piece);
    }
    if (hash.digest('hex') === sha256) {
      for (const piece of pieces) {
        yield piece;
        signal?.throwIfAborted();
      }
      return;
    }
    if (!(await attempts.wait({ signal })))
      throw new HoneError(
        'checksum-mismatch',
        `${key} came with other bytes than were stored, ${attempts.made} times in a row.`,
        { cure: 'Look for what changes bytes between here and the store, or restore the object from a copy.' },
      );
    const next = await request(
      connection,
      { key, path, etag, range: undefined },
      signal === undefined ? {} : { signal },
    );
    if (next.kind !== 'done')
      throw new HoneError('store-failed', `${key} was removed or replaced while it was read.`, {
        cure: 'Read the version anew; if it was pruned, go on from a newer one.',
      });
    download = { ...opened, first: bodyOfAnswer(next.value), onFirstRead: () => undefined };
  }
}

async function* stream(
  connection: S3Connection,
  { key, path, etag, first, onFirstRead, range, signal }: OpenedDownload,
): AsyncGenerator<Uint8Array> {
  onFirstRead();
  const attempts = new Attempts({ ...connection.retry, totalTimeoutMs: Infinity }, connection.clockwork);
  attempts.begin();
  let position = range.start;
  let body: Readable = first;
  for (;;) {
    let arrivedBytes = 0;
    let cause: unknown;
    try {
      for await (const chunk of watchBody(body, { stallMs: connection.retry.attemptTimeoutMs, signal })) {
        const piece = chunk.subarray(0, range.end - position);
        position += piece.byteLength;
        arrivedBytes += piece.byteLength;
        yield piece;
      }
    } catch (error) {
      signal?.throwIfAborted();
      cause = error;
    }
    if (position === range.end) return;
    cause ??= new Error(`the answer ended at byte ${position} of ${range.end}`);
    if (arrivedBytes >= PROGRESS_BYTES) attempts.reset();
    const context = { action: `read ${key}`, location: connection.location, now: connection.clockwork.now };
    if (!(await attempts.wait({ signal })))
      throw s3Unavailable(context, {
        reason: reasonOf(cause),
        tries: attempts.made,
        elapsedMs: attempts.elapsedMs,
        cause,
      });
    attempts.begin();
    const next = await request(
      connection,
      { key, path, etag, range: { start: position, end: range.end } },
      signal === undefined ? {} : { signal },
    );
    if (next.kind !== 'done')
      throw new HoneError(
        'store-failed',
        `${key} was ${next.kind === 'missing' ? 'removed' : 'replaced'} while it was read, after ${position - range.start} bytes.`,
        { cause, cure: 'Read the version anew; if it was pruned, go on from a newer one.' },
      );
    body = bodyOfAnswer(next.value);
  }
}

async function request(
  connection: S3Connection,
  { key, path, range, etag }: DownloadRequest & { readonly etag: string | undefined },
  options: CallOptions,
): Promise<S3Answer<GetObjectCommandOutput>> {
  const answer = await connection.call(
    `read ${key}`,
    (s3, send) =>
      s3.getObject(
        {
          Bucket: connection.location.bucket,
          Key: path,
          ...(range === undefined ? {} : { Range: `bytes=${range.start}-${range.end - 1}` }),
          ...(etag === undefined ? {} : { IfMatch: etag }),
        },
        send,
      ),
    options,
  );
  if (range === undefined || answer.kind !== 'done') return answer;
  // A server, or a cache on the way, that does not know ranges answers with the whole object: its first bytes are not those asked for.
  const start = Number(/^bytes (\d+)-/.exec(answer.value.ContentRange ?? 'bytes 0-')?.[1]);
  if (start === range.start) return answer;
  bodyOfAnswer(answer.value).destroy();
  throw new HoneError(
    'store-failed',
    `Bytes from ${range.start} on were asked of ${key}, the answer begins at byte ${start}.`,
    { cure: 'Use a server, and a proxy before it, that answers ranged GETs.' },
  );
}

/** Throws when no byte comes for `stallMs` while one is waited for, or the signal aborts. Whoever reads slowly has all the time. */
async function* watchBody(
  body: Readable,
  { stallMs, signal }: { stallMs: number; signal: AbortSignal | undefined },
): AsyncGenerator<Uint8Array> {
  const abort = (): void => void body.destroy(signal?.reason instanceof Error ? signal.reason : new Error('aborted'));
  let timer: NodeJS.Timeout | undefined;
  const arm = (): void => {
    timer = setTimeout(() => body.destroy(new Error(`no byte came for ${stallMs} ms`)), stallMs);
  };
  signal?.addEventListener('abort', abort);
  try {
    signal?.throwIfAborted();
    arm();
    for await (const chunk of body as AsyncIterable<Uint8Array>) {
      clearTimeout(timer);
      signal?.throwIfAborted();
      yield chunk;
      arm();
    }
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', abort);
    body.destroy();
  }
}

function bodyOfAnswer(answer: GetObjectCommandOutput): Readable {
  if (answer.Body === undefined) throw new HoneError('store-failed', 'The store answered without a body.');
  return answer.Body as Readable; // In Node it is one; the type also covers browsers.
}

async function* nothing(): AsyncGenerator<Uint8Array> {}

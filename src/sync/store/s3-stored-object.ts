/**
 * What a HEAD tells of an object that this store wrote: its size, the sha256 of all its bytes, who wrote it, and whether it is only
 * a claim. A claim is a tiny object that holds a key for one content while its parts are uploaded: servers that complete a multipart
 * upload without looking at conditions would otherwise let the second of two writers replace the first. Readers see no claims.
 */
import { createHash } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';

import { HoneError } from '../../domain/errors.ts';
import type { S3Connection } from './s3-connection.ts';
import type { CallOptions, ObjectBody, StoredObject } from './weight-store.ts';

/** The body of a claim. Its length, which no other object of this store is likely to have, tells a list where to look closer. */
export const CLAIM_BODY: Uint8Array = Buffer.from('An upload to this key has begun and is not complete.\n');

/** Bytes hashed before others get a turn. */
const TURN_BYTES = 8 << 20;

const SHA256 = 'hone-sha256';
const WRITER = 'hone-writer';
const CLAIM = 'hone-claim';

/** Identifies the bytes and the call that writes them. */
export interface Authorship {
  readonly sha256: string;
  /** Random, one a call: tells whether an answer that was lost was a success. */
  readonly writer: string;
}

export function objectMetadata({ sha256, writer }: Authorship): Record<string, string> {
  return { [SHA256]: sha256, [WRITER]: writer };
}

export function claimMetadata({ sha256, writer }: Authorship): Record<string, string> {
  return { [CLAIM]: sha256, [WRITER]: writer };
}

export interface S3StoredObject extends StoredObject {
  readonly etag: string;
  /** Undefined when another program wrote the object. */
  readonly sha256: string | undefined;
  readonly writer: string | undefined;
  /** True: only the key is taken, for bytes of that sha256. */
  readonly isClaim: boolean;
}

interface ObjectHead {
  readonly ETag?: string | undefined;
  readonly ContentLength?: number | undefined;
  readonly LastModified?: Date | undefined;
  readonly Metadata?: Record<string, string> | undefined;
}

export function storedObjectOf(key: string, head: ObjectHead): S3StoredObject {
  const metadata = head.Metadata ?? {};
  const claim = metadata[CLAIM];
  return {
    key,
    sizeBytes: head.ContentLength ?? 0,
    modifiedMs: head.LastModified?.getTime() ?? 0,
    etag: head.ETag ?? '',
    sha256: claim ?? metadata[SHA256],
    writer: metadata[WRITER],
    isClaim: claim !== undefined,
  };
}

/** Claims included. `key` is what the caller calls it, `path` has the store's prefix. */
export async function headObject(
  connection: S3Connection,
  { key, path }: { readonly key: string; readonly path: string },
  options: CallOptions = {},
): Promise<S3StoredObject | undefined> {
  const answer = await connection.call(
    `look at ${key}`,
    (s3, send) => s3.headObject({ Bucket: connection.location.bucket, Key: path }, send),
    options,
  );
  return answer.kind === 'done' ? storedObjectOf(key, answer.value) : undefined;
}

export function wrongSize(sizeBytes: number, given: string): HoneError {
  return new HoneError('store-failed', `An object of ${sizeBytes} bytes was announced, its source gave ${given}.`, {
    cure: 'Give the size of the bytes that are written; nothing was stored.',
  });
}

export async function sha256Of(body: ObjectBody, signal: AbortSignal | undefined): Promise<string> {
  const hash = createHash('sha256');
  let sizeBytes = 0;
  let sinceTurn = 0;
  for await (const chunk of body.chunks()) {
    signal?.throwIfAborted();
    for (let start = 0; start < chunk.byteLength; start += TURN_BYTES) {
      const part = chunk.subarray(start, start + TURN_BYTES);
      hash.update(part);
      sinceTurn += part.byteLength;
      if (sinceTurn < TURN_BYTES) continue;
      sinceTurn = 0;
      // Chunks that lie in memory come without a pause: requests and timers of this thread must not wait for all of them.
      await setImmediate();
      signal?.throwIfAborted();
    }
    sizeBytes += chunk.byteLength;
  }
  if (sizeBytes !== body.sizeBytes) throw wrongSize(body.sizeBytes, `${sizeBytes}`);
  return hash.digest('hex');
}

/**
 * Many bytes to one key in parts: a bounded number under way, each held once until it has arrived, so memory is `partBytes` times
 * what is under way whatever the size. The key must be claimed before; it is looked at again before the parts become the object.
 * An upload that fails is aborted, so that its parts cost nothing.
 */
import { HoneError } from '../../domain/errors.ts';
import { withCondition } from './s3-conditional-put.ts';
import type { S3Connection } from './s3-connection.ts';
import { headObject, objectMetadata, wrongSize, type Authorship } from './s3-stored-object.ts';
import type { CallOptions, ObjectBody } from './weight-store.ts';

export interface PartLimits {
  /** Bodies above this go in parts of this size. Amazon takes no parts below 5 MiB but the last. */
  readonly partBytes: number;
  readonly partsInFlight: number;
}

const MAX_PARTS = 10_000;
const ABORT_TIMEOUT_MS = 20_000;
/** A part may take the time of a small request and what this many bytes a second need. */
const SLOWEST_BYTES_A_MS = 256;

export interface PartsRequest {
  readonly key: string;
  /** The key with the store's prefix. */
  readonly path: string;
  readonly body: ObjectBody;
  readonly authorship: Authorship;
  /** Of the claim. */
  readonly claimEtag: string;
}

/** `lost`: the claim is gone or another's; nothing was written. */
export async function uploadParts(
  connection: S3Connection,
  { key, path, body, authorship, claimEtag }: PartsRequest,
  { partBytes, partsInFlight, signal }: PartLimits & CallOptions,
): Promise<'written' | 'lost'> {
  const { bucket } = connection.location;
  const target = { Bucket: bucket, Key: path };
  const abort = new AbortController();
  const follow = (): void => abort.abort(signal?.reason);
  signal?.addEventListener('abort', follow);
  const options = { signal: abort.signal };
  let uploadId: string | undefined;
  try {
    signal?.throwIfAborted();
    const created = await connection.call(
      `begin the upload of ${key}`,
      (s3, send) => s3.createMultipartUpload({ ...target, Metadata: objectMetadata(authorship) }, send),
      options,
    );
    uploadId = created.kind === 'done' ? created.value.UploadId : undefined;
    if (uploadId === undefined) throw endedFromOutside(key);
    const upload = { ...target, UploadId: uploadId };
    const parts: { PartNumber: number; ETag: string }[] = [];
    const underWay = new Set<Promise<void>>();
    const failures: unknown[] = [];
    const sizeBytes = Math.max(partBytes, Math.ceil(body.sizeBytes / MAX_PARTS));
    let number = 0;
    for await (const bytes of partsOf(body, sizeBytes)) {
      const partNumber = ++number;
      const sent = connection
        .call(
          `write part ${partNumber} of ${key}`,
          (s3, send) => s3.uploadPart({ ...upload, PartNumber: partNumber, Body: bytes }, send),
          {
            ...options,
            attemptTimeoutMs: connection.retry.attemptTimeoutMs + bytes.byteLength / SLOWEST_BYTES_A_MS,
          },
        )
        .then((answer) => {
          if (answer.kind !== 'done') throw endedFromOutside(key);
          parts.push({ PartNumber: partNumber, ETag: answer.value.ETag ?? '' });
        })
        .catch((error: unknown) => {
          failures.push(error);
          abort.abort(error);
        })
        .finally(() => underWay.delete(sent));
      underWay.add(sent);
      while (underWay.size >= partsInFlight) await Promise.race(underWay);
      if (failures.length > 0) break;
    }
    await Promise.all(underWay);
    if (failures.length > 0) throw failures[0];
    signal?.throwIfAborted();
    const claim = await headObject(connection, { key, path }, options);
    if (claim?.isClaim !== true || claim.sha256 !== authorship.sha256) return 'lost';
    const condition = { kind: 'unchanged' as const, etag: claimEtag };
    const Parts = parts.sort((left, right) => left.PartNumber - right.PartNumber);
    const completed = await withCondition(connection, { key: path, condition }, options, (conditions) =>
      connection.call(
        `complete the upload of ${key}`,
        (s3, send) => s3.completeMultipartUpload({ ...upload, MultipartUpload: { Parts }, ...conditions }, send),
        { ...options, attemptTimeoutMs: connection.retry.attemptTimeoutMs * 2 },
      ),
    );
    if (completed.kind === 'done') {
      uploadId = undefined;
      return 'written';
    }
    // The upload is gone, or the key has changed: either an earlier try was carried out and its answer lost, or another was first.
    const found = await headObject(connection, { key, path }, options);
    if (found?.isClaim !== false || found.writer !== authorship.writer) return 'lost';
    uploadId = undefined;
    return 'written';
  } finally {
    signal?.removeEventListener('abort', follow);
    if (uploadId !== undefined) await abortUpload(connection, { path, uploadId });
  }
}

/** Even when the caller has aborted, and without a word when it fails: what is left is found by `abortAbandonedUploads`. */
async function abortUpload(
  connection: S3Connection,
  { path, uploadId }: { path: string; uploadId: string },
): Promise<void> {
  await connection
    .call(
      `abort an upload of ${path}`,
      (s3, send) =>
        s3.abortMultipartUpload({ Bucket: connection.location.bucket, Key: path, UploadId: uploadId }, send),
      { signal: AbortSignal.timeout(ABORT_TIMEOUT_MS) },
    )
    .catch(() => undefined);
}

/** Aborts the uploads below the prefix that began before `beforeMs` by the store's clock. Returns how many. */
export async function abortAbandonedUploads(
  connection: S3Connection,
  { prefix, beforeMs, signal }: { readonly prefix: string; readonly beforeMs: number } & CallOptions,
): Promise<number> {
  const options = signal === undefined ? {} : { signal };
  let aborted = 0;
  let marker: { KeyMarker?: string; UploadIdMarker?: string } = {};
  for (;;) {
    const page = await connection.call(
      'look for abandoned uploads',
      (s3, send) => s3.listMultipartUploads({ Bucket: connection.location.bucket, Prefix: prefix, ...marker }, send),
      options,
    );
    if (page.kind !== 'done') return aborted;
    for (const { Key, UploadId, Initiated } of page.value.Uploads ?? []) {
      if (Key === undefined || UploadId === undefined || Initiated === undefined || Initiated.getTime() >= beforeMs)
        continue;
      await connection.call(
        `abort an upload of ${Key}`,
        (s3, send) => s3.abortMultipartUpload({ Bucket: connection.location.bucket, Key, UploadId }, send),
        options,
      );
      aborted += 1;
    }
    const { IsTruncated, NextKeyMarker, NextUploadIdMarker } = page.value;
    if (IsTruncated !== true || NextKeyMarker === undefined || NextKeyMarker === marker.KeyMarker) return aborted;
    marker = {
      KeyMarker: NextKeyMarker,
      ...(NextUploadIdMarker === undefined ? {} : { UploadIdMarker: NextUploadIdMarker }),
    };
  }
}

/** The body in pieces of one size, the last one smaller; each in memory of its own, which its upload holds until it is done. */
async function* partsOf(body: ObjectBody, partBytes: number): AsyncGenerator<Uint8Array> {
  let part = Buffer.allocUnsafeSlow(Math.min(partBytes, body.sizeBytes));
  let filled = 0;
  let passed = 0;
  for await (const chunk of body.chunks()) {
    for (let offset = 0; offset < chunk.byteLength;) {
      if (passed + filled === body.sizeBytes) throw wrongSize(body.sizeBytes, 'more');
      const piece = chunk.subarray(offset, offset + part.byteLength - filled);
      part.set(piece, filled);
      filled += piece.byteLength;
      offset += piece.byteLength;
      if (filled < part.byteLength) continue;
      yield part;
      passed += filled;
      filled = 0;
      part = Buffer.allocUnsafeSlow(Math.min(partBytes, body.sizeBytes - passed));
    }
  }
  if (passed + filled !== body.sizeBytes) throw wrongSize(body.sizeBytes, `only ${passed + filled}`);
}

function endedFromOutside(key: string): HoneError {
  return new HoneError('store-unavailable', `The upload of ${key} was ended by another process.`, {
    cure: 'Try again; if it keeps happening, look for what aborts multipart uploads in the bucket.',
  });
}

/**
 * One PUT that happens only on a condition, the primitive that all of the S3 store's promises rest on. Knows that some servers
 * compare `If-Match` with the bare tag: after a refusal a HEAD tells whether the tag still fits, and only then it is sent bare.
 */
import type { S3Answer, S3CallOptions, S3Connection } from './s3-connection.ts';

export type PutCondition =
  | { readonly kind: 'absent' }
  /** The object must still be the one that answered with this tag, quotes included. */
  | { readonly kind: 'unchanged'; readonly etag: string };

export interface PutRequest {
  /** With the store's prefix. */
  readonly key: string;
  readonly bytes: Uint8Array;
  readonly condition: PutCondition;
  readonly metadata?: Readonly<Record<string, string>>;
}

export type PutResult =
  | { readonly kind: 'written'; readonly etag: string }
  /** `isUncertain`: an earlier try may have been carried out, its answer never came. */
  | { readonly kind: 'refused'; readonly isUncertain: boolean };

/** Servers that were seen to want the bare tag, by connection. */
const bareTags = new WeakSet<S3Connection>();

export async function conditionalPut(
  connection: S3Connection,
  { key, bytes, condition, metadata = {} }: PutRequest,
  options: S3CallOptions = {},
): Promise<PutResult> {
  const answer = await withCondition(connection, { key, condition }, options, (conditions) =>
    connection.call(
      `write ${key}`,
      (s3, send) =>
        s3.putObject(
          { Bucket: connection.location.bucket, Key: key, Body: bytes, Metadata: { ...metadata }, ...conditions },
          send,
        ),
      options,
    ),
  );
  return answer.kind === 'done'
    ? { kind: 'written', etag: answer.value.ETag ?? '' }
    : { kind: 'refused', isUncertain: answer.tries > 1 };
}

/** Sends with the condition, and once more with the bare tag where the server needs that. */
export async function withCondition<T>(
  connection: S3Connection,
  { key, condition }: { key: string; condition: PutCondition },
  options: S3CallOptions,
  send: (conditions: { IfNoneMatch?: string; IfMatch?: string }) => Promise<S3Answer<T>>,
): Promise<S3Answer<T>> {
  if (condition.kind === 'absent') return await send({ IfNoneMatch: '*' });
  const { etag } = condition;
  const bare = etag.replaceAll('"', '');
  if (bareTags.has(connection)) return await send({ IfMatch: bare });
  const answer = await send({ IfMatch: etag });
  if (answer.kind !== 'refused' || bare === etag) return answer;
  const head = await connection.call(
    `look at ${key}`,
    (s3, abort) => s3.headObject({ Bucket: connection.location.bucket, Key: key }, abort),
    options,
  );
  if (head.kind !== 'done' || head.value.ETag !== etag) return answer;
  const again = await send({ IfMatch: bare });
  if (again.kind === 'done') bareTags.add(connection);
  // The refusal before may have been a lost answer's, which only the tries of both tell.
  return { ...again, tries: answer.tries + again.tries - 1 };
}

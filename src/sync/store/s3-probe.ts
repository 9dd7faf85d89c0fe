/**
 * Does this bucket keep the conditions of writes, when several writers come at once as well? Everything that the store promises
 * rests on it, and servers that take the header and ignore it are common. Tries it on scratch keys and removes them.
 */
import { randomUUID } from 'node:crypto';

import { HoneError } from '../../domain/errors.ts';
import { conditionalPut, type PutCondition } from './s3-conditional-put.ts';
import type { S3Connection } from './s3-connection.ts';
import { formatS3Location } from './s3-location.ts';
import { headObject } from './s3-stored-object.ts';
import type { CallOptions } from './weight-store.ts';

const WRITERS = 8;

/** Throws `store-failed` naming what was let through. Returns what the store's clock says. */
export async function probeS3(
  connection: S3Connection,
  { folder, signal }: { readonly folder: string } & CallOptions,
): Promise<{ readonly storeClockMs: number }> {
  const options = signal === undefined ? {} : { signal };
  const key = `${folder}${randomUUID()}`;
  const race = async (condition: PutCondition): Promise<{ written: number; etag: string | undefined }> => {
    const results = await Promise.all(
      Array.from({ length: WRITERS }, () =>
        conditionalPut(connection, { key, bytes: Buffer.from(randomUUID()), condition }, options),
      ),
    );
    // A lost answer makes a write that took place look like a refusal: the tags that came back are a lower bound, which is enough.
    const written = results.filter((result) => result.kind === 'written');
    return { written: written.length, etag: (await headObject(connection, { key, path: key }, options))?.etag };
  };
  const refuse = (what: string): HoneError =>
    new HoneError(
      'store-failed',
      `${formatS3Location(connection.location)} does not keep the conditions of writes: it let ${what}.`,
      {
        cure: 'Use a bucket whose server honours If-None-Match and If-Match on PUT; nothing can be published safely to this one.',
      },
    );
  try {
    const created = await race({ kind: 'absent' });
    if (created.written > 1 || created.etag === undefined)
      throw refuse(`${created.written} of ${WRITERS} writers create the same object`);
    const first = created.etag;
    const swapped = await race({ kind: 'unchanged', etag: first });
    if (swapped.written > 1) throw refuse(`${swapped.written} of ${WRITERS} writers swap the same pointer`);
    if (swapped.written === 0 && swapped.etag === first)
      throw new HoneError(
        'store-failed',
        `${formatS3Location(connection.location)} refuses every write with If-Match, even one whose tag fits.`,
        { cure: 'Use a bucket whose server honours If-Match on PUT; pointers cannot be moved in this one.' },
      );
    const stale = await conditionalPut(
      connection,
      { key, bytes: Buffer.from(randomUUID()), condition: { kind: 'unchanged', etag: first } },
      options,
    );
    if (stale.kind === 'written') throw refuse('a writer swap a pointer against a tag that was no longer its own');
    const now = await headObject(connection, { key, path: key }, options);
    return { storeClockMs: now?.modifiedMs ?? connection.clockwork.now() };
  } finally {
    await connection
      .call(
        'remove a scratch key',
        (s3, send) => s3.deleteObject({ Bucket: connection.location.bucket, Key: key }, send),
        options,
      )
      .catch(() => undefined);
  }
}

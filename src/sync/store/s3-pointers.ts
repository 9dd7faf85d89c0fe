/**
 * The pointers of an S3 store: one small object each, in a place that lists of objects leave out, swapped by conditional PUT.
 * The body begins with random marks of the last swaps, the newest first, then the value: so equal values have different tags, and
 * a swap whose answer was lost finds out whether it took place.
 */
import { randomUUID } from 'node:crypto';

import { HoneError } from '../../domain/errors.ts';
import { conditionalPut } from './s3-conditional-put.ts';
import type { S3Connection } from './s3-connection.ts';
import { formatS3Location } from './s3-location.ts';
import type { CallOptions, Pointer } from './weight-store.ts';

/** Marks kept: a swap whose answer was lost is told from others' as long as fewer than this came after it. */
const MARKS = 16;
/** `never`: the row of marks goes back to the first swap. */
const FIRST = 'first';

interface PointerObject {
  readonly value: string;
  readonly marks: readonly string[];
  readonly etag: string;
}

export class S3Pointers {
  readonly #connection: S3Connection;
  /** With the store's prefix; ends in a slash. */
  readonly #folder: string;

  constructor(connection: S3Connection, folder: string) {
    this.#connection = connection;
    this.#folder = folder;
  }

  async read(name: string, options: CallOptions): Promise<Pointer | undefined> {
    const found = await this.#get(name, options);
    return found === undefined ? undefined : { value: found.value, tag: tagOf(found) };
  }

  async compareAndSwap(
    name: string,
    { expectedTag, value }: { readonly expectedTag: string | undefined; readonly value: string },
    options: CallOptions,
  ): Promise<'swapped' | 'conflict'> {
    const expected = expectedTag === undefined ? undefined : parseTag(expectedTag);
    if (expectedTag !== undefined && expected === undefined) return 'conflict';
    const mark = randomUUID();
    const marks = [mark, ...(expected?.marks ?? [FIRST])].slice(0, MARKS);
    const result = await conditionalPut(
      this.#connection,
      {
        key: `${this.#folder}${name}`,
        bytes: Buffer.from(`${marks.join(' ')}\n${value}`),
        condition: expected === undefined ? { kind: 'absent' } : { kind: 'unchanged', etag: expected.etag },
      },
      options,
    );
    if (result.kind === 'written') return 'swapped';
    if (!result.isUncertain) return 'conflict';
    const found = await this.#get(name, options);
    if (found?.marks.includes(mark) === true) return 'swapped';
    // The swap that came after the expected one is known, and it is another's.
    if (found?.marks.includes(expected?.marks[0] ?? FIRST) === true) return 'conflict';
    throw new HoneError(
      'store-unavailable',
      `The answer to the swap of pointer ${name} at ${formatS3Location(this.#connection.location)} was lost, and it moved on so far since that nobody can tell whether the swap took place.`,
      { cure: 'Read the pointer and go on from what it says.' },
    );
  }

  async remove(name: string, options: CallOptions): Promise<void> {
    await this.#connection.call(
      `remove pointer ${name}`,
      (s3, send) => s3.deleteObject({ Bucket: this.#connection.location.bucket, Key: `${this.#folder}${name}` }, send),
      options,
    );
  }

  async #get(name: string, options: CallOptions): Promise<PointerObject | undefined> {
    const answer = await this.#connection.call(
      `read pointer ${name}`,
      async (s3, send) => {
        const { Body, ETag, ContentLength } = await s3.getObject(
          { Bucket: this.#connection.location.bucket, Key: `${this.#folder}${name}` },
          send,
        );
        const text = (await Body?.transformToString('utf-8')) ?? '';
        if (ContentLength !== undefined && Buffer.byteLength(text) !== ContentLength)
          throw new Error(`the answer has ${Buffer.byteLength(text)} of ${ContentLength} bytes`);
        return { text, etag: ETag ?? '' };
      },
      options,
    );
    if (answer.kind !== 'done') return undefined;
    const { text, etag } = answer.value;
    const end = text.indexOf('\n');
    if (end < 0 || !/^[0-9a-f-]{36}( ([0-9a-f-]{36}|first))*$/.test(text.slice(0, end)))
      throw new HoneError(
        'store-failed',
        `Pointer ${name} at ${formatS3Location(this.#connection.location)} holds text that no swap of this store wrote: ${JSON.stringify(text.slice(0, 80))}.`,
        { cure: 'Restore it from a copy of the bucket, or remove it and publish anew.' },
      );
    return { value: text.slice(end + 1), marks: text.slice(0, end).split(' '), etag };
  }
}

function tagOf({ etag, marks }: PointerObject): string {
  return `${etag} ${marks.join(' ')}`;
}

function parseTag(tag: string): { etag: string; marks: readonly string[] } | undefined {
  const [etag, ...marks] = tag.split(' ');
  return etag === undefined || marks.length === 0 ? undefined : { etag, marks };
}

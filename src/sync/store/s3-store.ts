/**
 * The WeightStore over one prefix of an S3 bucket. An object is created by a PUT that only succeeds while the key is free; one that
 * goes in parts first claims its key that way (s3-stored-object.ts), so objects of any size never change. Pointers and scratch keys
 * begin with a dot, which no key does, and are left out of lists.
 */
import { createHash, randomInt, randomUUID } from 'node:crypto';

import { HoneError } from '../../domain/errors.ts';
import { createRandom } from '../../domain/ids.ts';
import { conditionalPut } from './s3-conditional-put.ts';
import { S3Connection } from './s3-connection.ts';
import { openDownload } from './s3-download.ts';
import { formatS3Location, type Environment, type S3Location } from './s3-location.ts';
import { S3Pointers } from './s3-pointers.ts';
import { probeS3 } from './s3-probe.ts';
import {
  CLAIM_BODY,
  claimMetadata,
  headObject,
  objectMetadata,
  sha256Of,
  wrongSize,
  type Authorship,
  type S3StoredObject,
} from './s3-stored-object.ts';
import { abortAbandonedUploads, uploadParts, type PartLimits } from './s3-upload.ts';
import { DEFAULT_RETRY_POLICY, sleepFor, type Clockwork, type RetryPolicy } from './retry.ts';
import {
  checkStoreKey,
  isStoreKey,
  type ByteRange,
  type CallOptions,
  type ListOptions,
  type ObjectBody,
  type Pointer,
  type StoredObject,
  type WeightStore,
} from './weight-store.ts';

const POINTERS = '.pointers/';
const PROBES = '.probe/';
/** Behind every name that begins with a dot, before every key. */
const AFTER_HIDDEN = '//';
/** How often a key may change hands between the failure to create it and the look at what is there. */
const PUT_ATTEMPTS = 10;
const ABANDONED_AFTER_MS = 24 * 3_600_000;
const DEFAULT_PARTS: PartLimits = { partBytes: 16 << 20, partsInFlight: 4 };
const DEFAULT_PAGE_SIZE = 1000;

export interface S3StoreOptions {
  /** Credentials are taken from here; `process.env` of an entry point, or part of it. */
  readonly environment: Environment;
  readonly clockwork?: Partial<Clockwork>;
  readonly retry?: Partial<RetryPolicy>;
  readonly parts?: Partial<PartLimits>;
  /** Keys a list asks for at once. */
  readonly pageSize?: number;
}

type PutOutcome = 'created' | 'identical' | 'different';

export class S3Store implements WeightStore, Disposable {
  readonly #connection: S3Connection;
  readonly #prefix: string;
  readonly #pointers: S3Pointers;
  readonly #parts: PartLimits;
  readonly #pageSize: number;

  /** Connects on first use; `probeConditionalWrites` or any read shows whether bucket and credentials are right. */
  constructor(location: S3Location, options: S3StoreOptions) {
    const clockwork: Clockwork = {
      now: options.clockwork?.now ?? Date.now,
      monotonicMs: options.clockwork?.monotonicMs ?? ((): number => performance.now()),
      sleep: options.clockwork?.sleep ?? sleepFor,
      random: options.clockwork?.random ?? createRandom(randomInt(2 ** 31)),
    };
    const retry = { ...DEFAULT_RETRY_POLICY, ...options.retry };
    this.#connection = new S3Connection(location, { environment: options.environment, retry, clockwork });
    this.#prefix = location.prefix;
    this.#pointers = new S3Pointers(this.#connection, `${location.prefix}${POINTERS}`);
    this.#parts = { ...DEFAULT_PARTS, ...options.parts };
    this.#pageSize = options.pageSize ?? DEFAULT_PAGE_SIZE;
  }

  get location(): string {
    return formatS3Location(this.#connection.location);
  }

  async putObject(key: string, body: ObjectBody, options: CallOptions = {}): Promise<PutOutcome> {
    checkStoreKey(key);
    options.signal?.throwIfAborted();
    const writer = randomUUID();
    const isSmall = body.sizeBytes <= this.#parts.partBytes;
    for (let attempt = 0; attempt < PUT_ATTEMPTS; attempt++) {
      const outcome = isSmall
        ? await this.#putWhole(key, body, { writer, ...options })
        : await this.#putParts(key, body, { writer, ...options });
      if (outcome !== 'again') return outcome;
    }
    throw new HoneError('store-failed', `${key} was made and removed ${PUT_ATTEMPTS} times while it was written.`, {
      cure: 'Stop what removes objects while they are published.',
    });
  }

  async readObject(
    key: string,
    { range, ...options }: CallOptions & { readonly range?: ByteRange } = {},
  ): Promise<AsyncIterable<Uint8Array> | undefined> {
    checkStoreKey(key);
    return await openDownload(this.#connection, { key, path: this.#path(key), range }, options);
  }

  async statObject(key: string, options: CallOptions = {}): Promise<StoredObject | undefined> {
    checkStoreKey(key);
    const found = await this.#head(key, options);
    if (found === undefined || found.isClaim) return undefined;
    return { key, sizeBytes: found.sizeBytes, modifiedMs: found.modifiedMs };
  }

  localPath(key: string): undefined {
    checkStoreKey(key);
  }

  async list(prefix: string, { withClaims = false, ...options }: ListOptions = {}): Promise<StoredObject[]> {
    checkPrefix(prefix);
    const objects: StoredObject[] = [];
    for (const object of await this.#listPaths(this.#path(prefix), options)) {
      if (!isStoreKey(object.key)) continue;
      const mayBeClaim = !withClaims && object.sizeBytes === CLAIM_BODY.byteLength;
      if (mayBeClaim && (await this.statObject(object.key, options)) === undefined) continue;
      objects.push(object);
    }
    return objects;
  }

  async remove(key: string, options: CallOptions = {}): Promise<void> {
    checkStoreKey(key);
    await this.#connection.call(
      `remove ${key}`,
      (s3, send) => s3.deleteObject({ Bucket: this.#connection.location.bucket, Key: this.#path(key) }, send),
      options,
    );
  }

  async readPointer(name: string, options: CallOptions = {}): Promise<Pointer | undefined> {
    checkStoreKey(name);
    return await this.#pointers.read(name, options);
  }

  async listPointers(prefix: string, options: CallOptions = {}): Promise<string[]> {
    checkPrefix(prefix);
    const found = await this.#listPaths(this.#path(`${POINTERS}${prefix}`), options);
    return found.map(({ key }) => key.slice(POINTERS.length));
  }

  async compareAndSwapPointer(
    name: string,
    expectedTag: string | undefined,
    value: string,
    options: CallOptions = {},
  ): Promise<'swapped' | 'conflict'> {
    checkStoreKey(name);
    return await this.#pointers.compareAndSwap(name, { expectedTag, value }, options);
  }

  async removePointer(name: string, options: CallOptions = {}): Promise<void> {
    checkStoreKey(name);
    await this.#pointers.remove(name, options);
  }

  /** Also aborts uploads that were left behind a day ago or more: whoever asks this is about to write. */
  async probeConditionalWrites(options: CallOptions = {}): Promise<void> {
    const { storeClockMs } = await probeS3(this.#connection, { folder: this.#path(PROBES), ...options });
    try {
      const beforeMs = storeClockMs - ABANDONED_AFTER_MS;
      await abortAbandonedUploads(this.#connection, { prefix: this.#prefix, beforeMs, ...options });
    } catch (error) {
      options.signal?.throwIfAborted();
      // They cost space and nothing else, and not everyone who may publish may list uploads.
      if (!(error instanceof HoneError)) throw error;
    }
  }

  /** Closes idle connections. The store may be used again. */
  [Symbol.dispose](): void {
    this.#connection.close();
  }

  async #putWhole(
    key: string,
    body: ObjectBody,
    { writer, ...options }: CallOptions & { readonly writer: string },
  ): Promise<PutOutcome | 'again'> {
    const bytes = await collect(body, options.signal);
    const authorship = { sha256: createHash('sha256').update(bytes).digest('hex'), writer };
    const result = await conditionalPut(
      this.#connection,
      { key: this.#path(key), bytes, condition: { kind: 'absent' }, metadata: objectMetadata(authorship) },
      options,
    );
    if (result.kind === 'written') return 'created';
    const found = await this.#head(key, options);
    if (found === undefined) return 'again';
    // A writer with smaller parts has the same bytes under way.
    if (found.isClaim && found.sha256 === authorship.sha256)
      return await this.#putParts(key, body, { writer, ...options });
    return await this.#compare(found, { body, authorship }, options);
  }

  async #putParts(
    key: string,
    body: ObjectBody,
    { writer, ...options }: CallOptions & { readonly writer: string },
  ): Promise<PutOutcome | 'again'> {
    const path = this.#path(key);
    const before = await this.#head(key, options);
    // Another size can be told without reading a byte.
    if (before?.isClaim === false && before.sizeBytes !== body.sizeBytes) return 'different';
    const authorship = { sha256: await sha256Of(body, options.signal), writer };
    if (before?.isClaim === false) return await this.#compare(before, { body, authorship }, options);
    await conditionalPut(
      this.#connection,
      { key: path, bytes: CLAIM_BODY, condition: { kind: 'absent' }, metadata: claimMetadata(authorship) },
      options,
    );
    const claim = await this.#head(key, options);
    if (claim === undefined) return 'again';
    if (!claim.isClaim || claim.sha256 !== authorship.sha256)
      return await this.#compare(claim, { body, authorship }, options);
    const isOwn = claim.writer === writer;
    const result = await uploadParts(
      this.#connection,
      { key, path, body, authorship, claimEtag: claim.etag },
      { ...this.#parts, ...options },
    );
    if (result === 'lost') {
      const found = await this.#head(key, options);
      return found === undefined || found.isClaim ? 'again' : await this.#compare(found, { body, authorship }, options);
    }
    // Of several that write the same bytes the one whose claim it was has created the object.
    return isOwn ? 'created' : 'identical';
  }

  /** How what holds the key compares with the body; by the checksum that was stored with it, where this store wrote it. */
  async #compare(
    found: S3StoredObject,
    { body, authorship }: { body: ObjectBody; authorship: Authorship },
    options: CallOptions,
  ): Promise<PutOutcome | 'again'> {
    if (found.isClaim) return 'different';
    if (found.writer === authorship.writer) return 'created';
    if (found.sizeBytes !== body.sizeBytes) return 'different';
    if (found.sha256 !== undefined) return found.sha256 === authorship.sha256 ? 'identical' : 'different';
    const stored = await this.readObject(found.key, options);
    if (stored === undefined) return 'again';
    const hash = createHash('sha256');
    for await (const chunk of stored) hash.update(chunk);
    return hash.digest('hex') === authorship.sha256 ? 'identical' : 'different';
  }

  async #head(key: string, options: CallOptions): Promise<S3StoredObject | undefined> {
    return await headObject(this.#connection, { key, path: this.#path(key) }, options);
  }

  /** Everything below a path, hidden names only where the path names them; keys without the store's prefix. */
  async #listPaths(path: string, options: CallOptions): Promise<StoredObject[]> {
    const { bucket } = this.#connection.location;
    const isHidden = path.startsWith('.', this.#prefix.length);
    const objects: StoredObject[] = [];
    let token: string | undefined;
    do {
      const page = await this.#connection.call(
        `list ${path === '' ? 'the bucket' : path}`,
        (s3, send) =>
          s3.listObjectsV2(
            {
              Bucket: bucket,
              Prefix: path,
              MaxKeys: this.#pageSize,
              ...(isHidden ? {} : { StartAfter: `${this.#prefix}${AFTER_HIDDEN}` }),
              ...(token === undefined ? {} : { ContinuationToken: token }),
            },
            send,
          ),
        options,
      );
      if (page.kind !== 'done') break;
      for (const { Key = '', Size = 0, LastModified } of page.value.Contents ?? [])
        objects.push({
          key: Key.slice(this.#prefix.length),
          sizeBytes: Size,
          modifiedMs: LastModified?.getTime() ?? 0,
        });
      const next = page.value.IsTruncated === true ? page.value.NextContinuationToken : undefined;
      if (next !== undefined && next === token)
        throw new HoneError('store-failed', `${this.location} answers a list with the same page again and again.`, {
          cure: 'Use an S3 server whose ListObjectsV2 pages.',
        });
      token = next;
    } while (token !== undefined);
    return objects;
  }

  #path(key: string): string {
    return `${this.#prefix}${key}`;
  }
}

async function collect(body: ObjectBody, signal: AbortSignal | undefined): Promise<Uint8Array> {
  const bytes = Buffer.allocUnsafeSlow(body.sizeBytes);
  let filled = 0;
  for await (const chunk of body.chunks()) {
    signal?.throwIfAborted();
    if (filled + chunk.byteLength > bytes.byteLength) throw wrongSize(body.sizeBytes, 'more');
    bytes.set(chunk, filled);
    filled += chunk.byteLength;
  }
  if (filled !== bytes.byteLength) throw wrongSize(body.sizeBytes, `only ${filled}`);
  return bytes;
}

/** A prefix may end anywhere in a key; what lies before its last slash must be one. */
function checkPrefix(prefix: string): void {
  const parent = prefix.slice(0, Math.max(0, prefix.lastIndexOf('/')));
  if (parent !== '') checkStoreKey(parent);
}

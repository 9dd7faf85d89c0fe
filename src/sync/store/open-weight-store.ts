/** A weight store by its location: a folder, a `file:` URL, or a prefix of an S3 bucket. What the text asks for is done or refused. */
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

import { HoneError } from '../../domain/errors.ts';
import { FileStore } from './file-store.ts';
import type { Clockwork, RetryPolicy } from './retry.ts';
import { parseS3Location, type Environment } from './s3-location.ts';
import { S3Store } from './s3-store.ts';
import type { WeightStore } from './weight-store.ts';

export interface OpenStoreOptions {
  /** Credentials and defaults of S3: `process.env` of an entry point. Without any, the AWS client looks where it always does. */
  readonly environment?: Environment;
  /** Milliseconds since 1970. */
  readonly now?: () => number;
  /** The chance in the waits between tries. */
  readonly random?: Clockwork['random'];
  readonly retry?: Partial<RetryPolicy>;
  /** Only looks: a folder is left exactly as it is. */
  readonly isReader?: boolean;
}

/** Throws `invalid-config` for a location that cannot be read. An S3 bucket is first spoken to by the first call. */
export async function openWeightStore(
  location: string,
  { environment = {}, now, random, retry, isReader = false }: OpenStoreOptions = {},
): Promise<WeightStore> {
  const clock = now === undefined ? {} : { now };
  const folder = { ...clock, isReader };
  const scheme = /^([A-Za-z][A-Za-z0-9+.-]+):/.exec(location)?.[1]?.toLowerCase();
  switch (scheme) {
    case undefined:
      if (location.trim() === '') throw refuse('The location of the weight store is empty');
      return await FileStore.open(resolve(location), folder);
    case 'file':
      return await FileStore.open(folderOf(location), folder);
    case 's3':
      return new S3Store(parseS3Location(location, environment), {
        environment,
        clockwork: { ...clock, ...(random === undefined ? {} : { random }) },
        ...(retry === undefined ? {} : { retry }),
      });
    default:
      throw refuse(`A weight store cannot be at ${scheme}:`);
  }
}

function folderOf(location: string): string {
  try {
    const url = new URL(location);
    if (url.search === '' && url.hash === '') return fileURLToPath(url);
  } catch {
    // Said below.
  }
  throw refuse(`${location} is not the URL of a folder of this machine`);
}

function refuse(message: string): HoneError {
  return new HoneError('invalid-config', `${message}.`, {
    cure: 'Give the path of a folder, file:///folder, or s3://bucket/prefix?region=….',
  });
}

/**
 * What an S3 server's refusal means: another try, an outcome that the caller expects (no such key, a condition that does not hold),
 * or one sentence with the names and the cure. Credentials never become part of a sentence.
 */
import { HoneError, reasonOf } from '../../domain/errors.ts';
import { formatS3Location, type S3Location } from './s3-location.ts';

export type S3Judgement =
  | { readonly kind: 'retry'; readonly reason: string; readonly atLeastMs: number }
  /** `isBucketThere`: the answer says that it is the key that is missing; one to a HEAD has no words. */
  | { readonly kind: 'missing'; readonly isBucketThere: boolean }
  /** A condition of a write, or of a read that goes on, does not hold. */
  | { readonly kind: 'refused' }
  /** The credentials have run out: fresh ones may do. */
  | { readonly kind: 'expired'; readonly error: HoneError }
  | { readonly kind: 'final'; readonly error: HoneError };

export interface S3ErrorContext {
  /** For `Could not …`: "read run/a". */
  readonly action: string;
  readonly location: S3Location;
  readonly now: () => number;
}

/** 400s that say that the bytes were damaged or late on their way. */
const DAMAGED = new Set([
  'BadDigest',
  'XAmzContentSHA256Mismatch',
  'IncompleteBody',
  'RequestTimeout',
  'InvalidDigest',
]);
const EXPIRED = new Set(['ExpiredToken', 'ExpiredTokenException', 'TokenRefreshRequired']);
const CREDENTIALS_REFUSED = new Set([
  'InvalidAccessKeyId',
  'SignatureDoesNotMatch',
  'InvalidToken',
  'InvalidClientTokenId',
]);
const NO_CREDENTIALS = new Set(['CredentialsProviderError', 'TokenProviderError']);
const WRONG_REGION = new Set([
  'PermanentRedirect',
  'AuthorizationHeaderMalformed',
  'IllegalLocationConstraintException',
]);
/** Two conditional writes at once, on servers that do not make one wait for the other. */
const CONFLICTS = new Set(['ConditionalRequestConflict', 'OperationAborted']);

export function judgeS3Error(error: unknown, context: S3ErrorContext): S3Judgement {
  const { action, location } = context;
  const name = textOf(error, 'name') ?? '';
  const status = statusOf(error);
  const where = formatS3Location(location);
  const final = (code: 'store-denied' | 'store-failed', message: string, cure: string): S3Judgement => ({
    kind: 'final',
    error: new HoneError(code, message, { cure, cause: error }),
  });
  if (NO_CREDENTIALS.has(name))
    return final(
      'store-denied',
      `Could not ${action} at ${where}: there are no credentials${whyNone(error)}.`,
      'Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role or a profile that may use the bucket.',
    );
  if (EXPIRED.has(name))
    return {
      kind: 'expired',
      error: new HoneError('store-denied', `Could not ${action} at ${where}: the credentials have expired.`, {
        cure: 'Get new ones and start again; a role or a profile renews them by itself, AWS_SESSION_TOKEN does not.',
        cause: error,
      }),
    };
  if (name === 'RequestTimeTooSkewed') {
    const theirs = headerOf(error, 'date');
    return final(
      'store-denied',
      `Could not ${action} at ${where}: the clock of this machine says ${new Date(context.now()).toISOString()}, the store's ${describeClock(theirs)}, which is too far apart.`,
      'Set the clock of the one that is wrong; keep it right with NTP.',
    );
  }
  if (CREDENTIALS_REFUSED.has(name))
    return final(
      'store-denied',
      `Could not ${action} at ${where}: the store does not accept the credentials (${name}).`,
      'Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN: all three must be of the same, living account.',
    );
  if (name === 'NoSuchBucket') return { kind: 'final', error: noSuchBucket(context, error) };
  if (WRONG_REGION.has(name) || status === 301 || status === 307) {
    const right = textOf(error, 'Region') ?? headerOf(error, 'x-amz-bucket-region');
    return final(
      'store-denied',
      `Could not ${action} at ${where}: bucket ${location.bucket} is in ${right === undefined ? 'another region' : `region ${right}`}, the location says ${location.region}.`,
      `Set region=${right ?? '…'} in the location.`,
    );
  }
  if (status === 404) return { kind: 'missing', isBucketThere: name === 'NoSuchKey' || name === 'NoSuchUpload' };
  if (status === 412) return { kind: 'refused' };
  if (status === 403 || status === 401)
    return final(
      'store-denied',
      `Could not ${action} at ${where}: the store denies it (${name}).`,
      'Grant the credentials s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and s3:ListBucket on the bucket.',
    );
  if (
    status === undefined ||
    // A good status with a body that cannot be read: it was cut off.
    status < 300 ||
    status >= 500 ||
    status === 408 ||
    status === 429 ||
    DAMAGED.has(name) ||
    CONFLICTS.has(name)
  )
    return status === 501
      ? final(
          'store-failed',
          `Could not ${action} at ${where}: the server does not know how to (${name}).`,
          'Use an S3 server with conditional writes and multipart uploads.',
        )
      : { kind: 'retry', reason: describe(error, { name, status }), atLeastMs: retryAfterMs(error, context.now) };
  return final(
    'store-failed',
    `Could not ${action} at ${where}: the server answers ${status} ${name}: ${reasonOf(error)}.`,
    'Check the endpoint and the bucket; the server may not be an S3 server, or refuse this kind of request.',
  );
}

/** A refusal that only a body could explain, and there was none. */
export function isWordless(error: unknown): boolean {
  const status = statusOf(error) ?? 0;
  return textOf(error, 'name') === 'Unknown' && status >= 400 && status < 500 && status !== 404 && status !== 412;
}

/** The server answered, in words. */
export function isServiceError(error: unknown): boolean {
  return statusOf(error) !== undefined && textOf(error, 'name') !== 'Unknown';
}

export function noSuchBucket({ action, location }: S3ErrorContext, cause: unknown): HoneError {
  return new HoneError(
    'store-failed',
    `Could not ${action} at ${formatS3Location(location)}: there is no bucket ${location.bucket} at ${location.endpoint ?? `region ${location.region}`}.`,
    { cure: 'Create the bucket, or mend the name, the region or the endpoint of the location.', cause },
  );
}

/** All tries are used up. */
export function s3Unavailable(
  { action, location }: S3ErrorContext,
  { reason, tries, elapsedMs, cause }: { reason: string; tries: number; elapsedMs: number; cause: unknown },
): HoneError {
  const seconds = (elapsedMs / 1000).toFixed(1);
  return new HoneError(
    'store-unavailable',
    `Could not ${action} at ${formatS3Location(location)}: ${reason} (${tries} ${tries === 1 ? 'try' : 'tries'} in ${seconds} s).`,
    {
      cure: `Check the network and ${location.endpoint ?? 'the state of the service'}; what was asked for may be asked for again.`,
      cause,
    },
  );
}

function describe(error: unknown, { name, status }: { name: string; status: number | undefined }): string {
  if (status !== undefined) return `the server answers ${status} ${name}`;
  // Several addresses that failed one by one come as one error without words.
  const inner = error instanceof AggregateError ? (error.errors as readonly unknown[])[0] : error;
  return reasonOf(inner) || name;
}

/** What a source of credentials says of itself, such as a login that ran out; nothing when there is no source at all. */
function whyNone(error: unknown): string {
  const reason = reasonOf(error).replace(/\.$/u, '');
  return reason.startsWith('Could not load credentials') ? '' : ` (${reason})`;
}

function describeClock(date: string | undefined): string {
  const time = date === undefined ? Number.NaN : Date.parse(date);
  return Number.isNaN(time) ? 'another time' : new Date(time).toISOString();
}

/** Seconds, or a date. */
function retryAfterMs(error: unknown, now: () => number): number {
  const text = headerOf(error, 'retry-after');
  if (text === undefined) return 0;
  const seconds = Number(text);
  const waitMs = Number.isNaN(seconds) ? Date.parse(text) - now() : seconds * 1000;
  return Number.isNaN(waitMs) ? 0 : Math.max(0, waitMs);
}

function statusOf(error: unknown): number | undefined {
  const status =
    fieldOf(fieldOf(error, '$metadata'), 'httpStatusCode') ?? fieldOf(fieldOf(error, '$response'), 'statusCode');
  return typeof status === 'number' ? status : undefined;
}

function headerOf(error: unknown, name: string): string | undefined {
  return textOf(fieldOf(fieldOf(error, '$response'), 'headers'), name);
}

function textOf(value: unknown, field: string): string | undefined {
  const found = fieldOf(value, field);
  return typeof found === 'string' && found !== '' ? found : undefined;
}

function fieldOf(value: unknown, field: string): unknown {
  return typeof value === 'object' && value !== null ? Reflect.get(value, field) : undefined;
}

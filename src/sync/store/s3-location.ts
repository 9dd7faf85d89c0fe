/** `s3://bucket/prefix?region=…&endpoint=…&pathStyle=true` as a value. A key that nothing reads is refused, and so are credentials. */
import { HoneError } from '../../domain/errors.ts';
import { checkStoreKey } from './weight-store.ts';

export interface S3Location {
  readonly bucket: string;
  /** Empty, or ends in a slash. */
  readonly prefix: string;
  readonly region: string;
  /** Undefined = Amazon's own for the region. */
  readonly endpoint: string | undefined;
  readonly isPathStyle: boolean;
}

export type Environment = Readonly<Record<string, string | undefined>>;

const QUERY_KEYS = ['region', 'endpoint', 'pathStyle'];

export function parseS3Location(text: string, environment: Environment): S3Location {
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw invalid(`${text} is not a location`, 'Write it as s3://bucket/prefix?region=eu-central-1.');
  }
  // From here on the text itself stays out of messages: it may hold credentials.
  if (url.username !== '' || url.password !== '')
    throw invalid(
      `The location s3://${url.hostname} holds credentials`,
      'Take them out; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead.',
    );
  const bucket = url.hostname;
  if (bucket === '')
    throw invalid(`${textOf(url)} names no bucket`, 'Write it as s3://bucket/prefix?region=eu-central-1.');
  if (!/^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/.test(bucket) || url.port !== '')
    throw invalid(
      `${JSON.stringify(url.host)} in ${textOf(url)} is not the name of a bucket`,
      'Write it as s3://bucket/prefix; use 3 to 63 small letters, digits, dots and hyphens; an endpoint goes into the query, as endpoint=https://….',
    );
  const path = url.pathname.replace(/^\/+|\/+$/g, '');
  if (path !== '') checkStoreKey(path);
  const unread = [...url.searchParams.keys()].filter((key) => !QUERY_KEYS.includes(key));
  if (unread.length > 0 || url.hash !== '')
    throw invalid(
      `The location s3://${bucket} has ${url.hash === '' ? unread.join(', ') : url.hash}, which nothing reads`,
      `Use ${QUERY_KEYS.join(', ')} only.`,
    );
  const endpoint =
    url.searchParams.get('endpoint') ?? environment['AWS_ENDPOINT_URL_S3'] ?? environment['AWS_ENDPOINT_URL'];
  if (endpoint !== undefined && !/^https?:\/\/[^/?#@]+\/?$/.test(endpoint))
    throw invalid(
      `The endpoint of s3://${bucket} is not the address of a server`,
      'Write it as https://host or http://host:port, without path and credentials.',
    );
  const region = url.searchParams.get('region') ?? environment['AWS_REGION'] ?? environment['AWS_DEFAULT_REGION'];
  if (region === undefined && endpoint === undefined)
    throw invalid(
      `The location s3://${bucket} names no region`,
      "Add ?region=eu-central-1, the bucket's own, or set AWS_REGION.",
    );
  const pathStyle = url.searchParams.get('pathStyle');
  if (pathStyle !== null && pathStyle !== 'true' && pathStyle !== 'false')
    throw invalid(`pathStyle of s3://${bucket} is ${JSON.stringify(pathStyle)}`, 'Set it to true or false.');
  return {
    bucket,
    prefix: path === '' ? '' : `${path}/`,
    // What servers that have no regions expect in a signature.
    region: region ?? 'us-east-1',
    endpoint,
    isPathStyle: pathStyle === 'true',
  };
}

/** What was written, less what may be secret: the query, and what a mistyped location has before an `@`. */
function textOf(url: URL): string {
  return url.href.replace(/[?#].*$/s, '').replace(/[^/]*@/g, '…@');
}

/** For messages: without query. */
export function formatS3Location({ bucket, prefix }: S3Location): string {
  return `s3://${bucket}/${prefix}`.replace(/\/$/, '');
}

function invalid(message: string, cure: string): HoneError {
  return new HoneError('invalid-config', `${message}.`, { cure });
}

/**
 * The names and the index of one version's directory: `<run>/weight_v000007/`, shaped like a Hugging Face checkpoint.
 * The pointer's text is that name. Invariants: text or an index that cannot be understood is an error, never a fall-back to
 * other weights; an index names nothing outside its directory. What other readers of the form do not know lies in its metadata,
 * where they skip it.
 */
import { z } from 'zod';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { policyVersion, type PolicyVersion } from '../domain/ids.ts';
import { findDuplicateKey } from '../tensor/json-keys.ts';
import type { ChecksumFormat, DeltaEncoding } from './delta/delta-codec.ts';

/** The one pointer of a store; its text names the newest version's directory. */
export const LATEST_POINTER = 'latest';

export const INDEX_FILE = 'model.safetensors.index.json';

/**
 * Which version of which run, and where. `attempt` counts from 0: when a killed publisher left other bytes under the plain name,
 * the same version is published under the next one (`weight_v000007-r1`), so that nothing is ever overwritten.
 */
export interface VersionIdentity {
  readonly runId: string;
  readonly version: PolicyVersion;
  readonly attempt: number;
}

export function formatIdentity({ runId, version, attempt }: VersionIdentity): string {
  return `${runId}/weight_v${String(version).padStart(6, '0')}${attempt === 0 ? '' : `-r${attempt}`}`;
}

/** Reads a pointer's text; `source` names it in the error. */
export function parseIdentity(text: string, source: string): VersionIdentity {
  const match = /^([A-Za-z0-9_][A-Za-z0-9._-]*)\/weight_v(\d{6,15})(?:-r([1-9]\d{0,5}))?$/.exec(text);
  const [, runId, version, attempt] = match ?? [];
  if (runId === undefined || version === undefined)
    throw new HoneError(
      'store-failed',
      `${source} holds ${JSON.stringify(text.slice(0, 80))}, which names no weight version.`,
      {
        cure: 'It must read like my-run/weight_v000007; restore it from a copy of the run folder.',
      },
    );
  return { runId, version: policyVersion(Number(version)), attempt: Number(attempt ?? 0) };
}

/** Digits of a checksum in hex. */
const CHECKSUM_DIGITS: Readonly<Record<ChecksumFormat, number>> = { 'xxh3-128': 32, adler32: 8 };
const ENCODINGS: readonly DeltaEncoding[] = ['sparse', 'xor', 'overwrite'];
const COMPRESSION = 'zstd';

const versionText = z.string().regex(/^\d{1,15}$/);
const fileName = z.string().regex(/^[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors$/);
const digest = z.string().regex(/^[0-9a-f]{32}$/);
const metadataSchema = z.object({
  version: versionText,
  base_version: versionText.optional(),
  base_directory: z.string().optional().describe('name of the base directory, when it is not the plain one'),
  base_image_checksum: digest.optional().describe('image checksum of the version that the delta was taken against'),
  delta_encoding: z.string().optional().describe('absent = a full anchor'),
  compression_format: z.string().optional(),
  checksum_format: z.string(),
  image_checksum: digest.optional().describe('over the checksums of all tensors of the new version'),
  publisher: z.string().optional().describe('of whoever wrote the index: no two write the same one'),
  published_at: z.iso.datetime().optional().describe('when the publisher wrote the index, by its own clock'),
  files: z
    .record(fileName, z.strictObject({ size_bytes: z.int().min(0), checksum: digest }))
    .optional()
    .describe('size and xxh3-128 of each whole weight file'),
});
const indexSchema = z.object({ metadata: metadataSchema, weight_map: z.looseObject({}) });

export interface StoredFile {
  readonly sizeBytes: number;
  /** xxh3-128 of the whole object. */
  readonly checksum: string;
}

export interface VersionIndex {
  readonly identity: VersionIdentity;
  /** Undefined = a full anchor. */
  readonly base?: VersionIdentity | undefined;
  /** Image checksum of the base, when the publisher wrote it down: proves the base before a byte is changed. */
  readonly baseImageChecksum?: string | undefined;
  /** Undefined = a full anchor: the files hold the tensors themselves. */
  readonly encoding: DeltaEncoding | undefined;
  readonly checksumFormat: ChecksumFormat;
  readonly imageChecksum?: string | undefined;
  /** Which file holds each stored tensor. */
  readonly weightMap: ReadonlyMap<string, string>;
  /** All files of the weight map, or nothing: other systems write none. */
  readonly files?: ReadonlyMap<string, StoredFile> | undefined;
  /** Who wrote it. As no two publishers write the same index, each knows which directories are its own. */
  readonly publisher?: string | undefined;
  readonly publishedAtMs?: number | undefined;
}

/** `totalBytes`: of the stored tensors, as in any index of this form. */
export function formatIndex(index: VersionIndex, totalBytes: number): Uint8Array {
  const { identity, base } = index;
  const metadata: z.input<typeof metadataSchema> & { total_size: number } = {
    total_size: totalBytes,
    version: String(identity.version).padStart(6, '0'),
    ...(base === undefined || index.encoding === undefined
      ? {}
      : {
          base_version: String(base.version).padStart(6, '0'),
          ...(base.attempt === 0 ? {} : { base_directory: directoryName(base) }),
          ...(index.baseImageChecksum === undefined ? {} : { base_image_checksum: index.baseImageChecksum }),
          delta_encoding: index.encoding,
          compression_format: COMPRESSION,
        }),
    checksum_format: index.checksumFormat,
    ...(index.imageChecksum === undefined ? {} : { image_checksum: index.imageChecksum }),
    ...(index.publisher === undefined ? {} : { publisher: index.publisher }),
    ...(index.publishedAtMs === undefined ? {} : { published_at: new Date(index.publishedAtMs).toISOString() }),
    ...(index.files === undefined
      ? {}
      : {
          files: Object.fromEntries(
            [...index.files].map(([name, { sizeBytes, checksum }]) => [name, { size_bytes: sizeBytes, checksum }]),
          ),
        }),
  };
  return Buffer.from(`${JSON.stringify({ metadata, weight_map: Object.fromEntries(index.weightMap) }, null, 2)}\n`);
}

/** Reads the index of the directory that `identity` names. Throws `store-failed` for anything that this reader does not know. */
export function parseIndex(bytes: Uint8Array, identity: VersionIdentity): VersionIndex {
  const source = `${formatIdentity(identity)}/${INDEX_FILE}`;
  const fail = (what: string, cause?: unknown): never => {
    throw new HoneError('store-failed', `${source} is not a usable version index: ${what}.`, {
      cure: 'Publish a full anchor, or restore the directory from a copy of the run folder.',
      cause,
    });
  };
  const { metadata, weight_map: weightMap } = readJson(bytes, fail);
  if (Number(metadata.version) !== identity.version) fail(`it says version ${metadata.version}`);
  const checksumFormat = metadata.checksum_format;
  if (!isChecksumFormat(checksumFormat))
    return fail(
      `its checksums are ${checksumFormat}, this reader checks ${Object.keys(CHECKSUM_DIGITS).join(' and ')}`,
    );
  const homes = new Map<string, string>();
  for (const [name, file] of Object.entries(weightMap)) {
    const checked = fileName.safeParse(file);
    if (!checked.success)
      return fail(
        `its weight_map places tensor ${name} in ${JSON.stringify(file)}, which is no safetensors file of its directory`,
      );
    homes.set(name, checked.data);
  }
  const files = metadata.files === undefined ? undefined : new Map<string, StoredFile>();
  for (const [name, { size_bytes: sizeBytes, checksum }] of Object.entries(metadata.files ?? {}))
    files?.set(name, { sizeBytes, checksum });
  if (files !== undefined) {
    const used = new Set(homes.values());
    for (const file of used) if (!files.has(file)) fail(`it tells no size of ${file}`);
    for (const file of files.keys()) if (!used.has(file)) fail(`it tells the size of ${file}, which holds no tensor`);
  }
  return {
    identity,
    ...readBase(metadata, identity, fail),
    checksumFormat,
    imageChecksum: metadata.image_checksum,
    weightMap: homes,
    files,
    publisher: metadata.publisher,
    publishedAtMs: metadata.published_at === undefined ? undefined : Date.parse(metadata.published_at),
  };
}

/** The checksum of one tensor as it stands in a file's metadata, in the form that the codec compares; undefined if it is none. */
export function parseChecksum(text: string | undefined, format: ChecksumFormat): string | undefined {
  const digits = CHECKSUM_DIGITS[format];
  if (text === undefined || text.length > digits || !/^[0-9a-fA-F]+$/.test(text)) return undefined;
  return text.toLowerCase().padStart(digits, '0');
}

type Fail = (what: string, cause?: unknown) => never;

function readJson(bytes: Uint8Array, fail: Fail): z.output<typeof indexSchema> {
  const text = Buffer.from(bytes).toString('utf8');
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    return fail(`it is not JSON (${reasonOf(error)})`, error);
  }
  const duplicate = findDuplicateKey(text);
  if (duplicate !== undefined) fail(`it has the key ${JSON.stringify(duplicate)} twice`);
  const checked = indexSchema.safeParse(parsed);
  return checked.success ? checked.data : fail(z.prettifyError(checked.error).replaceAll('\n', ' '), checked.error);
}

function readBase(
  metadata: z.output<typeof metadataSchema>,
  identity: VersionIdentity,
  fail: Fail,
): Pick<VersionIndex, 'base' | 'baseImageChecksum' | 'encoding'> {
  if (metadata.delta_encoding === undefined) return { base: undefined, encoding: undefined };
  const encoding = ENCODINGS.find((name) => name === metadata.delta_encoding);
  if (encoding === undefined)
    return fail(`its delta encoding is ${metadata.delta_encoding}, this reader knows ${ENCODINGS.join(', ')}`);
  if (metadata.compression_format !== COMPRESSION)
    fail(`its compression is ${metadata.compression_format ?? 'not named'}, this reader knows ${COMPRESSION}`);
  if (metadata.base_version === undefined) return fail('it is a delta without a base_version');
  const plain = { runId: identity.runId, version: policyVersion(Number(metadata.base_version)), attempt: 0 };
  const base =
    metadata.base_directory === undefined
      ? plain
      : parseIdentity(`${identity.runId}/${metadata.base_directory}`, formatIdentity(identity));
  if (base.version !== plain.version)
    fail(`its base directory ${metadata.base_directory} is not of version ${metadata.base_version}`);
  if (base.version >= identity.version) fail(`its base version ${metadata.base_version} is not older than itself`);
  return { base, baseImageChecksum: metadata.base_image_checksum, encoding };
}

function isChecksumFormat(text: string): text is ChecksumFormat {
  return Object.hasOwn(CHECKSUM_DIGITS, text);
}

function directoryName(identity: VersionIdentity): string {
  return formatIdentity(identity).slice(identity.runId.length + 1);
}

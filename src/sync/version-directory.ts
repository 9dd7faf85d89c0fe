/**
 * The names and the index of one version's directory: `<run>/weight_v000007/`, shaped like a Hugging Face checkpoint.
 * The pointer's text is that name. Invariant: text or an index that cannot be understood is an error, never a fall-back to
 * other weights.
 */
import { z } from 'zod';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { policyVersion, type PolicyVersion } from '../domain/ids.ts';

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

const versionText = z.string().regex(/^\d{1,15}$/);
const metadataSchema = z.object({
  version: versionText,
  base_version: versionText.optional(),
  base_directory: z.string().optional().describe('name of the base directory, when it is not the plain one'),
  delta_encoding: z.string().optional().describe('absent = a full anchor'),
  compression_format: z.string().optional(),
  checksum_format: z.string(),
  image_checksum: z.string().optional().describe('over the checksums of all tensors of the new version'),
});
const indexSchema = z.object({
  metadata: metadataSchema,
  weight_map: z.record(z.string(), z.string().regex(/^[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors$/)),
});

export interface VersionIndex {
  readonly identity: VersionIdentity;
  /** Undefined = a full anchor. */
  readonly base: VersionIdentity | undefined;
  readonly imageChecksum: string | undefined;
  /** Which file holds each stored tensor. */
  readonly weightMap: ReadonlyMap<string, string>;
}

export interface VersionFormat {
  readonly deltaEncoding: 'xor';
  readonly compressionFormat: 'zstd';
  readonly checksumFormat: string;
}

export function formatIndex(index: VersionIndex, format: VersionFormat, totalBytes: number): Uint8Array {
  const { identity, base } = index;
  const metadata: z.input<typeof metadataSchema> & { total_size: number } = {
    total_size: totalBytes,
    version: String(identity.version).padStart(6, '0'),
    ...(base === undefined
      ? {}
      : {
          base_version: String(base.version).padStart(6, '0'),
          ...(base.attempt === 0 ? {} : { base_directory: directoryName(base) }),
          delta_encoding: format.deltaEncoding,
          compression_format: format.compressionFormat,
        }),
    checksum_format: format.checksumFormat,
    ...(index.imageChecksum === undefined ? {} : { image_checksum: index.imageChecksum }),
  };
  return Buffer.from(`${JSON.stringify({ metadata, weight_map: Object.fromEntries(index.weightMap) }, null, 2)}\n`);
}

/** Reads the index of the directory that `identity` names; refuses encodings that this reader does not know. */
export function parseIndex(bytes: Uint8Array, identity: VersionIdentity, format: VersionFormat): VersionIndex {
  const source = `${formatIdentity(identity)}/${INDEX_FILE}`;
  const fail = (what: string, cause?: unknown): never => {
    throw new HoneError('store-failed', `${source} is not a usable version index: ${what}.`, {
      cure: 'Publish a full anchor, or restore the directory from a copy of the run folder.',
      cause,
    });
  };
  let parsed: unknown;
  try {
    parsed = JSON.parse(Buffer.from(bytes).toString('utf8'));
  } catch (error) {
    return fail(`it is not JSON (${reasonOf(error)})`, error);
  }
  const checked = indexSchema.safeParse(parsed);
  if (!checked.success) return fail(z.prettifyError(checked.error).replaceAll('\n', ' '), checked.error);
  const { metadata, weight_map: weightMap } = checked.data;
  if (Number(metadata.version) !== identity.version) fail(`it says version ${metadata.version}`);
  if (metadata.checksum_format !== format.checksumFormat)
    fail(`its checksums are ${metadata.checksum_format}, this reader checks ${format.checksumFormat}`);
  let base: VersionIdentity | undefined;
  if (metadata.delta_encoding !== undefined) {
    if (metadata.delta_encoding !== format.deltaEncoding)
      fail(`its delta encoding is ${metadata.delta_encoding}, this reader knows ${format.deltaEncoding}`);
    if (metadata.compression_format !== format.compressionFormat)
      fail(
        `its compression is ${metadata.compression_format ?? 'not named'}, this reader knows ${format.compressionFormat}`,
      );
    if (metadata.base_version === undefined) return fail('it is a delta without a base_version');
    const plain = { runId: identity.runId, version: policyVersion(Number(metadata.base_version)), attempt: 0 };
    base =
      metadata.base_directory === undefined
        ? plain
        : parseIdentity(`${identity.runId}/${metadata.base_directory}`, source);
    if (base.version !== plain.version)
      fail(`its base directory ${metadata.base_directory} is not of version ${metadata.base_version}`);
    if (base.version >= identity.version) fail(`its base version ${metadata.base_version} is not older than itself`);
  }
  return { identity, base, imageChecksum: metadata.image_checksum, weightMap: new Map(Object.entries(weightMap)) };
}

function directoryName(identity: VersionIdentity): string {
  return formatIdentity(identity).slice(identity.runId.length + 1);
}

/** `hone weights verify`: rebuilds versions from their bytes in the store and checks every checksum. */
import { createProgress } from './progress.ts';
import { formatBytes, printJson, readNamedStore, versionNamed, withCodec } from './weights-store.ts';
import type { OpenedStore } from './weights-store.ts';
import { HoneError } from '../domain/errors.ts';
import { policyVersion } from '../domain/ids.ts';
import { renderTextTable } from '../frontier/text-table.ts';
import { nothingPublished } from '../sync/choose-version.ts';
import type { TensorCodec } from '../sync/delta/delta-codec.ts';
import type { BootWeights } from '../sync/restore-version.ts';
import { verifyVersions, type VerifiedVersion } from '../sync/verify-version.ts';
import { planChain } from '../sync/version-chain.ts';
import { formatIdentity, type VersionIndex } from '../sync/version-directory.ts';
import { visibleVersions } from '../sync/version-listing.ts';
import { readModelPlaces } from '../tensor/hugging-face-folder.ts';

const BOOT_VERSION = policyVersion(0);

export async function verifyWeights(name: string, options: Record<string, unknown>): Promise<void> {
  if (options['all'] === true && options['version'] !== undefined)
    throw new HoneError('invalid-config', '--all and --version exclude each other.', {
      cure: 'Leave one of them out.',
    });
  const opened = await readNamedStore(name);
  const { store } = opened;
  const model = options['model'];
  const unreadable =
    options['all'] === true
      ? opened.listing.versions.flatMap(({ directory, problem }) =>
          problem === undefined ? [] : [{ kind: 'damaged' as const, directory, error: problem }],
        )
      : [];
  const progress = createProgress({ stream: process.stderr, now: () => performance.now() });
  const results = await withCodec(async ({ codec, cacheDirectory, signal }) => {
    const boot = typeof model === 'string' ? await readBoot(model, codec, signal) : undefined;
    const indexes = await indexesOf(opened, options, boot);
    if (indexes.length + unreadable.length === 0) throw nothingPublished(store.location);
    progress.phase(
      `verifying ${indexes.length === 1 ? '1 version' : `${indexes.length} versions`} of ${store.location}`,
    );
    const verified = await verifyVersions(store, indexes, {
      codec,
      cacheDirectory,
      boot,
      signal,
      onVersion: (index, done) => progress.update(done, indexes.length, formatIdentity(index.identity)),
    });
    progress.update(indexes.length, indexes.length, '');
    return verified;
  });
  progress.end();
  const places = new Map(opened.listing.versions.map(({ directory }, at) => [directory, at]));
  const placeOf = ({ directory }: VerifiedVersion): number => places.get(directory) ?? places.size;
  const ordered = [...unreadable, ...results].sort((left, right) => placeOf(left) - placeOf(right));
  report(ordered, { location: store.location, asJson: options['json'] === true });
}

function report(
  results: readonly VerifiedVersion[],
  { location, asJson }: { location: string; asJson: boolean },
): void {
  const bad = results.filter(({ kind }) => kind !== 'good');
  if (asJson)
    printJson({
      store: location,
      good: bad.length === 0,
      versions: results.map((result) =>
        result.kind === 'damaged' ? { ...result, error: result.error.message, code: result.error.code } : result,
      ),
    });
  else
    process.stdout.write(
      `${renderTextTable(
        ['VERSION', 'RESULT', 'CHECKSUM', 'BYTES READ'],
        results.map((result) => [
          result.directory,
          result.kind,
          result.kind === 'good' ? (result.imageChecksum ?? '-') : '-',
          result.kind === 'good' ? formatBytes(result.bytes) : '-',
        ]),
        { leftColumns: 3 },
      )}\n`,
    );
  const [first] = bad;
  if (first === undefined) return;
  const more = bad.length === 1 ? '' : ` ${bad.length - 1} more of ${results.length} versions cannot be trusted.`;
  if (first.kind === 'damaged')
    throw new HoneError(first.error.code, `${first.error.message}${more}`, {
      ...(first.error.cure === undefined ? {} : { cure: first.error.cure }),
      cause: first.error,
    });
  throw new HoneError(
    'delta-base-mismatch',
    `${first.directory} builds on ${first.kind === 'unprovable' ? first.needs : 'something'}, which cannot be rebuilt from ${location}.${more}`,
    { cure: 'If the run booted from a model that was never published, name it with --model.' },
  );
}

/** The versions to prove, bases first: all that were visible, or one with its chain. */
async function indexesOf(
  opened: OpenedStore,
  options: Record<string, unknown>,
  boot: BootWeights | undefined,
): Promise<VersionIndex[]> {
  const { store, listing, latest } = opened;
  if (options['all'] !== true)
    return planChain(
      store,
      versionNamed(opened, options['version']).identity,
      boot === undefined ? undefined : { version: boot.version },
    );
  const indexes: VersionIndex[] = [];
  for (const [runId, versions] of Map.groupBy(listing.versions, ({ identity }) => identity.runId))
    for (const { index } of visibleVersions(versions, runId === latest?.runId ? latest : undefined))
      if (index !== undefined) indexes.push(index);
  return indexes;
}

async function readBoot(model: string, codec: TensorCodec, signal: AbortSignal): Promise<BootWeights> {
  const tensors = await readModelPlaces(model);
  const checksums = new Map<string, string>();
  await Promise.all(
    [...tensors].map(async ([tensor, { place }]) => checksums.set(tensor, await codec.checksum(place, { signal }))),
  );
  return { version: BOOT_VERSION, tensors, checksums };
}

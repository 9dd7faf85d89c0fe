/** `hone weights show`: one version, its tensors, and the chain back to its anchor. */
import {
  formatBytes,
  formatShare,
  formatTime,
  modelBytes,
  printJson,
  readNamedStore,
  versionNamed,
} from './weights-store.ts';
import { HoneError } from '../domain/errors.ts';
import { renderTextTable } from '../frontier/text-table.ts';
import { describeTensors } from '../sync/describe-version.ts';
import { formatIdentity } from '../sync/version-directory.ts';
import type { ListedVersion } from '../sync/version-listing.ts';

/** Versions of a chain that are named on its line. */
const SHOWN_LINKS = 3;

export async function showWeights(name: string, text: unknown, options: Record<string, unknown>): Promise<void> {
  const opened = await readNamedStore(name);
  const { store, listing, latest } = opened;
  const version = versionNamed(opened, text);
  const { index, directory, sizeBytes } = version;
  const tensors = await describeTensors(store, index);
  const { links, gap } = chainOf(listing.versions, version);
  const full = modelBytes(listing.versions, version.identity);
  const kind = kindOf(version);
  const published = index.publishedAtMs ?? version.modifiedMs;
  if (options['json'] === true) {
    printJson({
      store: store.location,
      directory,
      version: version.identity.version,
      latest: latest !== undefined && formatIdentity(latest) === directory,
      kind,
      bytes: sizeBytes,
      share: full === undefined ? null : sizeBytes / full,
      publishedMs: published,
      publisher: index.publisher ?? null,
      imageChecksum: index.imageChecksum ?? null,
      checksumFormat: index.checksumFormat,
      chain: links.map((link) => ({ directory: link.directory, bytes: link.sizeBytes })),
      missing: gap ?? null,
      tensors,
    });
    return;
  }
  const lines = [
    `${directory}${latest !== undefined && formatIdentity(latest) === directory ? ' (newest)' : ''} in ${store.location}`,
    `  kind       ${kind}${index.base === undefined ? '' : `, on ${formatIdentity(index.base)}`}`,
    `  bytes      ${formatBytes(sizeBytes)}${full === undefined ? '' : `, ${formatShare(sizeBytes / full)} of the model`}`,
    `  published  ${formatTime(published)} UTC${index.publisher === undefined ? '' : ` by ${index.publisher}`}`,
    `  checksum   ${index.imageChecksum ?? 'not told'} (all tensors, ${index.checksumFormat})`,
    `  chain      ${describeChain(links, gap)}`,
    '',
  ];
  if (tensors.length === 0) lines.push('Nothing changed in this version: it has no weight file.');
  else
    lines.push(
      `${tensors.length} tensors ${index.base === undefined ? 'stored' : 'changed'}:`,
      '',
      renderTextTable(
        ['TENSOR', 'FILE', 'STORED AS', 'CHECKSUM', 'BYTES'],
        tensors.map(({ name: tensor, file, dtype, shape, checksum, storedBytes }) => [
          tensor,
          file,
          index.base === undefined ? `${dtype} [${shape.join(', ')}]` : kind,
          checksum ?? '-',
          formatBytes(storedBytes),
        ]),
        { leftColumns: 4 },
      ),
    );
  process.stdout.write(`${lines.join('\n')}\n`);
}

/** Oldest first; of a long chain its first and its last two, as the others are all alike. */
function describeChain(links: readonly ListedVersion[], gap: string | undefined): string {
  const names = links
    .map(
      (link, at) =>
        `${link.directory.slice(link.identity.runId.length + 1)}${at === links.length - 1 && gap === undefined ? ` (${kindOf(link)})` : ''}`,
    )
    .toReversed();
  if (gap !== undefined) names.unshift(`${gap}, which the store does not have,`);
  const shown =
    names.length <= SHOWN_LINKS ? names.join(' → ') : `${names[0]} … ${names.slice(1 - SHOWN_LINKS).join(' → ')}`;
  const bytes = links.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
  return `${shown}, ${links.length === 1 ? '1 version' : `${links.length} versions`}, ${formatBytes(bytes)} in all`;
}

function kindOf({ index }: ListedVersion): string {
  return index?.encoding ?? 'anchor';
}

/** From the version back to its anchor; `gap` is the first base that is not there. */
function chainOf(
  versions: readonly ListedVersion[],
  version: ListedVersion,
): { links: ListedVersion[]; gap: string | undefined } {
  const links: ListedVersion[] = [];
  for (let at: ListedVersion = version; ;) {
    if (links.includes(at))
      throw new HoneError('store-failed', `${version.directory} builds on itself, by way of ${at.directory}.`, {
        cure: 'Publish a full anchor; no reader can rebuild this version.',
      });
    links.push(at);
    if (at.index?.base === undefined) return { links, gap: undefined };
    const base = formatIdentity(at.index.base);
    const next = versions.find(({ directory }) => directory === base);
    if (next?.index === undefined) return { links, gap: base };
    at = next;
  }
}

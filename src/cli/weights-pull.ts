/** `hone weights pull` and `hone weights export`: a version as a folder, to be kept up to date or to be given away. */
import { createProgress } from './progress.ts';
import { formatBytes, printJson, readNamedStore, versionNamed, withCodec } from './weights-store.ts';
import { HoneError } from '../domain/errors.ts';
import { exportVersion } from '../sync/export-version.ts';
import { pullVersion, type PulledVersion, type PullOptions } from '../sync/pull-version.ts';
import type { WeightStore } from '../sync/store/weight-store.ts';
import { formatIdentity, type VersionIdentity } from '../sync/version-directory.ts';

export async function pullWeights(name: string, options: Record<string, unknown>): Promise<void> {
  const { pulled, out } = await bring(name, options, { verb: 'pulling', bringVersion: pullVersion });
  if (options['json'] === true) {
    printJson(resultOf(pulled, out));
    return;
  }
  const what =
    pulled.applied.length === 0
      ? 'nothing was missing'
      : `${pulled.applied.length} fetched, ${formatBytes(pulled.fetchedBytes)}`;
  process.stdout.write(
    `${out} holds ${formatIdentity(pulled.identity)}: ${what}; ${pulled.tensors} tensors, ${formatBytes(pulled.modelBytes)}, checksum ${pulled.imageChecksum}.\n`,
  );
}

export async function exportWeights(name: string, options: Record<string, unknown>): Promise<void> {
  const { pulled, out } = await bring(name, options, { verb: 'exporting', bringVersion: exportVersion });
  if (options['json'] === true) {
    printJson(resultOf(pulled, out));
    return;
  }
  process.stdout.write(
    `${formatIdentity(pulled.identity)} written to ${out}: ${pulled.tensors} tensors, ${formatBytes(pulled.modelBytes)}, checksum ${pulled.imageChecksum}.\n`,
  );
}

async function bring(
  name: string,
  options: Record<string, unknown>,
  {
    verb,
    bringVersion,
  }: {
    verb: string;
    bringVersion: (source: WeightStore, target: VersionIdentity, options: PullOptions) => Promise<PulledVersion>;
  },
): Promise<{ pulled: PulledVersion; out: string }> {
  const out = String(options['out']);
  if (out.trim() === '')
    throw new HoneError('invalid-config', '--out is empty, not a path.', { cure: 'Name the folder to write.' });
  const opened = await readNamedStore(name);
  const { identity } = versionNamed(opened, options['version']);
  const progress = createProgress({ stream: process.stderr, now: () => performance.now() });
  progress.phase(`${verb} ${formatIdentity(identity)} from ${opened.store.location}`);
  const pulled = await withCodec(({ codec, signal }) =>
    bringVersion(opened.store, identity, {
      directory: out,
      bootModel: String(options['model']),
      codec,
      signal,
      onProgress: ({ done, total, index, fetched }) =>
        progress.update(
          done,
          total,
          `${formatIdentity(index.identity)}${fetched.totalBytes === 0 ? '' : `, ${formatBytes(fetched.doneBytes)} of ${formatBytes(fetched.totalBytes)}`}`,
        ),
    }),
  );
  progress.end();
  return { pulled, out };
}

function resultOf(pulled: PulledVersion, out: string): unknown {
  const { identity, applied, ...rest } = pulled;
  return { out, version: formatIdentity(identity), fetched: applied.map(formatIdentity), ...rest };
}

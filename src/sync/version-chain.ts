/**
 * Rebuilds a published version: walks back from it to what is already at hand or to a full anchor, then decodes forward.
 * Invariant: a chain starts at an anchor or at exactly the local version; a gap is an error, never bridged. Publisher and replica
 * both come here, so they agree on what a version is.
 */
import { HoneError } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import { decodeVersion } from './delta.ts';
import {
  formatIdentity,
  INDEX_FILE,
  parseIndex,
  type VersionIdentity,
  type VersionIndex,
} from './version-directory.ts';
import { imageChecksum, type WeightImage } from './weight-image.ts';
import type { WeightStore } from './store/weight-store.ts';

export interface LocalVersion {
  readonly version: PolicyVersion;
  readonly image: WeightImage;
}

/** The image of `target`, every checksum verified. `local` is not changed. */
export async function loadVersion(
  store: WeightStore,
  target: VersionIdentity,
  local: LocalVersion,
): Promise<WeightImage> {
  if (target.version === local.version) {
    const index = await readIndex(store, target);
    if (index.imageChecksum !== undefined && index.imageChecksum !== imageChecksum(local.image))
      throw new HoneError(
        'checksum-mismatch',
        `The weights at hand are not those that were published as ${formatIdentity(target)}.`,
        {
          cure: 'Load the model folder or checkpoint that the run booted from.',
        },
      );
    return local.image;
  }
  let image: WeightImage | undefined = local.image;
  for (const index of await planChain(store, target, local.version))
    image = await decodeVersion(index, {
      previous: image,
      readFile: (name) => readObject(store, `${formatIdentity(index.identity)}/${name}`),
    });
  return image;
}

/** The versions to decode, oldest first: from the newest anchor at or below the target, or from the one after `localVersion`. */
async function planChain(
  store: WeightStore,
  target: VersionIdentity,
  localVersion: PolicyVersion,
): Promise<VersionIndex[]> {
  const chain: VersionIndex[] = [];
  for (let identity = target; ;) {
    const index = await readIndex(store, identity);
    chain.push(index);
    if (index.base === undefined || index.base.version === localVersion) return chain.reverse();
    if (index.base.version < localVersion)
      throw new HoneError(
        'delta-base-mismatch',
        `Version ${target.version} of ${target.runId} builds on version ${index.base.version}, local is ${localVersion}, and no full anchor lies between.`,
        { cure: 'Start the replica from the base model that the run booted from, or publish a full anchor.' },
      );
    identity = index.base;
  }
}

async function readIndex(store: WeightStore, identity: VersionIdentity): Promise<VersionIndex> {
  return parseIndex(await readObject(store, `${formatIdentity(identity)}/${INDEX_FILE}`), identity);
}

async function readObject(store: WeightStore, key: string): Promise<Uint8Array> {
  const bytes = await store.getObject(key);
  if (bytes !== undefined) return bytes;
  throw new HoneError('store-failed', `The weight store has no ${key}, which a published version needs.`, {
    cure: 'Restore it from a copy of the run folder; versions may be pruned only behind a newer full anchor.',
  });
}

/**
 * What goes along with the announcement of a version: facts of all that it needs, and the bytes where they are few, so that members of
 * a small model ask for nothing. Invariant: it never holds an announcement up for long; what cannot be had now is left to the
 * members' own reads.
 */
import { readWhole } from '../store/weight-store.ts';
import { formatIdentity, INDEX_FILE, type VersionIndex } from '../version-directory.ts';
import type { CarriedObject } from './cluster-protocol.ts';
import type { RelayedObjects } from './relayed-objects.ts';

/** Bytes of small objects that go with an announcement to each member, and to all members together. */
const MOST_BYTES = 256 * 1024;
const MOST_BYTES_TO_ALL = 16 * 2 ** 20;
const MOST_OBJECTS = 64;
/** A store that takes longer for a small object does not hold up the announcement. */
const TIMEOUT_MS = 2_000;

export async function carriedObjects(
  index: VersionIndex,
  context: { readonly objects: RelayedObjects; readonly memberCount: number; readonly signal: AbortSignal },
): Promise<CarriedObject[]> {
  const { objects } = context;
  const version = formatIdentity(index.identity);
  const files = [INDEX_FILE, ...new Set(index.weightMap.values())].slice(0, MOST_OBJECTS);
  const signal = AbortSignal.any([context.signal, AbortSignal.timeout(TIMEOUT_MS)]);
  let leftBytes = Math.min(MOST_BYTES, MOST_BYTES_TO_ALL / Math.max(1, context.memberCount));
  const carried = files.map(async (file): Promise<CarriedObject[]> => {
    const key = `${version}/${file}`;
    const facts = await objects.facts(key, signal).catch(() => undefined);
    if (facts === undefined) return [];
    const known = { ...facts, checksum: facts.checksum ?? null };
    if (facts.sizeBytes === 0 || facts.sizeBytes > leftBytes) return [known];
    leftBytes -= facts.sizeBytes;
    try {
      const [bytes] = await Promise.all([readWhole(objects, key, { signal }), objects.fetch(key, signal)]);
      return bytes === undefined ? [known] : [{ ...known, base64: Buffer.from(bytes).toString('base64') }];
    } catch {
      return [known];
    }
  });
  return (await Promise.all(carried)).flat();
}

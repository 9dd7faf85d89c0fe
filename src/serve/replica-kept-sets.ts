/**
 * Kept sets of a reply as side data of the weight store: one object a reply, its rows in the kept-set code, so that whole
 * vocabularies stay small. Invariant: what is loaded has the rows that were sampled from, in the order of the tokens.
 */
import { HoneError } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { KeptSets } from '../domain/rollout.ts';
import type { SideDataKey, SideDataStore } from '../sync/side-data.ts';
import { decodeKeptRows } from './wire/kept-set-code.ts';

const ARRAY = 'kept_rows';

/** `coded`: rows in the kept-set code, as replies carry them. Returns the object's key. */
export async function storeKeptSets(
  sideData: Pick<SideDataStore, 'put'>,
  { version, coded, signal }: { version: PolicyVersion; coded: Uint8Array; signal?: AbortSignal },
): Promise<SideDataKey> {
  const arrays = new Map([[ARRAY, { values: coded, shape: [coded.length] }]]);
  return sideData.put(version, arrays, signal === undefined ? {} : { signal });
}

/** The kept sets of the reply that named this object. Throws `checksum-mismatch` when it does not have a row for each token. */
export async function loadKeptSets(
  sideData: Pick<SideDataStore, 'get'>,
  { key, tokens, signal }: { key: SideDataKey; tokens: number; signal?: AbortSignal },
): Promise<KeptSets> {
  const coded = (await sideData.get(key, signal === undefined ? {} : { signal }))?.get(ARRAY)?.values;
  if (!(coded instanceof Uint8Array))
    throw new HoneError('store-failed', `The store has no kept sets at ${key}.`, {
      cure: 'Drop the rollout, or keep side data for longer before it is pruned.',
    });
  const rows = decodeKeptRows(coded);
  if (rows.length !== tokens)
    throw new HoneError('checksum-mismatch', `${key} has ${rows.length} kept sets for ${tokens} tokens.`, {
      cure: 'Drop the rollout; it can only be sampled again.',
    });
  const offsets = new Int32Array(rows.length + 1);
  for (const [index, row] of rows.entries()) offsets[index + 1] = (offsets[index] ?? 0) + row.length;
  const ids = new Int32Array(offsets[rows.length] ?? 0);
  for (const [index, row] of rows.entries()) ids.set(row, offsets[index]);
  return { ids, offsets };
}

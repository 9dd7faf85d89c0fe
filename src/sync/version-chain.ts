/**
 * Which versions must be applied, in which order, to come from what is held to a published version: walks back along the bases,
 * index by index, and reads no weights. Invariant: a chain starts at a full anchor or at exactly the held version; a gap is an error
 * that names both of its sides, never bridged. Publisher, replica and tools come here, so they agree on what a version is.
 */
import { HoneError } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import { readWhole, type CallOptions, type ObjectSource } from './store/weight-store.ts';
import {
  formatIdentity,
  INDEX_FILE,
  parseIndex,
  type VersionIdentity,
  type VersionIndex,
} from './version-directory.ts';

/** Far more than any sensible distance between two anchors: a longer walk means that something else is wrong. */
const MAX_LINKS = 256;
/** The header of one safetensors file may be as large; an index of a model of any size is smaller. */
const MAX_INDEX_BYTES = 100_000_000;

export interface HeldIdentity {
  /** Undefined = the model that every run of it booted from. */
  readonly runId?: string | undefined;
  readonly version: PolicyVersion;
}

export interface ChainOptions extends CallOptions {
  /** A chain of more versions is refused. */
  readonly maxLinks?: number;
}

/**
 * The versions to apply, oldest first: from the newest anchor at or before `target`, or from the one after `held`; none when
 * `held` is the target. Throws `delta-base-mismatch` when neither is reached, naming the gap.
 */
export async function planChain(
  source: ObjectSource,
  target: VersionIdentity,
  held: HeldIdentity | undefined,
  options: ChainOptions = {},
): Promise<VersionIndex[]> {
  const { maxLinks = MAX_LINKS } = options;
  const isHeld = ({ runId, version }: VersionIdentity): boolean =>
    held !== undefined && held.version === version && (held.runId === undefined || held.runId === runId);
  if (held?.runId !== undefined && isHeld(target)) return [];
  const chain: VersionIndex[] = [];
  for (let identity = target; ;) {
    const bytes = await readIndexBytes(source, identity, options);
    const newer = chain.at(-1);
    if (bytes === undefined) throw newer === undefined ? missingIndex(identity) : gap(target, newer, identity, held);
    const index = parseIndex(bytes, identity);
    chain.push(index);
    if (index.base === undefined || isHeld(index.base)) return chain.reverse();
    if (chain.length >= maxLinks)
      throw new HoneError(
        'delta-base-mismatch',
        `${formatIdentity(target)} builds on more than ${maxLinks} versions: none back to ${formatIdentity(index.base)} is a full anchor.`,
        { cure: 'Publish a full anchor, and more often: weights.anchorEvery says how often.' },
      );
    identity = index.base;
  }
}

/** The index of one version. Throws `store-failed` when the store has none. */
export async function readIndex(
  source: Pick<ObjectSource, 'readObject'>,
  identity: VersionIdentity,
  options: CallOptions = {},
): Promise<VersionIndex> {
  const bytes = await readIndexBytes(source, identity, options);
  if (bytes === undefined) throw missingIndex(identity);
  return parseIndex(bytes, identity);
}

/** The text of an index, undefined when there is none; one that is larger than any index is refused before it fills the memory. */
export async function readIndexBytes(
  source: Pick<ObjectSource, 'readObject'>,
  identity: VersionIdentity,
  options: CallOptions,
): Promise<Uint8Array | undefined> {
  const { signal } = options;
  return readWhole(source, indexKey(identity), {
    maxBytes: MAX_INDEX_BYTES,
    ...(signal === undefined ? {} : { signal }),
  });
}

function indexKey(identity: VersionIdentity): string {
  return `${formatIdentity(identity)}/${INDEX_FILE}`;
}

function missingIndex(identity: VersionIdentity): HoneError {
  return new HoneError('store-failed', `The weight store has no ${indexKey(identity)}.`, {
    cure: 'Restore it from a copy of the store; versions may be pruned only behind a newer full anchor.',
  });
}

function gap(
  target: VersionIdentity,
  newer: VersionIndex,
  missing: VersionIdentity,
  held: HeldIdentity | undefined,
): HoneError {
  const atHand =
    held === undefined ? 'nothing usable is held here' : `held here is version ${held.version} of ${nameRun(held)}`;
  return new HoneError(
    'delta-base-mismatch',
    `${formatIdentity(target)} cannot be rebuilt: ${formatIdentity(newer.identity)} builds on ${formatIdentity(missing)}, which the store does not have; ${atHand}.`,
    { cure: 'Publish a full anchor, or start from the base model or version that the chain begins with.' },
  );
}

function nameRun({ runId }: HeldIdentity): string {
  return runId === undefined ? 'the boot model' : `run ${runId}`;
}

/**
 * Brings one object to a member through the tree: from its parent, from another one when that dies, stalls or sends damaged chunks, in the
 * end from the controller itself; each time from the first missing chunk on. Invariants: ends with the object proven, or throws after
 * `patienceMs` without a new chunk; a parent that failed is told to the controller and not asked again for this object.
 */
import { setTimeout as delay } from 'node:timers/promises';

import { HoneError } from '../../domain/errors.ts';
import { receiveChunks, type ReceiveOptions } from './chunk-receiving.ts';
import type { ParentReport } from './cluster-protocol.ts';
import type { RelayObject } from './object-relay.ts';

export interface TreeSource {
  /** Null = the controller. */
  readonly id: string | null;
  readonly url: string;
}

export interface TreeFetchOptions extends Omit<ReceiveOptions, 'url' | 'onChunk'> {
  /** The parent of now; the controller where there is none. */
  readonly parent: () => TreeSource;
  readonly controller: TreeSource;
  /** Tells the controller of a parent's failure; resolves when a new parent is known, or the controller cannot be reached. */
  readonly report: (report: ParentReport) => Promise<void>;
  /** Digests of all chunks, once the controller has proven the whole. */
  readonly provenDigests: (key: string, signal: AbortSignal) => Promise<readonly string[] | undefined>;
  /** Longest time without a new chunk, whatever is tried. */
  readonly patienceMs: number;
  /** Uniform in [0, 1): the jitter between tries. */
  readonly random: () => number;
  readonly onSource: (source: TreeSource | undefined) => void;
  readonly onChunk: (source: TreeSource, sizeBytes: number, hopMs: number) => void;
  readonly onFault: (source: TreeSource, report: Omit<ParentReport, 'parent'> & { readonly reason: string }) => void;
}

const FIRST_RETRY_MS = 50;
const LAST_RETRY_MS = 2_000;
/** Times that a whole object may turn out wrong although every chunk fitted its digest. */
const ROUNDS = 4;

export async function fetchThroughTree(object: RelayObject, options: TreeFetchOptions): Promise<void> {
  await object.leftoverChecked;
  const sentBy = new Map<number, TreeSource>();
  try {
    for (let round = 0; round < ROUNDS; round++) {
      await fetchMissing(object, options, sentBy);
      if (await prove(object, options, sentBy)) return;
    }
  } finally {
    options.onSource(undefined);
  }
  throw new HoneError('checksum-mismatch', `${object.facts.key} came with wrong bytes ${ROUNDS} times.`, {
    cure: 'See which members the controller names in its chunk-damaged events, and replace them.',
  });
}

async function fetchMissing(
  object: RelayObject,
  options: TreeFetchOptions,
  sentBy: Map<number, TreeSource>,
): Promise<void> {
  const { parent, controller, report, patienceMs, random, now, signal, onSource, onChunk, onFault } = options;
  const { key } = object.facts;
  const failed = new Set<string | null>();
  let idleSinceMs = now();
  let retries = 0;
  for (;;) {
    const run = object.missingRun();
    if (run === undefined) return;
    signal.throwIfAborted();
    const assigned = parent();
    const source = failed.has(assigned.id) ? controller : assigned;
    onSource(source);
    const outcome = await receiveChunks(object, run, {
      ...options,
      url: source.url,
      onChunk: (chunk, sizeBytes, hopMs) => {
        idleSinceMs = now();
        retries = 0;
        sentBy.set(chunk, source);
        onChunk(source, sizeBytes, hopMs);
      },
    });
    if (outcome.kind === 'received') continue;
    const { fault, chunk, reason } = outcome;
    onFault(source, { fault, key, chunk, reason });
    if (now() - idleSinceMs > patienceMs)
      throw new HoneError(
        'store-unavailable',
        `${key}: no chunk came for ${Math.round(patienceMs / 1000)} s; last, ${source.url} failed: ${reason}.`,
        {
          cure: 'See whether the controller runs and reaches the weight store; the next try goes on from the chunks that are here.',
        },
      );
    if (source.id === null) {
      // Nobody is left above the controller: wait for it, and let parents have another chance.
      failed.clear();
      const waitMs = random() * Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** retries);
      retries += 1;
      await delay(waitMs, undefined, { signal }).catch(() => signal.throwIfAborted());
    } else {
      failed.add(source.id);
      await report({ parent: source.id, fault, key, chunk });
    }
  }
}

/** Proves the whole; when it is not what it should be, the controller's digests tell which chunks are wrong, and who sent them. */
async function prove(
  object: RelayObject,
  options: TreeFetchOptions,
  sentBy: ReadonlyMap<number, TreeSource>,
): Promise<boolean> {
  const { facts } = object;
  if (facts.checksum !== undefined) {
    const verdict = await object.seal();
    if (verdict === 'complete') return true;
    if (verdict === 'missing') return false;
  }
  const digests = await options.provenDigests(facts.key, options.signal);
  if (digests?.length !== object.chunkCount)
    throw new HoneError('store-unavailable', `The controller has no digests of ${facts.key}.`, {
      cure: 'See why it cannot fetch the object itself.',
    });
  for (const chunk of object.adoptProvenDigests(digests)) {
    const source = sentBy.get(chunk);
    if (source === undefined) continue;
    const reason = `chunk ${chunk} has another digest than the controller proved`;
    options.onFault(source, { fault: 'damaged', key: facts.key, chunk, reason });
    if (source.id !== null) await options.report({ parent: source.id, fault: 'damaged', key: facts.key, chunk });
  }
  return (await object.seal()) === 'complete';
}

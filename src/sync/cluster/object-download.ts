/**
 * Brings one object from the weight store into the cluster, once: the missing chunks in ranged parts, several at a time and in ascending
 * order, so that readers can follow from the first chunk on. What is there already is not read again. Invariant: ends with the
 * object proven, or throws; bytes that turn out not to be the object's are read once more and compared chunk by chunk.
 */
import { HoneError } from '../../domain/errors.ts';
import { Deadline } from '../deadline.ts';
import type { ObjectSource } from '../store/weight-store.ts';
import { CHUNK_BYTES, chunkDigest, chunkSizeOf } from './chunk-digest.ts';
import { ChunkMemory } from './chunk-memory.ts';
import type { RelayObject } from './object-relay.ts';

export interface DownloadOptions {
  readonly source: Pick<ObjectSource, 'readObject'>;
  readonly signal: AbortSignal;
  readonly partChunks?: number;
  readonly parallelParts?: number;
  /** Longest time without a byte from the store. */
  readonly stallMs?: number;
  readonly onBytes?: (sizeBytes: number) => void;
}

/** Downloads of one object in all, before its bytes count as damaged in the store. */
const ROUNDS = 3;
/** Tries of one part that made no progress. */
const PART_TRIES = 3;
const STALL_MS = 60_000;

export async function downloadObject(object: RelayObject, options: DownloadOptions): Promise<void> {
  await object.leftoverChecked;
  for (let round = 1; ; round++) {
    await downloadMissing(object, options);
    const verdict = await object.seal();
    if (verdict === 'complete') return;
    options.signal.throwIfAborted();
    if (round === ROUNDS)
      throw new HoneError(
        'checksum-mismatch',
        `${object.facts.key} has other bytes in the weight store than its version's index says.`,
        { cure: 'Publish a full anchor, or restore the object from a copy of the run folder.' },
      );
    // Which chunks are wrong is unknown: all are read again.
    if (verdict === 'mismatch') object.drop(Array(object.chunkCount).keys());
  }
}

async function downloadMissing(object: RelayObject, options: DownloadOptions): Promise<void> {
  const { partChunks = 8, parallelParts = 4 } = options;
  const stop = new AbortController();
  const signal = AbortSignal.any([options.signal, stop.signal]);
  let next = 0;
  const takePart = (): { start: number; end: number } | undefined => {
    const part = object.missingRun(next, partChunks);
    if (part !== undefined) next = part.end;
    return part;
  };
  const work = async (): Promise<void> => {
    for (let part = takePart(); part !== undefined; part = takePart())
      await downloadPart(object, part, { ...options, signal });
  };
  const workers = Array.from({ length: parallelParts }, async () => {
    try {
      await work();
    } catch (error) {
      stop.abort(error);
      throw error;
    }
  });
  const results = await Promise.allSettled(workers);
  options.signal.throwIfAborted();
  // The first one to fail stopped the others.
  if (stop.signal.aborted) throw stop.signal.reason;
  for (const result of results) if (result.status === 'rejected') throw result.reason;
}

async function downloadPart(
  object: RelayObject,
  part: { start: number; end: number },
  options: DownloadOptions,
): Promise<void> {
  const { sizeBytes } = object.facts;
  let at = part.start;
  for (let tries = 0; at < part.end;) {
    const before = at;
    try {
      for await (const memory of readChunks(object, { start: at, end: part.end }, options)) {
        await object.write(at, { memory, digest: chunkDigest(memory.bytes) });
        options.onBytes?.(memory.bytes.byteLength);
        memory.release();
        at += 1;
      }
      if (at < part.end)
        throw new HoneError(
          'store-unavailable',
          `${object.facts.key} ended after ${at} of ${Math.ceil(sizeBytes / CHUNK_BYTES)} chunks.`,
        );
    } catch (error) {
      options.signal.throwIfAborted();
      tries = at > before ? 1 : tries + 1;
      const isFinal = error instanceof HoneError && (error.code === 'store-denied' || error.code === 'store-failed');
      if (isFinal || tries >= PART_TRIES) throw error;
    }
  }
}

/** The store's bytes cut into chunks; a shorter stream ends early, and its last piece is not given out. */
async function* readChunks(
  object: RelayObject,
  run: { start: number; end: number },
  { source, signal, stallMs = STALL_MS }: DownloadOptions,
): AsyncGenerator<ChunkMemory> {
  const { key, sizeBytes } = object.facts;
  using stall = new Deadline({
    signal,
    limitMs: stallMs,
    expired: () =>
      new HoneError('store-unavailable', `${key}: the weight store sent nothing for ${stallMs / 1000} s.`, {
        cure: 'Check the link to the weight store; the next try goes on from the chunks that are here.',
      }),
  });
  const range = { start: run.start * CHUNK_BYTES, end: Math.min(sizeBytes, run.end * CHUNK_BYTES) };
  const stream = await stall.race(source.readObject(key, { range, signal: stall.signal }));
  if (stream === undefined)
    throw new HoneError('store-failed', `The weight store has no ${key}, which a published version needs.`, {
      cure: 'Restore it from a copy of the run folder; versions may be pruned only behind a newer full anchor.',
    });
  const iterator = stream[Symbol.asyncIterator]();
  let chunk = run.start;
  let body = ChunkMemory.take(chunkSizeOf(sizeBytes, chunk));
  let filled = 0;
  try {
    for (let step = await stall.race(iterator.next()); step.done !== true; step = await stall.race(iterator.next())) {
      stall.touch();
      const bytes = step.value;
      for (let at = 0; at < bytes.byteLength && chunk < run.end;) {
        const end = Math.min(bytes.byteLength, at + body.bytes.byteLength - filled);
        body.bytes.set(bytes.subarray(at, end), filled);
        filled += end - at;
        at = end;
        if (filled < body.bytes.byteLength) continue;
        yield body;
        stall.touch();
        chunk += 1;
        if (chunk < run.end) body = ChunkMemory.take(chunkSizeOf(sizeBytes, chunk));
        filled = 0;
      }
    }
  } finally {
    // A stream that hangs must not hold this up; it was told by the signal.
    void Promise.resolve(iterator.return?.()).catch(() => undefined);
  }
}

/**
 * Reads an object through the relay as the ObjectSource port has it: a range of bytes, in order, while the object still grows.
 * Invariant: the object is held from the first chunk asked for until the reader ends, so it cannot be removed under a reader.
 */
import { HoneError } from '../../domain/errors.ts';
import type { ByteRange } from '../store/weight-store.ts';
import { CHUNK_BYTES } from './chunk-digest.ts';
import type { ObjectFacts, RelayObject } from './object-relay.ts';

export interface ReadRelayedOptions {
  readonly signal: AbortSignal;
  readonly use: () => Promise<RelayObject>;
  readonly release: (object: RelayObject) => Promise<void>;
}

/** Throws `store-failed` for a range that passes the end. */
export function readRelayed(
  facts: ObjectFacts,
  range: ByteRange | undefined,
  options: ReadRelayedOptions,
): AsyncIterable<Uint8Array> {
  const { start, end } = range ?? { start: 0, end: facts.sizeBytes };
  if (!(Number.isSafeInteger(start) && start >= 0 && start <= end && end <= facts.sizeBytes))
    throw new HoneError(
      'store-failed',
      `Bytes ${start} to ${end} of ${facts.key} do not exist: it has ${facts.sizeBytes}.`,
      {
        cure: 'Read within the size that the version index names.',
      },
    );
  return follow({ start, end }, options);
}

async function* follow(
  { start, end }: ByteRange,
  { signal, use, release }: ReadRelayedOptions,
): AsyncGenerator<Uint8Array> {
  if (start === end) return;
  const object = await use();
  try {
    for await (const part of object.follow(Math.floor(start / CHUNK_BYTES), Math.ceil(end / CHUNK_BYTES), signal)) {
      if (part.kind === 'alive') continue;
      const first = part.chunk * CHUNK_BYTES;
      // Never released: a reader may keep the bytes for as long as it likes.
      const { bytes } = part.memory;
      yield bytes.subarray(Math.max(0, start - first), Math.min(bytes.byteLength, end - first));
    }
  } finally {
    await release(object);
  }
}

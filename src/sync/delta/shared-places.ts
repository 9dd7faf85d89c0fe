/**
 * Gets a job's memory places ready for another thread. Bytes in a SharedArrayBuffer pass as they are; others are copied into
 * one, exactly the bytes of the view, and what the job wrote is copied back. Invariant: `from` and `to` that were the same bytes
 * stay the same bytes.
 */
import type { BytePlace, TensorPlace } from '../tensor-place.ts';
import type { CodecJob } from './codec-messages.ts';

export interface SharedJob {
  readonly job: CodecJob;
  /** Copies what was written to where the caller looks; to be called when the job has succeeded. */
  bringBack(): void;
}

export function shareJob(job: CodecJob): SharedJob {
  const places = new Sharing();
  switch (job.kind) {
    case 'encode': {
      const { old, next } = job.job;
      return places.job({ kind: 'encode', job: { ...job.job, old: places.tensor(old), next: places.tensor(next) } });
    }
    case 'apply': {
      const { blob, from, to } = job.job;
      const shared = { ...job.job, blob: places.share(blob), from: places.tensor(from), to: places.tensor(to) };
      places.writes(to.place);
      return places.job({ kind: 'apply', job: shared });
    }
    case 'copy': {
      const { from, to } = job.job;
      const shared = { ...job.job, from: places.share(from), to: places.share(to) };
      places.writes(to);
      return places.job({ kind: 'copy', job: shared });
    }
    case 'checksum':
      return places.job({ ...job, place: places.share(job.place) });
    default:
      return job satisfies never;
  }
}

class Sharing {
  readonly #copies: { readonly bytes: Uint8Array; readonly shared: Uint8Array }[] = [];
  #written: Uint8Array | undefined;

  share(place: BytePlace): BytePlace {
    if (place.kind === 'file') return place;
    const { bytes } = place;
    if (bytes.buffer instanceof SharedArrayBuffer)
      // A plain view: a Buffer would lose its offset on the way.
      return { kind: 'memory', bytes: new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength) };
    return { kind: 'memory', bytes: this.#copyOf(bytes) ?? this.#copy(bytes) };
  }

  tensor(tensor: TensorPlace): TensorPlace {
    return { dtype: tensor.dtype, shape: tensor.shape, place: this.share(tensor.place) };
  }

  writes(place: BytePlace): void {
    if (place.kind === 'memory') this.#written = place.bytes;
  }

  job(job: CodecJob): SharedJob {
    return {
      job,
      bringBack: () => {
        const shared = this.#written === undefined ? undefined : this.#copyOf(this.#written);
        if (shared !== undefined) this.#written?.set(shared);
      },
    };
  }

  #copy(bytes: Uint8Array): Uint8Array {
    const shared = new Uint8Array(new SharedArrayBuffer(bytes.byteLength));
    shared.set(bytes);
    this.#copies.push({ bytes, shared });
    return shared;
  }

  #copyOf(bytes: Uint8Array): Uint8Array | undefined {
    return this.#copies.find(
      (copy) =>
        copy.bytes.buffer === bytes.buffer &&
        copy.bytes.byteOffset === bytes.byteOffset &&
        copy.bytes.byteLength === bytes.byteLength,
    )?.shared;
  }
}

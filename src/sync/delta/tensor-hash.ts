/**
 * The checksum of a tensor's new bytes while they pass, chunk by chunk, and the copy and check of a whole place.
 * Invariant: the digest does not depend on how the bytes were cut into chunks.
 */
import { HoneError } from '../../domain/errors.ts';
import { placeSizeBytes, type BytePlace } from '../tensor-place.ts';
import type { ChecksumFormat } from './delta-codec.ts';
import { CHUNK_BYTES, type DeltaKernels } from './delta-kernels.ts';
import { OpenPlace } from './open-place.ts';

/** Throws once the job's owner has given it up; called between chunks. */
export type AbortCheck = () => void;

/** The checksum in one format over chunks that lie in the kernels' memory. One at a time a thread. */
export class TensorHash {
  readonly #kernels: DeltaKernels;
  readonly #format: ChecksumFormat;
  #adler = 1;

  constructor(kernels: DeltaKernels, format: ChecksumFormat) {
    this.#kernels = kernels;
    this.#format = format;
    kernels.resetHash('tensor');
  }

  add(chunk: 'old' | 'next', sizeBytes: number): void {
    if (this.#format === 'adler32') this.#adler = this.#kernels.adler(this.#adler, chunk, sizeBytes);
    else this.#kernels.hashChunk('tensor', chunk, sizeBytes);
  }

  /** Lower-case hexadecimal digits: 32 for xxh3-128, 8 for adler32. */
  digest(): string {
    if (this.#format === 'adler32') return this.#adler.toString(16).padStart(8, '0');
    return this.#kernels.digest('tensor').toString('hex');
  }

  /** Throws `checksum-mismatch` when the bytes were not those that the publisher had. */
  expect(checksum: string, name: string): void {
    const found = this.digest();
    if (found !== checksum.toLowerCase())
      throw damagedTensor(name, `its new bytes have ${this.#format} ${found}, published was ${checksum}`);
  }
}

export function damagedTensor(name: string, what: string, cause?: unknown): HoneError {
  return new HoneError('checksum-mismatch', `Tensor ${name} cannot be made: ${what}.`, {
    cure: 'Fetch the version again; when it stays so, start from the newest full anchor.',
    cause,
  });
}

/** Reads a place once; with `to`, writes it there. Returns the checksum. */
export function hashPlace(
  kernels: DeltaKernels,
  job: { readonly from: BytePlace; readonly to?: BytePlace; readonly format: ChecksumFormat },
  checkAbort: AbortCheck,
): TensorHash {
  const sizeBytes = placeSizeBytes(job.from);
  if (job.to !== undefined && placeSizeBytes(job.to) !== sizeBytes)
    throw sizesDiffer('The copy', sizeBytes, placeSizeBytes(job.to));
  using from = new OpenPlace(job.from, 'read');
  using to = job.to === undefined ? undefined : new OpenPlace(job.to, 'write');
  const hash = new TensorHash(kernels, job.format);
  for (let offset = 0; offset < sizeBytes; offset += CHUNK_BYTES) {
    checkAbort();
    const count = Math.min(CHUNK_BYTES, sizeBytes - offset);
    const chunk = kernels.old.subarray(0, count);
    from.read(offset, chunk);
    hash.add('old', count);
    to?.write(offset, chunk);
  }
  return hash;
}

export function sizesDiffer(what: string, expectedBytes: number, foundBytes: number): HoneError {
  return new HoneError('delta-base-mismatch', `${what} has ${foundBytes} bytes, expected were ${expectedBytes}.`, {
    cure: 'Shapes never change within a run; start from a full anchor, or start a new run for another model.',
  });
}
